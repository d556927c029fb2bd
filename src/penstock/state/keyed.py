"""All keyed state of one operator: its keys, and a table over them for every state."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import CheckpointCorrupt
from penstock.plan.keyhash import I64, Flags
from penstock.state.cells import Cells
from penstock.state.changelog import Changelog
from penstock.state.changes import Changes, split_gone
from penstock.state.child import Child
from penstock.state.flat import values_of
from penstock.state.keyspace import KeySpace
from penstock.state.lifetime import Lifetimes
from penstock.state.moving import tidy
from penstock.state.segments import GROUP_COLUMN
from penstock.state.table import BELOW_PREFIX, KEY_PREFIX, Table, row_schema
from penstock.state.tracking import Tracker


class Holder(Protocol):
    """A state that can have something for a key."""

    def holds(self, cells: I64) -> Flags: ...


class Log(Protocol):
    def admit(self, table: Table, changes: Changelog) -> None:
        """What it notes of this table is written from time to time."""
        ...


class Keyed:
    def __init__(
        self,
        keys: pa.Schema,
        max_parallelism: int,
        *,
        incremental: bool = False,
        log: Log | None = None,
    ) -> None:
        """`log`: whoever has changes written ahead of checkpoints hears of every table."""
        self.space = self._make_space(keys, max_parallelism)
        self._max_parallelism = max_parallelism
        self._incremental = incremental
        self._log = log
        self._holders: list[Holder] = []
        self._left: list[I64] = []
        """Cells that a state has lost its rows of."""

    def table(
        self, kind: str, state: str, values: pa.Schema, lifetimes: Lifetimes | None = None
    ) -> Table:
        """A state with one row per key."""
        space = self.space
        changes = self._tracker()
        rows = row_schema(kind, space.schema, pa.schema([]), values)
        table = Table(state, space.cells, space.keys, rows, values, changes, lifetimes)
        self._holders.append(table)
        self._admit(table)
        return table

    def child(
        self,
        kind: str,
        state: str,
        keys: pa.Schema,
        values: pa.Schema,
        lifetimes: Lifetimes | None = None,
    ) -> Child:
        """A state with many rows per key, each with a key of its own below it."""
        changes = self._tracker()
        child = Child(
            kind, state, self.space, keys, values, self._max_parallelism, changes, lifetimes
        )
        self._holders.append(child)
        self._admit(child.table)
        return child

    def _make_space(self, keys: pa.Schema, max_parallelism: int) -> KeySpace:
        return KeySpace(keys, max_parallelism)

    def make_room(self) -> None:
        """A batch is done: rows that are not needed now may leave memory."""

    def _before_load(self) -> None:
        """Rows of a snapshot come now."""

    def _tracker(self) -> Tracker | None:
        if self._log is not None:
            return Changelog()
        return Changes() if self._incremental else None

    def _admit(self, table: Table) -> None:
        if self._log is not None and isinstance(table.changes, Changelog):
            self._log.admit(table, table.changes)

    def vacate(self, cells: I64) -> None:
        """Of these distinct cells, the keys go that no state has anything for."""
        if not len(cells):
            return
        held = np.zeros(len(cells), np.bool_)
        for holder in self._holders:
            held |= holder.holds(cells)
        self.space.remove(cells[~held])

    def leave(self, cells: I64) -> None:
        """A state has nothing for these keys any more."""
        self._left.append(cells)

    def vacate_left(self) -> None:
        if self._left:
            left, self._left = self._left, []
            self.vacate(np.unique(np.concatenate(left)))

    def settle(self) -> None:
        """A batch is done, or a snapshot loaded: of the keys that a state has left, those go that no other has anything
        for."""
        self.vacate_left()
        self.make_room()
        for cells in self._all_cells():
            tidy(cells)

    @property
    def nbytes(self) -> int:
        """What all of it takes, whether it is used or not."""
        return sum(cells.nbytes for cells in self._all_cells())

    def _all_cells(self) -> list[Cells]:
        children = (each for each in self._holders if isinstance(each, Child))
        return [self.space.cells, *(child.space.cells for child in children)]

    # ---- rows of a snapshot, in the order in which they were written

    def load(self, table: Table, batch: pa.RecordBatch) -> None:
        """Into a state with one row per key."""
        self._before_load()
        gone, rows = split_gone(batch)
        if gone is not None:
            cells = self._found(gone)
            table.drop(cells[table.present[cells]])
            self.leave(cells)
        keys, values = self._parts(rows)
        put = self.space.append if gone is None else self.space.upsert
        cells = self._checked(rows, put(keys).cells, table.state)
        if len(self.space.last_rows(cells)) != len(cells):
            raise _twice(table)
        if gone is None and table.present[cells].any():
            raise _twice(table)
        table.put(cells, values)

    def load_child(self, child: Child, batch: pa.RecordBatch) -> None:
        """Into a state with many rows per key."""
        self._before_load()
        gone, rows = split_gone(batch)
        width = len(self.space.schema)
        if gone is not None:
            keys, _ = self._parts(gone)
            owners = self.space.find(keys[:width])
            cells = child.find(owners, keys[width:])
            child.drop(np.unique(cells[cells >= 0]))
            self.leave(owners[owners >= 0])
        keys, values = self._parts(rows)
        cells = self.space.upsert(keys[:width]).cells
        owners, before = self._checked(rows, cells, child.table.state), len(child.table)
        child.put(owners, keys[width:], values)
        if gone is None and len(child.table) - before != rows.num_rows:
            raise _twice(child.table)

    def _found(self, batch: pa.RecordBatch) -> I64:
        cells = self.space.find(self._parts(batch)[0])
        return np.unique(cells[cells >= 0])

    def _checked(self, batch: pa.RecordBatch, cells: I64, state: str) -> I64:
        """These are the cells of the batch's keys."""
        groups = self.space.cells.groups[cells]
        if not np.array_equal(groups, values_of(batch.column(GROUP_COLUMN))):
            raise CheckpointCorrupt(f"state {state!r} has a key with another's key group")
        return cells

    def _parts(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], pa.RecordBatch]:
        """The key columns, and the values."""
        names = batch.schema.names
        keys = [batch.column(name) for name in names if name.startswith((KEY_PREFIX, BELOW_PREFIX))]
        return keys, batch.select(range(1 + len(keys), batch.num_columns))


def _twice(table: Table) -> CheckpointCorrupt:
    return CheckpointCorrupt(f"state {table.state!r} has a key twice in its snapshot")
