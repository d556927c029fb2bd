"""State with a map per key: rows that are found by a key of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.engine.operators.keyed import expected_rows, keep_chain
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows, make_row, python_values
from penstock.engine.operators.states.base import Place, nullable, required_columns
from penstock.engine.operators.states.expiry import make_expiry, walk_living
from penstock.engine.operators.states.value import checked_values, rows_at
from penstock.errors import SchemaError
from penstock.plan.keyhash import I64, is_key_type
from penstock.plan.schema import type_ddl
from penstock.protocol.messages import SnapshotOrder
from penstock.state.flat import int64_array
from penstock.state.frozen import Frozen

_CALLS = "get, put, remove, items, keys, values and clear"


class Items(NamedTuple):
    """The entries of the keys of a batch: for each, the row of the batch whose key it belongs to."""

    positions: pa.Array
    keys: pa.RecordBatch
    values: pa.RecordBatch


class MapState:
    """Scoped to the key that is being processed. Made by `ctx.map_state(name, key_schema, schema)`. A map key of one
    column is given and returned as its value, one of several as a tuple."""

    kind: ClassVar[str] = "map"

    def __init__(self, place: Place, keys: pa.Schema, schema: pa.Schema) -> None:
        _refuse_unfit(keys, schema, place.label)
        self.key_schema = keys
        self.schema = schema
        self._place = place
        self._scope = place.scope
        self._names: tuple[str, ...] = tuple(schema.names)
        self._to_batch = RowsToBatch(schema, place.label, "it was given")
        self._to_keys = RowsToBatch(keys, f"{place.label}, map key", "it was given")
        self._child = place.scope.keyed.child(
            self.kind, place.name, nullable(keys), nullable(schema), place.lifetimes()
        )
        self._expiry = make_expiry(self._child, place.scope)
        self._maps: list[dict[tuple[Any, ...], Row]] | None = None
        self._changed: dict[tuple[int, tuple[Any, ...]], None] = {}
        self._types: set[tuple[type, ...]] = set()
        """Of map keys that were given."""
        self._child.space.expect(expected_rows(place.context, place.name))
        for batch in place.restored(self._child.table, required_columns(schema)):
            place.scope.keyed.load_child(self._child, batch)
        keep_chain(self._child.table, place.context)
        self._expiry.restored()

    # ---- one key at a time

    def get(self, key: Any) -> Row | None:
        """The row under this map key; None where there is none."""
        return self._map().get(self._key(key))

    def put(self, key: Any, value: Sequence[Any] | Mapping[str, Any]) -> None:
        """Sets the row under this map key: a tuple, list, dict or Row."""
        made, entries = self._key(key), self._map()
        entries[made] = make_row(self._names, self._to_batch.values(value))
        self._changed[self._scope.current, made] = None

    def remove(self, key: Any) -> None:
        """Forgets the row under this map key, if there is one."""
        made, entries = self._key(key), self._map()
        if entries.pop(made, None) is not None:
            self._changed[self._scope.current, made] = None

    def items(self) -> Iterator[tuple[Any, Row]]:
        """All map keys with their rows. They may be changed meanwhile: what comes is as it was."""
        single = len(self.key_schema) == 1
        return ((key[0] if single else key, row) for key, row in list(self._map().items()))

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Row]:
        return (row for _, row in self.items())

    def clear(self) -> None:
        """Forgets all rows of the key."""
        entries = self._map()
        for key in entries:
            self._changed[self._scope.current, key] = None
        entries.clear()

    def __contains__(self, key: Any) -> bool:
        return self._key(key) in self._map()

    def __len__(self) -> int:
        return len(self._map())

    # ---- whole batches

    def get_batch(self, batch: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        """For every row of the batch, the row of its key under the map key beside it; nulls where there is none."""
        cells = self._find(batch, keys, "get_batch")
        self._expiry.evict(cells)
        self._expiry.read(cells)
        return rows_at(self._child.table, cells)

    def put_batch(
        self, batch: pa.RecordBatch, keys: pa.RecordBatch, values: pa.RecordBatch
    ) -> None:
        """Sets the rows under these map keys; where one comes several times for a key, its last value counts."""
        place, rows = self._place, batch.num_rows
        given = checked_values(keys, self.key_schema, rows, "put_batch", place)
        checked = checked_values(values, self.schema, rows, "put_batch", place)
        self._child.put(self._scope.make(batch), given.columns, checked)

    def remove_batch(self, batch: pa.RecordBatch, keys: pa.RecordBatch) -> None:
        """Forgets the rows under these map keys."""
        self._drop(np.unique(self._find(batch, keys, "remove_batch")), self._scope.find(batch))

    def items_batch(self, batch: pa.RecordBatch) -> Items:
        """All entries of every row's key: those of the first row's, then those of the second one's, and so on."""
        walked = walk_living(self._child, self._scope.find(batch), self._expiry)
        self._expiry.read(walked.cells)
        keys = pa.RecordBatch.from_arrays(
            self._child.keys_of(walked.cells), schema=nullable(self.key_schema)
        )
        values = self._child.table.get(walked.cells)
        return Items(int64_array(walked.positions), keys, values)

    def clear_batch(self, batch: pa.RecordBatch) -> None:
        """Forgets all rows of every key in the batch."""
        owners = np.unique(self._scope.find(batch))
        self._drop(self._child.walk(owners).cells, owners)

    # ---- for the operator

    def end_batch(self) -> None:
        if self._changed and self._maps is not None:
            kept = [(at, key) for at, key in self._changed if key in self._maps[at]]
            gone = [(at, key) for at, key in self._changed if key not in self._maps[at]]
            if gone:
                owners = self._scope.cells.take(np.array([at for at, _ in gone], np.int64))
                found = self._child.find(owners, self._columns(gone))
                self._drop(found, owners)
            if kept:
                rows = [self._maps[at][key] for at, key in kept]
                owners = self._scope.made([at for at, _ in kept])
                self._child.put(owners, self._columns(kept), self._to_batch.batch(rows))
        self._maps, self._changed = None, {}

    def freeze(self, order: SnapshotOrder) -> Frozen:
        return self._child.table.freeze(order.base, order.id)

    def _columns(self, changed: list[tuple[int, tuple[Any, ...]]]) -> list[pa.Array]:
        return list(self._to_keys.batch([key for _, key in changed]).columns)

    def _find(self, batch: pa.RecordBatch, keys: pa.RecordBatch, call: str) -> I64:
        given = checked_values(keys, self.key_schema, batch.num_rows, call, self._place)
        return self._child.find(self._scope.find(batch), given.columns)

    def _drop(self, cells: I64, owners: I64) -> None:
        self._child.drop(cells[cells >= 0])
        self._scope.keyed.leave(owners[owners >= 0])

    def _key(self, key: Any) -> tuple[Any, ...]:
        """What would never be found, because no such key can be put, is refused: once for each Python type."""
        made = tuple(self._to_keys.values((key,) if len(self.key_schema) == 1 else key))
        types = tuple(map(type, made))
        if types not in self._types:
            self._to_keys.batch([made])
            self._types.add(types)
        return made

    def _map(self) -> dict[tuple[Any, ...], Row]:
        at = self._place.position(_CALLS)
        if self._maps is None:
            self._maps = [{} for _ in range(self._scope.count)]
            walked = walk_living(self._child, self._scope.cells, self._expiry)
            keys = zip(*map(python_values, self._child.keys_of(walked.cells)), strict=True)
            rows = batch_rows(self._child.table.get(walked.cells))
            for owner, key, row in zip(walked.positions.tolist(), keys, rows, strict=True):
                self._maps[owner][key] = row
        return self._maps[at]


def _refuse_unfit(keys: pa.Schema, schema: pa.Schema, label: str) -> None:
    if not len(keys):
        raise SchemaError(f"{label}: a map key needs a column, as in 'page STRING'")
    for field in keys:
        if not is_key_type(field.type):
            raise SchemaError(
                f"{label}: map key {field.name!r} is {type_ddl(field.type)}, which cannot be a key; use integers,"
                " text, binary, booleans, dates, timestamps or decimals"
            )
        if field.name in schema.names:
            raise SchemaError(
                f"{label}: {field.name!r} is a column of the map key and of the value; give one of them another name"
            )
