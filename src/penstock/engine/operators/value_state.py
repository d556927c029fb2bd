"""State with one row per key, as a user's function sees it.

The rows live in a `KeyedTable`: flat columns that freeze at once and go into snapshots as Arrow. While the rows
of one batch are processed, the values of its keys are plain Python rows: read together before the first use,
written back together at the end of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows, make_row
from penstock.engine.operators.rows import checked_batch
from penstock.engine.operators.value_table import Slots, ValueTable
from penstock.errors import PlanError
from penstock.state.frozen import Frozen


class ValueState:
    """Scoped to the key that is being processed. Made by `ctx.value_state(name, schema)`."""

    def __init__(
        self, name: str, schema: pa.Schema, keys: tuple[str, ...], context: OperatorContext
    ) -> None:
        self.schema = schema
        self.current = -1
        """Which key of the batch is being processed; -1 where none is."""
        self._label = f"{context.operator}, state {name!r}"
        self._names: tuple[str, ...] = tuple(schema.names)
        self._keys = keys
        self._to_batch = RowsToBatch(schema, self._label, "it was given")
        key_schema = pa.schema([context.input_schemas[0].field(key) for key in keys])
        self._table = ValueTable(name, key_schema, schema, context)
        self._columns: list[pa.Array] = []
        self._slots: Slots = np.empty(0, np.int64)
        self._rows: list[Row | None] | None = None
        self._changed: dict[int, None] = {}

    # ---- one key at a time

    def get(self) -> Row | None:
        """The key's row; None where there is none."""
        return self._loaded()[self.current]

    def update(self, value: Sequence[Any] | Mapping[str, Any]) -> None:
        """Sets the key's row: a tuple, list, dict or Row."""
        rows = self._loaded()
        rows[self.current] = make_row(self._names, self._to_batch.values(value))
        self._changed[self.current] = None

    def clear(self) -> None:
        """Forgets the key's row."""
        rows = self._loaded()
        if rows[self.current] is not None:
            rows[self.current] = None
            self._changed[self.current] = None

    # ---- whole batches

    def get_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """For every row of the batch, the row of its key; nulls where there is none."""
        return self._table.read(self._table.slots(self._key_columns(batch)))[0]

    def update_batch(self, batch: pa.RecordBatch, values: pa.RecordBatch) -> None:
        """Sets the row of every key in the batch; where a key comes several times its last value counts."""
        checked = checked_batch(values, self.schema, self._label)
        if checked.num_rows != batch.num_rows:
            raise PlanError(
                f"{self._label}: update_batch got {checked.num_rows} values for {batch.num_rows} rows"
            )
        slots = self._table.slots(self._key_columns(batch))
        last = last_positions(slots)
        self._table.write(slots[last], checked.take(pa.array(last)))

    def clear_batch(self, batch: pa.RecordBatch) -> None:
        """Forgets the row of every key in the batch."""
        self._table.clear(np.unique(self._table.slots(self._key_columns(batch))))

    # ---- for the operator

    def begin_batch(self, columns: list[pa.Array]) -> None:
        """`columns` are the distinct keys of the batch; `current` will be a position in them."""
        self._columns = columns
        self._rows = None

    def end_batch(self) -> None:
        """Writes what has changed."""
        self.current = -1
        if self._changed and self._rows is not None:
            slots = self._slots[list(self._changed)]
            rows = [self._rows[position] for position in self._changed]
            kept = np.fromiter((row is not None for row in rows), bool, len(rows))
            self._table.clear(slots[~kept])
            if kept.any():
                self._table.write(
                    slots[kept], self._to_batch.batch([r for r in rows if r is not None])
                )
        self._changed = {}
        self._rows = None

    def freeze(self) -> Frozen:
        return self._table.freeze()

    def _loaded(self) -> list[Row | None]:
        if self.current < 0:
            raise PlanError(
                f"{self._label}: there is no current key here; get, update and clear work inside"
                " process(key, rows, ctx), and get_batch, update_batch and clear_batch everywhere else"
            )
        if self._rows is None:
            self._slots = self._table.slots(self._columns)
            values, present = self._table.read(self._slots)
            self._rows = [
                row if there else None for row, there in zip(batch_rows(values), present.tolist())
            ]
        return self._rows

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(key) for key in self._keys]


def last_positions(slots: np.ndarray) -> np.ndarray:
    """The position of the last occurrence of every distinct slot."""
    _, first_from_behind = np.unique(slots[::-1], return_index=True)
    return np.asarray(len(slots) - 1 - first_from_behind)
