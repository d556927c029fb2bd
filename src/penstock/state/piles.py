"""Values of any length: only ever appended, found by their number.

What points at a value is its number, so a value that changes is appended anew and its old place is garbage. Where there
is much of it, blocks are emptied (`blocks.py`). Because nothing in a block ever changes, a frozen view of a pile is the
blocks that there are now; what was moved out of them since is in the undo log, with the number that it had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.state.blocks import Blocks
from penstock.state.flat import grown, valid_of

NOTHING = -1
"""The number of no value: null."""
CHUNK_BYTES_MAX = 16 << 20

Take: TypeAlias = Callable[[I64], pa.Array]
"""The values with these numbers; null where a number is `NOTHING`."""


class Pile(Protocol):
    @property
    def nbytes(self) -> int: ...

    @property
    def live_bytes(self) -> int:
        """About how many of them are pointed at."""
        ...

    def append(self, values: pa.Array) -> I64:
        """Their numbers."""
        ...

    def let_go(self, numbers: I64) -> int:
        """Nothing points at these any more. About how many bytes they took."""
        ...

    def condemn(self) -> bool:
        """Whether there are blocks to be emptied. Their choice stands until `left`."""
        ...

    def leaving(self, numbers: I64) -> Flags:
        """Which of these are in them."""
        ...

    def left(self) -> None:
        """Nothing points into them any more."""
        ...

    def trim(self) -> None:
        """Gives a little back of what is not needed."""
        ...

    def sizes_of(self, numbers: I64) -> I64:
        """About how many bytes each takes. None is `NOTHING`."""
        ...

    def view(self) -> Take:
        """Of the values that are in it now, noted without looking at them, for any thread."""
        ...


class ChunkPile:
    """Values of any other type than text, as the Arrow arrays that they came in. Neighbours of about the same size are
    put together while they are small, so there are few, and each value is copied a few times at most."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._blocks = Blocks()
        self._order: tuple[int, ...] = ()
        """The blocks by the numbers of their values."""
        self._chunks: dict[int, pa.Array] = {}
        self._firsts: I64 = np.zeros(8, np.int64)
        """The number of the first value of each block."""
        self._count = 0

    @property
    def nbytes(self) -> int:
        return self._blocks.used_bytes

    @property
    def live_bytes(self) -> int:
        return self._blocks.live_bytes

    def append(self, values: pa.Array) -> I64:
        first, self._count = self._count, self._count + len(values)
        numbers = np.arange(first, self._count)
        valid = valid_of(values)
        if valid is not None:
            numbers[~valid] = NOTHING
        self._add(values, first)
        return numbers

    def _add(self, values: pa.Array, first: int) -> None:
        if not len(values):
            return
        chunks = dict(self._chunks)
        order, used = list(self._order), values.nbytes
        garbage = used * values.null_count // len(values)
        while order and self._joins(order[-1], values, first):
            last = order.pop()
            values = pa.concat_arrays([chunks.pop(last), values])
            first = int(self._firsts[last])
            before, alive = self._blocks.forget(last)
            used, garbage = used + before, garbage + before - alive
        block = self._blocks.make()
        self._blocks.put(block, used, used - garbage)
        self._firsts = grown(self._firsts, len(self._firsts), block + 1)
        self._firsts[block] = first
        chunks[block] = values
        self._chunks, self._order = chunks, (*order, block)

    def _joins(self, block: int, values: pa.Array, first: int) -> bool:
        before = self._chunks[block]
        return (
            len(before) < 2 * len(values)
            and not self._blocks.leaving[block]
            and int(self._firsts[block]) + len(before) == first
            and before.nbytes + values.nbytes <= CHUNK_BYTES_MAX
        )

    # ---- garbage

    def let_go(self, numbers: I64) -> int:
        numbers = numbers[numbers >= 0]
        if not len(numbers):
            return 0
        sizes = self.sizes_of(numbers)
        self._blocks.let_go(self._block_of(numbers), sizes)
        return int(sizes.sum())

    def condemn(self) -> bool:
        if not self._blocks.any_leaving and self._order:
            self._blocks.condemn(self._order[-1])
        return self._blocks.any_leaving

    def leaving(self, numbers: I64) -> Flags:
        flags: Flags = self._blocks.leaving.take(self._block_of(numbers))
        return flags & (numbers >= 0)

    def left(self) -> None:
        going = self._blocks.gone()
        self._order = tuple(block for block in self._order if block not in going)
        self._chunks = {n: chunk for n, chunk in self._chunks.items() if n not in going}

    def trim(self) -> None:
        """Chunks go at once."""

    def sizes_of(self, numbers: I64) -> I64:
        mean = np.zeros(len(self._firsts), np.int64)
        for block, chunk in self._chunks.items():
            mean[block] = chunk.nbytes // len(chunk)
        sizes: I64 = mean.take(self._block_of(numbers))
        return sizes

    def _block_of(self, numbers: I64) -> I64:
        """What is in no block is said to be in the first one."""
        order = np.array(self._order or (0,), np.int64)
        at = np.searchsorted(self._firsts.take(order), numbers, side="right") - 1
        return order.take(np.maximum(at, 0))

    # ---- reading

    def view(self) -> Take:
        chunks = [(int(self._firsts[block]), self._chunks[block]) for block in self._order]
        kind = self._kind
        if not chunks:
            return lambda numbers: pa.nulls(len(numbers), kind)
        return lambda numbers: _take_of_many(chunks, numbers)


def _take_of_many(chunks: list[tuple[int, pa.Array]], numbers: I64) -> pa.Array:
    """By chunk, then put into the order that was asked for."""
    firsts = np.array([first for first, _ in chunks])
    which = np.searchsorted(firsts, numbers, side="right") - 1
    which[numbers < 0] = -1
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which.take(order), np.arange(len(chunks) + 1))
    parts = [pa.nulls(int(bounds[0]), chunks[0][1].type)]
    for i, (first, chunk) in enumerate(chunks):
        rows = order[bounds[i] : bounds[i + 1]]
        if len(rows):
            parts.append(chunk.take(pa.array(numbers.take(rows) - first)))
    places = np.empty(len(numbers), np.int64)
    places[order] = np.arange(len(numbers))
    return pa.concat_arrays(parts).take(pa.array(places))
