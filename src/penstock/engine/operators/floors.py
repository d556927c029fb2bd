"""Floors for the states of operators: new ones, or such as the files of a snapshot make.

Where a snapshot has the files of floors, and their rows are stored as they are now, nothing is read row by row: the
largest floor that has rows for this subtask is opened as it is, what belongs to others is cut off, and the rows of
others that belong here are put in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.ports.floor import Floor, Floors
from penstock.protocol.snapshot import Segment
from penstock.state.floor_files import Pieces, groups_of, members_of, parts, scan
from penstock.state.floored import Budget, Opened
from penstock.state.row_bytes import RowBytes, group_start
from penstock.state.segments import read_schema
from penstock.state.write_back import lasts

if TYPE_CHECKING:
    from penstock.engine.operators.base import OperatorContext

ROWS_AT_ONCE = 65_536
LOADED_ROWS = 4_096
"""So many rows of a snapshot come into memory before others leave it."""


@dataclass(frozen=True)
class StateFloors:
    """Of one attempt on one worker."""

    floors: Floors
    budget: Budget
    pieces: Pieces
    adopted: set[tuple[str, str]] = field(default_factory=set)
    """Operators and states whose floors were opened with the files of the snapshot: those are not read again."""

    def left_of(self, operator: str, state: str, segments: Sequence[Segment]) -> list[Segment]:
        """What is still to be read row by row."""
        if (operator, state) not in self.adopted:
            return list(segments)
        return [segment for segment in segments if not segment.member]


def open_floor(context: OperatorContext, state: str, rows: RowBytes) -> Opened:
    """For a state whose rows have this form."""
    own = context.floors
    assert own is not None
    stored = _stored(context, state)
    if not stored or any(read_schema(files[0]) != rows.schema for files in stored):
        return Opened(own.floors.open())
    own.adopted.add((context.operator, state))
    largest = max(stored, key=lambda files: (_overlap(files, context), _bytes(files)))
    floor = own.floors.open(members_of(largest, own.pieces))
    mine = groups_of(largest, context.key_groups)
    _cut_off(floor, mine, context.max_parallelism)
    for files in stored:
        if files is not largest and groups_of(files, context.key_groups):
            _put_in(floor, files, context)
    narrow = [replace(each, groups=(mine.start, mine.stop)) for each in largest]
    return Opened(
        floor,
        _count(floor, stored, context),
        context.restored_id,
        {each.member: each for each in narrow if lasts(each)},
        max(files[0].latest_ms for files in stored),
    )


def in_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one batch brings must fit into memory."""
    for batch in batches:
        for start in range(0, batch.num_rows, LOADED_ROWS):
            yield batch.slice(start, LOADED_ROWS)


def _stored(context: OperatorContext, state: str) -> list[list[Segment]]:
    """The files of floors that hold rows of this subtask."""
    found = [files for part in context.parts_of(state) for files in parts(part)]
    floors = [files for files in found if isinstance(files, list)]
    return [files for files in floors if groups_of(files, context.key_groups)]


def _overlap(files: Sequence[Segment], context: OperatorContext) -> int:
    return len(groups_of(files, context.key_groups))


def _bytes(files: Sequence[Segment]) -> int:
    return sum(each.bytes_total for each in files)


def _cut_off(floor: Floor, groups: range, end: int) -> None:
    if groups.start > 0:
        floor.remove_range(group_start(0), group_start(groups.start))
    if groups.stop < end:
        floor.remove_range(group_start(groups.stop), b"\xff\xff\xff")


def _put_in(floor: Floor, files: Sequence[Segment], context: OperatorContext) -> None:
    own = context.floors
    assert own is not None
    other = own.floors.open(members_of(files, own.pieces))
    try:
        rows = scan(other, groups_of(files, context.key_groups))
        for keys, values in _slices(rows):
            floor.write(keys, values)
    finally:
        other.close()


def _count(floor: Floor, stored: Sequence[Sequence[Segment]], context: OperatorContext) -> int:
    """How many rows there are now: told by the snapshot, where all of them are this subtask's."""
    groups = context.key_groups
    if all(_is_within(files[0], groups) for files in stored):
        return sum(files[0].rows_after for files in stored)
    return sum(1 for _ in scan(floor, groups))


def _is_within(segment: Segment, groups: range) -> bool:
    return groups.start <= segment.groups[0] and segment.groups[1] <= groups.stop


def _slices(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    while some := list(islice(rows, ROWS_AT_ONCE)):
        keys, values = zip(*some, strict=True)
        yield list(keys), list(values)
