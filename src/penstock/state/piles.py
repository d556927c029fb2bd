"""Values of any length, one behind the other: only ever appended, found by their number.

What points at a value is its number, so a value that changes is appended anew and its old place is garbage, until the
column that owns the pile makes a new one of what is left. Because nothing in a pile ever changes, a frozen view of it
is the arrays as they are now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, is_text, text_offsets
from penstock.state.flat import FIRST_ROWS, grown, int64_array, take_rows

NOTHING = -1
"""The number of no value: null."""

Take: TypeAlias = Callable[[I64], pa.Array]
"""The values with these numbers; null where a number is `NOTHING`."""


class Pile(Protocol):
    @property
    def nbytes(self) -> int: ...

    def append(self, values: pa.Array) -> int:
        """The number of the first; the others follow."""
        ...

    def bytes_of(self, numbers: I64) -> int:
        """About how many these take. None of them is `NOTHING`."""
        ...

    def view(self) -> Take:
        """Of the values that are in it now, noted in constant time, for any thread."""
        ...


class BytePile:
    """Text and binary: their bytes, and where each begins."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        self._large = pa.large_string() if text else pa.large_binary()
        self._count = 0
        self._starts: I64 = np.zeros(FIRST_ROWS, np.int64)
        self._bytes: npt.NDArray[np.uint8] = np.zeros(FIRST_ROWS * 8, np.uint8)

    @property
    def nbytes(self) -> int:
        return int(self._starts[self._count]) + 8 * self._count

    def append(self, values: pa.Array) -> int:
        offsets = text_offsets(values)
        begin, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        first, end = self._count, self._count + len(values)
        used = int(self._starts[first])
        self._starts = grown(self._starts, first + 1, end + 1)
        self._starts[first + 1 : end + 1] = offsets[1:] - (begin - used)
        if size:
            self._bytes = grown(self._bytes, used, used + size)
            self._bytes[used : used + size] = np.frombuffer(
                values.buffers()[2], np.uint8, size, begin
            )
        self._count = end
        return first

    def bytes_of(self, numbers: I64) -> int:
        sizes = self._starts.take(numbers + 1) - self._starts.take(numbers)
        return int(sizes.sum()) + 8 * len(numbers)

    def view(self) -> Take:
        buffers = [None, pa.py_buffer(self._starts), pa.py_buffer(self._bytes)]
        whole = pa.Array.from_buffers(self._large, self._count, buffers)
        kind = self._kind
        return lambda numbers: _take(whole, numbers).cast(kind)


class ChunkPile:
    """Values of any other type, as the Arrow arrays that they came in. Neighbours of about the same size are put
    together, so there are few, and each value is copied a few times at most."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._chunks: tuple[pa.Array, ...] = ()
        self._count = 0
        self.nbytes = 0

    def append(self, values: pa.Array) -> int:
        first = self._count
        self._count += len(values)
        self.nbytes += values.nbytes
        chunks = [*self._chunks, values]
        while len(chunks) > 1 and len(chunks[-2]) < 2 * len(chunks[-1]):
            chunks[-2:] = [pa.concat_arrays(chunks[-2:])]
        self._chunks = tuple(chunks)
        return first

    def bytes_of(self, numbers: I64) -> int:
        return len(numbers) * self.nbytes // max(1, self._count)

    def view(self) -> Take:
        chunks, kind = self._chunks, self._kind
        if not chunks:
            return lambda numbers: pa.nulls(len(numbers), kind)
        if len(chunks) == 1:
            return lambda numbers: _take(chunks[0], numbers)
        return lambda numbers: _take_of_many(chunks, numbers)


def make_pile(kind: pa.DataType) -> Pile:
    return BytePile(kind) if is_text(kind) else ChunkPile(kind)


def _take(values: pa.Array, numbers: I64) -> pa.Array:
    if len(numbers) and int(numbers.min()) < 0:
        return values.take(pa.array(numbers, mask=numbers < 0))
    return take_rows(values, int64_array(numbers))


def _take_of_many(chunks: tuple[pa.Array, ...], numbers: I64) -> pa.Array:
    """By chunk, then put into the order that was asked for."""
    starts = np.cumsum([0, *(len(chunk) for chunk in chunks[:-1])])
    which = np.searchsorted(starts, numbers, side="right") - 1
    parts, places = [pa.nulls(1, chunks[0].type)], np.zeros(len(numbers), np.int64)
    end = 1
    for i, chunk in enumerate(chunks):
        rows = np.flatnonzero(which == i)
        if len(rows):
            parts.append(chunk.take(pa.array(numbers[rows] - starts[i])))
            places[rows] = np.arange(end, end + len(rows))
            end += len(rows)
    return pa.concat_arrays(parts).take(pa.array(places))
