"""Keyed state that is larger than memory: the rows in use are in tables as ever, the others in floors below them.

A key is in memory with all its rows, or with none. One that a batch asks for and that is not there is fetched, with
those of the whole batch in one go; after a batch, when there are too many, those go that nobody has asked for lately,
and what has changed of them is written down first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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

LEAVE_ROWS = 256
"""So many keys may leave after a batch that brought none, and a part of those that are too many."""
FULL = 0.8
"""So much of its share of memory an operator has left after rows went."""
SWEPT_ROWS = 256
"""So many rows of a floor are looked at after a batch, where rows have a time to live."""
AHEAD_ROWS = 16_384
"""So many at a time, when a restore looks for rows of a clock that went before."""
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
    latest_ms: int = 0
    """No row was touched later."""


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
        self._reading = True
        """A snapshot, until the first `settle`: what is over stays, for to say that it went, the next checkpoint must
        know on what it builds."""
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

    def _begin(self, table: Table) -> Sweeper:
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
        if table.lifetimes is not None:
            table.lifetimes.latest_ms = opened.latest_ms
        return Sweeper(changes, table)

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
        """More than fits into memory may come."""
        self.make_room()

    def settle(self) -> None:
        if self._reading:
            for each in self._lowers:
                for keys in each.sweeper.ahead():
                    each.hold_back(self.space.find(keys))
                    self.make_room()
            self._reading = False
        super().settle()

    def make_room(self) -> None:
        self.vacate_left()  # while a snapshot is read: cells that leave memory may be others' afterwards
        came = self.space.came()
        for each in self._lowers if not self._reading else ():
            over = each.sweeper.found(self.space, came)
            each.drop_over(over)
            self.leave(over)
        self.vacate_left()
        share, used = self._budget.share_bytes, self.bytes_used
        if used > share:
            self._evict(used, share, came)
        self.space.next_batch()

    def _evict(self, used: int, share: int, came: int) -> None:
        """A few at a time, and more than have come, so that no batch waits for many. A snapshot that is still to be
        written down is waited for only when there is no other way."""
        count = self.space.cells.count
        over, much = (int(count * (1 - part * share / used)) + 1 for part in (FULL, 1.0))
        most = min(over, LEAVE_ROWS + came + much // 4)
        if any(each.changes.busy for each in self._lowers):
            cells = self.space.coldest(most, self._can_leave)
            self._leave(cells)
            if len(cells) == most or used <= share / FULL:
                return
            most -= len(cells)
            for each in self._lowers:
                each.changes.settle()
        self._leave(self.space.coldest(most))
        self._budget.check(self.bytes_used, self._label)

    def _can_leave(self, cells: I64) -> Flags:
        can: Flags = np.ones(len(cells), np.bool_)
        for each in self._lowers:
            can[can] = each.can_leave(cells[can])
        return can

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
        self.changes = changes
        self._table = table
        self._at = b""

    def found(self, space: CachedSpace, came: int) -> I64:
        """Their cells, now that they are in memory. More rows are looked at than keys came since the last time: then
        what is over is never more than what is not."""
        lifetimes = self._table.lifetimes
        if lifetimes is None or not len(self._table):
            return _NONE
        rows, self._at = self._scan(self._at, SWEPT_ROWS + SWEEP_PER_ROW * came)
        over_ms = lifetimes.over_ms
        over = [key for key, value in rows if _moment(value) <= over_ms]
        if not over:
            return _NONE
        cells = space.find(self._owners(over))
        return np.unique(cells[cells >= 0])

    def ahead(self) -> Iterator[list[pa.Array]]:
        """Keys with rows of a snapshot that were touched at a moment which is still to come. Rarely there are any, and
        only then the floor is read."""
        lifetimes, at = self._table.lifetimes, b""
        while lifetimes is not None and lifetimes.latest_ms > lifetimes.now_ms:
            rows, at = self._scan(at, AHEAD_ROWS)
            ahead = [key for key, value in rows if _moment(value) > lifetimes.now_ms]
            if ahead:
                yield self._owners(ahead)
            if not at:
                return

    def _scan(self, first: bytes, most: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """So many rows, and where the next begin; nothing: at the beginning."""
        rows = list(islice(self.changes.floor.scan(first), most))
        return rows, rows[-1][0] + b"\0" if len(rows) == most else b""

    def _owners(self, keys: Sequence[bytes]) -> list[pa.Array]:
        codec = self.changes.rows
        return codec.key_columns(keys)[: codec.owner_width]


def _moment(value: bytes) -> int:
    """When a row was touched that ends after a while."""
    return int.from_bytes(value[-8:], "little")


_NONE: I64 = np.empty(0, np.int64)


Down: TypeAlias = WriteBack | LoggedFloor
"""What is known of a table's changes that has a floor below."""


class Lower(Protocol):
    """A state, and the floor below it."""

    changes: Down
    table: Table
    sweeper: Sweeper

    def ask(self, keys: Sequence[bytes]) -> Asked: ...

    def can_leave(self, cells: I64) -> Flags:
        """Whether the rows of these keys can leave memory before a snapshot is written down."""
        ...

    def leave(self, cells: I64) -> None:
        """The rows of these keys leave memory."""
        ...

    def drop_over(self, cells: I64) -> None:
        """Rows of these keys that are over go for good."""
        ...

    def hold_back(self, cells: I64) -> None:
        """Rows of these keys begin their life now that would begin it later."""
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
    def __init__(self, sweeper: Sweeper, table: Table) -> None:
        self.changes = sweeper.changes
        self.table = table
        self.sweeper = sweeper

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

    def can_leave(self, cells: I64) -> Flags:
        can = ~self.table.present.take(cells)
        held = np.flatnonzero(~can)
        can[held] = self.changes.can_go_down(cells[held])
        return can

    def leave(self, cells: I64) -> None:
        held = cells[self.table.present.take(cells)]
        self.changes.write_down(held)
        self.table.forget(held)

    def hold_back(self, cells: I64) -> None:
        held = cells[cells >= 0]
        self.table.hold_back(held[self.table.present.take(held)])

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
    def __init__(self, sweeper: Sweeper, child: Child) -> None:
        self.changes = sweeper.changes
        self.child = child
        self.table = child.table
        self.sweeper = sweeper

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

    def can_leave(self, cells: I64) -> Flags:
        rows = self.child.walk(cells)
        can: Flags = np.ones(len(cells), np.bool_)
        can[rows.positions[~self.changes.can_go_down(rows.cells)]] = False
        return can

    def leave(self, cells: I64) -> None:
        rows = self.child.walk(cells).cells
        self.changes.write_down(np.sort(rows))
        self.child.forget(cells, rows)

    def hold_back(self, cells: I64) -> None:
        self.table.hold_back(self.child.walk(np.unique(cells[cells >= 0])).cells)

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
