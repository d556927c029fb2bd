"""Rows of a table with what the table must know of them: a key group to find them by, a version to choose by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, key_groups, key_hashes

GROUPS = 4_096
"""Rows are sorted by key group, and the groups of a file's parts are in its footer: whoever wants a key, or a share of
the keys, reads only the parts that can have it. A number of the file format, whatever the job's max_parallelism is."""
GROUP = pa.field("_penstock_group", pa.int32(), nullable=False)
VERSION = pa.field("_penstock_version", pa.int64(), nullable=False)
HIDDEN = (GROUP.name, VERSION.name)
_ROW = "_penstock_row"


def last_rows(keys: pa.Table, order: I64 | None = None) -> I64:
    """The last row of each key, ascending. `order` has the rows from the oldest to the newest, where they do not come
    like that. Null is a key, too."""
    order = np.arange(keys.num_rows) if order is None else order
    rank = np.empty(keys.num_rows, np.int64)
    rank[order] = np.arange(keys.num_rows)
    ranked = keys.append_column(_ROW, pa.array(rank))
    found = ranked.group_by(keys.column_names, use_threads=False).aggregate([(_ROW, "max")])
    winners: I64 = np.sort(order[found.column(f"{_ROW}_max").to_numpy()])
    return winners


def stamped(rows: pa.Table, keys: Sequence[str], version: int) -> pa.Table:
    """Rows as they are written: with group and version, sorted by group."""
    groups = _groups_of(rows.select(list(keys)))
    order = pa.array(np.argsort(groups, kind="stable"))
    versions = pa.array(np.full(len(groups), version))
    hidden = pa.Table.from_arrays([pa.array(groups), versions], schema=pa.schema([GROUP, VERSION]))
    columns = [*hidden.columns, *rows.columns]
    return pa.Table.from_arrays(columns, schema=stamped_schema(rows.schema)).take(order)


def stamped_schema(schema: pa.Schema) -> pa.Schema:
    """Of the rows in files. There every column may be null: rows of before it was added are."""
    return pa.schema([GROUP, VERSION, *(field.with_nullable(True) for field in schema)])


def newest(parts: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Of rows from several files, each without two rows of one key, the row with the highest version of each key;
    sorted by group."""
    rows = pa.concat_tables(parts).combine_chunks()
    if len(parts) < 2:
        return rows
    order = np.argsort(rows.column(VERSION.name).to_numpy(), kind="stable")
    winners = last_rows(rows.select(list(keys)), order)
    groups = rows.column(GROUP.name).to_numpy()[winners]
    return rows.take(pa.array(winners[np.argsort(groups, kind="stable")]))


def group_of(key: Sequence[pa.Array]) -> int:
    """Of a single key, one array of one value for each column."""
    return int(key_groups(key_hashes(key)[0], GROUPS)[0])


def _groups_of(keys: pa.Table) -> npt.NDArray[np.int32]:
    lanes = [key_hashes(batch.columns)[0] for batch in keys.to_batches()]
    if not lanes:
        return np.empty(0, np.int32)
    return key_groups(np.concatenate(lanes), GROUPS).astype(np.int32)
