"""Checkpoints with rows in flight on real Spark: a kill right after one, another while its rows are processed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S
from tests.spark.taps import Slow, all_at_once

pytestmark = pytest.mark.spark
ROWS = 20_000


def with_rows_in_flight(job: pen.Job) -> pen.CheckpointInfo:
    """The next checkpoint that holds rows in flight."""
    found = job.trigger_checkpoint(timeout=PATIENCE_S)
    assert found.status == "completed", found.failure
    assert found.inflight_bytes > 0
    return found


@pytest.mark.parametrize("options", [{"unaligned": True}, {"aligned_timeout": "100 ms"}])
def test_kills_right_after_checkpoints_with_rows_in_flight_change_nothing_in_the_output(
    spark: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    """B7, B8, I1, I2, bug-C10: the second kill comes while restored rows are still being processed."""
    sink = pen.CollectSink()
    numbers, slow = all_at_once(tmp_path / "numbers", ROWS), Slow(tmp_path / "released")
    stream = numbers.rebalance().map_batches(slow, schema=jobs.SCHEMA)
    chk = jobs.config(tmp_path / "chk", every="1 hour", **options)
    job = (
        jobs.count_up(stream)
        .to(sink)
        .start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    )
    with jobs.running(job):
        for kill in range(2):
            jobs.until_job(job, lambda: jobs.rows_in(job, "nth") > 0)
            with_rows_in_flight(job)
            os.kill(jobs.workers()[kill], signal.SIGKILL)
            jobs.until_job(job, lambda kill=kill: jobs.restarts(job) > kill)  # type: ignore[misc]
        slow.release()
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), ROWS)


def test_rows_in_flight_go_to_their_new_owners_when_the_job_is_started_with_another_parallelism(
    spark: Any, tmp_path: Path
) -> None:
    """R6, I1, I2, bug-C4: a driver that is cancelled and started again with one subtask more."""
    chk = jobs.config(tmp_path / "chk", every="1 hour", unaligned=True)
    files = pen.FileSink(str(tmp_path / "out"))

    slow = Slow(tmp_path / "released")

    def start(parallelism: int) -> pen.Job:
        numbers = all_at_once(tmp_path / "numbers", ROWS)
        stream = numbers.rebalance().map_batches(slow, schema=jobs.SCHEMA)
        pipeline = jobs.count_up(stream).to(files, name="files")
        return pipeline.start(spark, name="grows", parallelism=parallelism, checkpoint=chk)

    job = start(1)
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.rows_in(job, "nth") > 0)
        with_rows_in_flight(job)
        job.cancel()
    slow.release()
    job = start(2)
    with jobs.running(job):
        jobs.finish(job)
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)
