"""Readers of results while a job runs: they look again and again, and keep what they saw."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Look: TypeAlias = list[tuple[Any, ...]]


class Looks(threading.Thread):
    """Each reader looks when the one before it is done, so that nothing that one has seen may be unseen by the next."""

    def __init__(self, readers: dict[str, Callable[[], Look]]) -> None:
        super().__init__(name="looks")
        self.seen: dict[str, list[Look]] = {name: [] for name in readers}
        self.problem: Exception | None = None
        self._readers = readers
        self._end = threading.Event()

    @property
    def least(self) -> int:
        """How often every reader has looked."""
        return min(map(len, self.seen.values()))

    def run(self) -> None:
        try:
            while not self._end.wait(0.05):
                for name, read in self._readers.items():
                    self.seen[name].append(read())
        except Exception as error:
            self.problem = error

    def finish(self) -> None:
        self._end.set()
        self.join()
        if self.problem is not None:
            raise self.problem


def assert_only_grows(looks: Iterable[Look]) -> None:
    """I1, I9: each row once, and none is gone that was there."""
    seen: set[tuple[Any, ...]] = set()
    for look in looks:
        assert len(look) == len(set(look)), "a reader saw a row twice"
        assert seen <= set(look), "rows that were visible are not any more"
        seen = set(look)


def assert_tables(looks: Iterable[Look], updates: Look) -> None:
    """E7, I1: one row for each key, one that was committed, and never one from before what was seen already. A row is a
    key, the number of its update, and more."""
    committed = set(updates)
    newest: dict[Any, int] = {}
    for look in looks:
        twice = [key for key, n in Counter(row[0] for row in look).items() if n > 1]
        assert not twice, f"a reader saw key {twice[0]} twice"
        assert set(look) <= committed, f"never committed: {sorted(set(look) - committed)[:3]}"
        numbers = {row[0]: row[1] for row in look}
        gone = [key for key, n in newest.items() if numbers.get(key, 0) < n]
        assert not gone, f"key {gone[0]} shows an older row than before"
        newest = numbers
