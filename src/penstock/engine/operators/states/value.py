"""State with one row per key.

While the rows of one batch are processed key by key, the values of its keys are plain Python rows: read together before
the first use, written back together at the end of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.operators.keyed import expected_rows, keep_chain
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows, make_row
from penstock.engine.operators.rows import checked_batch
from penstock.engine.operators.states.base import Place, nullable, required_columns
from penstock.engine.operators.states.expiry import make_expiry
from penstock.errors import PlanError
from penstock.plan.keyhash import I64
from penstock.protocol.messages import SnapshotOrder
from penstock.state.frozen import Frozen
from penstock.state.table import Table

_CALLS = "get, update and clear"


class ValueState:
    """Scoped to the key that is being processed. Made by `ctx.value_state(name, schema)`."""

    kind: ClassVar[str] = "value"

    def __init__(self, place: Place, schema: pa.Schema) -> None:
        self.schema = schema
        self._place = place
        self._scope = place.scope
        self._names: tuple[str, ...] = tuple(schema.names)
        self._to_batch = RowsToBatch(schema, place.label, "it was given")
        self._table = place.scope.keyed.table(
            self.kind, place.name, nullable(schema), place.lifetimes()
        )
        self._expiry = make_expiry(self._table, place.scope)
        self._rows: list[Row | None] | None = None
        self._changed: dict[int, None] = {}
        place.scope.keyed.space.expect(expected_rows(place.context, place.name))
        for batch in place.restored(self._table, required_columns(schema)):
            place.scope.keyed.load(self._table, batch)
        keep_chain(self._table, place.context)
        self._expiry.restored()

    # ---- one key at a time

    def get(self) -> Row | None:
        """The key's row; None where there is none."""
        return self._loaded()[self._place.position(_CALLS)]

    def update(self, value: Sequence[Any] | Mapping[str, Any]) -> None:
        """Sets the key's row: a tuple, list, dict or Row."""
        rows, at = self._loaded(), self._place.position(_CALLS)
        rows[at] = self.row(value)
        self._changed[at] = None

    def clear(self) -> None:
        """Forgets the key's row."""
        rows, at = self._loaded(), self._place.position(_CALLS)
        if rows[at] is not None:
            rows[at] = None
            self._changed[at] = None

    def row(self, value: Sequence[Any] | Mapping[str, Any]) -> Row:
        """A value as a row of this state."""
        return make_row(self._names, self._to_batch.values(value))

    # ---- whole batches

    def get_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """For every row of the batch, the row of its key; nulls where there is none."""
        cells = self._scope.find(batch)
        self._expiry.evict(cells)
        self._expiry.read(cells)
        return rows_at(self._table, cells)

    def update_batch(self, batch: pa.RecordBatch, values: pa.RecordBatch) -> None:
        """Sets the row of every key in the batch; where a key comes several times its last value counts."""
        checked = checked_values(values, self.schema, batch.num_rows, "update_batch", self._place)
        cells = self._scope.make(batch)
        last = self._scope.keyed.space.last_rows(cells)
        if len(last) == len(cells):
            self._table.put(cells, checked)
        else:
            self._table.put(cells.take(last), checked.take(pa.array(last)))

    def clear_batch(self, batch: pa.RecordBatch) -> None:
        """Forgets the row of every key in the batch."""
        self._drop(np.unique(self._scope.find(batch)))

    # ---- for the operator

    def end_batch(self) -> None:
        if self._changed and self._rows is not None:
            kept = [at for at in self._changed if self._rows[at] is not None]
            gone = [at for at in self._changed if self._rows[at] is None]
            self._drop(self._scope.cells.take(np.array(gone, np.int64)))
            if kept:
                rows = [row for at in kept if (row := self._rows[at]) is not None]
                self._table.put(self._scope.made(kept), self._to_batch.batch(rows))
        self._changed = {}
        self._rows = None

    def freeze(self, order: SnapshotOrder) -> Frozen:
        return self._table.freeze(order.base, order.id)

    def _drop(self, cells: I64) -> None:
        cells = cells[cells >= 0]
        cells = cells[self._table.present.take(cells)]
        self._table.drop(cells)
        self._scope.keyed.leave(cells)

    def _loaded(self) -> list[Row | None]:
        self._place.position(_CALLS)
        if self._rows is None:
            cells = self._scope.cells
            self._expiry.evict(cells)
            there = np.flatnonzero(cells >= 0)
            there = there[self._table.present.take(cells.take(there))]
            self._rows = [None] * len(cells)
            found = batch_rows(self._table.get(cells.take(there)))
            for at, row in zip(there.tolist(), found, strict=True):
                self._rows[at] = row
        return self._rows


def rows_at(table: Table, cells: I64) -> pa.RecordBatch:
    """The rows of these cells; nulls where there is none, also where a cell is NOBODY."""
    if not len(cells) or int(cells.min()) >= 0:
        return table.get(cells)
    rows = table.get(np.maximum(cells, 0))
    there = pa.array(cells >= 0)
    columns = [pc.if_else(there, each, pa.scalar(None, each.type)) for each in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def checked_values(
    values: Any, schema: pa.Schema, rows: int, call: str, place: Place
) -> pa.RecordBatch:
    """A batch of this schema, with a row for every row of the batch it belongs to."""
    checked = checked_batch(values, schema, place.label)
    if checked.num_rows != rows:
        raise PlanError(f"{place.label}: {call} got {checked.num_rows} values for {rows} rows")
    return checked
