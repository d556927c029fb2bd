"""Keyed state in memory: typed columns over the cells of a key space.

A freeze is the arrays as they are now and an empty undo log. Rows that existed then are saved to the log by `touch`
before they first change; see `frozen_table.py` for how the writer puts the two together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.state.cells import Cells
from penstock.state.columns import FlatColumn, PiledColumn, make_column
from penstock.state.flat import FIRST_ROWS, Values, grown
from penstock.state.frozen_table import FrozenTable, Saved
from penstock.state.keyspace import KeysOf
from penstock.state.lifetime import TOUCHED, Lifetimes
from penstock.state.segments import GROUP_FIELD
from penstock.state.tracking import Plan, Tracker

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
        self.columns: list[FlatColumn | PiledColumn] = [make_column(f) for f in value_schema]
        self.present: Flags = np.zeros(FIRST_ROWS, np.bool_)
        """Which cells have a row."""
        self.changes = changes
        self.lifetimes = lifetimes
        self._kept = [*self.columns, *([lifetimes.touched] if lifetimes is not None else [])]
        """All that a row has."""
        self._count = 0
        self._keys = keys
        self._saved_at: npt.NDArray[np.uint32] = np.zeros(FIRST_ROWS, np.uint32)
        self._freezes = 0
        self._frozen: tuple[FrozenTable, ...] = ()
        cells.admit(self)

    def __len__(self) -> int:
        return self._count

    # ---- rows

    def add(self, cells: I64 | slice) -> None:
        """Rows in cells that were made just now: no freeze knows them, so they need no saving."""
        self._count += cells.stop - cells.start if isinstance(cells, slice) else len(cells)
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
        if not self._frozen:
            return
        self._frozen = tuple(view for view in self._frozen if view.copying)
        if not self._frozen:
            return
        unsaved = cells[self._saved_at.take(cells) < self._freezes]
        if not len(unsaved):
            return
        saved = Saved(
            unsaved,
            self.cells.groups.take(unsaved),
            tuple(array.take(unsaved) for array in self._raw()),
            self._origins(),
        )
        for view in self._frozen:
            view.save(saved)
        self._saved_at[unsaved] = self._freezes

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
            origins=self._origins(),
            over_ms=self.lifetimes.over_ms if self.lifetimes is not None else None,
            plan=plan,
        )
        self._frozen = (*(v for v in self._frozen if v.copying), view)
        return view

    def _raw(self) -> tuple[Values, ...]:
        return (self.present, *(array for column in self._kept for array in column.raw))

    def _origins(self) -> tuple[object, ...]:
        """Of each raw array: where it stands for values that lie elsewhere, what it points into."""
        return (self, *(column.origin for column in self._kept for _ in column.raw))

    # ---- as a tenant of its cells

    def grow(self, count: int, capacity: int) -> None:
        self.present = grown(self.present, count, capacity)
        self._saved_at = grown(self._saved_at, count, capacity)
        for column in self._kept:
            column.grow(count, capacity)
        if self.changes is not None:
            self.changes.grow(count, capacity)

    def reset(self, cells: I64) -> None:
        """Rows that went were reset when they did."""


def row_schema(kind: str, keys: pa.Schema, below: pa.Schema, values: pa.Schema) -> pa.Schema:
    """How rows look in a snapshot: the key group, the columns of the key, of the key below it, and of the value."""
    fields = [pa.field(KEY_PREFIX + f.name, f.type) for f in keys]
    fields += [pa.field(BELOW_PREFIX + f.name, f.type) for f in below]
    fields += [pa.field(VALUE_PREFIX + f.name, f.type, f.nullable, f.metadata) for f in values]
    return pa.schema([GROUP_FIELD, *fields], {STATE_KIND: kind.encode("ascii")})
