"""One line on a terminal that says how far a long simulation is. Where nobody sits in front only one line is written,
when the search for a smaller schedule takes long: a test that has failed and does not end looks like one that hangs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

SILENT_S = 1.0
"""What takes less needs no line."""
EVERY_S = 0.25
CLEAR = "\r\x1b[2K"


class Progress:
    def __init__(
        self, total: int, stream: TextIO | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream
        self._now = now
        self._began = now()
        self._next = self._began + SILENT_S
        self._is_shown = False
        self._can_show = _is_terminal(stream)
        self._shrinks_since: float | None = None
        self._has_told = False

    def tried(self, count: int) -> None:
        """So many schedules are done, and none has broken a rule."""
        self._say(f"{count:,} of {self._total:,} schedules, no rule broken so far")

    def shrinks(self, seed: int, tries: int) -> None:
        self._say(f"seed {seed} breaks a rule; looking for a smaller schedule, try {tries}")
        if not self._can_show and not self._has_told:
            self._tell_once(seed)

    def end(self) -> None:
        """Leaves the terminal as it was."""
        if self._is_shown:
            self._write(CLEAR)
            self._is_shown = False

    def _tell_once(self, seed: int) -> None:
        now = self._now()
        if self._shrinks_since is None:
            self._shrinks_since = now
        if now >= self._shrinks_since + SILENT_S:
            self._has_told = True
            self._write(f"simulate: seed {seed} breaks a rule; looking for a smaller schedule\n")

    def _say(self, what: str) -> None:
        now = self._now()
        if not self._can_show or now < self._next:
            return
        self._next = now + EVERY_S
        self._is_shown = True
        self._write(f"{CLEAR}simulate: {what} ({now - self._began:.0f} s)")

    def _write(self, text: str) -> None:
        """A program may have no standard error, or have closed it."""
        if self._stream is not None and not self._stream.closed:
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def progress_of(total: int) -> Iterator[Progress]:
    """On the terminal that standard error is, if it is one; pytest shows it with -s only."""
    made = Progress(total, sys.stderr)
    try:
        yield made
    finally:
        made.end()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False
