"""State with a list of rows per key, in the order in which they were added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.engine.operators.keyed import expected_rows, keep_chain
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows, make_row
from penstock.engine.operators.states.base import Place, nullable, required_columns
from penstock.engine.operators.states.expiry import make_expiry, walk_living
from penstock.engine.operators.states.value import checked_values
from penstock.plan.keyhash import I64
from penstock.protocol.messages import SnapshotOrder
from penstock.state.flat import int64_array
from penstock.state.frozen import Frozen

POSITION = pa.field("position", pa.int64(), nullable=False)
_CALLS = "get, add, update and clear"


class Entries(NamedTuple):
    """The entries of the keys of a batch: for each, the row of the batch whose key it belongs to."""

    positions: pa.Array
    values: pa.RecordBatch


class ListState:
    """Scoped to the key that is being processed. Made by `ctx.list_state(name, schema)`."""

    kind: ClassVar[str] = "list"

    def __init__(self, place: Place, schema: pa.Schema) -> None:
        self.schema = schema
        self._place = place
        self._scope = place.scope
        self._names: tuple[str, ...] = tuple(schema.names)
        self._to_batch = RowsToBatch(schema, place.label, "it was given")
        self._child = place.scope.keyed.child(
            self.kind, place.name, pa.schema([POSITION]), nullable(schema), place.lifetimes()
        )
        self._expiry = make_expiry(self._child, place.scope)
        self._next = 0
        """The position of the next entry, whoever's it is."""
        self._lists: list[list[Row]] | None = None
        self._added: list[tuple[int, Row]] = []
        self._replaced: dict[int, None] = {}
        self._restore(required_columns(schema))

    # ---- one key at a time

    def get(self) -> list[Row]:
        """The key's rows, in the order in which they were added; empty where there are none."""
        at = self._place.position(_CALLS)
        return list(self._loaded()[at])

    def add(self, value: Sequence[Any] | Mapping[str, Any]) -> None:
        """Adds a row: a tuple, list, dict or Row."""
        at = self._place.position(_CALLS)
        row = make_row(self._names, self._to_batch.values(value))
        if self._lists is not None:
            self._lists[at].append(row)
        self._added.append((at, row))

    def update(self, values: Iterable[Sequence[Any] | Mapping[str, Any]]) -> None:
        """Sets all of the key's rows."""
        rows = [make_row(self._names, self._to_batch.values(value)) for value in values]
        self.clear()
        for row in rows:
            self.add(row)

    def clear(self) -> None:
        """Forgets the key's rows."""
        at = self._place.position(_CALLS)
        if self._lists is not None:
            self._lists[at].clear()
        self._added = [each for each in self._added if each[0] != at]
        self._replaced[at] = None

    # ---- whole batches

    def get_batch(self, batch: pa.RecordBatch) -> Entries:
        """The entries of every row's key: those of the first row's, then those of the second one's, and so on."""
        walked = walk_living(self._child, self._scope.find(batch), self._expiry)
        self._expiry.read(walked.cells)
        return Entries(int64_array(walked.positions), self._child.table.get(walked.cells))

    def add_batch(self, batch: pa.RecordBatch, values: pa.RecordBatch) -> None:
        """Adds one row to the list of every row's key."""
        checked = checked_values(values, self.schema, batch.num_rows, "add_batch", self._place)
        self._add(self._scope.make(batch), checked)

    def clear_batch(self, batch: pa.RecordBatch) -> None:
        """Forgets the rows of every key in the batch."""
        self._drop(np.unique(self._scope.find(batch)))

    # ---- for the operator

    def end_batch(self) -> None:
        if self._replaced:
            self._drop(self._scope.cells.take(np.array(list(self._replaced), np.int64)))
        if self._added:
            rows = self._to_batch.batch([row for _, row in self._added])
            self._add(self._scope.made([at for at, _ in self._added]), rows)
        self._lists, self._added, self._replaced = None, [], {}

    def freeze(self, order: SnapshotOrder) -> Frozen:
        return self._child.table.freeze(order.base, order.id)

    def _add(self, owners: I64, values: pa.RecordBatch) -> None:
        positions = np.arange(self._next, self._next + len(owners))
        self._next += len(owners)
        self._child.put(owners, [int64_array(positions)], values)

    def _drop(self, owners: I64) -> None:
        owners = owners[owners >= 0]
        self._child.drop(self._child.walk(owners).cells)
        self._scope.keyed.leave(owners)

    def _loaded(self) -> list[list[Row]]:
        if self._lists is None:
            self._lists = [[] for _ in range(self._scope.count)]
            walked = walk_living(self._child, self._scope.cells, self._expiry)
            found = batch_rows(self._child.table.get(walked.cells))
            for at, row in zip(walked.positions.tolist(), found, strict=True):
                if at not in self._replaced:
                    self._lists[at].append(row)
            for at, row in self._added:
                self._lists[at].append(row)
        return self._lists

    def _restore(self, required: frozenset[str]) -> None:
        child = self._child
        child.space.expect(expected_rows(self._place.context, self._place.name))
        for batch in self._place.restored(child.table, required):
            self._scope.keyed.load_child(child, batch)
        keep_chain(child.table, self._place.context)
        end = child.space.cells.end
        cells = np.flatnonzero(child.table.present[:end])
        if len(cells):
            ranks = np.zeros(end, np.int64)
            ranks[cells] = self._positions(cells)
            child.put_in_order(ranks)
            self._brought(cells)
        child.table.brought = self._brought
        self._expiry.restored()

    def _brought(self, cells: I64) -> None:
        """Entries came back from a floor: what is added to their lists comes behind them."""
        self._next = max(self._next, int(self._positions(cells).max()) + 1)

    def _positions(self, cells: I64) -> I64:
        (positions,) = self._child.keys_of(cells)
        found: I64 = positions.to_numpy(zero_copy_only=False)
        return found
