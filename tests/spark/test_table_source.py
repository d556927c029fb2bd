"""The reader that Spark has for tables, called as Spark calls it, without a Spark."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

import penstock as pen
from penstock.connectors.tables.compaction import GRACE_MS
from penstock.shells.spark.table_source import TableReader, is_table, table_schema
from tests.connectors.table_kit import Place, merge_often, users

DAY = dt.datetime(2026, 1, 31, 12, 30, 15, 7, tzinfo=dt.UTC)


def read(reader: TableReader, partitions: Any) -> list[dict[str, Any]]:
    """As tasks do, each with a copy of the reader and its own partition."""
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        copy, mine = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(mine):
            assert batch.schema.equals(to_arrow_schema(copy._schema, timezone="UTC"))
            rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("partitions", [None, 1, 3, 64])
def test_the_partitions_are_all_rows_each_once(tmp_path: Path, partitions: int | None) -> None:
    """E7: one for each range of key groups."""
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    for n in range(3):
        subtask.commit(*users(range(20 * n, 20 * n + 40), n))
    reader = TableReader(place.path, table_schema(place.path), partitions=partitions)
    cut = reader.partitions()
    assert len(cut) == (partitions or 1)
    rows = read(reader, cut)
    assert sorted((row["user"], row["n"]) for row in rows) == sorted(place.seen().items())


def test_an_empty_table_is_an_empty_frame(tmp_path: Path) -> None:
    place = Place(tmp_path / "table")
    assert not is_table(place.path)
    place.subtask()
    assert is_table(place.path)
    reader = TableReader(place.path, table_schema(place.path))
    assert read(reader, reader.partitions()) == []


def test_a_task_that_comes_when_its_files_are_gone_looks_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: a query that was planned minutes ago."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1), ("bob", 1))
    reader = TableReader(place.path, table_schema(place.path), partitions=2)
    planned = reader.partitions()
    subtask.commit(("ada", 2))
    assert {(row["user"], row["n"]) for row in read(reader, planned)} == {("ada", 1), ("bob", 1)}
    place.now_ms += GRACE_MS
    subtask.committer._aside.wanted()
    assert len(place.files()) == 1
    assert {(row["user"], row["n"]) for row in read(reader, planned)} == {("ada", 2), ("bob", 1)}


def test_values_come_as_spark_wants_them(tmp_path: Path) -> None:
    row: dict[str, tuple[pa.DataType, Any]] = {
        "k": (pa.large_string(), "ada"),
        "small": (pa.int8(), 1),
        "money": (pa.decimal128(10, 2), Decimal("1.50")),
        "day": (pa.date32(), dt.date(2026, 1, 31)),
        "at": (pa.timestamp("ns", "Europe/Oslo"), DAY),
        "wall": (pa.timestamp("s"), DAY.replace(tzinfo=None, microsecond=0)),
        "took": (pa.duration("ms"), dt.timedelta(milliseconds=7)),
        "list": (pa.list_(pa.float64()), [0.5, None]),
        "struct": (pa.struct([("a", pa.int64())]), {"a": 1}),
    }
    schema = pa.schema([(name, kind) for name, (kind, _) in row.items()])
    place = Place(tmp_path / "table", "k", schema)
    place.subtask().commit(tuple(value for _, value in row.values()))
    reader = TableReader(place.path, table_schema(place.path))
    (found,) = read(reader, reader.partitions())
    assert found == {name: value for name, (_, value) in row.items()}


def test_a_column_that_spark_has_no_type_for_gets_the_nearest(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("big", pa.uint64())])
    place = Place(tmp_path / "table", "k", schema)
    place.subtask().commit((1, 2))
    assert table_schema(place.path)["big"].dataType.simpleString() == "decimal(20,0)"
    with pytest.raises(pen.ConfigError, match="is no table"):
        table_schema(str(tmp_path))
