"""Rows of state as bytes: an Arrow IPC stream that is cut into blocks, each with its key groups and checksum.

The stream is a schema message, one record batch message per block and the end marker, so `pa.ipc.open_stream`
reads it. Rows are in any order; the column `__kg` has their key group. A reader that owns some key groups fetches and
verifies only the blocks that can hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.errors import CheckpointCorrupt
from penstock.protocol.snapshot import Block, Segment
from penstock.state.flat import values_of

GROUP_COLUMN = "__kg"
GROUP_FIELD = pa.field(GROUP_COLUMN, pa.uint16(), nullable=False)
BLOCK_ROWS_MAX = 65_536
BLOCK_BYTES_MAX = 2 << 30
SCHEMA_BYTES_MAX = 16 << 20
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

Fetch = Callable[[Block], bytes]
Groups = npt.NDArray[np.uint16]


def schema_message(schema: pa.Schema) -> bytes:
    """How a stream of these rows begins."""
    return bytes(memoryview(schema.serialize()))


def batch_message(batch: pa.RecordBatch, compression: str | None = None) -> memoryview:
    """The batch as one message of a stream. Whoever reads it needs no word of how it is compressed."""
    if compression is None:
        return memoryview(batch.serialize())
    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(stream, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    head = len(schema_message(batch.schema))
    return memoryview(stream.getvalue())[head : -len(END_OF_STREAM)]


def checksum(data: bytes | memoryview) -> str:
    digest: str = xxhash.xxh3_128_hexdigest(data)
    return digest


def is_right(block: Block, data: bytes) -> bool:
    """These are the bytes that were written."""
    return checksum(data) == block.checksum


def ends_of(batch: pa.RecordBatch) -> tuple[int, int]:
    """The first and the last key group that rows have."""
    groups = values_of(batch.column(GROUP_COLUMN))
    return int(groups.min()), int(groups.max())


def read_blocks(segment: Segment, groups: range, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    """The verified rows of a segment whose key groups are in the range, and are among those that count.

    `fetch` reads the bytes of a block. Raises `CheckpointCorrupt` when what it
    gives is not what was written."""
    for read in block_reads(segment, groups, fetch):
        batch = read()
        if batch.num_rows:
            yield batch


@dataclass(frozen=True)
class BlockRead:
    """Fetches, verifies and decodes one block, on any thread; only rows of `groups`."""

    segment: Segment
    block: Block
    schema: pa.Schema
    groups: range
    fetch: Fetch

    def __call__(self) -> pa.RecordBatch:
        block, groups = self.block, self.groups
        batch = read_batch(self.segment, block, self.schema, self.fetch)
        _check_rows(batch, block, _place(self.segment, block))
        if block.first_group < groups.start or block.last_group >= groups.stop:
            batch = _rows_in(batch, groups)
        return batch


def block_reads(segment: Segment, groups: range, fetch: Fetch) -> Iterator[BlockRead]:
    """What `read_blocks` does, a piece of work per block."""
    schema = read_schema(segment)
    _check_grouped(segment, schema)
    groups = _that_count(segment, groups)
    for block in blocks_in(segment, groups):
        yield BlockRead(segment, block, schema, groups, fetch)


def blocks_in(segment: Segment, groups: range) -> Iterator[Block]:
    """Those that can hold rows of these key groups that count."""
    groups = _that_count(segment, groups)
    for block in segment.blocks:
        if block.last_group >= groups.start and block.first_group < groups.stop:
            yield block


def _that_count(segment: Segment, groups: range) -> range:
    """Rows of other key groups are there, and old: the checkpoint has them elsewhere."""
    first, behind = segment.groups
    return range(max(groups.start, first), min(groups.stop, behind))


def read_schema(segment: Segment) -> pa.Schema:
    where = f"the schema of state {segment.state!r}"
    if len(segment.schema) > SCHEMA_BYTES_MAX:
        raise CheckpointCorrupt(f"{where} has {len(segment.schema)} bytes: it is damaged")
    try:
        return pa.ipc.read_schema(pa.py_buffer(segment.schema))
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise CheckpointCorrupt(f"{where} cannot be read: {error}") from error


def _check_grouped(segment: Segment, schema: pa.Schema) -> None:
    index = schema.get_field_index(GROUP_COLUMN)
    if index < 0 or schema.field(index).type != pa.uint16():
        raise CheckpointCorrupt(
            f"the schema of state {segment.state!r} has no column {GROUP_COLUMN!r} of type uint16"
        )


def _place(segment: Segment, block: Block) -> str:
    return f"state {segment.state!r} at {segment.file or 'inline'}[{block.offset}:+{block.length}]"


def read_bytes(segment: Segment, block: Block, fetch: Fetch) -> bytes:
    """One block, verified."""
    where = _place(segment, block)
    if not 0 < block.length <= BLOCK_BYTES_MAX or block.offset < 0:
        raise CheckpointCorrupt(
            f"{where}: no block has such a place or length; the metadata is damaged"
        )
    data = fetch(block)
    if len(data) != block.length:
        raise CheckpointCorrupt(f"{where}: only {len(data)} bytes are there")
    if not is_right(block, data):
        raise CheckpointCorrupt(f"{where}: the checksum is wrong; use an older checkpoint")
    return data


def read_batch(segment: Segment, block: Block, schema: pa.Schema, fetch: Fetch) -> pa.RecordBatch:
    """One block, verified and validated."""
    where = _place(segment, block)
    data = read_bytes(segment, block, fetch)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise CheckpointCorrupt(f"{where}: not a record batch of this state: {error}") from error
    return batch


def _check_rows(batch: pa.RecordBatch, block: Block, where: str) -> None:
    """The metadata chose this block by its key groups: rows of others would be lost or taken twice."""
    if batch.num_rows != block.rows or not block.rows:
        raise CheckpointCorrupt(f"{where}: {batch.num_rows} rows instead of {block.rows}")
    column = batch.column(GROUP_COLUMN)
    if column.null_count:
        raise CheckpointCorrupt(f"{where}: {column.null_count} rows have no key group")
    groups = values_of(column)
    first, last = int(groups.min()), int(groups.max())
    if (first, last) != (block.first_group, block.last_group):
        raise CheckpointCorrupt(
            f"{where}: key groups {first}..{last} instead of "
            f"{block.first_group}..{block.last_group}"
        )


def _rows_in(batch: pa.RecordBatch, groups: range) -> pa.RecordBatch:
    column = batch.column(GROUP_COLUMN)
    inside = pc.and_(
        pc.greater_equal(column, pa.scalar(groups.start, pa.uint16())),
        pc.less_equal(column, pa.scalar(groups.stop - 1, pa.uint16())),
    )
    return batch.filter(inside)
