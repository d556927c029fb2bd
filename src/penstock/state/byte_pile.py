"""Text and binary in blocks. The number of a value says where it lies: block, place in it, and length.

A value that is too long for that has a block of its own. Arrow copies values out by where each begins and ends: to
it, all memory from the lowest block on is one buffer, of which it reads only what it is told to.
"""

from __future__ import annotations

from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags, text_offsets
from penstock.state.blocks import Blocks
from penstock.state.flat import grown, int64_array, take_rows, valid_of, with_nulls
from penstock.state.piles import NOTHING, Take
from penstock.state.stretch import mapping

Bytes = npt.NDArray[np.uint8]

BLOCK_BITS = 22
BLOCK_BYTES = 1 << BLOCK_BITS
LENGTH_BITS = 21
LONG = (1 << LENGTH_BITS) - 1
"""In the place of a length: it is that of the block."""
ALONE_BYTES = LONG
"""Values that are as long have a block of their own."""
FIRST_BYTES = 256
SPARE_SHARE = 8
"""For so many blocks that are used one may be kept that is not."""
TRIM_BLOCKS = 2
_SHIFT = BLOCK_BITS + LENGTH_BITS
_PLACE = (1 << BLOCK_BITS) - 1
_SPACE_BYTES = 1 << 60
"""More than any address."""


class BytePile:
    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        self._large = pa.large_string() if text else pa.large_binary()
        self._blocks = Blocks()
        self._blocks.make()
        self._bytes: list[Bytes | None] = [None]
        """By block. The first is that of all empty values, which need none."""
        self._sizes: I64 = np.zeros(8, np.int64)
        self._at: I64 = np.zeros(8, np.int64)
        """Their addresses."""
        self._spare: list[Bytes] = []
        """Whole blocks that nobody reads, to be written anew: fresh memory is dear."""
        self._views: WeakSet[_Held] = WeakSet()
        self._open, self._used = self._new_block(FIRST_BYTES), 0

    @property
    def nbytes(self) -> int:
        return int(self._sizes.sum()) + BLOCK_BYTES * len(self._spare)

    @property
    def live_bytes(self) -> int:
        return self._blocks.live_bytes

    def append(self, values: pa.Array) -> I64:
        offsets = text_offsets(values)
        lengths = np.diff(offsets)
        valid = valid_of(values)
        numbers = np.empty(len(lengths), np.int64)
        if offsets[-1] > offsets[0]:
            data = np.frombuffer(values.buffers()[2], np.uint8)
            live = lengths if valid is None else np.where(valid, lengths, 0)
            self._write(data, offsets, live, numbers)
        numbers[lengths == 0] = 0
        if valid is not None:
            numbers[~valid] = NOTHING
        return numbers

    def _write(self, data: Bytes, offsets: I64, live: I64, numbers: I64) -> None:
        lengths = np.diff(offsets)
        long = np.flatnonzero(lengths >= ALONE_BYTES)
        first = 0
        for stop in [*long.tolist(), len(lengths)]:
            while first < stop:
                end = self._fits(offsets, first, stop)
                at = self._copied(data[offsets[first] : offsets[end]])
                places = at + offsets[first:end] - offsets[first]
                places <<= LENGTH_BITS
                places |= lengths[first:end]
                numbers[first:end] = places
                self._blocks.put(self._open, 0, int(live[first:end].sum()))
                first = end
            if stop < len(lengths):
                numbers[stop] = self._alone(data[offsets[stop] : offsets[stop + 1]])
                first = stop + 1

    def _fits(self, offsets: I64, first: int, stop: int) -> int:
        """The end of those from `first` on that fit into the open block, at least one of them. Makes room."""
        size = int(offsets[stop] - offsets[first])
        if self._used + size > self._room:
            self._widen(size)
        while True:
            room = self._room - self._used
            end = int(np.searchsorted(offsets[first : stop + 1], offsets[first] + room, "right"))
            if end > 1:
                return first + end - 1
            self._open, self._used = self._new_block(BLOCK_BYTES), 0

    @property
    def _room(self) -> int:
        return int(self._sizes[self._open])

    def _widen(self, size: int) -> None:
        """A small block becomes a larger one. Views keep the old one."""
        if self._room >= BLOCK_BYTES:
            return
        before = self._bytes[self._open]
        assert before is not None
        after = _memory(min(BLOCK_BYTES, max(2 * self._room, self._used + size)))
        after[: self._used] = before[: self._used]
        self._set(self._open, after)

    def _copied(self, data: Bytes) -> int:
        """Where it lies, block and place."""
        block, at = self._bytes[self._open], self._used
        assert block is not None
        block[at : at + len(data)] = data
        self._used += len(data)
        self._blocks.put(self._open, len(data), 0)
        return self._open << BLOCK_BITS | at

    def _alone(self, data: Bytes) -> int:
        number = self._new_block(len(data))
        block = self._bytes[number]
        assert block is not None
        block[:] = data
        self._blocks.put(number, len(data), len(data))
        return number << _SHIFT | LONG

    def _new_block(self, size: int) -> int:
        number = self._blocks.make()
        self._sizes = grown(self._sizes, len(self._sizes), number + 1)
        self._at = grown(self._at, len(self._at), number + 1)
        self._bytes += [None] * (number + 1 - len(self._bytes))
        spare = size == BLOCK_BYTES and self._spare
        self._set(number, self._spare.pop() if spare else _memory(size))
        return number

    def _set(self, number: int, block: Bytes | None) -> None:
        self._bytes[number] = block
        self._sizes[number] = 0 if block is None else len(block)
        self._at[number] = 0 if block is None else block.ctypes.data

    # ---- garbage

    def let_go(self, numbers: I64) -> int:
        numbers = numbers[numbers > 0]
        if not len(numbers):
            return 0
        blocks, sizes = numbers >> _SHIFT, _lengths(numbers, self._sizes)
        self._blocks.let_go(blocks, sizes)
        return int(sizes.sum())

    def condemn(self) -> bool:
        if not self._blocks.any_leaving:
            self._blocks.condemn(self._open)
        return self._blocks.any_leaving

    def leaving(self, numbers: I64) -> Flags:
        flags: Flags = self._blocks.leaving.take(numbers >> _SHIFT)
        return flags

    def left(self) -> None:
        for number in self._blocks.gone():
            block = self._bytes[number]
            if block is not None and len(block) == BLOCK_BYTES and not self._views:
                self._spare.append(block)
            self._set(number, None)

    def trim(self) -> None:
        """Too many blocks to spare are given back, a few at a time: that takes the kernel a while."""
        if self._spare:
            most = int(np.count_nonzero(self._sizes)) // SPARE_SHARE
            del self._spare[max(most, len(self._spare) - TRIM_BLOCKS) :]

    def sizes_of(self, numbers: I64) -> I64:
        return _lengths(numbers, self._sizes)

    # ---- reading

    def view(self) -> Take:
        sizes, large, kind = self._sizes.copy(), self._large, self._kind
        lowest = int(self._at[self._at > 0].min())
        starts = np.maximum(self._at - lowest, 0)
        held = _Held(tuple(self._bytes))
        self._views.add(held)
        memory = pa.foreign_buffer(lowest, _SPACE_BYTES, held)

        def take(numbers: I64) -> pa.Array:
            there = numbers >= 0
            absent = not there.all()
            known = np.maximum(numbers, 0) if absent else numbers
            begin = starts.take(known >> _SHIFT)
            begin += known >> LENGTH_BITS & _PLACE
            taken = _gathered(begin, _lengths(known, sizes), memory, large)
            return (with_nulls(taken, there) if absent else taken).cast(kind)

        return take


