"""Rows in flight as bytes: an Arrow IPC stream, one block with a checksum per batch, in the order of the channel.

The same stream as that of state (`segments`), without key groups: a channel's rows are read back whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import CheckpointCorrupt
from penstock.protocol.snapshot import Segment
from penstock.state.segments import Fetch, read_batch, read_schema

STATE = "in flight"


def read_rows(segment: Segment, schema: pa.Schema, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    """The verified batches, in order. They must have the schema that the channel has now."""
    found = read_schema(segment)
    if not found.equals(schema):
        raise CheckpointCorrupt(
            f"the rows in flight have the columns {_shown(found)}, and the job now sends {_shown(schema)} there"
        )
    for block in segment.blocks:
        batch = read_batch(segment, block, found, fetch)
        if batch.num_rows != block.rows:
            raise CheckpointCorrupt(
                f"{batch.num_rows} rows in flight where {block.rows} were written"
            )
        yield batch


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
