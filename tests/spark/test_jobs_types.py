"""Keys and values of many types through a whole job with a kill, against a plain Python fold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS = 2_400
SCHEMA = (
    "name STRING, day DATE, at TIMESTAMP, price DECIMAL(20,4), open BOOLEAN, n INT, ratio DOUBLE"
)
ARROW = pen.from_rows([], SCHEMA).schema
KEYS = ("name", "day", "open")


def row(i: int) -> dict[str, Any]:
    """Nulls in every column, keys included, each at its own pace."""
    return {
        "name": [None, "", "zoë", "a" * 40, "b"][i % 5],
        "day": None if i % 7 == 0 else date(2024, 2, 28) + timedelta(days=i % 4),
        "at": None if i % 11 == 0 else datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=i),
        "price": None if i % 3 == 0 else (Decimal(i % 1000) / 16).quantize(Decimal("0.0001")),
        "open": [True, False, None][i % 3],
        "n": None if i % 13 == 0 else i % 100 - 50,
        "ratio": None if i % 17 == 0 else (i % 64) / 8,
    }


def generate(numbers: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(i) for i in numbers["i"].to_pylist()], ARROW)


def values(rows: Iterable[dict[str, Any]], column: str) -> list[Any]:
    return [each[column] for each in rows if each[column] is not None]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    prices, numbers, ratios = (values(rows, name) for name in ("price", "n", "ratio"))
    return {
        "rows": len(rows),
        "prices": len(prices),
        "total": sum(prices) if prices else None,
        "low": min(numbers, default=None),
        "high": max(numbers, default=None),
        "mean": sum(ratios) / len(ratios) if ratios else None,
        "latest": max(values(rows, "at"), default=None),
        "first_name": min(values(rows, "name"), default=None),
    }


def values_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.values())


def reference() -> dict[tuple[Any, ...], dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for i in range(ROWS):
        each = row(i)
        groups.setdefault(tuple(each[key] for key in KEYS), []).append(each)
    return {key: summary(rows) for key, rows in groups.items()}


def test_many_types_with_nulls_are_aggregated_as_by_hand(spark: Any, tmp_path: Path) -> None:
    """S1, I1, I2, I15: three key columns with nulls; strings, dates, timestamps, decimals, booleans."""
    sink = pen.CollectSink()
    tap = Tap(tmp_path / "end", rate=1_200, held=ROWS - 400)
    source = tap.stream().map_batches(generate, schema=SCHEMA)
    folded = source.key_by(*KEYS).agg(
        rows=pen.count(),
        prices=pen.count("price"),
        total=pen.sum("price"),
        low=pen.min("n"),
        high=pen.max("n"),
        mean=pen.avg("ratio"),
        latest=pen.max("at"),
        first_name=pen.min("name"),
    )
    both = pen.Pipeline(folded.to(sink), source.to(pen.FileSink(str(tmp_path / "out"))))
    job = both.start(spark, checkpoint=jobs.config(tmp_path / "chk"), restart=jobs.AT_ONCE)
    with jobs.running(job):
        jobs.more_checkpoints(job, 2)
        jobs.kill(jobs.workers()[0])
        jobs.until_job(job, lambda: jobs.restarts(job) > 0)
        tap.end(ROWS)
        jobs.finish(job)
    assert jobs.restarts(job) >= 1
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in sink.to_pylist():
        key = tuple(each.pop(name) for name in KEYS)
        if key not in newest or each["rows"] > newest[key]["rows"]:
            newest[key] = each
    assert newest == reference()
    written = jobs.read_parts(tmp_path / "out").to_pylist()
    assert Counter(map(values_of, written)) == Counter(values_of(row(i)) for i in range(ROWS))
