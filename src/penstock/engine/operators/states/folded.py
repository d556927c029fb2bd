"""State that is the sum of what was added to it: by a function of two rows, or by aggregates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.engine.operators.folding import restore_folds
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows
from penstock.engine.operators.states.base import Place, nullable
from penstock.engine.operators.states.expiry import make_expiry
from penstock.engine.operators.states.prolonged import ProlongedValueState
from penstock.engine.operators.states.value import ValueState, checked_values
from penstock.errors import ConfigError, SchemaError
from penstock.plan.keyhash import I64
from penstock.protocol.messages import SnapshotOrder
from penstock.state.aggregates import Aggregate, result_field
from penstock.state.choose import fold_schema, make_folds
from penstock.state.folds import Step
from penstock.state.frozen import Frozen

Reduce = Callable[[Row, Row], Any]
_CALLS = "add, get and clear"


class ReducingState:
    """One row per key, with which every row that is added is put together. Made by `ctx.reducing_state(name, schema,
    function)`; the function takes what there is and what is added, and returns a row."""

    kind: ClassVar[str] = "value"

    def __init__(self, place: Place, schema: pa.Schema, function: Reduce) -> None:
        if not callable(function):
            raise ConfigError(
                f"{place.label}: {function!r} is no function; give one of two rows that returns a row"
            )
        self.schema = schema
        self._function = function
        prolonged = place.ttl is not None and place.ttl.on_read
        self._value = (ProlongedValueState if prolonged else ValueState)(place, schema)

    def add(self, value: Sequence[Any] | Mapping[str, Any]) -> None:
        """Puts a row together with the one that is there; the first one is kept as it is."""
        old, new = self._value.get(), self._value.row(value)
        self._value.update(new if old is None else self._function(old, new))

    def get(self) -> Row | None:
        """The key's row; None where nothing was added."""
        return self._value.get()

    def clear(self) -> None:
        """Forgets the key's row."""
        self._value.clear()

    # ---- for the operator

    def end_batch(self) -> None:
        self._value.end_batch()

    def freeze(self, order: SnapshotOrder) -> Frozen:
        return self._value.freeze(order)


class AggregatingState:
    """Aggregates of the rows that were added to each key. Made by `ctx.aggregating_state(name, schema, n=pen.count(),
    total=pen.sum("amount"))`; `schema` is that of the rows that are added."""

    kind: ClassVar[str] = "aggregate"

    def __init__(
        self, place: Place, schema: pa.Schema, aggregates: Mapping[str, Aggregate]
    ) -> None:
        if not aggregates:
            raise ConfigError(f"{place.label}: give at least one aggregate, as in n=pen.count()")
        self.schema = schema
        self.aggregates = dict(aggregates)
        self._place = place
        self._scope = place.scope
        try:
            fields = [result_field(name, each, schema) for name, each in aggregates.items()]
            self._folds = make_folds(aggregates, schema)
        except SchemaError as error:
            raise SchemaError(f"{place.label}: {error}") from error
        self._results = nullable(pa.schema(fields))
        columns = fold_schema(self._folds)
        self._table = place.scope.keyed.table(self.kind, place.name, columns, place.lifetimes())
        self._expiry = make_expiry(self._table, place.scope)
        self._to_batch = RowsToBatch(schema, place.label, "it was given")
        self._added: list[tuple[int, Sequence[Any]]] = []
        stored, keyed = place.stored(self._table), place.scope.keyed
        restore_folds(stored, self._folds, self._table, keyed, place.context, place.label)
        self._expiry.restored()

    # ---- one key at a time

    def add(self, value: Sequence[Any] | Mapping[str, Any]) -> None:
        """Adds a row: a tuple, list, dict or Row."""
        at = self._place.position(_CALLS)
        self._added.append((at, self._to_batch.values(value)))

    def get(self) -> Row | None:
        """The results for the key, all that was added so far included; None where nothing was."""
        at = self._place.position(_CALLS)
        self._flush()
        cell = self._scope.cells[at : at + 1]
        self._expiry.evict(cell)
        self._expiry.read(cell)
        if cell[0] < 0 or not self._table.present[cell[0]]:
            return None
        return next(batch_rows(self._read(cell)))

    def clear(self) -> None:
        """Forgets what was added for the key."""
        at = self._place.position(_CALLS)
        self._added = [each for each in self._added if each[0] != at]
        self._drop(self._scope.cells[at : at + 1])

    # ---- whole batches

    def add_batch(self, batch: pa.RecordBatch, values: pa.RecordBatch) -> None:
        """Adds one row for every row's key."""
        checked = checked_values(values, self.schema, batch.num_rows, "add_batch", self._place)
        self._fold(self._scope.make(batch), checked)

    def get_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """For every row of the batch, the results for its key; nulls where nothing was added."""
        cells = self._scope.find(batch)
        self._expiry.evict(cells)
        self._expiry.read(cells)
        there = (cells >= 0) & self._table.present.take(np.maximum(cells, 0))
        found = self._read(cells[there])
        rows = np.cumsum(there) - 1
        return found.take(pa.array(rows, mask=~there))

    def clear_batch(self, batch: pa.RecordBatch) -> None:
        """Forgets what was added for every key in the batch."""
        self._drop(np.unique(self._scope.find(batch)))

    # ---- for the operator

    def end_batch(self) -> None:
        self._flush()

    def freeze(self, order: SnapshotOrder) -> Frozen:
        return self._table.freeze(order.base, order.id)

    def _flush(self) -> None:
        if self._added:
            added, self._added = self._added, []
            cells = self._scope.made([at for at, _ in added])
            self._fold(cells, self._to_batch.batch([row for _, row in added]))

    def _fold(self, cells: I64, rows: pa.RecordBatch) -> None:
        if not len(cells):
            return
        self._expiry.evict(cells)
        space, table = self._scope.keyed.space, self._table
        last = space.last_rows(cells)
        new = table.appear(cells.take(last))
        step = Step(rows, space, cells, new, last)
        for fold in self._folds:
            fold.update(table, step)

    def _read(self, cells: I64) -> pa.RecordBatch:
        columns = [fold.result(self._table, cells) for fold in self._folds]
        return pa.RecordBatch.from_arrays(columns, schema=self._results)

    def _drop(self, cells: I64) -> None:
        cells = cells[cells >= 0]
        cells = cells[self._table.present.take(cells)]
        self._table.drop(cells)
        self._scope.keyed.leave(cells)
