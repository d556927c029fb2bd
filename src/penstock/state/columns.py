"""One column of state, by cell: numbers in a flat array, everything else as numbers of values in a pile.

`raw` are the arrays that change in place. A frozen view holds them, and a table saves rows of them before they
change; `reader` makes Arrow of such rows, on any thread. Where a column has begun anew, `origin` is another object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, Flags
from penstock.state.flat import (
    FIRST_ROWS,
    PAIR,
    Values,
    dtype_of,
    grown,
    to_arrow,
    valid_of,
    values_of,
)
from penstock.state.piles import NOTHING, make_pile

GARBAGE_BYTES_MIN = 1 << 20
"""So much may lie about before it is worth looking for more."""
COMPACT_ROWS = 65_536

Reader: TypeAlias = Callable[[Sequence[Values]], pa.Array]


class Column(Protocol):
    kind: pa.DataType

    @property
    def pile_bytes(self) -> int:
        """What lies beside the arrays."""
        ...

    @property
    def origin(self) -> object: ...

    @property
    def raw(self) -> tuple[Values, ...]: ...

    def reader(self) -> Reader: ...

    def grow(self, count: int, capacity: int) -> None:
        """Longer arrays; the old ones stay as they are for frozen views that hold them."""
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
        self.values: Values = np.zeros(FIRST_ROWS, dtype_of(kind))
        self.valid: Flags | None = np.zeros(FIRST_ROWS, np.bool_) if nullable else None

    @property
    def pile_bytes(self) -> int:
        return 0

    @property
    def origin(self) -> object:
        return self

    @property
    def raw(self) -> tuple[Values, ...]:
        return (self.values,) if self.valid is None else (self.values, self.valid)

    def reader(self) -> Reader:
        kind = self.kind
        return lambda raw: to_arrow(raw[0], kind, raw[1] if len(raw) > 1 else None)

    def grow(self, count: int, capacity: int) -> None:
        self.values = grown(self.values, count, capacity)
        if self.valid is not None:
            self.valid = grown(self.valid, count, capacity)

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
    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._numbers: I64 = np.full(FIRST_ROWS, NOTHING, np.int64)
        self._pile = make_pile(kind)
        self._garbage_bytes = 0
        """What nothing points at any more."""

    @property
    def origin(self) -> object:
        return self._pile

    @property
    def pile_bytes(self) -> int:
        return self._pile.nbytes

    @property
    def raw(self) -> tuple[Values, ...]:
        return (self._numbers,)

    def reader(self) -> Reader:
        take = self._pile.view()
        return lambda raw: take(raw[0])

    def grow(self, count: int, capacity: int) -> None:
        self._numbers = grown(self._numbers, count, capacity, NOTHING)

    def put(self, cells: I64, values: pa.Array) -> None:
        self._let_go(cells)
        first = self._pile.append(values)
        numbers = np.arange(first, first + len(values))
        valid = valid_of(values)
        if valid is not None:
            numbers[~valid] = NOTHING
        self._numbers[cells] = numbers
        if self._garbage_bytes > max(GARBAGE_BYTES_MIN, self._pile.nbytes // 2):
            self._compact()

    def get(self, cells: I64) -> pa.Array:
        return self._pile.view()(self._numbers.take(cells))

    def equal(self, cells: I64, values: pa.Array) -> Flags:
        mine = self.get(cells)
        same = pc.fill_null(pc.equal(mine, values), False)
        if mine.null_count or values.null_count:
            same = pc.or_(same, pc.and_(mine.is_null(), values.is_null()))
        flags: Flags = same.to_numpy(zero_copy_only=False)
        return flags

    def reset(self, cells: I64) -> None:
        self._let_go(cells)
        self._numbers[cells] = NOTHING

    def _let_go(self, cells: I64) -> None:
        before = self._numbers.take(cells)
        before = before[before >= 0]
        if len(before):
            self._garbage_bytes += self._pile.bytes_of(before)

    def _compact(self) -> None:
        """A new pile of what is still pointed at. Frozen views keep the old one."""
        take, old = self._pile.view(), self._numbers
        pile, numbers = make_pile(self.kind), np.full(len(old), NOTHING, np.int64)
        there = np.flatnonzero(old >= 0)
        for start in range(0, len(there), COMPACT_ROWS):
            cells = there[start : start + COMPACT_ROWS]
            first = pile.append(take(old.take(cells)))
            numbers[cells] = np.arange(first, first + len(cells))
        self._pile, self._numbers = pile, numbers
        self._garbage_bytes = 0


def make_column(field: pa.Field) -> FlatColumn | PiledColumn:
    if dtype_of(field.type) is None:
        return PiledColumn(field.type)
    return FlatColumn(field.type, nullable=field.nullable)


def _words(pairs: Values) -> Any:
    return np.ascontiguousarray(pairs).view(np.int64).reshape(-1, 2)
