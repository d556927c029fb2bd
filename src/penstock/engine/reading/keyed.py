"""Keyed state as a table, by ranges of key groups: the one place that knows where the rows of a state are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.reading.layouts import Layout, layout_of
from penstock.engine.reading.tables import shares
from penstock.engine.worker.snapshots import fetch_from, reader
from penstock.errors import CheckpointCorrupt
from penstock.ports.floor import Floors
from penstock.ports.store import CheckpointStore
from penstock.protocol.snapshot import Segment
from penstock.state.floor_files import groups_of, parts, read_floor, with_fetch
from penstock.state.merging import merged
from penstock.state.segments import read_schema
from penstock.storage.rocks import temporary_floors
from penstock.wire.manifest import Manifest

Part: TypeAlias = Segment | Sequence[Segment]
"""Rows, or the files of a floor."""
Read: TypeAlias = Callable[[Part, range], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Equal:
    """Rows where this column has this value, which is of its type and not null."""

    column: str
    value: pa.Scalar


@dataclass(frozen=True)
class StateTable:
    """One state of one operator, or a range of its key groups. Each segment was written by one subtask."""

    operator: str
    state: str
    stored: bytes
    """The schema of its rows as they are stored."""
    segments: tuple[Segment, ...]
    groups: range
    max_parallelism: int
    where: tuple[Equal, ...] = ()
    rows: int = 0
    """Of all key groups."""

    @property
    def layout(self) -> Layout:
        return layout_of(read_schema(Segment(self.state, self.stored, ())))

    @property
    def schema(self) -> pa.Schema:
        return self.layout.schema

    @property
    def bytes_total(self) -> int:
        return sum(segment.bytes_total for segment in self.segments)

    @property
    def files(self) -> frozenset[str]:
        return frozenset(segment.file for segment in self.segments if segment.file)

    def within(self, groups: range) -> StateTable:
        """The rows with these key groups, and only the blocks that can hold them."""
        kept = (each for part in parts(self.segments) for each in _within(part, groups))
        return replace(self, segments=tuple(kept), groups=groups)

    def pieces(self, most: int) -> Sequence[StateTable]:
        """Cut where no block is: none is read twice."""
        runs = _runs(span for part in parts(self.segments) for span in _spans(part))
        cuts = [runs[start][0] for start, _ in shares([rows for _, rows in runs], most)[1:]]
        edges = [self.groups.start, *cuts, self.groups.stop]
        return [self.within(range(*ends)) for ends in pairwise(edges)]

    def read(self, store: CheckpointStore) -> Iterator[pa.RecordBatch]:
        layout = self.layout
        with temporary_floors() as floors:
            for stored in self._stored(partial(_read, store, floors)):
                batch = layout.shown(stored)
                for each in self.where:
                    batch = batch.filter(pc.equal(batch.column(each.column), each.value))
                if batch.num_rows:
                    yield batch

    def _stored(self, read: Read) -> Iterator[pa.RecordBatch]:
        batches = (batch for part in parts(self.segments) for batch in read(part, self.groups))
        if not any(segment.delta for segment in self.segments):
            return batches
        return merged(read_schema(Segment(self.state, self.stored, ())), batches)


def state_tables(manifest: Manifest) -> list[StateTable]:
    """Every keyed state, also one without rows, in the order of the plan."""
    found: dict[tuple[str, str], list[Segment]] = {}
    rows: dict[tuple[str, str], int] = {}
    for operator in manifest.operators:
        for snapshot in manifest.snapshots:
            part = snapshot.operators.get(operator.name)
            for segment in part.segments if part is not None else ():
                found.setdefault((operator.name, segment.state), []).append(segment)
            for state, count in part.rows.items() if part is not None else ():
                rows[operator.name, state] = rows.get((operator.name, state), 0) + count
    return [
        replace(_state_table(*name, segments, manifest), rows=rows[name])
        for name, segments in found.items()
    ]


def _state_table(
    operator: str, state: str, segments: Sequence[Segment], manifest: Manifest
) -> StateTable:
    first, *others = (segment for segment in segments if not segment.delta)
    for segment in others:
        if segment.schema != first.schema and read_schema(segment) != read_schema(first):
            raise CheckpointCorrupt(
                f"the subtasks of {operator!r} have stored state {state!r} with different columns"
            )
    groups = range(manifest.max_parallelism)
    return StateTable(operator, state, first.schema, tuple(segments), groups, len(groups))


def _within(part: Part, groups: range) -> Iterator[Segment]:
    """What of it can hold rows of these key groups: some blocks, or a floor as a whole."""
    if not isinstance(part, Segment):
        if groups_of(part, groups):
            yield from part
        return
    blocks = tuple(
        block
        for block in part.blocks
        if block.first_group < groups.stop and block.last_group >= groups.start
    )
    if blocks:
        yield replace(part, blocks=blocks)


def _spans(part: Part) -> Iterator[tuple[int, int, int]]:
    """What cannot be cut: its first and last key group, and its rows."""
    if isinstance(part, Segment):
        start, end = part.groups
        for block in part.blocks:
            first, last = max(start, block.first_group), min(end - 1, block.last_group)
            if first <= last:
                yield first, last, block.rows
    elif part[0].groups[0] < part[0].groups[1]:
        yield part[0].groups[0], part[0].groups[1] - 1, part[0].rows_after


def _runs(spans: Iterator[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Those that have key groups in common are one run: the first group of each, and its rows."""
    runs: list[tuple[int, int]] = []
    until = -1
    for first, last, count in sorted(spans):
        if first > until:
            runs.append((first, count))
        else:
            start, rows = runs[-1]
            runs[-1] = (start, rows + count)
        until = max(until, last)
    return runs


def _read(
    store: CheckpointStore, floors: Floors, part: Part, groups: range
) -> Iterable[pa.RecordBatch]:
    if isinstance(part, Segment):
        return reader(store)(part, groups)
    return read_floor(part, groups, with_fetch(fetch_from(store)), floors)
