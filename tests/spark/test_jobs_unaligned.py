"""Checkpoints with rows in flight on real Spark: a kill right after one, another while its rows are processed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs

pytestmark = pytest.mark.spark
ROWS = 300_000


def with_rows_in_flight(job: pen.Job) -> pen.CheckpointInfo:
    """The next checkpoint that holds rows in flight."""
    found = job.trigger_checkpoint(timeout=30)
    assert found.status == "completed", found.failure
    assert found.inflight_bytes > 0
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [{"unaligned": True}, {"aligned_timeout": "100 ms"}])
def test_kills_right_after_checkpoints_with_rows_in_flight_change_nothing_in_the_output(
    spark: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    """B7, B8, I1, I2, bug-C10: the second kill comes while restored rows are still being processed."""
    sink = pen.CollectSink()
    stream = jobs.source(ROWS).rebalance().map_batches(jobs.slowly, schema=jobs.SCHEMA)
    chk = jobs.config(tmp_path / "chk", every="1 hour", **options)
    job = (
        jobs.count_up(stream)
        .to(sink)
        .start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    )
    with jobs.running(job):
        counter = 'penstock_records_in_total{operator="nth"}'
        for kill in range(2):
            jobs.until_job(job, lambda: job.metrics().get(counter, 0) > 0)
            with_rows_in_flight(job)
            os.kill(jobs.workers()[kill], signal.SIGKILL)
            jobs.until_job(job, lambda kill=kill: jobs.restarts(job) > kill)  # type: ignore[misc]
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), ROWS)


@pytest.mark.timeout(120)
def test_rows_in_flight_go_to_their_new_owners_when_the_job_is_started_with_another_parallelism(
    spark: Any, tmp_path: Path
) -> None:
    """R6, I1, I2, bug-C4: a driver that is cancelled and started again with one subtask more."""
    chk = jobs.config(tmp_path / "chk", every="1 hour", unaligned=True)
    files = pen.FileSink(str(tmp_path / "out"))

    def start(parallelism: int) -> pen.Job:
        stream = jobs.source(ROWS).rebalance().map_batches(jobs.slowly, schema=jobs.SCHEMA)
        pipeline = jobs.count_up(stream).to(files, name="files")
        return pipeline.start(spark, name="grows", parallelism=parallelism, checkpoint=chk)

    job = start(1)
    with jobs.running(job):
        counter = 'penstock_records_in_total{operator="nth"}'
        jobs.until_job(job, lambda: job.metrics().get(counter, 0) > 0)
        with_rows_in_flight(job)
        job.cancel()
    job = start(2)
    with jobs.running(job):
        jobs.finish(job)
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)
