"""The rows of a value state in a `KeyedTable`, one per key, by slot.

A key that is in the table need not have a row: it may have been cleared, or only asked for. A hidden column says
which is the case; keys without a row are left out when a snapshot is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine.operators.base import Frozen, OperatorContext
from penstock.engine.operators.evolution import evolved
from penstock.errors import SchemaError
from penstock.plan.schema import type_ddl
from penstock.state.columns import to_arrow, valid_of, values_of
from penstock.state.table import VALUE_PREFIX, KeyedTable

PRESENT = "__present"
Slots: TypeAlias = npt.NDArray[np.int64]


class ValueTable:
    """Rows of `schema` by slot. Restored from the context when it is made."""

    def __init__(
        self, name: str, keys: pa.Schema, schema: pa.Schema, context: OperatorContext
    ) -> None:
        self._label = f"{context.operator}, state {name!r}"
        _refuse_unfit(schema, self._label)
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        stored = pa.schema([pa.field(PRESENT, pa.bool_(), nullable=False), *self._schema])
        self._table = KeyedTable(name, keys, stored, context.max_parallelism)
        self._required = frozenset(VALUE_PREFIX + each.name for each in schema if not each.nullable)
        for batch in context.rows_of(name):
            self._load(batch)

    def slots(self, keys: Sequence[pa.Array]) -> Slots:
        """Where the rows of these keys are. New keys get a slot, without a row in it."""
        return self._table.slots_of(keys).slots

    def read(self, slots: Slots) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """The rows, with nulls where there is none, and whether there is one."""
        table = self._table
        arrays = []
        for column, field in enumerate(self._schema, start=1):
            flags = table.valid[column]
            valid = None if flags is None else flags.take(slots)
            arrays.append(to_arrow(table.values[column].take(slots), field.type, valid))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), table.values[0].take(slots)

    def write(self, slots: Slots, batch: pa.RecordBatch) -> None:
        """Sets the rows of distinct slots."""
        table = self._table
        table.touch(slots)
        table.values[0][slots] = True
        for column, array in enumerate(batch.columns, start=1):
            table.values[column][slots] = values_of(array)
            flags = table.valid[column]
            if flags is not None:
                valid = valid_of(array)
                flags[slots] = True if valid is None else valid

    def clear(self, slots: Slots) -> None:
        """Removes the rows of distinct slots, and lets go of what they held."""
        if not len(slots):
            return
        table = self._table
        table.touch(slots)
        table.values[0][slots] = False
        for column in range(1, len(table.values)):
            flags = table.valid[column]
            if flags is None:
                table.values[column][slots] = None
            else:
                flags[slots] = False

    def freeze(self) -> Frozen:
        return self._table.freeze()

    def _load(self, batch: pa.RecordBatch) -> None:
        batch = evolved(batch, self._table.schema, self._required, self._label)
        self._table.load(batch.filter(batch.column(VALUE_PREFIX + PRESENT)))


def _refuse_unfit(schema: pa.Schema, label: str) -> None:
    for field in schema:
        kind: Any = field.type
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            raise SchemaError(
                f"{label}: column {field.name!r} is {type_ddl(kind)}; state columns with parts of their own are"
                " not supported yet: use one column per part, or keep it as a STRING of JSON"
            )
        if field.name == PRESENT:
            raise SchemaError(f"{label}: the column name {PRESENT!r} is taken; choose another")
