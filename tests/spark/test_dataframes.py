"""Batch DataFrames as sources: every type, each row once, staged only where that is needed, and once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.shells.spark.dataframes import DataFrameSource, Watermark, files_in_place
from penstock.shells.spark.staging import in_place, place_for, settle
from tests.spark import frames, jobs
from tests.spark.ends import PATIENCE_S, until
from tests.spark.taps import Slow, Tap

pytestmark = pytest.mark.spark
ROWS = 60_000


def numbers(spark: Any, rows: int = ROWS) -> Any:
    return spark.range(rows).selectExpr("id as i")


def collect(frame: Any, folder: Path, **options: Any) -> tuple[pa.Table, pen.Job]:
    sink = pen.CollectSink()
    job = (
        pen.from_dataframe(frame, "frame")
        .to(sink)
        .start(name="frames", checkpoint=jobs.config(folder / "chk"), **options)
    )
    with jobs.running(job):
        jobs.finish(job)
    return sink.to_table(), job


EVERYTHING = """
    select id, cast(id as string) as s, binary(cast(id as string)) as b, id % 2 = 0 as t,
    cast(id as tinyint) as i8, cast(id as smallint) as i16, cast(id as int) as i32, cast(id as float) as f,
    cast(id as double) as d, cast(id as decimal(20, 3)) as dec, date'2024-01-01' as day,
    timestamp'2024-01-01 00:00:00' as at, timestamp_ntz'2024-01-01 00:00:00' as wall, interval '2' day as dt,
    array(id, null) as a, map('x', id) as m,
    struct(id as i, array(timestamp'2024-01-01 00:00:00') as ts, map(1, struct(id as deep)) as m) as st,
    cast(null as string) as n
    from range(100)
