"""Small tools for the tests of state: an operator's context, segments from frozen state, plain folds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import OperatorContext
from penstock.protocol.snapshot import OperatorSnapshot, Segment
from penstock.state.aggregates import Aggregate
from penstock.state.frozen import Encoded
from penstock.state.segments import read_blocks

MAX_PARALLELISM = 128


def segment_of(encoded: Encoded) -> Segment:
    data = b"".join(encoded.chunks)
    return Segment(encoded.state, encoded.schema, encoded.blocks, inline=data)


def read_segment(segment: Segment, groups: range) -> Iterable[pa.RecordBatch]:
    data = segment.inline
    assert data is not None
    return read_blocks(segment, groups, lambda offset, length: data[offset : offset + length])


def rows_of(encoded: Encoded, groups: range = range(MAX_PARALLELISM)) -> list[dict[str, Any]]:
    batches = read_segment(segment_of(encoded), groups)
    return [row for batch in batches for row in batch.to_pylist()]


def snapshot_of(encoded: Encoded) -> OperatorSnapshot:
    return OperatorSnapshot(segments=(segment_of(encoded),))


def opened(
    keys: Sequence[str],
    aggregates: dict[str, Aggregate],
    schema: pa.Schema,
    restored: Sequence[OperatorSnapshot] = (),
    index: int = 0,
    parallelism: int = 1,
) -> RunningAggregate:
    operator = RunningAggregate(tuple(keys), aggregates)
    operator.open(
        OperatorContext(
            job="job",
            operator="totals",
            index=index,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            attempt=1,
            input_schemas=(schema,),
            now_ms=lambda: 0.0,
            restored=tuple(restored),
            read_segments=lambda segments, groups: chain.from_iterable(
                read_segment(each, groups) for each in segments
            ),
            to_driver=lambda item: None,
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
