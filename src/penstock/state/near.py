"""Cells of keys that lie close together, by position: no hash, no probing.

Numbers that people use as keys often lie close together: ids that were counted up, days, codes. For those an array over
the whole range from the smallest to the largest key is small, and a lookup is a subtraction and one read. It only
remembers: `CellTable` knows every key, and where the range is too wide this one knows none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

WIDTH_FREE = 1 << 20
"""A range so wide is fine however few its keys are: memory that nobody touches is not taken."""
WIDTH_PER_KEY = 8
WIDTH_MAX = 1 << 22
"""Wider arrays leave the processor's caches, and moving one to a larger place would be felt as a pause."""
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
        self._too_wide = False

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

    def remember(self, keys: I64, cells: I64, count: int) -> None:
        """`count` is how many keys there are in all."""
        if self._too_wide or not len(keys):
            return
        self._low, self._high = min(self._low, int(keys.min())), max(self._high, int(keys.max()))
        width = self._high - self._low + 1
        if width > max(WIDTH_FREE, min(WIDTH_PER_KEY * count, WIDTH_MAX)):
            self._too_wide = True
            self._cells = _NOBODY
            return
        self._cover(width)
        self._cells[keys - self._first] = cells + 1

    def forget(self, keys: I64) -> None:
        """Keys that are gone."""
        if not self._too_wide:
            places = (keys - self._first).view(np.uint64)
            self._cells[places[places < len(self._cells) - 1].view(np.int64)] = 0

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes

    def thin_out(self, count: int) -> None:
        """So many keys are left: where they are few for such a range nothing is remembered, and it begins anew."""
        if not self._too_wide and len(self._cells) > max(WIDTH_FREE, WIDTH_LEFT * count):
            self._low, self._high, self._cells = _MOST, _LEAST, _NOBODY

    def _cover(self, width: int) -> None:
        """Makes the array reach from the lowest to the highest key, and as far again on the side where it grew."""
        first, end = self._first, self._first + len(self._cells) - 1
        if first == end:
            first = end = self._low
        elif first <= self._low and self._high < end:
            return
        new_first = max(_LEAST, self._low - width) if self._low < first else first
        new_end = min(_MOST + 1, self._high + width) if self._high >= end else end
        cells = np.zeros(new_end - new_first + 1, np.int32)
        start = self._first - new_first
        if len(self._cells) > 1:
            cells[start : start + len(self._cells) - 1] = self._cells[:-1]
        self._first, self._cells = new_first, cells
