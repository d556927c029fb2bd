"""Results as DataFrames: tables and files that are read by Spark while a job writes them and is killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.shells.spark.table_source import is_table
from tests.spark import jobs
from tests.spark.tables import Look, Looks, assert_only_grows, assert_tables
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS = 20_000


class Results:
    """Everything that can be made of one stream: its rows, a table of totals, a table of the last row of each key,
    and the updates that the tables were made of."""

    def __init__(self, folder: Path) -> None:
        self.tap = Tap(folder / "end", rate=2_000, held=ROWS - 1_000)
        self.totals, self.last = folder / "totals", folder / "last"
        self.updates, self.rows = folder / "updates", folder / "rows"
        self.copied = folder / "copied"

    def pipeline(self) -> pen.Pipeline:
        stream = self.tap.stream()
        totals, numbered = jobs.totals(stream), jobs.count_up(stream)
        return pen.Pipeline(
            totals.to(pen.UpsertFileSink(str(self.totals), key="k"), name="totals table"),
            totals.to(pen.FileSink(str(self.updates)), name="updates"),
            numbered.to(pen.UpsertFileSink(str(self.last), key=["k"]), name="last table"),
            numbered.to(pen.FileSink(str(self.rows)), name="rows"),
        )

    def copies(self, spark: Any) -> Any:
        """A streaming query that copies the rows, with checkpoints of its own."""
        stream = spark.readStream.schema(jobs.NUMBERED).parquet(str(self.rows))
        writer = stream.writeStream.option("checkpointLocation", f"{self.copied}-checkpoints")
        return writer.trigger(processingTime="200 milliseconds").start(str(self.copied))


def rows_of(table: pa.Table) -> Look:
    return [tuple(row.values()) for row in table.to_pylist()]


def with_spark(spark: Any, path: Path, **options: Any) -> Look:
    frame = spark.read.format("penstock").options(**options).load(str(path))
    return [tuple(row) for row in frame.select("k", "n", "total").collect()]


def test_what_spark_and_others_read_while_a_job_is_killed_is_what_was_committed(
    spark: Any, tmp_path: Path, draw: random.Random
) -> None:
    """E7, E2, E3, E4, I1, I9, R1: tables by both readers, files by a query and by a stream of Spark's own, again and
    again while a worker is killed; in the end each is exactly what it must be."""
    results = Results(tmp_path)
    chk = jobs.config(tmp_path / "chk", every="200 ms")
    job = results.pipeline().start(spark, name="results", checkpoint=chk, restart=jobs.AT_ONCE)
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.read_parts(results.rows).num_rows > 0)
        assert is_table(str(results.totals)) and not is_table(str(results.rows))
        query = results.copies(spark)
        looks = Looks(
            {
                "read_table": lambda: rows_of(pen.read_table(str(results.totals))),
                "spark": lambda: with_spark(spark, results.totals, partitions=2),
                "files": lambda: [
                    tuple(row) for row in spark.read.parquet(str(results.rows)).collect()
                ],
                "last": lambda: [
                    (k, n, i) for k, i, n in rows_of(pen.read_table(str(results.last)))
                ],
            }
        )
        looks.start()
        try:
            jobs.more_checkpoints(job, 3)
            jobs.kill(draw.choice(jobs.workers()))
            jobs.until_job(job, lambda: jobs.restarts(job) >= 1)
            jobs.more_checkpoints(job, 9)
            jobs.until(lambda: looks.least >= 3 or looks.problem is not None)
            results.tap.end(ROWS)
            jobs.finish(job)
        finally:
            looks.finish()
        query.processAllAvailable()
        query.stop()
    check(results, looks, spark)


def check(results: Results, looks: Looks, spark: Any) -> None:
    rows = jobs.read_parts(results.rows)
    jobs.assert_numbered(rows, ROWS)
    assert_only_grows(looks.seen["files"])
    copied = [(row.k, row.i, row.nth) for row in spark.read.parquet(str(results.copied)).collect()]
    assert sorted(copied) == sorted(rows_of(rows)), "each row once, also in Spark's own stream"
    updates = rows_of(jobs.read_parts(results.updates))
    assert_tables(by_turns(looks.seen["read_table"], looks.seen["spark"]), updates)
    assert_tables(
        looks.seen["last"], [(row["k"], row["nth"], row["i"]) for row in rows.to_pylist()]
    )
    expected = sorted((k, n, total) for k, (n, total) in jobs.fold(range(ROWS)).items())
    assert sorted(with_spark(spark, results.totals)) == expected
    assert sorted(rows_of(pen.read_table(str(results.totals)))) == expected
    last = sorted((k, n) for k, _, n in rows_of(pen.read_table(str(results.last))))
    assert last == [(k, n) for k, n, _ in expected]
    assert list(results.totals.glob("_rows/*-of-*.parquet")), "files have been merged meanwhile"
    assert not (results.totals / "_staging").exists()


def by_turns(*readers: list[Look]) -> list[Look]:
    """In the order in which they looked."""
    return [look for turn in zip(*readers) for look in turn]
