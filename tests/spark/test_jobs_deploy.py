"""Deployments that hang: noticed, told with the process that hangs, and healed by its watchdog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.protocol.lifecycle import LifecycleConfig
from tests.spark import jobs
from tests.spark.ends import clock_of_jobs
from tests.spark.faults import BumpyMap, BumpyOpen, Fault, Hang

pytestmark = pytest.mark.spark
ROWS, RATE = 2_000, 2_000


@pytest.mark.parametrize("when", ["at the start", "after a failure"])
def test_a_worker_that_hangs_in_open_is_replaced(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """R1, I1, I2: it does not take the message to drop the attempt, so its watchdog ends it."""
    clock = clock_of_jobs(monkeypatch)
    first, hang = Fault(tmp_path / "first"), Hang(tmp_path / "hang")
    sink, traces = pen.CollectSink(), jobs.Traces()
    bumps = when == "after a failure"
    stream = jobs.source(ROWS, RATE).map_batches(BumpyMap(first)) if bumps else jobs.source(ROWS)
    counted = stream.key_by("k").process(BumpyOpen(hang, first if bumps else None), jobs.NUMBERED)
    chk = jobs.config(tmp_path / "chk")
    job = counted.to(sink).start(
        spark, name="hangs", parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.until_job(job, lambda: hang.happened)
        clock.ahead_ms = LifecycleConfig(slots=2).deploy_timeout_ms
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), ROWS)
    told, *_ = [each for each in job.exceptions if each.error == "DeployTimeout"]
    assert "not ready within" in told.message and "s: the worker" in told.message
    assert "(pid " in told.message
    traces.none_left()
