"""Small tools for the tests of state: an operator's context, segments from frozen state, plain folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import OperatorContext
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.plan.keyhash import I64
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.snapshot import OperatorSnapshot, Segment
from penstock.state.aggregates import Aggregate
from penstock.state.frozen import Frozen
from penstock.state.frozen_table import FrozenTable
from penstock.state.keyed import Keyed
from penstock.state.segments import read_blocks
from penstock.storage.memory import MemoryStore
from penstock.wire.paths import WorkerFile

MAX_PARALLELISM = 128


class Kept:
    """One state with a row per key, and its keys."""

    def __init__(
        self, keys: pa.Schema, values: pa.Schema, state: str = "state", *, incremental: bool = False
    ) -> None:
        self.keyed = Keyed(keys, MAX_PARALLELISM, incremental=incremental)
        self.space = self.keyed.space
        self.table = self.keyed.table("value", state, values)
        self.schema = self.table.schema

    def __len__(self) -> int:
        return len(self.table)

    def cells(self, keys: Sequence[pa.Array]) -> I64:
        """Where the rows of these keys are, made where there are none."""
        cells, new = self.space.upsert(keys)
        self.table.add(new)
        return cells

    def remove(self, keys: Sequence[pa.Array]) -> None:
        cells = np.unique(self.space.find(keys))
        cells = cells[cells >= 0]
        self.table.drop(cells)
        self.keyed.vacate(cells)

    def freeze(self, base: int = 0, checkpoint: int = 0) -> FrozenTable:
        return self.table.freeze(base, checkpoint)

    def load(self, batch: pa.RecordBatch) -> None:
        self.keyed.load(self.table, batch)


def inline_out() -> SegmentFiles:
    """Everything that is put stays in its segment."""
    place = WorkerFile(CheckpointId(1), SlotId(0), AttemptId(1))
    return SegmentFiles(MemoryStore(), place, 1 << 40)


def segment_of(frozen: Frozen) -> Segment:
    (segment,) = frozen.write(inline_out())
    return segment


def segments_of(frozen: Frozen) -> tuple[Segment, ...]:
    return frozen.write(inline_out())


def read_segment(segment: Segment, groups: range) -> Iterable[pa.RecordBatch]:
    data = segment.inline
    assert data is not None
    return read_blocks(
        segment, groups, lambda block: data[block.offset : block.offset + block.length]
    )


def rows_of(frozen: Frozen, groups: range = range(MAX_PARALLELISM)) -> list[dict[str, Any]]:
    batches = read_segment(segment_of(frozen), groups)
    return [row for batch in batches for row in batch.to_pylist()]


def snapshot_of(*segments: Segment) -> OperatorSnapshot:
    return OperatorSnapshot(segments=segments)


def opened(
    keys: Sequence[str],
    aggregates: dict[str, Aggregate],
    schema: pa.Schema,
    restored: Sequence[OperatorSnapshot] = (),
    index: int = 0,
    parallelism: int = 1,
    restored_id: int = 0,
    over: Callable[[OperatorContext], OperatorContext] = lambda context: context,
) -> RunningAggregate:
    """`over`: how the operator keeps its state."""
    operator = RunningAggregate(tuple(keys), aggregates)
    operator.open(
        over(
            OperatorContext(
                job="job",
                operator="totals",
                index=index,
                parallelism=parallelism,
                max_parallelism=MAX_PARALLELISM,
                attempt=1,
                input_schemas=(schema,),
                now_ms=lambda: 0.0,
                wall_ms=lambda: 0.0,
                restored=tuple(restored),
                restored_id=restored_id,
                read_segments=lambda segments, groups: chain.from_iterable(
                    read_segment(each, groups) for each in segments
                ),
                to_driver=lambda item: None,
            )
        )
    )
    return operator


def plain_fold(aggregate: Aggregate, rows: list[dict[str, Any]]) -> Any:
    """What an aggregate means, in the plainest words."""
    if aggregate.column is None:
        return len(rows)
    values = [row[aggregate.column] for row in rows]
    given = [value for value in values if value is not None]
    match aggregate.function:
        case "count":
            return len(given)
        case "first":
            return values[0]
        case "last":
            return values[-1]
    if not given:
        return None
    match aggregate.function:
        case "sum":
            return _added(given)
        case "avg":
            return float(_added([float(value) for value in given])) / len(given)
        case "min":
            return min(given, key=_nan_last)
        case _:
            return max(given, key=_nan_last)


def _added(values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total += value
    return total


def _nan_last(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a == b)
