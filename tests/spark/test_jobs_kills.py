"""Workers are killed while a job runs; the output is what it would have been, and nothing stays behind."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import until

pytestmark = pytest.mark.spark
KILLS = 10


def kill_one(job: pen.Job, draw: random.Random, with_signal: int = signal.SIGKILL) -> None:
    """Kills a worker, waits until the job runs again and has a checkpoint; the others keep their pids."""
    before, restarts = jobs.workers(), jobs.restarts(job)
    victim = draw.choice(before)
    os.kill(victim, with_signal)
    until(lambda: jobs.restarts(job) > restarts, within_s=30)
    jobs.more_checkpoints(job)
    assert set(before) - {victim} <= set(jobs.workers())
    assert not psutil.pid_exists(victim)


@pytest.mark.timeout(180)
def test_ten_kills_change_nothing_in_the_output_and_leave_nothing_behind(
    spark: Any, tmp_path: Path
) -> None:
    """R1, I1, I2, I26, bug-I1: random workers are killed ten times over one job with three sinks."""
    rows, draw = 30_000, random.Random(3)
    traces = jobs.Traces()
    numbered, sums = pen.CollectSink(), pen.CollectSink()
    stream = jobs.source(rows, rate=3_000)
    pipeline = pen.Pipeline(
        stream.to(pen.FileSink(str(tmp_path / "out"))),
        jobs.count_up(stream).to(numbered),
        jobs.totals(stream).to(sums),
    )
    chk = jobs.config(tmp_path / "chk")
    job = pipeline.start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    with jobs.running(job):
        jobs.more_checkpoints(job)
        for _ in range(KILLS):
            kill_one(job, draw)
        jobs.finish(job, within_s=90)
    assert job.status == "finished" and jobs.restarts(job) >= KILLS
    assert all(each.error == "WorkerLost" for each in job.exceptions)
    jobs.assert_each_once(jobs.read_parts(tmp_path / "out")["i"].to_pylist(), rows)
    jobs.assert_numbered(numbered.to_table(), rows)
    jobs.assert_totals(sums.to_table(), rows)
    traces.none_left()
    assert not list((tmp_path / "out").glob("_staging/**/*.parquet"))
