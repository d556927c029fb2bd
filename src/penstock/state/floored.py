"""Keyed state that is larger than memory: the rows in use are in tables as ever, the others in floors below them.

A key is in memory with all its rows, or with none. One that a batch asks for and that is not there is fetched, with
those of the whole batch in one go; after a batch, when there are too many, those go that nobody has asked for lately,
and what has changed of them is written down first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigError
from penstock.plan.keyhash import I64, Flags
from penstock.ports.floor import Floor
from penstock.protocol.snapshot import Segment
from penstock.state.cached_space import CachedSpace
from penstock.state.cells import Groups
from penstock.state.child import Child
from penstock.state.keyed import Keyed, Log
from penstock.state.keyspace import KeySpace
from penstock.state.lifetime import SWEEP_PER_ROW, Lifetimes
from penstock.state.logged_floor import LoggedFloor
from penstock.state.row_bytes import RowBytes
from penstock.state.table import Table
from penstock.state.tracking import Tracker
from penstock.state.write_back import WriteBack

LEAVE_ROWS = 4_096
"""So many keys may leave after a batch that brought none."""
FULL = 0.8
"""So much of its share of memory an operator has left after rows went."""
SWEPT_ROWS = 256
"""So many rows of a floor are looked at after a batch, where rows have a time to live."""
SLACK = 1.3
"""Arrays are longer than what is in them."""


class Budget:
    """Memory for the rows of all operators of a worker, in equal shares."""

    def __init__(self, total_bytes: int, *, strict: bool = True) -> None:
        """`strict`: too little for one batch is an error."""
        self.total_bytes = total_bytes
        self._strict = strict
        self._members = 0

    def join(self) -> None:
        self._members += 1

    @property
    def share_bytes(self) -> int:
        return self.total_bytes // max(1, self._members)

    def check(self, left_bytes: int, label: str) -> None:
        """An operator has so much in memory that cannot leave it: what the last batch had."""
        share = self.share_bytes
        if self._strict and left_bytes > 2 * share:
            raise ConfigError(
                f"{label}: the rows that one batch needs take {left_bytes:,} bytes, and its share of the memory for"
                f" state is {share:,} of {self.total_bytes:,}; give it more with CheckpointConfig(state_memory=...)"
            )


@dataclass(frozen=True)
class Opened:
    """A floor, and what a snapshot began it with: so many rows, and these files, which are those of a checkpoint that
    the next one may build on."""

    floor: Floor
    rows: int = 0
    checkpoint: int = 0
    members: Mapping[str, Segment] = field(default_factory=dict)


class OpenFloor(Protocol):
    def __call__(self, state: str, rows: RowBytes) -> Opened: ...


class FlooredKeyed(Keyed):
    space: CachedSpace

    def __init__(
        self,
        keys: pa.Schema,
        max_parallelism: int,
        groups: range,
        open_floor: OpenFloor,
        budget: Budget,
        label: str,
        log: Log | None = None,
    ) -> None:
        super().__init__(keys, max_parallelism, log=log)
        self._groups = groups
        self._open_floor = open_floor
        self._budget = budget
        self._label = label
        self._lowers: list[Lower] = []
        self._reading = False
        """Rows of a snapshot come in."""
        budget.join()
        self.space.below = self

    def _make_space(self, keys: pa.Schema, max_parallelism: int) -> KeySpace:
        return CachedSpace(keys, max_parallelism)

    def table(
        self, kind: str, state: str, values: pa.Schema, lifetimes: Lifetimes | None = None
    ) -> Table:
        table = super().table(kind, state, values, lifetimes)
        self._lowers.append(LowerTable(self._begin(table), table))
        return table

    def child(
        self,
        kind: str,
        state: str,
        keys: pa.Schema,
        values: pa.Schema,
        lifetimes: Lifetimes | None = None,
    ) -> Child:
        child = super().child(kind, state, keys, values, lifetimes)
        self._lowers.append(LowerChild(self._begin(child.table), child))
        return child

    def _tracker(self) -> Tracker | None:
        """Made when the table is there: see `_begin`."""
        return None

    def _begin(self, table: Table) -> Down:
        rows = RowBytes(table.schema)
        opened = self._open_floor(table.state, rows)
        if opened.rows:
            self.vacate_left()
            self._leave(self.space.everybody())
        changes = self._down(opened, rows)
        changes.table = table
        table.track(changes)
        table.begin_with(opened.rows)
        self._admit(table)
        return changes

    def _down(self, opened: Opened, rows: RowBytes) -> Down:
        if self._log is not None:
            return LoggedFloor(opened.floor, rows, self._groups, begun=opened.rows > 0)
        changes = WriteBack(opened.floor, rows, self._groups)
        if opened.checkpoint:
            changes.bases[opened.checkpoint] = opened.members
        return changes

    # ---- what is not in memory

    def encode(self, groups: Groups, keys: Sequence[pa.Array]) -> list[bytes]:
        return self._lowers[0].changes.rows.keys(groups, keys)

    def ask(self, keys: Sequence[bytes]) -> Found | None:
        asked = [each.ask(keys) for each in self._lowers if len(each.table)]
        flags = [each.found for each in asked]
        found = np.logical_or.reduce(flags) if flags else None
        return None if found is None or not found.any() else Found(found, asked)

    # ---- what leaves memory

    def _before_load(self) -> None:
        """More than fits into memory may come. What is over stays: to say that it went, the next checkpoint must know
        on what it builds."""
        self._reading = True
        self.make_room()

    def settle(self) -> None:
        self._reading = False
        super().settle()

    def make_room(self) -> None:
        self.vacate_left()  # while a snapshot is read: cells that leave memory may be others' afterwards
        came = self.space.came()
        for each in self._lowers if not self._reading else ():
            self.leave(each.sweep(self.space, came))
        self.vacate_left()
        share, used = self._budget.share_bytes, self.bytes_used
        if used > share and self._may_leave(used, share):
            self._evict(used, share, came)
        self.space.next_batch()

    def _may_leave(self, used: int, share: int) -> bool:
        """A snapshot that is still to be written down is waited for only when there is no other way."""
        if any(each.changes.busy for each in self._lowers):
            if used <= share / FULL:
                return False
            for each in self._lowers:
                each.changes.settle()
        return True

    def _evict(self, used: int, share: int, came: int) -> None:
        """A few at a time, and more than have come, so that no batch waits for many."""
        over = int(self.space.cells.count * (1 - FULL * share / used)) + 1
        self._leave(self.space.coldest(min(over, LEAVE_ROWS + 2 * came)))
        self._budget.check(self.bytes_used, self._label)

    def _leave(self, cells: I64) -> None:
        for each in self._lowers:
            if not self._reading:
                each.drop_over(cells)
            each.leave(cells)
        self.space.remove(cells)

    @property
    def bytes_used(self) -> int:
        """By keys and rows in memory."""
        flat = self.space.cells.count * (
            self.space.row_bytes + sum(each.owner_bytes for each in self._lowers)
        )
        below = sum(each.below_bytes for each in self._lowers)
        return int(SLACK * (flat + below)) + self.space.pile_bytes


@dataclass
class Found:
    """Meets the contract `cached_space.Answer`."""

    found: Flags
    parts: Sequence[Asked]

    def bring(self, cells: I64) -> None:
        for part in self.parts:
            part.bring(cells)


@dataclass
class Asked:
    found: Flags
    bring: Callable[[I64], None]


class Sweeper:
    """Goes round the rows of a floor, a few at a time, for keys of which a row is over."""

    def __init__(self, changes: Down, table: Table) -> None:
        self._changes = changes
        self._table = table
        self._at = b""

    def found(self, space: CachedSpace, came: int) -> I64:
        """Their cells, now that they are in memory. More than have come are looked at: then what is over is never more
        than what is not."""
        lifetimes = self._table.lifetimes
        if lifetimes is None or not len(self._table):
            return _NONE
        most = SWEPT_ROWS + SWEEP_PER_ROW * came
        rows = list(islice(self._changes.floor.scan(self._at), most))
        self._at = rows[-1][0] + b"\0" if len(rows) == most else b""
        over_ms = lifetimes.over_ms
        over = [key for key, value in rows if int.from_bytes(value[-8:], "little") <= over_ms]
        if not over:
            return _NONE
        codec = self._changes.rows
        cells = space.find(codec.key_columns(over)[: codec.owner_width])
        return np.unique(cells[cells >= 0])


_NONE: I64 = np.empty(0, np.int64)


Down: TypeAlias = WriteBack | LoggedFloor
"""What is known of a table's changes that has a floor below."""


