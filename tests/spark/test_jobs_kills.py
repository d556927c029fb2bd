"""Workers are killed while a job runs, at any moment; the output is what it would have been, and no trace stays."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import on_another_machine, until
from tests.spark.faults import BumpySink, Dawdle
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS = 30_000


class ThreeSinks:
    """One stream into files, into numbered rows and into sums; its input ends when a test says so. The snapshots of
    one sink and the commits of another take their time, so that kills hit them."""

    def __init__(self, folder: Path) -> None:
        self.tap = Tap(folder / "end", rate=2_000, held=ROWS - 1_000)
        self.out, self.chk = folder / "out", folder / "chk"
        self.numbered = BumpySink("commit", Dawdle(folder / "unused"))
        self.sums = BumpySink("durable", Dawdle(folder / "unused"))

    def start(self, spark: Any, stream: pen.Stream, parallelism: int) -> pen.Job:
        pipeline = pen.Pipeline(
            stream.to(pen.FileSink(str(self.out))),
            jobs.count_up(stream).to(self.numbered),
            jobs.totals(stream).to(self.sums),
        )
        chk = jobs.config(self.chk)
        return pipeline.start(spark, parallelism=parallelism, checkpoint=chk, restart=jobs.AT_ONCE)

    def finish(self, job: pen.Job) -> None:
        self.tap.end(ROWS)
        jobs.finish(job)

    def check(self) -> None:
        """I1, I2: all three are what they would have been; nothing is staged any more."""
        jobs.assert_each_once(jobs.read_parts(self.out)["i"].to_pylist(), ROWS)
        jobs.assert_numbered(self.numbered.to_table(), ROWS)
        jobs.assert_totals(self.sums.to_table(), ROWS)
        assert not list(self.out.glob("_staging/**/*.parquet"))


def kill_at_random_moments(draw: random.Random, kills: int) -> None:
    """Waits for nothing: the job may be reading, taking a checkpoint, committing, recovering or deploying."""
    while kills:
        jobs.let_pass(draw.uniform(0, 1.2))
        found = jobs.workers()
        if found:
            jobs.kill(draw.choice(found))
            kills -= 1


def kill_one(job: pen.Job, draw: random.Random) -> None:
    """Kills a worker of a job that runs, waits until it runs again; the others keep their processes."""
    jobs.more_checkpoints(job)
    before, restarts = jobs.workers(), jobs.restarts(job)
    victim = draw.choice(before)
    jobs.kill(victim)
    jobs.until_job(job, lambda: jobs.restarts(job) > restarts)
    jobs.more_checkpoints(job)
    assert set(before) - {victim} <= set(jobs.workers())
    assert not psutil.pid_exists(victim)


def test_ten_kills_change_nothing_in_the_output_and_leave_nothing_behind(
    spark: Any, tmp_path: Path, draw: random.Random
) -> None:
    """R1, I1, I2, I26, bug-I1: random workers are killed at random moments of one job with three sinks."""
    traces, three = jobs.Traces(), ThreeSinks(tmp_path)
    job = three.start(spark, three.tap.stream(), parallelism=2)
    with jobs.running(job):
        kill_at_random_moments(draw, 9)
        kill_one(job, draw)
        three.finish(job)
    assert job.status == "finished"
    assert jobs.only_lost_workers(job)
    three.check()
    traces.none_left()


# ---- over the network


@pytest.fixture
def over_tcp(spark: Any) -> Iterator[None]:
    """Jobs of this session behave as if every worker ran on a host of its own."""
    spark.conf.set("spark.penstock.transport", "tcp")
    yield
    spark.conf.unset("spark.penstock.transport")


def talks_by_tcp(pid: int) -> bool:
    """To the driver and to both other workers, and in no other way."""
    process = psutil.Process(pid)
    peers = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
    ours = [c for c in process.net_connections("unix") if "/penstock-" in c.laddr]
    return len({c.raddr.port for c in peers}) >= 3 and not ours


def test_a_union_on_three_workers_over_encrypted_tcp_outlives_kills_at_random_moments(
    spark: Any, tmp_path: Path, over_tcp: None, draw: random.Random
) -> None:
    """R1, B1, I1, I2: half of the rows come by each stream; all channels of a job on several hosts."""
    traces, three = jobs.Traces(), ThreeSinks(tmp_path)
    numbers = three.tap.stream()
    even = numbers.filter(pen.col("i") % 2 == 0).rebalance()
    both = even.union(numbers.filter(pen.col("i") % 2 == 1))
    job = three.start(spark, both, parallelism=3)
    with jobs.running(job):
        jobs.more_checkpoints(job)
        assert all(talks_by_tcp(pid) for pid in jobs.workers())
        kill_at_random_moments(draw, 5)
        three.finish(job)
    assert jobs.only_lost_workers(job)
    three.check()
    traces.none_left()


# ---- recovery, and workers that stand still


def test_losing_all_workers_and_one_more_while_recovering(spark: Any, tmp_path: Path) -> None:
    """R1, I1, I2: failures during recovery; the job goes on from the same checkpoint."""
    rows, sink, tap = 8_000, pen.CollectSink(), Tap(tmp_path / "end", rate=3_000, held=7_000)
    pipeline = jobs.count_up(tap.stream()).to(sink)
    chk = jobs.config(tmp_path / "chk")
    job = pipeline.start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    with jobs.running(job):
        jobs.more_checkpoints(job)
        before = jobs.workers()
        for pid in before:
            jobs.kill(pid)
        until(lambda: len(set(jobs.workers()) - set(before)) == 2)
        jobs.kill(jobs.workers()[0])
        tap.end(rows)
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), rows)


def test_a_worker_that_stands_still_is_replaced_and_does_no_harm_when_it_wakes_up(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1, I1, I18, bug-F20: a zombie of an old attempt, out of the driver's reach, commits nothing and leaves."""
    on_another_machine(monkeypatch)
    rows, sink, tap = 9_000, pen.CollectSink(), Tap(tmp_path / "end", rate=2_000, held=8_000)
    stream = tap.stream()
    files = stream.to(pen.FileSink(str(tmp_path / "out")))
    chk = jobs.config(tmp_path / "chk")
    job = pen.Pipeline(files, jobs.count_up(stream).to(sink)).start(
        spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.more_checkpoints(job)
        asleep = jobs.workers()[0]
        os.kill(asleep, signal.SIGSTOP)
        jobs.until_job(job, lambda: jobs.restarts(job) >= 1)
        jobs.more_checkpoints(job)
        if jobs.runs(asleep):
            jobs.kill(asleep, signal.SIGCONT)
        until(lambda: not jobs.runs(asleep))
        tap.end(rows)
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), rows)
    jobs.assert_each_once(jobs.read_parts(tmp_path / "out")["i"].to_pylist(), rows)


def test_a_worker_that_stands_still_on_the_drivers_machine_is_ended_and_replaced(
    spark: Any, tmp_path: Path
) -> None:
    """R1, I1, I2: Spark brings the next one by itself, so no launch is given up and nobody waits for patience."""
    rows, sink, tap = 6_000, pen.CollectSink(), Tap(tmp_path / "end", rate=2_000, held=5_000)
    pipeline = jobs.count_up(tap.stream()).to(sink)
    chk = jobs.config(tmp_path / "chk")
    job = pipeline.start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    with jobs.running(job):
        jobs.more_checkpoints(job)
        asleep = jobs.workers()[0]
        os.kill(asleep, signal.SIGSTOP)
        jobs.until_job(job, lambda: jobs.restarts(job) >= 1)
        assert not jobs.runs(asleep)
        tap.end(rows)
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), rows)
    (told,) = job.exceptions
    assert told.error == "WorkerLost" and "stood still, and was ended" in told.message
