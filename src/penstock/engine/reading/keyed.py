"""Keyed state as a table, by ranges of key groups: the one place that knows where the rows of a state are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.reading.layouts import Layout, layout_of
from penstock.engine.reading.tables import shares
from penstock.engine.worker.snapshots import reader
from penstock.errors import CheckpointCorrupt
from penstock.ports.store import CheckpointStore
from penstock.protocol.snapshot import Block, Segment
from penstock.state.merging import merged
from penstock.state.segments import read_schema
from penstock.wire.manifest import Manifest

Read: TypeAlias = Callable[[Segment, range], Iterable[pa.RecordBatch]]


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
        segments = (replace(each, blocks=_overlapping(each, groups)) for each in self.segments)
        kept = tuple(segment for segment in segments if segment.blocks)
        return replace(self, segments=kept, groups=groups)

    def pieces(self, most: int) -> Sequence[StateTable]:
        """Cut where no block is: none is read twice."""
        runs = _runs(self._blocks())
        cuts = [runs[start][0] for start, _ in shares([rows for _, rows in runs], most)[1:]]
        edges = [self.groups.start, *cuts, self.groups.stop]
        return [self.within(range(*ends)) for ends in pairwise(edges)]

    def read(self, store: CheckpointStore) -> Iterator[pa.RecordBatch]:
        layout = self.layout
        for stored in self._stored(reader(store)):
            batch = layout.shown(stored)
            for each in self.where:
                batch = batch.filter(pc.equal(batch.column(each.column), each.value))
            if batch.num_rows:
                yield batch

    def _stored(self, read: Read) -> Iterator[pa.RecordBatch]:
        batches = (batch for segment in self.segments for batch in read(segment, self.groups))
        if not any(segment.delta for segment in self.segments):
            return batches
        return merged(read_schema(Segment(self.state, self.stored, ())), batches)

    def _blocks(self) -> Iterator[Block]:
        return (block for segment in self.segments for block in segment.blocks)


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


def _overlapping(segment: Segment, groups: range) -> tuple[Block, ...]:
    return tuple(
        block
        for block in segment.blocks
        if block.first_group < groups.stop and block.last_group >= groups.start
    )


def _runs(blocks: Iterator[Block]) -> list[tuple[int, int]]:
    """Blocks that have key groups in common are one run: the first group of each, and its rows."""
    runs: list[tuple[int, int]] = []
    last = -1
    for block in sorted(blocks, key=lambda block: (block.first_group, block.last_group)):
        if block.first_group > last:
            runs.append((block.first_group, block.rows))
        else:
            start, rows = runs[-1]
            runs[-1] = (start, rows + block.rows)
        last = max(last, block.last_group)
    return runs
