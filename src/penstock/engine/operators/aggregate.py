"""A running aggregate per key: for every batch, one updated row for each key that was in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.folding import restore_folds
from penstock.engine.operators.keyed import make_keyed
from penstock.engine.operators.states.base import label_of
from penstock.protocol.messages import SnapshotOrder
from penstock.state.aggregates import Aggregate, result_schema
from penstock.state.choose import fold_schema, make_folds
from penstock.state.flat import int64_array, take_rows
from penstock.state.folds import Fold, Step
from penstock.state.keyed import Keyed
from penstock.state.table import Table

STATE = "aggregate"


class RunningAggregate(Operator):
    """Rows out: the key columns, then the results in order. They come in the order of each key's last row in the
    batch."""

    def __init__(self, keys: tuple[str, ...], aggregates: Mapping[str, Aggregate]) -> None:
        self._keys = tuple(keys)
        self._aggregates = dict(aggregates)
        self._keyed: Keyed
        self._table: Table
        self._folds: list[Fold] = []

    def open(self, context: OperatorContext) -> None:
        (schema,) = context.input_schemas
        self._schema = result_schema(self._keys, self._aggregates, schema)
        self._key_columns = [schema.get_field_index(key) for key in self._keys]
        self._folds = make_folds(self._aggregates, schema)
        key_schema = pa.schema([schema.field(i) for i in self._key_columns])
        self._keyed = make_keyed(key_schema, context)
        self._table = self._keyed.table(STATE, STATE, fold_schema(self._folds))
        label = label_of(context.operator, STATE)
        restore_folds(context.rows_of(STATE), self._folds, self._table, self._keyed, context, label)
        self._keyed.settle()

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        if not batch.num_rows:
            return ()
        table, space = self._table, self._keyed.space
        keys = [batch.column(i) for i in self._key_columns]
        cells, new = space.upsert(keys)
        table.add(new)
        last = space.last_rows(cells)
        touched = cells.take(last)
        table.touch(touched)
        step = Step(batch, space, cells, new, last)
        for fold in self._folds:
            fold.update(table, step)
        rows = int64_array(last)
        columns = [take_rows(key, rows) for key in keys]
        columns += [fold.result(table, touched) for fold in self._folds]
        self._keyed.settle()
        return (pa.RecordBatch.from_arrays(columns, schema=self._schema),)

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        return FrozenOperator(tables=(self._table.freeze(order.base, order.id),))