class Lower(Protocol):
    """A state, and the floor below it."""

    changes: Down
    table: Table

    def ask(self, keys: Sequence[bytes]) -> Asked: ...

    def leave(self, cells: I64) -> None:
        """The rows of these keys leave memory."""
        ...

    def drop_over(self, cells: I64) -> None:
        """Rows of these keys that are over go for good."""
        ...

    def sweep(self, space: CachedSpace, came: int) -> I64:
        """Looks for rows below that are over, and drops them; the cells of their keys, of which `came` came into memory
        since the last time."""
        ...

    @property
    def owner_bytes(self) -> int:
        """Per key."""
        ...

    @property
    def below_bytes(self) -> int:
        """Besides that."""
        ...


class LowerTable:
    def __init__(self, changes: Down, table: Table) -> None:
        self.changes = changes
        self.table = table
        self.sweeper = Sweeper(changes, table)

    def ask(self, keys: Sequence[bytes]) -> Asked:
        gone = self.changes.gone()
        values = self.changes.floor.get(keys)
        rows = [v is not None and not _in(k, gone) for k, v in zip(keys, values, strict=True)]
        found = np.array(rows, np.bool_)
        there = [v for v, f in zip(values, rows, strict=True) if f and v is not None]

        def bring(cells: I64) -> None:
            mine = cells[found]
            self.table.bring(mine, self.changes.rows.columns(there))
            self.table.brought(mine)

        return Asked(found, bring)

    def leave(self, cells: I64) -> None:
        held = cells[self.table.present.take(cells)]
        self.changes.write_down(held)
        self.table.forget(held)

    def sweep(self, space: CachedSpace, came: int) -> I64:
        cells = self.sweeper.found(space, came)
        self.drop_over(cells)
        return cells

    def drop_over(self, cells: I64) -> None:
        if self.table.lifetimes is not None:
            held = cells[self.table.present.take(cells)]
            self.table.drop(held[self.table.lifetimes.over(held)])

    @property
    def owner_bytes(self) -> int:
        return self.table.row_bytes

    @property
    def below_bytes(self) -> int:
        return self.table.pile_bytes


