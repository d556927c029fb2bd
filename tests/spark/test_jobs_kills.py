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
from tests.spark.ends import on_another_machine, until

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


@pytest.mark.timeout(120)
def test_losing_all_workers_and_one_more_while_recovering(spark: Any, tmp_path: Path) -> None:
    """R1, I1, I2: failures during recovery; the job goes on from the same checkpoint."""
    rows, sink = 8_000, pen.CollectSink()
    pipeline = jobs.count_up(jobs.source(rows, rate=3_000)).to(sink)
    chk = jobs.config(tmp_path / "chk")
    job = pipeline.start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    with jobs.running(job):
        jobs.more_checkpoints(job)
        before = jobs.workers()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(set(jobs.workers()) - set(before)) == 2, within_s=30)
        os.kill(jobs.workers()[0], signal.SIGKILL)
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), rows)


@pytest.mark.timeout(120)
def test_a_worker_that_stands_still_is_replaced_and_does_no_harm_when_it_wakes_up(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1, I1, I18, bug-F20: a zombie of an old attempt, out of the driver's reach, commits nothing and leaves."""
    on_another_machine(monkeypatch)
    rows, sink = 9_000, pen.CollectSink()
    stream = jobs.source(rows, rate=2_000)
    files = stream.to(pen.FileSink(str(tmp_path / "out")))
    chk = jobs.config(tmp_path / "chk")
    job = pen.Pipeline(files, jobs.count_up(stream).to(sink)).start(
        spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.more_checkpoints(job)
        asleep = jobs.workers()[0]
        os.kill(asleep, signal.SIGSTOP)
        until(lambda: jobs.restarts(job) == 1, within_s=30)
        jobs.more_checkpoints(job)
        if jobs.runs(asleep):
            os.kill(asleep, signal.SIGCONT)
        until(lambda: not jobs.runs(asleep))
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), rows)
    jobs.assert_each_once(jobs.read_parts(tmp_path / "out")["i"].to_pylist(), rows)


@pytest.mark.timeout(120)
def test_a_worker_that_stands_still_on_the_drivers_machine_is_ended_and_replaced(
    spark: Any, tmp_path: Path
) -> None:
    """R1, I1, I2: Spark brings the next one by itself, so no launch is given up and nobody waits for patience."""
    rows, sink = 6_000, pen.CollectSink()
    pipeline = jobs.count_up(jobs.source(rows, rate=2_000)).to(sink)
    chk = jobs.config(tmp_path / "chk")
    job = pipeline.start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    with jobs.running(job):
        jobs.more_checkpoints(job)
        asleep = jobs.workers()[0]
        os.kill(asleep, signal.SIGSTOP)
        jobs.until_job(job, lambda: jobs.restarts(job) == 1)
        assert not jobs.runs(asleep)
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), rows)
    (told,) = job.exceptions
    assert told.error == "WorkerLost" and "stood still, and was ended" in told.message
