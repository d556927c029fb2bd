"""Keyed state in memory: typed columns over the cells of a key space.

A freeze is the arrays as they are now and an empty undo log. Rows that existed then are saved to the log by `touch`
before they first change; see `frozen_table.py` for how the writer puts the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.state.cells import Cells
from penstock.state.columns import FlatColumn, PiledColumn, make_column
from penstock.state.flat import FIRST_ROWS, Values, to_arrow
from penstock.state.frozen_table import FrozenTable, Saved
from penstock.state.keyspace import KeysOf
from penstock.state.lifetime import TOUCHED, Lifetimes
from penstock.state.segments import GROUP_FIELD
from penstock.state.stretch import Stretch
from penstock.state.tracking import Lookup, Plan, Tracker

KEY_PREFIX = "key."
BELOW_PREFIX = "below."
"""Of a key below the operator's key: the position in a list, the key of a map."""
VALUE_PREFIX = "value."
STATE_KIND = b"penstock.state"
"""In the schema of stored rows, for readers that do not know the job: aggregate, value, list or map, or one of those
without a key."""
SPLIT_LIST, UNION_LIST = "split list", "union list"
"""States of subtasks, not of keys: in the place of key groups they have the number of the subtask."""


class Table:
    """One state. Read `columns[i].values` after cells were made, which may replace them, and call `touch` before rows
    change that were there. Where there is no row, columns are zero and null.

    `keys` notes where the keys of cells are, as `KeySpace.keys` does. With `lifetimes` rows end after a while."""

    def __init__(
        self,
        state: str,
        cells: Cells,
        keys: Callable[[], KeysOf],
        schema: pa.Schema,
        value_schema: pa.Schema,
        changes: Tracker | None = None,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self.state = state
        self.cells = cells
        self.schema = schema if lifetimes is None else schema.append(TOUCHED)
        """Of its rows in a snapshot: see `row_schema`."""
        self.value_schema = value_schema
        self.columns: list[FlatColumn | PiledColumn] = [
            make_column(field, self._save) for field in value_schema
        ]
        self._present = Stretch(np.bool_, FIRST_ROWS)
        self.changes = changes
        self.lifetimes = lifetimes
        self._kept = [*self.columns, *([lifetimes.touched] if lifetimes is not None else [])]
        """All that a row has."""
        self.lookup: Callable[[], Lookup] = lambda: lambda _: iter(())
        """What lies in a floor below, noted for a view."""
        self.brought: Callable[[I64], None] = lambda _: None
        """Hears of rows that came back from a floor below."""
        self._count = 0
        self._keys = keys
        self._saves = Stretch(np.uint32, FIRST_ROWS)
        self._freezes = 0
        self._frozen: tuple[FrozenTable, ...] = ()
        cells.admit(self)

    def __len__(self) -> int:
        return self._count

    @property
    def present(self) -> Flags:
        """Which cells have a row."""
        return self._present.array

    @property
    def _saved_at(self) -> Values:
        """The freeze that each row was saved for last."""
        return self._saves.array

    def begin_with(self, rows: int) -> None:
        """So many lie in a floor below."""
        self._count = rows

    # ---- rows

    def add(self, cells: I64 | slice) -> None:
        """Rows in cells that were made just now. Those that never were before no freeze knows."""
        self._count += cells.stop - cells.start if isinstance(cells, slice) else len(cells)
        if self._frozen and not isinstance(cells, slice):
            self._save(cells)
        self.present[cells] = True
        self._saved_at[cells] = self._freezes
        if self.changes is not None:
            self.changes.dirty[cells] = True

    def touch(self, cells: I64) -> None:
        """Must come before rows change: saves what frozen views still need of them.

        Order matters, and is all the synchronisation there is: the log entry is appended before the caller
        changes a row; a writer reads the log after it has copied the columns. So every change that the copy
        may have seen, whole or half, has its entry in the log that is then read."""
        if self.changes is not None:
            self.changes.dirty[cells] = True
        self._save(cells)

    def _save(self, cells: I64) -> bool:
        """For frozen views. Always true: from now on these rows may be others."""
        if not self._frozen:
            return True
        self._frozen = tuple(view for view in self._frozen if view.copying)
        if not self._frozen:
            return True
        unsaved = cells[self._saved_at.take(cells) < self._freezes]
        if not len(unsaved):
            return True
        saved = Saved(unsaved, tuple(array.take(unsaved) for array in self._raw()))
        for view in self._frozen:
            view.save(saved)
        self._saved_at[unsaved] = self._freezes
        return True

    def put(self, cells: I64, values: pa.RecordBatch) -> None:
        """Sets whole rows, also where there is none yet. Distinct cells. Restored values have the moment, too, when
        they were touched; for others that is now."""
        self.appear(cells)
        for column, array in zip(self._kept, values.columns, strict=False):
            column.put(cells, array)

    def appear(self, cells: I64) -> I64:
        """These distinct cells have rows from now on, which may be changed; those that had none."""
        self.touch(cells)
        new = cells[~self.present.take(cells)]
        self._count += len(new)
        self.present[new] = True
        if self.lifetimes is not None:
            self.lifetimes.touch(cells)
        return new

    def prolong(self, cells: I64) -> None:
        """The life of these rows, which are there, begins anew."""
        if self.lifetimes is not None and len(cells):
            self.touch(cells)
            self.lifetimes.touch(cells)

    def hold_back(self, cells: I64) -> None:
        """Of these rows, which a snapshot had, those begin their life now that would begin it later."""
        if self.lifetimes is not None:
            self.prolong(cells[self.lifetimes.ahead(cells)])

    def track(self, changes: Tracker) -> None:
        """From now on changes are told. There are no rows yet."""
        self.changes = changes
        changes.grow(0, len(self.present))

    # ---- rows that come from a floor below, and go there

    def bring(self, cells: I64, values: Sequence[pa.Array]) -> None:
        """Rows come back as they were, into cells that were made just now."""
        if self._frozen:
            self._save(cells)
        self.present[cells] = True
        self._saved_at[cells] = self._freezes
        for column, array in zip(self._kept, values, strict=True):
            column.put(cells, array)

    def forget(self, cells: I64) -> None:
        """The rows of distinct cells that have one lie elsewhere from now on."""
        if self._frozen:
            self._save(cells)
        self.present[cells] = False
        for column in self._kept:
            column.reset(cells)

    def stored(self, cells: I64) -> pa.RecordBatch:
        """Rows as a snapshot has them."""
        groups = to_arrow(self.cells.groups.take(cells), pa.uint16())
        columns = [groups, *self._keys()(cells), *(each.get(cells) for each in self._kept)]
        cast = [each.cast(f.type) for each, f in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)

    @property
    def row_bytes(self) -> int:
        """What a cell takes in its arrays."""
        return sum(array.dtype.itemsize for array in (*self._raw(), self._saved_at)) + 1

    @property
    def pile_bytes(self) -> int:
        """What lies beside them."""
        return sum(each.pile_bytes for each in self._kept)

    def views(self) -> tuple[FrozenTable, ...]:
        """Those that are still being copied."""
        return tuple(view for view in self._frozen if view.copying)

    # ---- values

    def get(self, cells: I64) -> pa.RecordBatch:
        """The rows; nulls where a cell has none. A column without nulls is zero there."""
        arrays = [column.get(cells) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.value_schema)

    def drop(self, cells: I64) -> None:
        """Removes the rows of distinct cells that have one, and lets go of what they held."""
        if not len(cells):
            return
        if self.changes is not None:
            self.changes.removed(self._keys()(cells), self.cells.groups.take(cells))
        self.touch(cells)
        self._count -= len(cells)
        self.present[cells] = False
        for column in self._kept:
            column.reset(cells)

    def holds(self, cells: I64) -> Flags:
        flags: Flags = self.present.take(cells)
        return flags

    # ---- snapshots

    @property
    def copying(self) -> bool:
        return any(view.copying for view in self._frozen)

    def freeze(self, base: int = 0, checkpoint: int = 0) -> FrozenTable:
        """The table as it is now, in constant time, for a checkpoint. `base` is one that it may build on; 0: none."""
        return self.view(self.changes.plan(base, checkpoint) if self.changes is not None else None)

    def view(self, plan: Plan | None) -> FrozenTable:
        """The table as it is now, for whatever is written of it. Several may be under way."""
        self._freezes += 1
        view = FrozenTable(
            self.state,
            self.schema,
            rows=self._count,
            end=self.cells.end,
            groups=self.cells.groups,
            keys=self._keys(),
            raw=self._raw(),
            readers=tuple((each.reader(), len(each.raw)) for each in self._kept),
            over_ms=self.lifetimes.over_ms if self.lifetimes is not None else None,
            plan=plan,
            below=self.lookup(),
        )
        self._frozen = (*(v for v in self._frozen if v.copying), view)
        return view

    def _raw(self) -> tuple[Values, ...]:
        return (self.present, *(array for column in self._kept for array in column.raw))

    # ---- as a tenant of its cells

    def grow(self, count: int, capacity: int) -> None:
        self._present.grow(count, capacity)
        self._saves.grow(count, capacity)
        for column in self._kept:
            column.grow(count, capacity)
        if self.changes is not None:
            self.changes.grow(count, capacity)

    @property
    def nbytes(self) -> int:
        kept = sum(column.nbytes for column in self._kept)
        dirty = self.changes.dirty.nbytes if self.changes is not None else 0
        return self._present.nbytes + self._saves.nbytes + kept + dirty

    def shrink(self, capacity: int) -> None:
        self._present.shrink(capacity)
        self._saves.shrink(capacity)
        for column in self._kept:
            column.shrink(capacity)
        if self.changes is not None:
            self.changes.dirty = self.changes.dirty[:capacity].copy()

    def reset(self, cells: I64) -> None:
        """Rows that went were reset when they did."""

    def movable(self, cells: I64, to: I64) -> Flags:
        return np.ones(len(cells), np.bool_)

    def move(self, cells: I64, to: I64) -> None:
        """To increments, rows in other cells are others."""
        if self.changes is not None:
            self.changes.dirty[to] = self.present.take(cells)
            self.changes.dirty[cells] = False
        self.present[to] = self.present.take(cells)
        self.present[cells] = False
        for column in self._kept:
            column.move(cells, to)

    def tidy(self) -> None:
        for column in self._kept:
            column.tidy()


def row_schema(kind: str, keys: pa.Schema, below: pa.Schema, values: pa.Schema) -> pa.Schema:
    """How rows look in a snapshot: the key group, the columns of the key, of the key below it, and of the value."""
    fields = [pa.field(KEY_PREFIX + f.name, f.type) for f in keys]
    fields += [pa.field(BELOW_PREFIX + f.name, f.type) for f in below]
    fields += [pa.field(VALUE_PREFIX + f.name, f.type, f.nullable, f.metadata) for f in values]
    return pa.schema([GROUP_FIELD, *fields], {STATE_KIND: kind.encode("ascii")})
