"""The files of floors in a snapshot: finding them among segments, opening a floor with them, reading its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

import pyarrow as pa

from penstock.errors import CheckpointCorrupt
from penstock.ports.floor import FIRST_MEMBER, Floor, Floors, Members
from penstock.protocol.snapshot import Block, Segment
from penstock.state.row_bytes import RowBytes, group_start
from penstock.state.segments import BLOCK_ROWS_MAX, Fetch, read_bytes, read_schema

Pieces: TypeAlias = Callable[[Segment], Iterable[bytes]]
"""The verified bytes of a file, piece by piece."""


def parts(segments: Iterable[Segment]) -> Iterator[Segment | list[Segment]]:
    """Segments of rows one by one, and those that are the files of one floor together."""
    files: list[Segment] = []
    for segment in segments:
        if files and (not segment.member or segment.member == FIRST_MEMBER):
            yield files
            files = []
        if segment.member:
            files.append(segment)
        else:
            yield segment
    if files:
        yield files


def with_fetch(fetch: Callable[[Segment], Fetch]) -> Pieces:
    def pieces(segment: Segment) -> Iterator[bytes]:
        read = fetch(segment)
        return (read_bytes(segment, block, read) for block in segment.blocks)

    return pieces


def members_of(files: Sequence[Segment], pieces: Pieces) -> Members:
    if files[0].member != FIRST_MEMBER:
        raise CheckpointCorrupt(
            f"state {files[0].state!r} is stored as files of which the first, {FIRST_MEMBER}, is missing"
        )
    return {each.member: partial(pieces, each) for each in files}


def groups_of(files: Sequence[Segment], groups: range) -> range:
    """Those of them whose rows count in a floor of these files."""
    first, end = files[0].groups
    return range(max(groups.start, first), min(groups.stop, end))


def scan(floor: Floor, groups: range) -> Iterator[tuple[bytes, bytes]]:
    """The rows of these key groups."""
    if not len(groups):
        return iter(())
    end = None if groups.stop > 0xFFFF else group_start(groups.stop)
    return floor.scan(group_start(groups.start), end)


def read_floor(
    files: Sequence[Segment], groups: range, pieces: Pieces, floors: Floors
) -> Iterator[pa.RecordBatch]:
    """The rows of a floor in these key groups, as they were stored."""
    floor = floors.open(members_of(files, pieces))
    try:
        codec = RowBytes(read_schema(files[0]))
        rows = scan(floor, groups_of(files, groups))
        while some := list(islice(rows, BLOCK_ROWS_MAX)):
            keys, values = zip(*some, strict=True)
            yield codec.batch(keys, values)
    finally:
        floor.close()


def blocks_of(files: Sequence[Segment]) -> list[Block]:
    return [block for each in files for block in each.blocks]
