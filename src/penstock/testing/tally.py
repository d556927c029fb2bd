"""Counts calls over all copies of a thing: in this process and, once it was pickled, in all processes of the machine.

A script that says "the second commit fails" must fail one commit, not the second one of every process. In one process a
number does; over processes the count is the number of files in a folder, each made exclusively.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.testing.outside import Outside


class Tally(Outside):
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._folder = ""

    def next(self, what: str) -> int:
        """The number of this call, from 1."""
        if self._folder:
            return self._next_file(what)
        self._counts[what] += 1
        return self._counts[what]

    def _next_file(self, what: str) -> int:
        number = 1
        while True:
            try:
                (Path(self._folder) / f"{what}-{number}").touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return number

    def in_new_world(self) -> dict[str, Any]:
        """Another world counts in memory, and from the beginning."""
        return {"_counts": Counter(), "_folder": ""}

    def __reduce__(self) -> tuple[Any, ...]:
        """Whoever unpickles it counts on with the others."""
        if not self._folder:
            self._move_to_files()
        return _in_folder, (self._folder,)

    def _move_to_files(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="penstock-tally-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        for what, count in self._counts.items():
            for _ in range(count):
                self._next_file(what)


def _in_folder(folder: str) -> Tally:
    made = Tally()
    made._folder = folder
    return made
