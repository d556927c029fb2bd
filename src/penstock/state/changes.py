"""What changed in a table since which checkpoint, and how little of it the next one has to write.

A state in a checkpoint is a chain of segments: all rows once, then what changed since. A checkpoint adds a delta to the
chain of its base. Because changes are noted per interval between two freezes, a delta can also reach back further than
its base and take the place of the last few in the chain: so there are never more than a few small ones and a few
larger ones, and when more than half of the rows have changed, all are written anew (decision 11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, Flags
from penstock.protocol.snapshot import Segment
from penstock.state.cells import Groups
from penstock.state.flat import FIRST_ROWS, grown, to_arrow
from penstock.state.frozen import Out
from penstock.state.segments import BLOCK_ROWS_MAX, GROUP_COLUMN
from penstock.state.tracking import View
from penstock.wire import paths

INTERVALS_MAX = 32
"""While no checkpoint completes no more than these are kept; then all rows are written again."""
GONE_FIELD = pa.field("__gone", pa.bool_(), nullable=False)
"""In a delta: the row says that the key has no row any more."""
SMALL_MAX = 7
"""So many deltas that reach back to their base only; the next one takes their place."""
LARGE_MAX = 7
"""So many of those; the next time all rows are written."""


@dataclass
class Interval:
    """Between two freezes. `after` is the checkpoint of the first."""

    after: int
    dirty: Flags
    removed: list[tuple[list[pa.Array], Groups]] = field(default_factory=list)
    _bits: npt.NDArray[np.uint8] | None = None

    def pack(self) -> None:
        """It is over: an eighth of the memory."""
        if self._bits is None:
            self._bits = np.packbits(self.dirty)
            self.dirty = np.empty(0, np.bool_)

    def flags(self, end: int) -> Flags:
        if self._bits is None:
            return self.dirty[:end]
        return np.unpackbits(self._bits, count=min(end, 8 * len(self._bits))).view(np.bool_)


@dataclass(frozen=True)
class Link:
    """A segment in the chain of a checkpoint. `since` is the checkpoint whose rows it is a delta to."""

    segment: Segment
    since: int = 0
    large: bool = False


class Changes:
    """Meets the contract `Tracker`. Intervals are kept as far back as the next delta may reach."""

    def __init__(self) -> None:
        self.dirty: Flags = np.zeros(FIRST_ROWS, np.bool_)
        """Cells whose rows changed since the last freeze. Set by the table."""
        self._removed: list[tuple[list[pa.Array], Groups]] = []
        self._after = 0
        self._intervals: list[Interval] = []
        self._chains: dict[int, tuple[Link, ...]] = {}
        """What checkpoints of this attempt, and the one that it began with, are made of."""

    def restored(self, checkpoint: int, segments: Sequence[Segment], groups: range) -> None:
        """The table was filled from the rows of these segments that are in these key groups, and is as that checkpoint
        has it. It can be built on where all of them lie where later checkpoints may refer to them."""
        self.dirty[:] = False
        self._removed = []
        self._after = checkpoint
        if all(_can_be_shared(segment) for segment in segments):
            kept = (_narrowed(segment, groups) for segment in segments)
            links = tuple(Link(each, large=each.delta) for each in kept if each.blocks)
            if links and all(link.segment.delta for link in links):
                links = (Link(_emptied(segments)), *links)
            self._chains[checkpoint] = links

    def removed(self, keys: list[pa.Array], groups: Groups) -> None:
        """Rows of these keys go."""
        self._removed.append((keys, groups))

    def grow(self, count: int, capacity: int) -> None:
        self.dirty = grown(self.dirty, count, capacity)

    def plan(self, base: int, checkpoint: int) -> Plan:
        """Ends the interval: what the snapshot of this checkpoint has to write."""
        self._intervals.append(Interval(self._after, self.dirty, self._removed))
        self.dirty, self._removed = np.zeros(len(self.dirty), np.bool_), []
        self._after = checkpoint
        self._forget(base)
        links = self._chains.get(base, ())
        small = [link for link in links if link.segment.delta and not link.large]
        large = [link for link in links if link.large]
        since = base
        if len(small) >= SMALL_MAX:
            since = small[0].since
        known = bool(links) and any(each.after == since for each in self._intervals)
        if not known or (len(small) >= SMALL_MAX and len(large) >= LARGE_MAX):
            return Plan(self, checkpoint, (), (), 0)
        kept = tuple(link for link in links if not (link in small and since != base))
        intervals = tuple(each for each in self._intervals if each.after >= since)
        return Plan(self, checkpoint, kept, intervals, since, large=since != base)

    def _forget(self, base: int) -> None:
        """No later checkpoint has an older base than this one."""
        for older in [n for n in self._chains if n < base]:
            del self._chains[older]
        links = self._chains.get(base, ())
        first = min((link.since for link in links if link.since), default=base)
        kept = [each for each in self._intervals if each.after >= min(first, base)]
        self._intervals = kept[-INTERVALS_MAX:]

    def written(self, checkpoint: int, links: tuple[Link, ...]) -> None:
        """By the writer, on its own thread, before anybody can name this checkpoint as a base."""
        self._chains[checkpoint] = links


@dataclass(frozen=True)
class Plan:
    """What to write for one checkpoint."""

    changes: Changes
    checkpoint: int
    kept: tuple[Link, ...]
    """Segments of earlier checkpoints that count on; none: all rows are written."""
    intervals: tuple[Interval, ...]
    since: int
    large: bool = False

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        cells = self.dirty_cells(view.end)
        if cells is None:
            made = out.put(view.state, view.schema, view.batches(), shared=True)
        else:
            schema = delta_schema(view.schema)
            changed = (as_delta(batch, schema) for batch in view.batches(cells))
            rows = chain(self.gone(schema), changed)
            made = out.put(view.state, schema, rows, delta=True, shared=True)
        return self.written(made, view.rows)

    def dirty_cells(self, end: int) -> I64 | None:
        """The cells with rows that changed; None: so many that all rows are written."""
        if not self.kept:
            return None
        dirty = np.zeros(end, np.bool_)
        for interval in self.intervals:
            flags = interval.flags(end)
            dirty[: len(flags)] |= flags
            interval.pack()
        cells = np.flatnonzero(dirty)
        return cells if 2 * (len(cells) + self._gone_rows) <= end else None

    @property
    def _gone_rows(self) -> int:
        return sum(len(groups) for each in self.intervals for _, groups in each.removed)

    def gone(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Of every key that had a row and lost it, a row that says so. It may have got another one since: that comes
        later in the same delta."""
        for interval in self.intervals:
            for keys, groups in interval.removed:
                order = np.argsort(groups, kind="stable")
                for start in range(0, len(order), BLOCK_ROWS_MAX):
                    yield _gone_batch(keys, groups, order[start : start + BLOCK_ROWS_MAX], schema)

    def written(self, made: Segment, rows: int) -> tuple[Segment, ...]:
        """The whole chain, now that this segment is written; the state has so many rows."""
        made = replace(made, rows_after=rows) if made.delta else made
        link = Link(made, self.since if made.delta else 0, self.large)
        links = (*(self.kept if made.delta else ()), link)
        self.changes.written(self.checkpoint, links)
        return tuple(each.segment for each in links)


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """Of rows, and of keys without one."""
    return pa.schema([GONE_FIELD, *(each.with_nullable(True) for each in schema)]).set(
        1, schema.field(GROUP_COLUMN)
    )