"""


def test_rows_of_every_type_come_as_spark_has_them(spark: Any, tmp_path: Path) -> None:
    """E1: nested ones too; equal to what Spark itself makes of the rows."""
    frame = spark.sql(EVERYTHING)
    table, _ = collect(frame, tmp_path / "a folder[1]*")
    expected = frame.drop("dt").toArrow()
    rows = {row["id"]: row for row in table.drop_columns(["dt"]).to_pylist()}
    assert [rows[i] for i in range(100)] == sorted(expected.to_pylist(), key=lambda row: row["id"])
    assert table["dt"].to_pylist()[0].days == 2
    assert not frames.staged(tmp_path), "removed with the end of the job"


def test_settings_of_the_program_for_its_own_files_change_no_row(
    spark: Any, tmp_path: Path
) -> None:
    """E1: milliseconds, old calendars and old forms of lists are for files that others read."""
    own = spark.newSession()
    own.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    own.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    own.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "LEGACY")
    own.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    frame = own.sql(
        "select date'1000-01-05' as day, timestamp'2024-01-01 00:00:00.123456' as at,"
        " timestamp'1000-01-05 00:00:00' as old, array(timestamp'1000-01-05 00:00:00') as many"
    )
    expected = frame.toArrow().to_pylist()
    assert collect(frame, tmp_path / "staged")[0].to_pylist() == expected
    assert own.conf.get("spark.sql.parquet.writeLegacyFormat") == "true"
    own.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    frame.write.parquet(str(tmp_path / "in"))
    scan = spark.read.parquet(str(tmp_path / "in"))
    assert in_place(DataFrameSource(scan)) is None, "only Spark can read those"
    assert collect(scan, tmp_path / "scan")[0].to_pylist() == expected
    option = {"ignoreCorruptFiles": "true"}
    assert files_in_place(spark.read.parquet(str(tmp_path / "in"))) is not None
    assert files_in_place(spark.read.options(**option).parquet(str(tmp_path / "in"))) is None
    own.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    assert files_in_place(own.read.parquet(str(tmp_path / "in"))) is None


def test_a_query_of_spark_goes_through_a_killed_worker_and_is_staged_once(
    spark: Any, tmp_path: Path
) -> None:
    """E1, R1, I1, I2: the order of rows is settled by staging, so each is numbered once."""
    tap = Tap(
        tmp_path / "end", rate=1_000, held=200
    )  # the job lives until the test has seen enough
    shuffled = numbers(spark).repartition(5).where("i % 3 = 0")
    frame_rows = frames.numbered(shuffled).to(pen.FileSink(str(tmp_path / "out")))
    other = jobs.totals(tap.stream()).to(pen.CollectSink())
    job = pen.Pipeline(frame_rows, other).start(
        name="frames", checkpoint=jobs.config(tmp_path / "chk"), restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.more_checkpoints(job)
        jobs.kill(jobs.workers()[0])
        jobs.until_job(job, lambda: jobs.restarts(job) > 0)
        assert len(frames.sets(tmp_path)) == 1
        tap.end(400)
        jobs.finish(job)
    table = jobs.read_parts(tmp_path / "out")
    assert sorted(table["i"].to_pylist()) == list(range(0, ROWS, 3))
    given: dict[int, list[int]] = {}
    for key, nth in zip(table["k"].to_pylist(), table["nth"].to_pylist(), strict=True):
        given.setdefault(key, []).append(nth)
    assert all(sorted(nths) == list(range(1, len(nths) + 1)) for nths in given.values())


def test_files_of_a_plain_scan_are_read_where_they_are(spark: Any, tmp_path: Path) -> None:
    """Staging is skipped: also where only some of the columns are wanted."""
    source = tmp_path / "in"
    numbers(spark).selectExpr("i", "i * 2 as twice").repartition(3).write.parquet(str(source))
    scan = spark.read.parquet(str(source))
    assert len(files_in_place(scan) or ()) == 3
    assert files_in_place(scan.where("i > 5")) is None
    assert files_in_place(scan.selectExpr("i + 1 as i")) is None
    assert files_in_place(spark.read.parquet(str(source), str(source))) is None, "each row twice"
    table, _ = collect(scan.select("i"), tmp_path)
    assert sorted(table["i"].to_pylist()) == list(range(ROWS))
    assert not list((tmp_path / "chk").rglob("rows")), "nothing was copied"
    assert sorted(pen.from_dataframe(scan).select("twice").take(3))[0].twice % 2 == 0


def test_a_driver_that_comes_back_goes_on_with_what_was_staged(spark: Any, tmp_path: Path) -> None:
    """R5: staged once, whatever the query would give now; `restore="fresh"` stages anew and lets the old rows go."""
    frame = numbers(spark).repartition(4)
    tap = Tap(tmp_path / "end", rate=1_000, held=200)

    def start(**options: Any) -> pen.Job:
        rows = frames.numbered(frame).to(pen.FileSink(str(tmp_path / "out"), "parquet"))
        other = jobs.totals(tap.stream()).to(pen.CollectSink())
        return pen.Pipeline(rows, other).start(
            name="frames", checkpoint=jobs.config(tmp_path / "chk"), **options
        )

    with jobs.running(start()) as job:
        jobs.more_checkpoints(job)
        assert job.stop(timeout=PATIENCE_S)
    first = frames.sets(tmp_path)
    staged = frames.staged(tmp_path)
    assert staged, "a job that was stopped can go on"
    frame = numbers(spark).repartition(7)
    with jobs.running(start()) as job:
        jobs.more_checkpoints(job)
        assert frames.sets(tmp_path) == first
        assert set(frames.staged(tmp_path)) == set(staged)
        assert job.stop(timeout=PATIENCE_S)
    with jobs.running(start(restore="fresh")) as job:
        until(lambda: frames.sets(tmp_path) > first)
        until(lambda: not set(frames.staged(tmp_path)) & set(staged))  # no checkpoint needs them
        assert not jobs.ended(job)


def test_what_was_staged_before_the_first_checkpoint_is_used_only_for_the_same_rows(
    spark: Any, tmp_path: Path
) -> None:
    """R5: a plan does not show everything: not the rows of the program, not what its functions do, not every column of
    many, not what is in files that were written anew."""
    source = tmp_path / "in"

    def written() -> Any:
        numbers(spark, 10).coalesce(1).write.mode("overwrite").parquet(str(source))
        (part,) = source.glob("part-*.parquet")
        return spark.read.parquet(str(part.rename(source / "fixed.parquet")))

    def stage(frame: Any) -> str:
        place = place_for("frames", "frame", str(tmp_path / "chk"), {})
        return settle(DataFrameSource(frame), place, fresh=False, begun=False).name

    def adding(n: int) -> Any:
        from pyspark.sql.functions import udf

        return numbers(spark, 10).select(udf(lambda i: i + n, "bigint")("i").alias("i"))

    def many(last: int) -> Any:
        return spark.range(3).selectExpr(*(f"id + {n} as c{n}" for n in [*range(40), last]))

    scan = written().where("i > 3")
    staged = stage(scan)
    assert stage(spark.read.parquet(str(source / "fixed.parquet")).where("i > 3")) == staged
    assert stage(scan.where("i > 4")) > staged
    others = [written().where("i > 3"), adding(1), adding(2), many(50), many(60)]
    others += [spark.createDataFrame([(n,)], "i bigint") for n in (1, 2)]
    names = [stage(frame) for frame in others]
    assert names == sorted(set(names)), "each was staged"


def test_a_replaced_driver_leaves_the_staged_rows_to_its_successor(
    spark: Any, tmp_path: Path
) -> None:
    """I18: also where a job that fails is to leave nothing; that is for whoever owns it."""
    config = pen.CheckpointConfig(str(tmp_path / "chk"), every="100ms", retain="never_retain")
    slow = Slow(tmp_path / "never")
    frame = pen.from_dataframe(numbers(spark), "frame").map_batches(slow)
    pipeline = frame.to(pen.BlackholeSink())
    with jobs.running(pipeline.start(name="frames", checkpoint=config, parallelism=1)) as old:
        jobs.more_checkpoints(old)
        with jobs.running(pipeline.start(name="frames", checkpoint=config, parallelism=1)) as new:
            with pytest.raises(pen.JobFailed, match="taken over by another driver"):
                old.await_termination(PATIENCE_S)
            assert frames.staged(tmp_path)
            jobs.more_checkpoints(new)
            new.cancel()
        until(lambda: not frames.staged(tmp_path))


def test_a_look_needs_no_job(spark: Any) -> None:
    rows = pen.from_dataframe(numbers(spark, 10)).filter(pen.col("i") > 6).take(5)
    assert sorted(row.i for row in rows) == [7, 8, 9]


def test_a_watermark_of_the_dataframe_is_remembered(spark: Any) -> None:
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    assert DataFrameSource(frame).watermark == Watermark("timestamp", 5_000)
    assert DataFrameSource(numbers(spark)).watermark is None


# ---- what bad input gets


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("null", r"'x' is void.*CAST\(NULL AS STRING\)"),
        ("parse_json('{}')", "'x' is variant.*to_json"),
        ("make_interval(1)", "'x' is interval"),
        ("interval '1' month", "'x' is interval month.*months"),
        ("struct(1 as a, array(null) as b)", "'x.b.element' is void"),
    ],
)
def test_a_column_that_cannot_be_carried_is_named(spark: Any, column: str, told: str) -> None:
    with pytest.raises(pen.SchemaError, match=told):
        pen.from_dataframe(spark.sql(f"select {column} as x"))


def test_what_is_no_dataframe_or_cannot_be_a_stream_is_told_at_once(spark: Any) -> None:
    import pandas as pd

    with pytest.raises(pen.ConfigError, match=r"spark\.createDataFrame"):
        pen.from_dataframe(pd.DataFrame({"i": [1]}))
    with pytest.raises(pen.ConfigError, match="not a DataFrame of PySpark"):
        pen.from_dataframe([1, 2])
    two = numbers(spark).selectExpr("i", "i as I")
    with pytest.raises(pen.SchemaError, match="several columns 'i'"):
        pen.from_dataframe(two)
    with pytest.raises(pen.ConfigError, match="processingTime is for streaming"):
        pen.from_dataframe(numbers(spark), processingTime="1 second")
    ticks = spark.readStream.format("rate").load()
    with pytest.raises(pen.PlanError, match="append mode only.*key_by"):
        pen.from_dataframe(ticks.groupBy("value").count())
    socket = spark.readStream.format("socket").option("host", "localhost").option("port", 9)
    with pytest.raises(pen.PlanError, match="'socket' gives its rows only once"):
        pen.from_dataframe(socket.load())
    with pytest.raises(pen.ConfigError, match="only while a job runs"):
        pen.from_dataframe(ticks).take(1)
    until(lambda: not jobs.threads())


def test_another_dataframe_than_the_job_was_begun_with_is_refused(
    spark: Any, tmp_path: Path
) -> None:
    collect(numbers(spark, 10), tmp_path)
    with pytest.raises(pen.PlanError, match="begun with another DataFrame: .*column 'j'"):
        collect(numbers(spark, 10).selectExpr("i as j"), tmp_path)
    assert not jobs.workers()


def test_a_staging_folder_that_somebody_emptied_ends_the_job_with_what_to_do(
    spark: Any, tmp_path: Path
) -> None:
    slow = Slow(tmp_path / "never")  # so that rows are still to be read
    frame = pen.from_dataframe(numbers(spark), "frame").map_batches(slow)
    pipeline = frame.to(pen.BlackholeSink())
    options: dict[str, Any] = {"name": "frames", "checkpoint": jobs.config(tmp_path / "chk")}
    with jobs.running(pipeline.start(**options)) as job:
        jobs.more_checkpoints(job)
        assert job.stop(timeout=PATIENCE_S)
    (newest,) = {info.path for info in job.checkpoints()[:1]}
    with pytest.raises(pen.ConfigError, match="^frame: .*staged for the other job"):
        pipeline.start(**{**options, "name": "other", "restore": newest})
    assert not list((tmp_path / "chk" / "other").rglob("*.parquet")), "refused before it is staged"
    (folder,) = (path.parent for path in (tmp_path / "chk").rglob("set.json"))
    (folder / "batch-0").unlink()
    with pytest.raises(pen.DataError, match='list of the staged rows is gone.*restore="fresh"'):
        pipeline.start(**options)
    shutil.rmtree(folder)
    with pytest.raises(pen.JobFailed, match='somebody has removed them.*restore="fresh"'):
        pipeline.start(**options).await_termination(PATIENCE_S)
    until(lambda: not jobs.workers() and not jobs.threads())