class _Held:
    """The blocks of a view, which must stay as they are while it lives."""

    def __init__(self, blocks: tuple[Bytes | None, ...]) -> None:
        self._blocks = blocks


def _lengths(numbers: I64, sizes: I64) -> I64:
    lengths = numbers & LONG
    long = np.flatnonzero(lengths == LONG)
    if len(long):
        lengths[long] = sizes.take(numbers.take(long) >> _SHIFT)
    return lengths


def _gathered(begin: I64, lengths: I64, memory: pa.Buffer, kind: pa.DataType) -> pa.Array:
    """Values that lie anywhere, one behind the other. They are every other one of an array in which those in
    between are whatever lies there; nobody looks at them. The last offset lets Arrow guess the size right."""
    count = len(begin)
    if not count:
        return pa.array([], kind)
    ends = np.empty(2 * count + 1, np.int64)
    ends[:-1:2] = begin
    np.add(begin, lengths, out=ends[1::2])
    ends[-1] = ends[0] + 2 * int(lengths.sum())
    whole = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(ends), memory])
    return take_rows(whole, int64_array(np.arange(0, 2 * count, 2)))


def _memory(size: int) -> Bytes:
    """Whole blocks are mappings of their own: the kernel gets them back, whatever lies around them."""
    if size < BLOCK_BYTES:
        return np.empty(size, np.uint8)
    return np.frombuffer(mapping(size), np.uint8)[:size]
