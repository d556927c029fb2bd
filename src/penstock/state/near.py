"""Cells of keys that lie close together, by position: no hash, no probing.

Numbers that people use as keys often lie close together: ids that were counted up, days, codes. For those an array over
the whole range from the smallest to the largest key is small, and a lookup is a subtraction and one read. It only
remembers: `CellTable` knows every key, or will (`index.py`), and where the range is too wide this one knows none.
"""

from __future__ import annotations

import mmap
from functools import cache

import numpy as np
import numpy.typing as npt

from penstock.state.stretch import mapping, use_large_pages, whole_pages

I64 = npt.NDArray[np.int64]

WIDTH_FREE = 1 << 22
"""A range so wide is fine however few its keys are: 16 MiB, and what nobody touches is not taken."""
WIDTH_COPIED = 1 << 18
"""A wider array is not made anew when it grows."""
WIDTH_PER_KEY = 8
WIDTH_MAX = 1 << 26
WIDTH_AGAIN = 4
"""A range that was too wide is not any more, when it has no more entries for each of its keys."""
WIDTH_LEFT = 64
"""When keys go, so many entries for each that is left are too many."""
_NOBODY = np.zeros(1, np.int32)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class NearCells:
    def __init__(self) -> None:
        self._first = 0
        """The key that the first entry stands for."""
        self._low, self._high = _MOST, _LEAST
        self._cells = _NOBODY
        """Cell + 1 by key, zero where there is none; the last entry is for all keys outside of the range."""
        self._memory: mmap.mmap | None = None
        """Of a wide array, until it is in large pages."""
        self._too_wide = False
        self._expected = 0

    def expect(self, count: int) -> None:
        """So many keys will come, or less."""
        self._expected = count

    def find(self, keys: I64) -> I64 | None:
        """The cell of every key that is remembered, else -1. None: no key is remembered here any more."""
        if self._too_wide:
            return None
        width = len(self._cells) - 1
        places = (keys - self._first).view(np.uint64)
        if len(keys) and int(places.max()) >= width:
            np.minimum(places, np.uint64(width), out=places)
        found = self._cells.take(places.view(np.int64)).astype(np.int64)
        found -= 1
        return found

    def fits(self, keys: I64, count: int) -> bool:
        """Whether these keys can be remembered, too. `count` is how many there are in all."""
        if self._too_wide or not len(keys):
            return not self._too_wide
        low, high = self._reach(keys)
        wide = min(WIDTH_PER_KEY * max(count, self._expected), WIDTH_MAX)
        return high - low < (wide if wide > WIDTH_FREE and _can_reserve() else WIDTH_FREE)

    def remember(self, keys: I64, cells: I64, count: int) -> None:
        """Where keys do not fit, from now on none is remembered."""
        if self._too_wide or not len(keys):
            return
        self._too_wide = not self.fits(keys, count)
        self._low, self._high = self._reach(keys)
        if self._too_wide:
            self._cells, self._memory = _NOBODY, None
            return
        self._cover(self._high - self._low + 1)
        self._cells[keys - self._first] = cells + 1

    def passed(self, keys: I64, count: int) -> None:
        """These are new, and none is remembered. Keys that come in any order lie far from each other at first: when
        there are enough of them for such a range, those that are looked up from then on are remembered."""
        if self._too_wide and len(keys):
            self._low, self._high = self._reach(keys)
            width = self._high - self._low
            fits = width < min(WIDTH_AGAIN * count, WIDTH_MAX)
            self._too_wide = not (fits and _can_reserve())

    def _reach(self, keys: I64) -> tuple[int, int]:
        return min(self._low, int(keys.min())), max(self._high, int(keys.max()))

    def forget(self, keys: I64) -> None:
        """Keys that are gone."""
        if not self._too_wide:
            places = (keys - self._first).view(np.uint64)
            self._cells[places[places < len(self._cells) - 1].view(np.int64)] = 0

    @property
    def nbytes(self) -> int:
        return min(len(self._cells), max(0, self._high - self._low)) * self._cells.itemsize

    def thin_out(self, count: int) -> None:
        """So many keys are left: where they are few for such a range nothing is remembered, and it begins anew."""
        if not self._too_wide and self._high - self._low > max(WIDTH_FREE, WIDTH_LEFT * count):
            self._low, self._high, self._cells = _MOST, _LEAST, _NOBODY
            self._memory = None

    def _cover(self, width: int) -> None:
        """Makes the array reach from the lowest to the highest key, and as far again on the side where it grew. A wide
        one reaches as far as it ever may, on both sides: it is not moved again, which would be felt as a pause, and
        the kernel gives it only those pages that keys are in."""
        first, end = self._first, self._first + len(self._cells) - 1
        if first == end:
            first = end = self._low
        elif first <= self._low and self._high < end:
            self._use_large_pages(width)
            return
        new_first, new_end = max(_LEAST, self._low - WIDTH_MAX), self._high + WIDTH_MAX
        memory = _reserved(new_end - new_first + 1) if width > WIDTH_COPIED else None
        self._memory = memory
        self._use_large_pages(width)
        cells = np.frombuffer(memory, np.int32) if memory is not None else None
        if cells is None:
            new_first = max(_LEAST, self._low - width) if self._low < first else first
            new_end = min(_MOST + 1, self._high + width) if self._high >= end else end
            cells = np.zeros(new_end - new_first + 1, np.int32)
        start = self._first - new_first
        if len(self._cells) > 1:
            cells[start : start + len(self._cells) - 1] = self._cells[:-1]
        self._first, self._cells = new_first, cells

    def _use_large_pages(self, width: int) -> None:
        """So wide a range has as many keys that they pay."""
        if self._memory is not None and width > WIDTH_FREE:
            use_large_pages(self._memory)
            self._memory = None


@cache
def _can_reserve() -> bool:
    return _reserved(3 * WIDTH_MAX) is not None


def _reserved(entries: int) -> mmap.mmap | None:
    """None: the kernel promises no more memory than it has, and that would be too much."""
    try:
        return mapping(whole_pages(entries * _NOBODY.itemsize), large=False)
    except OSError:
        return None
