"""States whose rows live on when they are read: they note what a function reads key by key.

They are kinds of their own so that states without it do nothing for it, not even ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.engine.operators.row import Row
from penstock.engine.operators.states.base import Place
from penstock.engine.operators.states.lists import ListState
from penstock.engine.operators.states.maps import MapState
from penstock.engine.operators.states.value import ValueState
from penstock.plan.keyhash import I64


class ProlongedValueState(ValueState):
    def __init__(self, place: Place, schema: pa.Schema) -> None:
        super().__init__(place, schema)
        self._read: dict[int, None] = {}

    def get(self) -> Row | None:
        self._read[self._place.position("get")] = None
        return super().get()

    def end_batch(self) -> None:
        read, self._read = self._read, {}
        if read:
            self._expiry.read(self._scope.cells.take(_positions(read)))
        super().end_batch()


class ProlongedListState(ListState):
    def __init__(self, place: Place, schema: pa.Schema) -> None:
        super().__init__(place, schema)
        self._read: dict[int, None] = {}

    def get(self) -> list[Row]:
        self._read[self._place.position("get")] = None
        return super().get()

    def end_batch(self) -> None:
        read, self._read = self._read, {}
        if read:
            owners = self._scope.cells.take(_positions(read))
            self._expiry.read(self._child.walk(owners).cells)
        super().end_batch()


class ProlongedMapState(MapState):
    """An entry is read by `get`, by `in`, and with all others by `items`, `keys` and `values`."""

    def __init__(self, place: Place, keys: pa.Schema, schema: pa.Schema) -> None:
        super().__init__(place, keys, schema)
        self._read: dict[tuple[int, tuple[Any, ...]], None] = {}

    def get(self, key: Any) -> Row | None:
        self._read[self._place.position("get"), self._key(key)] = None
        return super().get(key)

    def items(self) -> Iterator[tuple[Any, Row]]:
        at = self._place.position("items")
        self._read.update(dict.fromkeys((at, key) for key in self._map()))
        return super().items()

    def __contains__(self, key: Any) -> bool:
        self._read[self._place.position("in"), self._key(key)] = None
        return super().__contains__(key)

    def end_batch(self) -> None:
        read, self._read = list(self._read), {}
        if read:
            owners = self._scope.cells.take(_positions(at for at, _ in read))
            self._expiry.read(self._child.find(owners, self._columns(read)))
        super().end_batch()


def _positions(noted: Iterator[int] | dict[int, None]) -> I64:
    return np.fromiter(noted, np.int64)
