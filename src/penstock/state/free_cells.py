"""Which cells are free: the lowest are used first, so that the end of the arrays can be given back.

A flag per cell, and how many are free in each page of them: looking for the lowest or highest skips whole pages.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.keyhash import I64, Flags
from penstock.state.flat import FIRST_ROWS
from penstock.state.stretch import Stretch

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS


class FreeCells:
    def __init__(self) -> None:
        self._flags = Stretch(np.bool_, FIRST_ROWS)
        self._pages: I64 = np.zeros(1, np.int64)
        """How many are free, by page."""
        self.count = 0

    @property
    def nbytes(self) -> int:
        return self._flags.nbytes + self._pages.nbytes

    def grow(self, count: int, capacity: int) -> None:
        self._flags.grow(count, capacity)
        missing = (capacity >> PAGE_BITS) + 1 - len(self._pages)
        if missing > 0:
            self._pages = np.append(self._pages, np.zeros(missing, np.int64))

    def shrink(self, capacity: int) -> None:
        self._flags.shrink(capacity)
        self._pages = self._pages[: (capacity >> PAGE_BITS) + 1].copy()

    def add(self, cells: I64) -> None:
        """Distinct cells that were in use."""
        self._flags.array[cells] = True
        self._count_in(cells, 1)

    def take(self, cells: I64) -> None:
        """Distinct cells that were free."""
        self._flags.array[cells] = False
        self._count_in(cells, -1)

    def lowest(self, most: int) -> I64:
        """Up to so many, ascending."""
        if not self.count or not most:
            return _NONE
        pages = np.flatnonzero(self._pages)
        enough = int(np.searchsorted(np.cumsum(self._pages.take(pages)), most)) + 1
        parts = [self._in_page(page) for page in pages[:enough].tolist()]
        return np.concatenate(parts)[:most]

    def highest_used(self, most: int, end: int) -> I64:
        """Up to so many of those below `end` that are not free, descending."""
        if end <= 0:
            return _NONE
        used = np.full((end - 1 >> PAGE_BITS) + 1, PAGE)
        used[-1] = end - ((len(used) - 1) << PAGE_BITS)
        used -= self._pages[: len(used)]
        found = np.cumsum(used[::-1])
        pages = int(np.searchsorted(found, min(most, int(found[-1])))) + 1
        first = (len(used) - pages) << PAGE_BITS
        cells = np.flatnonzero(~self._flags.array[first:end]) + first
        return cells[::-1][:most]

    def cut(self, end: int, before: int) -> None:
        """Cells from `end` up to `before`, all of them free, are none any more."""
        self.count -= before - end
        self._flags.array[end:before] = False
        page = end >> PAGE_BITS
        self._pages[page:] = 0
        self._pages[page] = np.count_nonzero(self._flags.array[page << PAGE_BITS : end])

    def _in_page(self, page: int) -> I64:
        first = page << PAGE_BITS
        flags: Flags = self._flags.array[first : first + PAGE]
        return np.flatnonzero(flags) + first

    def _count_in(self, cells: I64, sign: int) -> None:
        self._pages += sign * np.bincount(cells >> PAGE_BITS, minlength=len(self._pages))
        self.count += sign * len(cells)


_NONE: I64 = np.empty(0, np.int64)
