"""The rows that a chain of segments comes to, for who has a checkpoint and not the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from penstock.state.changes import split_gone
from penstock.state.keyspace import KeySpace
from penstock.state.segments import BLOCK_ROWS_MAX
from penstock.state.table import BELOW_PREFIX, KEY_PREFIX, Table


def merged(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`batches` are those of all segments, in their order; `schema` is that of the rows that come out."""
    keys = [name for name in schema.names if name.startswith((KEY_PREFIX, BELOW_PREFIX))]
    rest = [name for name in schema.names if name not in keys]
    space = KeySpace(pa.schema([schema.field(name) for name in keys]), 1)
    values = pa.schema([schema.field(name).with_nullable(True) for name in rest])
    table = Table("", space.cells, space.keys, schema, values)
    for batch in batches:
        gone, rows = split_gone(batch)
        if gone is not None:
            cells = np.unique(space.find([gone.column(name) for name in keys]))
            cells = cells[cells >= 0]
            table.drop(cells)
            space.remove(cells)
        table.put(space.upsert([rows.column(name) for name in keys]).cells, rows.select(rest))
    there = np.flatnonzero(table.present[: space.cells.end])
    for start in range(0, len(there), BLOCK_ROWS_MAX):
        cells = there[start : start + BLOCK_ROWS_MAX]
        found = dict(zip(keys, space.keys()(cells), strict=True))
        found |= dict(zip(rest, table.get(cells).columns, strict=True))
        columns = [found[field.name].cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
