"""Restart strategies on real Spark: how often a job is tried again, after what pauses, and how it ends."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.faults import BumpyOpen, Fault, FirstTimes

pytestmark = pytest.mark.spark
ROWS = 100


def start(
    spark: Any, tmp_path: Path, fault: Fault, sink: pen.Sink, restart: pen.RestartStrategy
) -> pen.Job:
    """Each attempt meets the fault once, while it opens."""
    counted = jobs.source(ROWS).key_by("k").process(BumpyOpen(fault, after=None), jobs.NUMBERED)
    chk = jobs.config(tmp_path / "chk")
    return counted.to(sink).start(spark, parallelism=1, checkpoint=chk, restart=restart)


@pytest.mark.parametrize(
    ("restart", "allowed", "why"),
    [
        (pen.FixedDelay(attempts=2, delay="1 ms"), 2, "2 restarts are allowed"),
        (pen.FailureRate(failures=3, interval="1 hour", delay="1 ms"), 3, "3 are allowed"),
        (pen.NoRestart(), 0, "restarts are switched off"),
    ],
    ids=["fixed", "rate", "never"],
)
def test_a_strategy_with_a_limit_gives_up_after_exactly_so_many_restarts(
    spark: Any, tmp_path: Path, restart: pen.RestartStrategy, allowed: int, why: str
) -> None:
    """R2: one failure more than the strategy allows would be the last, and the job would come to its end."""
    fault = FirstTimes(tmp_path / "fault", allowed + 1)
    job = start(spark, tmp_path, fault, pen.CollectSink(), restart)
    with jobs.running(job), pytest.raises(pen.JobFailed, match="(?s)the open hit a bump") as caught:
        jobs.finish(job)
    assert why in str(caught.value)
    assert (jobs.restarts(job), len(job.exceptions)) == (allowed, allowed + 1)


@pytest.mark.parametrize(
    ("restart", "pauses_ms"),
    [
        (pen.FixedDelay(attempts=3, delay="400 ms"), [400, 400, 400]),
        (pen.FailureRate(failures=3, interval="1 hour", delay="300 ms"), [300, 300, 300]),
        (pen.ExponentialDelay(initial="150 ms", multiplier=3, max="1 s"), [150, 450, 1_000]),
    ],
    ids=["fixed", "rate", "exponential"],
)
def test_the_pauses_between_attempts_are_those_of_the_strategy(
    spark: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    restart: pen.RestartStrategy,
    pauses_ms: list[int],
) -> None:
    """R2: as told, and in truth; then the job goes on to its end."""
    fault, sink = FirstTimes(tmp_path / "fault", len(pauses_ms)), pen.CollectSink()
    job = start(spark, tmp_path, fault, sink, restart)
    with jobs.running(job):
        jobs.finish(job)
    assert jobs.restarts(job) == len(pauses_ms)
    told = [float(each) * 1_000 for each in re.findall(r"trying again in (\S+) s", caplog.text)]
    assert told == pauses_ms
    failed_ms = sorted(each.time_ms for each in job.exceptions)
    between_ms = [later - earlier for earlier, later in pairwise(failed_ms)]
    assert all(least <= taken for least, taken in zip(pauses_ms, between_ms)), between_ms
    jobs.assert_numbered(sink.to_table(), ROWS)
