"""Files in and files out while a job runs and is killed: what plain readers see is what was committed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock as pen
from penstock.cli.app import app
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S

pytestmark = pytest.mark.spark
FILE_ROWS = 200


def add_file(folder: Path, number: int) -> None:
    """Appears whole: written under a name that is passed over, then renamed."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f"_{number}"
    rows = jobs.numbers(number * FILE_ROWS, FILE_ROWS)
    pq.write_table(pa.Table.from_batches([rows]), hidden)
    hidden.rename(folder / f"{number:04}.parquet")


def watched(folder: Path) -> pen.Stream:
    source = pen.FileSource(str(folder), schema=jobs.SCHEMA, watch=True, poll_interval_ms=50)
    return pen.from_source(source, "files in")


# ---- readers


def with_pandas(folder: Path) -> list[int]:
    return list(pd.read_parquet(folder)["i"])


def with_duckdb(folder: Path) -> list[int]:
    with duckdb.connect() as connection:
        query = f"SELECT i FROM read_parquet('{folder}/*.parquet')"
        return [row[0] for row in connection.execute(query).fetchall()]


def with_spark(spark: Any) -> Callable[[Path], list[int]]:
    def read(folder: Path) -> list[int]:
        return [row.i for row in spark.read.parquet(str(folder)).select("i").collect()]

    return read


class Readers(threading.Thread):
    """Reads the folder again and again while it grows, and keeps what each look saw."""

    def __init__(self, folder: Path, readers: list[Callable[[Path], list[int]]]) -> None:
        super().__init__(name="readers")
        self.looks: list[list[int]] = []
        self.problem: Exception | None = None
        self._folder = folder
        self._readers = readers
        self._end = threading.Event()

    def run(self) -> None:
        try:
            while not self._end.wait(0.05):
                self.looks += [read(self._folder) for read in self._readers]
        except Exception as error:
            self.problem = error

    def finish(self) -> None:
        """No look saw a row twice, or missed one that an earlier look had seen."""
        self._end.set()
        self.join()
        if self.problem is not None:
            raise self.problem
        seen: set[int] = set()
        for look in self.looks:
            assert len(look) == len(set(look)), "a reader saw a row twice"
            assert seen <= set(look), "rows that were visible are not any more"
            seen = set(look)


def test_files_that_appear_while_the_job_runs_and_is_killed_are_read_once(
    spark: Any, tmp_path: Path
) -> None:
    """E1, E4, I1, I22: pandas, DuckDB and Spark read along while two workers are killed."""
    source, out = tmp_path / "in", tmp_path / "out"
    add_file(source, 0)
    stream = watched(source)
    pipeline = jobs.count_up(stream).to(pen.FileSink(str(out)), name="files out")
    job = pipeline.start(
        spark, name="watch", checkpoint=jobs.config(tmp_path / "chk"), restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.read_parts(out).num_rows == FILE_ROWS)
        readers = Readers(out, [with_pandas, with_duckdb, with_spark(spark)])
        readers.start()
        try:
            for number in range(1, 10):
                add_file(source, number)
                if number in (3, 6):
                    jobs.kill(jobs.workers()[-1])
                jobs.more_checkpoints(job)
            rows = 10 * FILE_ROWS
            jobs.until_job(job, lambda: jobs.read_parts(out).num_rows >= rows)
            jobs.until(lambda: len(readers.looks) >= 3 or readers.problem is not None)
        finally:
            readers.finish()
        assert job.stop(timeout=PATIENCE_S)
    assert jobs.restarts(job) >= 2
    jobs.assert_numbered(jobs.read_parts(out), rows)


def test_readers_see_exactly_what_was_committed(spark: Any, tmp_path: Path) -> None:
    """E2, E4, I1, I9: rows that were written and not committed are not visible, also not after a kill."""
    out = tmp_path / "out"
    job = jobs.to_files(out, jobs.source(None, 2_000)).start(
        spark, checkpoint=jobs.config(tmp_path / "chk", every="1 hour"), restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.rows_in(job, "files") > 500)
        assert jobs.read_parts(out).num_rows == 0
        assert job.trigger_checkpoint(timeout=PATIENCE_S).status == "completed"
        jobs.until_job(job, lambda: len(list(out.glob("part-*"))) == 2)
        first = with_pandas(out)
        processed = jobs.rows_in(job, "files")
        jobs.until_job(job, lambda: jobs.rows_in(job, "files") > processed + 1_000)
        assert sorted(with_duckdb(out)) == sorted(with_spark(spark)(out)) == sorted(first)
        jobs.kill(jobs.workers()[0])
        jobs.until_job(job, lambda: jobs.restarts(job) >= 1 and jobs.rows_in(job, "files") > 500)
        assert sorted(with_pandas(out)) == sorted(first)
        assert job.stop(timeout=PATIENCE_S)
    visible = with_pandas(out)
    assert len(visible) == len(set(visible)) > len(first) and set(first) < set(visible)


def with_partitions(folder: Path) -> pa.Table:
    files = sorted(str(each) for each in folder.rglob("part-*.parquet"))
    hive = ds.partitioning(pa.schema([("k", pa.int64())]), flavor="hive")
    return ds.dataset(files, partitioning=hive, partition_base_dir=str(folder)).to_table()


def waiting(folder: Path) -> int | None:
    """The rows that wait in the newest checkpoint of a job; None where it was deleted while it was looked at."""
    answer = CliRunner().invoke(app, ["inspect", str(folder), "--json"])
    if answer.exit_code:
        return None
    parts = json.loads(answer.stdout)["parts"]
    segments = [each for part in parts for each in part["segments"] if part["operator"] == "files"]
    return sum(each["rows"] for each in segments)


def test_rows_that_wait_for_a_larger_file_survive_a_kill_and_are_all_there_after_a_stop(
    spark: Any, tmp_path: Path
) -> None:
    """E2, I1, C3: nothing is seen while they wait; a kill brings them back, from checkpoints of real workers; the stop
    writes the rest, one file for each partition and subtask that has it; and the job goes on."""
    out, chk = tmp_path / "out", tmp_path / "chk"

    def start(stream: pen.Stream) -> pen.Job:
        sink = pen.FileSink(str(out), partition_by="k", commit_every="1 hour")
        pipeline = jobs.count_up(stream).to(sink, name="files")
        return pipeline.start(spark, checkpoint=jobs.config(chk), restart=jobs.AT_ONCE)

    job = start(jobs.source(None, 2_000))
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.rows_in(job, "files") > 500)
        jobs.more_checkpoints(job, 3)
        assert jobs.restarts(job) or not list(out.rglob("part-*"))
        jobs.kill(jobs.workers()[0])
        jobs.until_job(job, lambda: jobs.restarts(job) >= 1 and len(list(out.rglob("part-*"))) > 0)
        jobs.until_job(job, lambda: bool(waiting(chk / job.id)))
        assert job.stop(timeout=PATIENCE_S)
    assert waiting(chk / job.id) == 0
    seen = with_partitions(out)["i"].to_pylist()
    assert len(seen) == len(set(seen))
    per_partition = [len(list(folder.iterdir())) for folder in out.glob("k=*")]
    assert len(per_partition) == jobs.KEYS and max(per_partition) <= 1 + 2 * jobs.restarts(job)
    total = max(seen) + 1_000
    with jobs.running(start(jobs.source(total))) as again:
        jobs.finish(again)
    jobs.assert_numbered(with_partitions(out), total)
    assert not (out / "_staging").exists()
