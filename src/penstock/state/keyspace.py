"""The keys of an operator: each has a cell, and every state of the operator keeps its rows by cell.

Looking a key up makes nothing. A key is there from the first row that any state has for it until the last one is
gone; then its cell can be used for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags, key_groups
from penstock.state.cells import Cells
from penstock.state.columns import Column, make_column
from penstock.state.flat import FIRST_ROWS, int64_array, rows_of
from penstock.state.index import NOBODY, Found, make_index
from penstock.state.stretch import Stretch

KeysOf: TypeAlias = Callable[[I64 | slice], list[pa.Array]]
"""The key columns of these cells, on any thread."""


INDEX_BYTES = 80
"""Of a key in the index, and in what else there is of every cell."""


class Placed(NamedTuple):
    """Where the rows of a batch are."""

    cells: I64
    new: I64 | slice
    """The cells that were made for this batch."""


class KeySpace:
    def __init__(self, schema: pa.Schema, max_parallelism: int) -> None:
        self.schema = schema
        self.cells = Cells()
        self._max_parallelism = max_parallelism
        self._columns: list[Column] = [
            make_column(field.with_nullable(True), self._may_move) for field in schema
        ]
        self._index = make_index(self._columns, self.cells.allot)
        self._stamps = Stretch(np.int32, FIRST_ROWS)
        self.cells.admit(self)

    def find(self, keys: Sequence[pa.Array]) -> I64:
        """The cell of every key, `NOBODY` where there is none."""
        return self._index.find(keys)

    def upsert(self, keys: Sequence[pa.Array]) -> Placed:
        """The cell of every key, made where there is none."""
        return self._placed(self.cells.end, self._index.upsert(keys))

    def append(self, keys: Sequence[pa.Array]) -> Placed:
        """The same for keys of a snapshot, of which each should be new, and quicker where they are."""
        first = self.cells.end
        return self._placed(first, self._index.append(keys) or self._index.upsert(keys))

    def _placed(self, first: int, found: Found) -> Placed:
        """`first`: where cells ended before."""
        count = len(found.new)
        if not count:
            return Placed(found.cells, _NO_CELLS)
        self.cells.groups[found.new] = key_groups(found.new_h1, self._max_parallelism)
        end = self.cells.end
        return Placed(found.cells, slice(first, end) if end - first == count else found.new)

    def expect(self, count: int) -> None:
        """So many keys will come, or less: what grows in steps otherwise is made large enough at once."""
        self._index.expect(count)

    def removable(self, cells: I64) -> I64:
        """Those of these cells whose keys can go."""
        return self._index.removable(cells)

    @property
    def row_bytes(self) -> int:
        """About what a key takes, besides what lies in piles."""
        raw = sum(array.dtype.itemsize for column in self._columns for array in column.raw)
        return raw + INDEX_BYTES

    @property
    def pile_bytes(self) -> int:
        return sum(column.pile_bytes for column in self._columns)

    def remove(self, cells: I64) -> None:
        """Distinct cells, in which no state has a value any more."""
        if len(cells):
            self.cells.give_back(self._index.remove(cells))

    def keys(self) -> KeysOf:
        """Of the cells that are in use now, noted in constant time. Holds as long as a frozen view is being copied."""
        parts = [(column.raw, column.reader()) for column in self._columns]

        def keys_of(cells: I64 | slice) -> list[pa.Array]:
            return [read([rows_of(array, cells) for array in raw]) for raw, read in parts]

        return keys_of

    # ---- rows of a batch

    def last_rows(self, cells: I64) -> I64:
        """The rows that are the last of their cell in this batch, ascending."""
        rows = np.arange(len(cells), dtype=np.int32)
        stamp = self._stamps.array
        stamp[cells] = rows
        return np.flatnonzero(stamp.take(cells) == rows)

    def first_rows(self, cells: I64, of: I64) -> I64:
        """For each of these cells, the first row of the batch that has it."""
        rows = np.arange(len(cells) - 1, -1, -1, dtype=np.int32)
        stamp = self._stamps.array
        stamp[cells[::-1]] = rows
        return stamp.take(of).astype(np.int64)

    def _may_move(self, cells: I64) -> bool:
        """A frozen view reads keys where they are until it has been copied."""
        return not self.cells.copying

    # ---- as a tenant of its own cells

    @property
    def copying(self) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._stamps.nbytes + sum(each.nbytes for each in self._columns)

    def grow(self, count: int, capacity: int) -> None:
        for column in self._columns:
            column.grow(count, capacity)
        self._index.grow(count, capacity)
        self._stamps.grow(count, capacity)

    def shrink(self, capacity: int) -> None:
        for column in self._columns:
            column.shrink(capacity)
        self._index.shrink(capacity)
        self._stamps.shrink(capacity)

    def reset(self, cells: I64) -> None:
        for column in self._columns:
            column.reset(cells)

    def movable(self, cells: I64, to: I64) -> Flags:
        return np.full(len(cells), self._index.movable)

    def move(self, cells: I64, to: I64) -> None:
        for column in self._columns:
            column.move(cells, to)
        self._index.move(cells, to)

    def tidy(self) -> None:
        for column in self._columns:
            column.tidy()
        self._index.tidy()

    # ---- as the key space of a child, whose keys begin with a cell that can move

    @property
    def can_rekey(self) -> bool:
        return self._index.movable

    def fits(self, cells: I64, owners: I64) -> Flags:
        """Whether the keys of these cells, with these as their first column, meet no others."""
        return self._index.fits([int64_array(owners), *self.keys()(cells)[1:]])

    def rekey(self, cells: I64, owners: I64) -> None:
        """Gives the keys of these cells another first column. They fit."""
        self._index.forget(cells)
        self._columns[0].put(cells, int64_array(owners))
        self._index.adopt(cells)


_NO_CELLS: I64 = np.empty(0, np.int64)

__all__ = ["NOBODY", "KeySpace", "KeysOf", "Placed"]
