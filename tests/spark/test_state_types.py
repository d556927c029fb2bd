"""What a DataFrame over state is made of, without a Spark: its options and its types."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.checkpoints.leases import LEASE_MS
from penstock.errors import ConfigError
from penstock.shells.spark.state_options import parse_options
from penstock.shells.spark.state_types import spark_schema, to_spark


def test_the_package_that_spark_looks_for_imports_nothing_of_penstock() -> None:
    """P5: Spark imports it at the first look-up of any data source."""
    code = (
        "import sys, pyspark_penstock; sys.exit('penstock' in sys.modules or 'zmq' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0


# ---- options


def test_options_are_what_people_write() -> None:
    made = parse_options({"Path": "chk/totals/chk-7", "Operator": "totals", "kind": "inflight"})
    assert made.request.root == str(Path("chk/totals").absolute())
    assert (made.request.checkpoint, made.request.choice.operator) == (7, "totals")
    assert made.lease_ms == LEASE_MS
    assert parse_options({"path": "s3://b/chk/job"}).request.root == "s3://b/chk/job"
    assert parse_options({"path": "x", "lease": "30 seconds"}).lease_ms == 30_000
    assert parse_options({"path": "x", "where.User": "Ada"}).request.where == {"user": "Ada"}


def test_options_for_the_store_are_passed_on_and_not_shown() -> None:
    given = {
        "path": "x",
        "storage.key": "12345",
        "storage.secret": "hunter2",
        "storage.anon": "false",
    }
    made = parse_options({**given, "storage.client_kwargs": '{"endpoint_url": "http://x"}'})
    assert made.storage == {
        "key": "12345",
        "secret": "hunter2",
        "anon": False,
        "client_kwargs": {"endpoint_url": "http://x"},
    }
    assert "hunter2" not in repr(made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name the job's folder"),
        ({"path": " "}, "name the job's folder"),
        ({"path": "x", "opertor": "y"}, "did you mean 'operator'"),
        ({"path": "x", "lease": "2 hours"}, "not longer than an hour"),
        ({"path": "x", "lease": "0 s"}, "above zero"),
        ({"path": "x", "checkpoint": "-1"}, "is no checkpoint"),
        ({"path": "x/chk-7", "checkpoint": "8"}, "names checkpoint 7 and checkpoint=8 another"),
    ],
)
def test_options_that_nobody_can_mean_are_refused(options: dict[str, str], message: str) -> None:
    """U4."""
    with pytest.raises(ConfigError, match=message):
        parse_options(options)


# ---- types


MOMENT = datetime(2024, 2, 29, 12, 30, 1, 5, UTC)


@pytest.mark.parametrize(
    ("kind", "value", "ddl", "shown"),
    [
        (pa.int8(), 5, "tinyint", 5),
        (pa.uint8(), 200, "smallint", 200),
        (pa.uint16(), 60_000, "int", 60_000),
        (pa.uint32(), 4_000_000_000, "bigint", 4_000_000_000),
        (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
        (pa.float16(), 0.5, "float", 0.5),
        (pa.large_string(), "zoë", "string", "zoë"),
        (pa.large_binary(), b"\x00", "binary", b"\x00"),
        (pa.decimal128(38, 4), Decimal("1.5"), "decimal(38,4)", Decimal("1.5000")),
        (pa.decimal256(60, 2), Decimal("1.5"), "string", "1.50"),
        (pa.date64(), date(2024, 2, 29), "date", date(2024, 2, 29)),
        (pa.time64("us"), time(1, 2, 3), "string", "01:02:03.000000"),
        (pa.timestamp("ms", "Europe/Berlin"), MOMENT, "timestamp", MOMENT.replace(microsecond=0)),
        (
            pa.timestamp("us"),
            MOMENT.replace(tzinfo=None),
            "timestamp_ntz",
            MOMENT.replace(tzinfo=None),
        ),
        (pa.duration("s"), timedelta(days=2), "interval day to second", timedelta(days=2)),
        (pa.list_(pa.uint8()), [1, None], "array<smallint>", [1, None]),
        (pa.struct([("a", pa.uint16())]), {"a": 1}, "struct<a:int>", {"a": 1}),
        (pa.map_(pa.string(), pa.uint8()), [("a", 1)], "map<string,smallint>", [("a", 1)]),
    ],
    ids=str,
)
def test_every_arrow_type_is_one_that_spark_has(
    kind: pa.DataType, value: Any, ddl: str, shown: Any
) -> None:
    """P5: numbers become wider, the rest text; the batch is just as Spark wants it for its schema."""
    schema = pa.schema([pa.field("x", kind)])
    found = spark_schema(schema)
    assert found.simpleString() == f"struct<x:{ddl}>"
    batch = to_spark(
        pa.RecordBatch.from_arrays([pa.array([value, None], kind)], schema=schema), found
    )
    assert batch.column("x").to_pylist() == [shown, None]


def test_what_is_finer_than_spark_s_microseconds_is_cut_off() -> None:
    schema = pa.schema([pa.field("x", pa.timestamp("ns"))])
    nanoseconds = pa.array([1_000_001_999], pa.int64()).cast(pa.timestamp("ns"))
    batch = to_spark(pa.RecordBatch.from_arrays([nanoseconds], schema=schema), spark_schema(schema))
    assert batch.column("x").cast(pa.int64()).to_pylist() == [1_000_001]