def same_rows(stored: pa.Schema, schema: pa.Schema) -> bool:
    """Whether rows of this schema are stored, as they are or in a delta, and mean the same."""
    wanted = (schema, delta_schema(schema))
    return any(stored.equals(each, check_metadata=True) for each in wanted)


def split_gone(batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
    """Of a delta, the keys that have lost their row; and the rows."""
    if GONE_FIELD.name not in batch.schema.names:
        return None, batch
    gone = batch.column(GONE_FIELD.name)
    rows = batch.drop_columns([GONE_FIELD.name])
    return rows.filter(gone), rows.filter(pc.invert(gone))


def as_delta(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    stays = pa.repeat(pa.scalar(False), batch.num_rows)
    return pa.RecordBatch.from_arrays([stays, *batch.columns], schema=schema)


def _gone_batch(
    keys: list[pa.Array], groups: Groups, rows: I64, schema: pa.Schema
) -> pa.RecordBatch:
    count = len(rows)
    columns = [pa.repeat(pa.scalar(True), count), to_arrow(groups.take(rows), pa.uint16())]
    columns += [key.take(pa.array(rows)) for key in keys]
    columns += [pa.nulls(count, each.type) for each in schema][len(columns) :]
    cast = [column.cast(each.type) for column, each in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _can_be_shared(segment: Segment) -> bool:
    return segment.inline is not None or paths.shared_of(segment.file) is not None


def _emptied(segments: Sequence[Segment]) -> Segment:
    """All rows of a state that had none: what its deltas begin with."""
    first = next(each for each in segments if not each.delta)
    return replace(first, blocks=(), file="", inline=b"")


def _narrowed(segment: Segment, groups: range) -> Segment:
    """Of which only the rows in this range count."""
    first, end = max(segment.groups[0], groups.start), min(segment.groups[1], groups.stop)
    inside = (b for b in segment.blocks if b.first_group < end and b.last_group >= first)
    return replace(segment, groups=(first, end), blocks=tuple(inside) if first < end else ())
