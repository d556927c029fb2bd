"""One column of state, by cell: numbers in a flat array, everything else as numbers of values in a pile.

`raw` are the arrays that change in place. A frozen view holds them, and a table saves rows of them before they
change; `reader` makes Arrow of such rows, on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, Flags, is_text
from penstock.state.byte_pile import BytePile
from penstock.state.flat import (
    FIRST_ROWS,
    PAIR,
    Values,
    dtype_of,
    to_arrow,
    valid_of,
    values_of,
)
from penstock.state.piles import NOTHING, ChunkPile, Pile
from penstock.state.stretch import Stretch

TIDY_CELLS = 8_192
"""So many cells are looked at after values were let go, and a few more for each of them: garbage then grows by no more
than a few per cent until all cells had their turn."""
TIDY_PER_ROW = 16
TIDY_BYTES = 1 << 18
"""So many bytes are moved, and a quarter more than were let go."""
RESET_SHARE = 4
"""What goes takes no memory: the less is in a block when it is emptied, the better."""
LOOK_CELLS = 1 << 16
"""At a time."""

Reader: TypeAlias = Callable[[Sequence[Values]], pa.Array]


class Column(Protocol):
    kind: pa.DataType

    @property
    def pile_bytes(self) -> int:
        """What the values take that lie beside the arrays, without garbage."""
        ...

    @property
    def raw(self) -> tuple[Values, ...]: ...

    @property
    def nbytes(self) -> int:
        """What it takes, whether it is used or not."""
        ...

    def reader(self) -> Reader: ...

    def grow(self, count: int, capacity: int) -> None:
        """Longer arrays; the old ones stay as they are for frozen views that hold them."""
        ...

    def shrink(self, capacity: int) -> None:
        """Shorter arrays. No frozen view may hold the old ones."""
        ...

    def move(self, cells: I64, to: I64) -> None:
        """The values of these cells, to cells that are as new; then these are."""
        ...

    def tidy(self) -> None:
        """Gives a little of what is not needed back."""
        ...

    def put(self, cells: I64, values: pa.Array) -> None:
        """Where a cell comes several times, its last value counts."""
        ...

    def get(self, cells: I64) -> pa.Array: ...

    def equal(self, cells: I64, values: pa.Array) -> Flags:
        """Row by row: is this the value of that cell? Null equals null."""
        ...

    def reset(self, cells: I64) -> None:
        """As new cells are: zero, and null where that can be."""
        ...


class FlatColumn:
    """`valid` is None where no value can be null."""

    def __init__(self, kind: pa.DataType, *, nullable: bool) -> None:
        self.kind = kind
        dtype = dtype_of(kind)
        assert dtype is not None
        self._values = Stretch(dtype, FIRST_ROWS)
        self._valid = Stretch(np.bool_, FIRST_ROWS) if nullable else None

    @property
    def pile_bytes(self) -> int:
        return 0

    @property
    def values(self) -> Values:
        return self._values.array

    @property
    def valid(self) -> Flags | None:
        return None if self._valid is None else self._valid.array

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + (0 if self._valid is None else self._valid.nbytes)

    @property
    def raw(self) -> tuple[Values, ...]:
        values, valid = self.values, self.valid
        return (values,) if valid is None else (values, valid)

    def reader(self) -> Reader:
        kind = self.kind
        return lambda raw: to_arrow(raw[0], kind, raw[1] if len(raw) > 1 else None)

    def grow(self, count: int, capacity: int) -> None:
        self._values.grow(count, capacity)
        if self._valid is not None:
            self._valid.grow(count, capacity)

    def shrink(self, capacity: int) -> None:
        self._values.shrink(capacity)
        if self._valid is not None:
            self._valid.shrink(capacity)

    def move(self, cells: I64, to: I64) -> None:
        for array in self.raw:
            array[to] = array.take(cells)
            array[cells] = 0

    def tidy(self) -> None:
        """There is never anything to be given back."""

    def put(self, cells: I64, values: pa.Array) -> None:
        self.values[cells] = values_of(values)
        if self.valid is not None:
            valid = valid_of(values)
            self.valid[cells] = True if valid is None else valid

    def get(self, cells: I64) -> pa.Array:
        valid = None if self.valid is None else self.valid.take(cells)
        return to_arrow(self.values.take(cells), self.kind, valid)

    def equal(self, cells: I64, values: pa.Array) -> Flags:
        mine, theirs = self.values.take(cells), values_of(values)
        if mine.dtype == PAIR:
            same: Flags = (_words(mine) == _words(theirs)).all(axis=1)
        else:
            same = mine == theirs
        valid = valid_of(values)
        if self.valid is None and valid is None:
            return same
        there = np.ones(len(cells), np.bool_) if self.valid is None else self.valid.take(cells)
        given = np.ones(len(cells), np.bool_) if valid is None else valid
        return (there & given & same) | ~(there | given)

    def reset(self, cells: I64) -> None:
        self.values[cells] = 0
        if self.valid is not None:
            self.valid[cells] = False


class PiledColumn:
    """`may_move` is asked before values of these cells get other numbers, and notes the old ones for frozen views that
    need them; False: not now."""

    def __init__(self, kind: pa.DataType, may_move: Callable[[I64], bool]) -> None:
        self.kind = kind
        self._may_move = may_move
        self._numbers = Stretch(np.int64, FIRST_ROWS, NOTHING)
        self._pile: Pile = BytePile(kind) if is_text(kind) else ChunkPile(kind)
        self._hand = 0
        """While blocks are leaving: nothing before this cell points into them."""

    @property
    def pile_bytes(self) -> int:
        return self._pile.live_bytes

    @property
    def raw(self) -> tuple[Values, ...]:
        return (self._numbers.array,)

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes + self._pile.nbytes

    def reader(self) -> Reader:
        take = self._pile.view()
        return lambda raw: take(raw[0])

    def grow(self, count: int, capacity: int) -> None:
        self._numbers.grow(count, capacity)

    def shrink(self, capacity: int) -> None:
        self._numbers.shrink(capacity)

    def move(self, cells: I64, to: I64) -> None:
        """The values stay where they are. Some may come from cells that were not looked at yet."""
        numbers = self._numbers.array
        numbers[to] = numbers.take(cells)
        numbers[cells] = NOTHING
        self._hand = min(self._hand, int(to.min()))

    def put(self, cells: I64, values: pa.Array) -> None:
        before = self._numbers.array.take(cells)
        self._numbers.array[cells] = self._pile.append(values)
        self._tidy(len(cells), self._pile.let_go(before))

    def get(self, cells: I64) -> pa.Array:
        return self._pile.view()(self._numbers.array.take(cells))

    def equal(self, cells: I64, values: pa.Array) -> Flags:
        mine = self.get(cells)
        same = pc.fill_null(pc.equal(mine, values), False)
        if mine.null_count or values.null_count:
            same = pc.or_(same, pc.and_(mine.is_null(), values.is_null()))
        flags: Flags = same.to_numpy(zero_copy_only=False)
        return flags

    def reset(self, cells: I64) -> None:
        before = self._numbers.array.take(cells)
        self._numbers.array[cells] = NOTHING
        self._tidy(len(cells) // RESET_SHARE, self._pile.let_go(before) // RESET_SHARE)

    # ---- garbage

    def tidy(self) -> None:
        self._tidy(0, 0)

    def _tidy(self, rows: int, size: int) -> None:
        """Empties blocks that are mostly garbage, a little at a time: what so many rows with so many bytes that were
        let go allow. In the long run that is enough."""
        self._pile.trim()
        if not self._pile.condemn():
            return
        numbers = self._numbers.array
        end = min(self._hand + TIDY_CELLS + TIDY_PER_ROW * rows, len(numbers))
        room = TIDY_BYTES + size + size // 4
        while self._hand < end and room > 0:
            part = slice(self._hand, min(self._hand + LOOK_CELLS, end))
            cells = np.flatnonzero(self._pile.leaving(numbers[part])) + part.start
            moved = self._some(cells, room)
            if len(moved) and not self._may_move(moved):
                return
            room -= self._move_out(moved)
            self._hand = part.stop if len(moved) == len(cells) else int(moved[-1]) + 1
        if self._hand >= len(numbers):
            self._pile.left()
            self._hand = 0

    def _some(self, cells: I64, room: int) -> I64:
        """As many of these as there is room for, at least one."""
        if not len(cells):
            return cells
        sizes = np.cumsum(self._pile.sizes_of(self._numbers.array.take(cells)))
        return cells[: max(1, int(np.searchsorted(sizes, room, "right")))]

    def _move_out(self, cells: I64) -> int:
        if not len(cells):
            return 0
        numbers = self._numbers.array.take(cells)
        self._numbers.array[cells] = self._pile.append(self._pile.view()(numbers))
        return self._pile.let_go(numbers)


def make_column(field: pa.Field, may_move: Callable[[I64], bool]) -> FlatColumn | PiledColumn:
    if dtype_of(field.type) is None:
        return PiledColumn(field.type, may_move)
    return FlatColumn(field.type, nullable=field.nullable)


def _words(pairs: Values) -> Any:
    return np.ascontiguousarray(pairs).view(np.int64).reshape(-1, 2)
