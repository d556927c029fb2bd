"""Keyed state in memory: a row per key, found by a slot table, kept in flat columns.

Keys are compared exactly. A key of one fixed-width column is looked up by its value; any other by lane h1 of its
hash, checked on lane h2, and where lanes cannot decide, the stored key does (`index.py`).

A freeze is a row count and an empty undo log. Rows that existed then are saved to the log by `touch` before they
first change; see `frozen_table.py` for how the writer puts the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CheckpointCorrupt, SchemaError
from penstock.plan.keyhash import I64, Flags, key_groups
from penstock.state.columns import Values, dtype_of, valid_of, values_of
from penstock.state.frozen_table import FrozenTable
from penstock.state.index import key_index
from penstock.state.keystore import FIRST_ROWS, grown
from penstock.state.segments import GROUP_COLUMN, GROUP_FIELD

KEY_PREFIX = "key."
VALUE_PREFIX = "value."


class Rows(NamedTuple):
    """Where the rows of a batch are in the table."""

    slots: I64
    first_new: int
    """Slots from here on were made for this batch."""
    end: int
    """Rows in the table now."""


class KeyedTable:
    """One keyed state. `values[i]` and `valid[i]` are the columns of `value_schema`: read them after `slots_of`,
    which may replace them, and call `touch` before you change rows that are not new. `valid[i]` is None where the
    field is not nullable or its values are objects (there None is null). New rows are zero (or None) and null."""

    def __init__(
        self, state: str, key_schema: pa.Schema, value_schema: pa.Schema, max_parallelism: int
    ) -> None:
        self.state = state
        self.key_schema = key_schema
        self.value_schema = value_schema
        self.schema = _row_schema(key_schema, value_schema)
        self._max_parallelism = max_parallelism
        self._index = key_index([field.type for field in key_schema])
        self._groups: npt.NDArray[np.uint16] = np.zeros(FIRST_ROWS, np.uint16)
        self._saved_at: npt.NDArray[np.uint32] = np.zeros(FIRST_ROWS, np.uint32)
        self._stamp: npt.NDArray[np.int32] = np.zeros(FIRST_ROWS, np.int32)
        self.values: list[Values] = []
        self.valid: list[Flags | None] = []
        for field in value_schema:
            dtype = dtype_of(field.type)
            flat = dtype != np.dtype(object)
            self.values.append(np.zeros(FIRST_ROWS, dtype) if flat else np.full(FIRST_ROWS, None))
            self.valid.append(np.zeros(FIRST_ROWS, np.bool_) if flat and field.nullable else None)
        self._count = 0
        self._freezes = 0
        self._frozen: tuple[FrozenTable, ...] = ()

    def __len__(self) -> int:
        return self._count

    def slots_of(self, keys: Sequence[pa.Array]) -> Rows:
        """The slot of every key, made where there is none."""
        found = self._index.upsert(keys)
        first_new = self._count
        if len(found.new_h1):
            self._add_rows(found.new_h1)
        return Rows(found.slots, first_new, self._count)

    def _add_rows(self, h1: npt.NDArray[np.uint64]) -> None:
        old, end = self._count, self._count + len(h1)
        if end > len(self._groups):
            self._grow(end)
        self._groups[old:end] = key_groups(h1, self._max_parallelism)
        # A row that no freeze knows needs no saving: as if the newest one had it already.
        self._saved_at[old:end] = self._freezes
        self._count = end

    def _grow(self, needed: int) -> None:
        """Longer arrays; the old ones stay as they are for frozen views that hold them."""
        count = self._count
        self._groups = grown(self._groups, count, needed)
        capacity = len(self._groups)
        self._saved_at = grown(self._saved_at, count, capacity)
        self._stamp = np.zeros(capacity, np.int32)
        for i, array in enumerate(self.values):
            longer = grown(array, count, capacity)
            if array.dtype == np.dtype(object):
                longer[count:] = None
            self.values[i] = longer
            valid = self.valid[i]
            self.valid[i] = None if valid is None else grown(valid, count, capacity)

    def last_rows(self, slots: I64) -> I64:
        """The rows that are the last of their key in this batch, ascending."""
        rows = np.arange(len(slots), dtype=np.int32)
        self._stamp[slots] = rows
        return np.flatnonzero(self._stamp.take(slots) == rows)

    def touch(self, slots: I64) -> None:
        """Must come before existing rows change: saves what frozen views still need of them.

        Order matters, and is all the synchronisation there is: the log entry is appended before the caller
        changes a row; a writer reads the log after it has copied the columns. So every change that the copy
        may have seen, whole or half, has its entry in the log that is then read."""
        if not self._frozen:
            return
        self._frozen = tuple(view for view in self._frozen if view.copying)
        if not self._frozen:
            return
        unsaved = slots[self._saved_at.take(slots) < self._freezes]
        if not len(unsaved):
            return
        values = [array.take(unsaved) for array in self.values]
        valid = [None if flags is None else flags.take(unsaved) for flags in self.valid]
        for view in self._frozen:
            view.save(unsaved, values, valid)
        self._saved_at[unsaved] = self._freezes

    def freeze(self) -> FrozenTable:
        """The table as it is now, in constant time. Several may be under way."""
        self._freezes += 1
        view = FrozenTable(
            self.state,
            self.schema,
            count=self._count,
            keys=self._index.views(self._count),
            groups=self._groups,
            values=tuple(self.values),
            valid=tuple(self.valid),
        )
        self._frozen = (*(v for v in self._frozen if v.copying), view)
        return view

    def load(self, batch: pa.RecordBatch) -> None:
        """Puts rows of a snapshot back. Only for keys that are not in the table yet."""
        if not batch.schema.equals(self.schema):
            raise SchemaError(
                f"state {self.state!r} was saved with columns {_described(batch.schema)}, "
                f"the job now has {_described(self.schema)}; restore it with the pipeline it was saved by"
            )
        keys = [batch.column(1 + i) for i in range(len(self.key_schema))]
        rows = self.slots_of(keys)
        if rows.end - rows.first_new != batch.num_rows:
            raise CheckpointCorrupt(f"state {self.state!r} has a key twice in its snapshot")
        if not np.array_equal(self._groups[rows.slots], values_of(batch.column(GROUP_COLUMN))):
            raise CheckpointCorrupt(f"state {self.state!r} has a key with another's key group")
        for i in range(len(self.value_schema)):
            self._load_column(i, batch.column(1 + len(keys) + i), rows.slots)

    def _load_column(self, i: int, column: pa.Array, slots: I64) -> None:
        self.values[i][slots] = values_of(column)
        flags = self.valid[i]
        if flags is not None:
            valid = valid_of(column)
            flags[slots] = True if valid is None else valid


def _row_schema(keys: pa.Schema, values: pa.Schema) -> pa.Schema:
    """How rows look in a snapshot: the key group, the key columns, the value columns."""
    fields = [pa.field(KEY_PREFIX + f.name, f.type) for f in keys]
    fields += [pa.field(VALUE_PREFIX + f.name, f.type, f.nullable, f.metadata) for f in values]
    return pa.schema([GROUP_FIELD, *fields])


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name}: {f.type}" for f in schema if f.name != GROUP_COLUMN)
