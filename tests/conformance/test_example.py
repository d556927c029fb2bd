"""The example of an own source and sink is a good one: it passes the suites, and the guide quotes it."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.base import Sink
from penstock.testing.conformance import sink_conformance, source_conformance

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_source_and_sink.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("own_source_and_sink", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(text).fetchall()


def test_the_own_source_replays_exactly(tmp_path: Path, example: Any) -> None:
    """E1: users' own sources."""
    path = tmp_path / "orders.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table orders (id integer primary key, item text)")
        connection.executemany(
            "insert into orders values (?, ?)", [(number, "item") for number in range(100)]
        )
    read = source_conformance(
        lambda: example.OrdersSource(str(path)), max_parallelism=8, rows_max=5
    )
    assert sorted(read.column("id").to_pylist()) == list(range(100))


def test_the_own_sink_commits_exactly_once(tmp_path: Path, example: Any) -> None:
    """E2, I10, I11: users' own sinks."""
    fresh = (tmp_path / f"{number}.db" for number in itertools.count())

    def make() -> Sink:
        sink: Sink = example.CopySink(str(next(fresh)))
        return sink

    def read(sink: Any) -> pa.Table:
        found = query(sink.path, "select id, item from copied")
        rows = [{"id": number, "item": item} for number, item in found]
        return pa.Table.from_pylist(rows, schema=example.SCHEMA)

    def rows(start: int, count: int) -> pa.RecordBatch:
        ids = range(start, start + count)
        items = pa.array([f"item {number}" for number in ids], pa.string())
        return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), items], schema=example.SCHEMA)

    def staged(sink: Any) -> int:
        return int(query(sink.path, "select count(*) from staged")[0][0])

    sink_conformance(make, read, schema=example.SCHEMA, make_rows=rows, count_staged=staged)


def test_the_guide_quotes_the_example_word_for_word() -> None:
    guide = (ROOT / "docs" / "connectors.md").read_text()
    quoted = re.findall(r"```python example\n(.*?)```", guide, re.DOTALL)
    assert len(quoted) >= 2
    for block in quoted:
        assert block in EXAMPLE.read_text()
