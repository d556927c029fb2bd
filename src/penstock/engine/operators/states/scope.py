"""The keys of the batch that a function works on, and where each is in the operator's state.

Every state of the function asks here, so a key is looked up once per batch however many states there are. A key is made
when the first of them gets a value for it, and goes when the last one has lost its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64
from penstock.state.flat import int64_array, take_rows
from penstock.state.keyed import Keyed
from penstock.state.lifetime import Now


class Expiring(Protocol):
    def sweep(self) -> None:
        """Drops a few of the rows that are over."""
        ...


class Scope:
    def __init__(self, keyed: Keyed, names: tuple[str, ...], now: Now) -> None:
        self.keyed = keyed
        self.now = now
        self.expiring: list[Expiring] = []
        """The states whose rows have a time to live."""
        self.current = -1
        """Which key of the batch is being processed; -1 where none is."""
        self._names = names
        self._keys: Sequence[pa.Array] = ()
        self._cells: I64 | None = None
        self._batch: pa.RecordBatch | None = None

    def tick(self) -> None:
        """A batch or a snapshot begins: time goes on."""
        if self.expiring:
            self.now.tick()

    # ---- one key at a time

    def begin(self, keys: Sequence[pa.Array]) -> None:
        """Distinct keys; `current` will be a position in them."""
        self._keys, self._cells = keys, None

    @property
    def count(self) -> int:
        return len(self._keys[0]) if self._keys else 0

    @property
    def cells(self) -> I64:
        """Of the distinct keys; NOBODY where a key is not there."""
        if self._cells is None:
            self._cells = self.keyed.space.find(self._keys)
        return self._cells

    def made(self, positions: Sequence[int]) -> I64:
        """The cells of these keys, made where there are none."""
        cells, wanted = self.cells, np.array(positions, np.int64)
        missing = wanted[cells.take(wanted) < 0]
        if len(missing):
            rows = int64_array(missing)
            keys = [take_rows(key, rows) for key in self._keys]
            cells[missing] = self.keyed.space.upsert(keys).cells
        return cells.take(wanted)

    # ---- whole batches

    def find(self, batch: pa.RecordBatch) -> I64:
        """The cell of every row's key, NOBODY where it is not there."""
        if batch is not self._batch or self._cells is None:
            self._batch, self._cells = batch, self.keyed.space.find(self._of(batch))
        return self._cells

    def make(self, batch: pa.RecordBatch) -> I64:
        """The cell of every row's key, made where there is none."""
        known = self._cells if batch is self._batch else None
        if known is None or (len(known) and int(known.min()) < 0):
            self._batch, self._cells = batch, self.keyed.space.upsert(self._of(batch)).cells
            return self._cells
        return known

    def _of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self._names]

    # ---- the end of a batch

    def end(self) -> None:
        self.current = -1
        self._keys, self._cells, self._batch = (), None, None
        for state in self.expiring:
            state.sweep()
        self.keyed.settle()
