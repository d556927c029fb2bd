"""What changed in a table since which checkpoint, and how little of it the next one has to write.

A state in a checkpoint is a chain of segments: all rows once, then what changed since. A checkpoint adds a delta to the
chain of its base. Because changes are noted per interval between two marks, a delta can also reach back further than
its base and take the place of the last few in the chain: so there are never more than a few small ones and a few
larger ones, and when more than half of the rows have changed, all are written anew (decision 11).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64
from penstock.protocol.snapshot import Segment
from penstock.state.cells import Groups
from penstock.state.flat import to_arrow
from penstock.state.frozen import Out
from penstock.state.intervals import Interval, Noted, changed_cells, since
from penstock.state.segments import BLOCK_ROWS_MAX, GROUP_COLUMN
from penstock.state.tracking import HoldsNothing, View
from penstock.wire import paths

INTERVALS_MAX = 32
"""While no checkpoint completes no more than these are kept; then all rows are written again."""
GONE_FIELD = pa.field("__gone", pa.bool_(), nullable=False)
"""In a delta: the row says that the key has no row any more."""
SMALL_MAX = 7
"""So many deltas that reach back to their base only; the next one takes their place."""
LARGE_MAX = 7
"""So many of those; the next time all rows are written."""


@dataclass(frozen=True)
class Link:
    """A segment in the chain of a checkpoint: the rows at the mark `until`, or those that changed since the mark
    `since`. It can be applied to the rows of any mark between the two."""

    segment: Segment
    since: int
    until: int
    small: bool = False
    """A delta that a later one may take the place of, together with its neighbours."""


@dataclass(frozen=True)
class Chain:
    """What a checkpoint is made of that was frozen at this mark."""

    mark: int
    links: tuple[Link, ...]

    @property
    def small(self) -> tuple[Link, ...]:
        """The last ones, as far as they are."""
        last = itertools.takewhile(lambda link: link.small, reversed(self.links))
        return tuple(reversed(tuple(last)))

    @property
    def reach(self) -> int:
        """The mark that the next delta reaches back to, at most."""
        return min((link.since for link in self.small), default=self.mark)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(link.segment for link in self.links)


class Changes(Noted):
    """Meets the contract `Tracker`. Intervals are kept as far back as the next delta may reach."""

    def __init__(self) -> None:
        super().__init__()
        self._chains: dict[int, Chain] = {}
        """By checkpoint: those of this attempt, and the one that it began with."""

    def restored(self, checkpoint: int, segments: Sequence[Segment], groups: range) -> None:
        """The table was filled from the rows of these segments that are in these key groups, and is as that checkpoint
        has it. It can be built on where all of them lie where later checkpoints may refer to them."""
        mark = self._begin_anew()
        links = restored_links(segments, groups, mark)
        if links is not None:
            self._chains[checkpoint] = Chain(mark, links)

    def plan(self, base: int, checkpoint: int) -> Plan:
        """What the snapshot of this checkpoint has to write."""
        mark = self._end_interval()
        self._forget(base)
        chain = self._chains.get(base, Chain(0, ()))
        small = chain.small
        reaches_back = len(small) >= SMALL_MAX
        large = [link for link in chain.links if link.segment.delta and not link.small]
        from_mark = chain.reach if reaches_back else chain.mark
        intervals = since(self._intervals, from_mark, mark)
        if not chain.links or intervals is None or (reaches_back and len(large) >= LARGE_MAX):
            return Plan(self, checkpoint, mark, (), (), 0)
        kept = tuple(link for link in chain.links if not (reaches_back and link.small))
        return Plan(self, checkpoint, mark, kept, intervals, from_mark, large=reaches_back)

    def _forget(self, base: int) -> None:
        """No later checkpoint has an older base than this one."""
        for older in [n for n in list(self._chains) if n < base]:
            del self._chains[older]
        if base in self._chains:
            reach = self._chains[base].reach
            self._intervals = [each for each in self._intervals if each.until > reach]
        self._intervals = self._intervals[-INTERVALS_MAX:]

    def written(self, checkpoint: int, chain: Chain) -> None:
        """By the writer, on its own thread, before anybody can name this checkpoint as a base."""
        self._chains[checkpoint] = chain


@dataclass(frozen=True)
class Plan(HoldsNothing):
    """What to write for one checkpoint, which was frozen at this mark."""

    changes: Changes
    checkpoint: int
    mark: int
    kept: tuple[Link, ...]
    """Segments of earlier checkpoints that count on; none: all rows are written."""
    intervals: tuple[Interval, ...]
    since: int
    large: bool = False

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        cells = self.dirty_cells(view.end)
        if cells is None:
            links: tuple[Link, ...] = (Link(put_all(view, out), 0, self.mark),)
        else:
            made = put_delta(view, out, cells, self.intervals)
            links = (*self.kept, Link(made, self.since, self.mark, small=not self.large))
        chain = Chain(self.mark, links)
        self.changes.written(self.checkpoint, chain)
        return chain.segments

    def dirty_cells(self, end: int) -> I64 | None:
        """The cells with rows that changed; None: so many that all rows are written."""
        if not self.kept:
            return None
        cells = changed_cells(self.intervals, end)
        gone = sum(each.gone for each in self.intervals)
        return cells if 2 * (len(cells) + gone) <= end else None


def put_all(view: View, out: Out) -> Segment:
    """All rows of the view."""
    return out.put(view.state, view.schema, view.batches(), shared=True)


def put_delta(view: View, out: Out, cells: I64, intervals: Sequence[Interval]) -> Segment:
    """Of the view the rows of these cells, and what went in these intervals."""
    schema = delta_schema(view.schema)
    changed = (as_delta(batch, schema) for batch in view.batches(cells))
    down = view.below([key for each in intervals for key in each.below])
    left = (as_delta(batch, schema) for batch in down)
    rows = itertools.chain(gone_rows(intervals, schema), left, changed)
    made = out.put(view.state, schema, rows, delta=True, shared=True)
    return replace(made, rows_after=view.rows)


def gone_rows(intervals: Sequence[Interval], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Of every key that had a row and lost it, a row that says so. It may have got another one since: that comes later
    in the same delta."""
    for interval in intervals:
        for keys, groups in interval.removed:
            for start in range(0, len(groups), BLOCK_ROWS_MAX):
                rows = slice(start, start + BLOCK_ROWS_MAX)
                yield _gone_batch([key[rows] for key in keys], groups[rows], schema)