class LowerChild:
    def __init__(self, changes: Down, child: Child) -> None:
        self.changes = changes
        self.child = child
        self.table = child.table
        self.sweeper = Sweeper(changes, child.table)

    def ask(self, keys: Sequence[bytes]) -> Asked:
        gone = self.changes.gone()
        lists = [
            [row for row in rows if not _in(row[0], gone)]
            for rows in self.changes.floor.below(keys)
        ]
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        rows = list(chain.from_iterable(lists))

        def bring(cells: I64) -> None:
            if rows:
                owners = np.repeat(cells, sizes)
                codec = self.changes.rows
                below = codec.key_columns([key for key, _ in rows])[codec.owner_width :]
                values = codec.columns([value for _, value in rows])
                self.table.brought(self.child.bring(owners, below, values))

        return Asked(sizes > 0, bring)

    def leave(self, cells: I64) -> None:
        rows = self.child.walk(cells).cells
        self.changes.write_down(np.sort(rows))
        self.child.forget(cells, rows)

    def sweep(self, space: CachedSpace, came: int) -> I64:
        cells = self.sweeper.found(space, came)
        self.drop_over(cells)
        return cells

    def drop_over(self, cells: I64) -> None:
        if self.table.lifetimes is not None:
            rows = self.child.walk(cells).cells
            self.child.drop(rows[self.table.lifetimes.over(rows)])

    @property
    def owner_bytes(self) -> int:
        return 2 * np.dtype(np.int64).itemsize

    @property
    def below_bytes(self) -> int:
        space = self.child.space
        width = self.table.row_bytes + space.row_bytes + self.owner_bytes
        return space.cells.count * width + self.table.pile_bytes + space.pile_bytes


def _in(key: bytes, sets: Sequence[set[bytes]]) -> bool:
    return any(key in each for each in sets)
