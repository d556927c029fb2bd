"""What all operators with keyed state do when they are opened."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.floors import open_floor
from penstock.state.changes import same_rows
from penstock.state.floored import FlooredKeyed
from penstock.state.keyed import Keyed
from penstock.state.segments import read_schema
from penstock.state.table import Table


def make_keyed(keys: pa.Schema, context: OperatorContext) -> Keyed:
    if context.floors is None:
        log = context.log
        return Keyed(keys, context.max_parallelism, incremental=context.incremental, log=log)
    return FlooredKeyed(
        keys,
        context.max_parallelism,
        context.key_groups,
        partial(open_floor, context),
        context.floors.budget,
        context.operator,
        context.log,
    )


def expected_rows(context: OperatorContext, state: str) -> int:
    """About how many rows of a state come into memory with what is restored; those of floors stay below."""
    if context.floors is not None:
        return 0
    mine = context.key_groups
    rows = 0.0
    for segment in (each for part in context.parts_of(state) for each in part if not each.delta):
        for block in segment.blocks:
            first, end = block.first_group, block.last_group + 1
            inside = min(mine.stop, end, segment.groups[1])
            inside -= max(mine.start, first, segment.groups[0])
            rows += block.rows * max(0, inside) / (end - first)
    return round(rows)


def keep_chain(table: Table, context: OperatorContext) -> None:
    """The table was restored. The next checkpoint may build on the one that it came from, if it has the same
    columns."""
    if table.changes is None or not context.restored_id:
        return
    segments = [
        segment
        for snapshot in context.restored
        for segment in snapshot.segments
        if segment.state == table.state
    ]
    if all(same_rows(read_schema(segment), table.schema) for segment in segments):
        table.changes.restored(context.restored_id, segments, context.key_groups)
