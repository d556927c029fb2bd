"""An array with a row for every cell, that grows and shrinks without being copied.

A short one is an ordinary array. A long one lies at the beginning of a mapping about twice its size, of which the
kernel gives only those pages that are used. To grow is to see more of the mapping, and frozen views that hold the
shorter array go on seeing the same rows: what changes in those is in their undo log, however long the array is by
then. A mapping that is full is moved by the kernel, page by page. It cannot be while a view holds an array over it;
then, and only then, the rows are copied. So that this is rare, room is made ahead.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]

MAPPED_BYTES_MIN = 1 << 20
"""Shorter arrays are copied when they grow."""
LARGE_PAGE = 1 << 21
_GIVES_BACK = sys.platform == "linux"
"""Where the kernel takes pages back on request, and has zeros there when they are used again."""


class Stretch:
    """`array` is another object whenever its length has changed."""

    def __init__(self, dtype: npt.DTypeLike, rows: int, fill: Any = 0) -> None:
        self._fill = fill
        self._memory: mmap.mmap | None = None
        self.array: Values = np.full(rows, fill, dtype)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def grow(self, count: int, rows: int) -> None:
        """At least so many rows; those from `count` on are as new."""
        before = len(self.array)
        if rows <= before:
            return
        size = rows * self.array.dtype.itemsize
        if size < MAPPED_BYTES_MIN:
            self._copy(np.zeros(rows, self.array.dtype), count)
        else:
            if self._memory is None or 4 * size > 3 * len(self._memory):
                self._make_room(count, size)
            assert self._memory is not None
            self.array = np.frombuffer(self._memory, self.array.dtype, rows)
        if self._fill:
            self.array[min(count, before) :] = self._fill

    def shrink(self, rows: int) -> None:
        """Only so many rows, and no memory for more. No frozen view may hold the array."""
        if rows >= len(self.array):
            return
        size = rows * self.array.dtype.itemsize
        if self._memory is None or size < MAPPED_BYTES_MIN or not _GIVES_BACK:
            self._memory, self.array = None, self.array[:rows].copy()
            return
        used = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.array[rows : used // self.array.dtype.itemsize] = 0
        if used < len(self._memory):
            self._memory.madvise(mmap.MADV_DONTNEED, used, len(self._memory) - used)
        self.array = np.frombuffer(self._memory, self.array.dtype, rows)

    def _make_room(self, count: int, size: int) -> None:
        """For so many bytes, and as many again."""
        size = whole_pages(2 * size)
        if self._memory is not None:
            dtype, rows = self.array.dtype, len(self.array)
            del self.array
            moved = resized(self._memory, size)
            self.array = np.frombuffer(self._memory, dtype, rows)
            if moved or 2 * len(self._memory) >= size:
                return
        memory = mapping(size)
        self._copy(np.frombuffer(memory, self.array.dtype), count)
        self._memory = memory

    def _copy(self, longer: Values, count: int) -> None:
        count = min(count, len(self.array))
        longer[:count] = self.array[:count]
        self.array = longer


def whole_pages(size: int) -> int:
    """At least so many bytes. A mapping of whole large pages begins with one, also where the kernel moves it: others
    would be cut up on the way."""
    page = LARGE_PAGE if size >= LARGE_PAGE else mmap.PAGESIZE
    return -(-size // page) * page


def mapping(size: int, *, large: bool = True) -> mmap.mmap:
    """Zeroed private memory. `large`: in large pages where the kernel gives them, for what is looked up lies anywhere;
    not where few of the pages may be used."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large:
        use_large_pages(memory)
    return memory


def use_large_pages(memory: mmap.mmap) -> None:
    """For pages that are not there yet."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


def resized(memory: mmap.mmap, size: int) -> bool:
    """Asks the kernel. It cannot while somebody holds an array over the memory, or where it is not Linux."""
    try:
        memory.resize(size)
    except (BufferError, ValueError, OSError, SystemError):
        return False
    return True