def restored_links(
    segments: Sequence[Segment], groups: range, mark: int
) -> tuple[Link, ...] | None:
    """The chain of a table that was filled from these at this mark; None: others may not refer to all of them, or they
    have rows of others, which everybody would read who goes on from there."""
    if not all(_can_be_shared(each) and _is_within(each, groups) for each in segments):
        return None
    kept = (_narrowed(segment, groups) for segment in segments)
    links = tuple(Link(each, 0, mark) for each in kept if each.blocks)
    if links and all(link.segment.delta for link in links):
        links = (Link(_emptied(segments), 0, mark), *links)
    return links


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


def _gone_batch(keys: Sequence[pa.Array], groups: Groups, schema: pa.Schema) -> pa.RecordBatch:
    count = len(groups)
    columns = [pa.repeat(pa.scalar(True), count), to_arrow(groups, pa.uint16()), *keys]
    columns += [pa.nulls(count, each.type) for each in schema][len(columns) :]
    cast = [column.cast(each.type) for column, each in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _can_be_shared(segment: Segment) -> bool:
    return segment.inline is not None or paths.shared_of(segment.file) is not None


def _is_within(segment: Segment, groups: range) -> bool:
    """No block has rows in this range and others. A floor's files are opened as they are."""
    mine = _narrowed(segment, groups)
    first, end = mine.groups
    inside = all(first <= each.first_group and each.last_group < end for each in mine.blocks)
    return bool(segment.member) or inside


def _emptied(segments: Sequence[Segment]) -> Segment:
    """All rows of a state that had none: what its deltas begin with."""
    first = next(each for each in segments if not each.delta)
    return replace(first, blocks=(), file="", inline=b"", member="", rows_after=0)


def _narrowed(segment: Segment, groups: range) -> Segment:
    """Of which only the rows in this range count."""
    first, end = max(segment.groups[0], groups.start), min(segment.groups[1], groups.stop)
    inside = (b for b in segment.blocks if b.first_group < end and b.last_group >= first)
    return replace(segment, groups=(first, end), blocks=tuple(inside) if first < end else ())
