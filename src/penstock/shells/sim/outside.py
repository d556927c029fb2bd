"""The world outside the job: a source that can be read again, a table that rows are committed to.

The table is what an external system would be: it keeps prepared transactions and visible ones, whatever happens to
the processes that talk to it. It is also where exactly-once shows or does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.base import (
    END,
    EndOfInput,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
    Wait,
)
from penstock.errors import CommitError
from penstock.protocol.snapshot import Plain

if TYPE_CHECKING:
    from penstock.shells.sim.world import World

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
KEYS = 7


def row(id: int) -> tuple[int, int, int]:
    return id, (id * 7919 + 13) % 101 % KEYS, id % 10


def batch_of(ids: Sequence[int]) -> pa.RecordBatch:
    columns = zip(*(row(number) for number in ids), strict=True)
    return pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in columns], schema=SCHEMA)


@dataclass(frozen=True)
class SimSource(Source):
    """Lane l holds ids l, l + lanes, ... : what is in the input up to a position is plain arithmetic."""

    base: int
    rows_per_lane: tuple[int, ...]

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def ids(self, lane: int, start: int, end: int) -> list[int]:
        lanes = len(self.rows_per_lane)
        return [self.base + position * lanes + lane for position in range(start, end)]

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        return _SimReader(self, context, positions)

    def covered(self, positions: Mapping[int, Plain]) -> list[int]:
        """All ids before these positions."""
        return [
            number
            for lane, position in positions.items()
            if isinstance(position, int)
            for number in self.ids(lane, 0, position)
        ]

    def everything(self) -> list[int]:
        return [
            number
            for lane, count in enumerate(self.rows_per_lane)
            for number in self.ids(lane, 0, count)
        ]


@lru_cache(maxsize=16)
def _lane(source: SimSource, lane: int) -> pa.RecordBatch:
    return batch_of(source.ids(lane, 0, source.rows_per_lane[lane]))


class _SimReader(SourceReader):
    def __init__(
        self, source: SimSource, context: SourceContext, positions: Mapping[int, Plain]
    ) -> None:
        self._source = source
        self._now_ms = context.now_ms
        self._at: dict[int, int] = {}
        for lane in context.lanes:
            position = positions.get(lane, 0)
            self._at[lane] = position if isinstance(position, int) else 0

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        open_lanes = [
            lane for lane, at in self._at.items() if at < self._source.rows_per_lane[lane]
        ]
        if not open_lanes:
            return END
        lane = min(open_lanes, key=lambda lane: (self._at[lane], lane))
        at = self._at[lane]
        end = min(self._source.rows_per_lane[lane], at + 1 + (at * 31 + lane) % 4, at + max_rows)
        self._at[lane] = end
        return _lane(self._source, lane).slice(at, end - at)

    def positions(self) -> Mapping[int, Plain]:
        return dict(self._at)


@dataclass
class Transaction:
    operator: str
    index: int
    attempt: int
    checkpoint: int
    rows: tuple[tuple[Any, ...], ...]
    began_ms: float = 0.0
    """When its writer ended it: from then on somebody has to commit or abort it."""
    durable: bool = False
    """Synced: it outlives the process that wrote it."""


@dataclass
class Table:
    """The external system."""

    prepared: dict[str, Transaction] = field(default_factory=dict)
    visible: dict[str, Transaction] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    effects: Counter[str] = field(default_factory=Counter)
    """How often each transaction was made visible."""

    def show(self, name: str) -> None:
        """Makes a prepared transaction visible, also one of a name that is visible already: what a sink cannot tell
        apart it shows twice."""
        shown = self.prepared.pop(name)
        self.effects[name] += 1
        again = f"{name}, the {self.effects[name]}. time" if self.effects[name] > 1 else name
        self.visible[again] = shown

    def rows(self, operator: str) -> list[tuple[Any, ...]]:
        return [r for t in self.visible.values() if t.operator == operator for r in t.rows]

    def lose_unsynced(self, attempt: int, index: int) -> list[str]:
        """A process has died: what it had not synced is gone."""
        lost = [
            name
            for name, entry in self.prepared.items()
            if not entry.durable and (entry.attempt, entry.index) == (attempt, index)
        ]
        for name in lost:
            del self.prepared[name]
        return lost


class SimSink(Sink):
    """Holds no rows itself: they are in the world's table."""

    def __init__(self, world: World, idempotent: bool, deferred: bool) -> None:
        self._world = world
        self._deferred = deferred
        self.idempotent = idempotent

    def writer(self, context: SinkContext) -> SinkWriter:
        return _SimWriter(self._world, context, self._deferred)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return _SimCommitter(self._world, context)


class _SimWriter(SinkWriter):
    def __init__(self, world: World, context: SinkContext, deferred: bool) -> None:
        self._world = world
        self._context = context
        self._deferred = deferred
        self._rows: list[tuple[int, ...]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [column.to_pylist() for column in batch.columns]
        self._rows += zip(*columns, strict=True)

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        if not self._rows:
            return None
        place = self._context
        name = f"{place.operator}/{place.index}/{checkpoint}/{place.attempt}"
        rows, self._rows = tuple(self._rows), []
        began_ms = self._world.clock.now_ms
        self._world.table.prepared[name] = Transaction(
            place.operator, place.index, place.attempt, checkpoint, rows, began_ms
        )
        return partial(self.sync, name) if self._deferred else self.sync(name)

    def sync(self, name: str) -> str:
        world = self._world
        if world.happens("prepare_error"):
            raise OSError(f"simulated failure while {name} is made durable")
        entry = world.table.prepared.get(name)
        if entry is not None:
            entry.durable = True
            world.note("table", f"prepared {name}: {len(entry.rows)} rows")
        return name


class _SimCommitter(SinkCommitter):
    def __init__(self, world: World, context: SinkContext) -> None:
        self._world = world
        self._context = context
        self._done: set[str] = set()
        """Committed, and nothing has failed since: nobody has a reason to ask for them again."""

    def commit(self, transaction: Plain) -> None:
        name = str(transaction)
        try:
            self._commit(name)
        except CommitError:
            self._done.clear()
            raise
        if name in self._done:
            self._world.violation("I10", f"{name} is committed again, though nothing has failed")
        self._done.add(name)

    def _commit(self, name: str) -> None:
        world, table = self._world, self._world.table
        if world.happens("commit_error"):
            raise CommitError(f"simulated failure before the commit of {name}")
        if name in table.prepared:
            world.checkers.on_commit(name)
            table.show(name)
            world.note("table", f"commit {name}: {len(table.visible[name].rows)} rows")
        elif name not in table.visible:
            if not (name in table.aborted and world.checkers.went_back):
                world.violation("I10", f"transaction {name} is to be committed and is gone")
            raise CommitError(f"transaction {name} is gone")
        if world.happens("commit_error"):
            raise CommitError(f"simulated failure after the commit of {name}")

    def abort_others(self, keep: Sequence[Plain]) -> None:
        place = self._context
        kept = {str(name) for name in keep}
        for name, entry in list(self._world.table.prepared.items()):
            mine = entry.operator == place.operator and entry.attempt < place.attempt
            if mine and entry.index % place.parallelism == place.index and name not in kept:
                del self._world.table.prepared[name]
                self._world.table.aborted.add(name)
                self._world.note("table", f"abort {name}")
