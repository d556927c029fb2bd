"""Somebody cancels the Spark jobs of our workers from outside: with Spark's kill link, or Ctrl-C in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS = 5_000


def cancel_all(context: Any) -> None:
    """What Ctrl-C in a notebook runs."""
    context.cancelAllJobs()


def kill_one_job(context: Any) -> None:
    """What the kill link of Spark's page of jobs runs."""
    newest = max(context.statusTracker().getActiveJobsIds())
    context._jsc.sc().cancelJob(newest, "killed via the Web UI")


def kill_one_stage(context: Any) -> None:
    """What the kill link of Spark's page of stages runs."""
    newest = max(context.statusTracker().getActiveStageIds())
    context._jsc.sc().cancelStage(newest, "killed via the Web UI")


@pytest.mark.parametrize("cancel", [cancel_all, kill_one_job, kill_one_stage])
def test_cancelled_workers_are_replaced_even_where_no_restart_is_allowed(
    spark: Any, tmp_path: Path, cancel: Callable[[Any], None]
) -> None:
    """R1, R2, I1, I2: no restart is counted, the output is whole, and the history says what happened."""
    sink = pen.CollectSink()
    chk = jobs.config(tmp_path / "chk")
    tap = Tap(tmp_path / "end", rate=2_500, held=ROWS - 500)
    pipeline = jobs.count_up(tap.stream()).to(sink)
    job = pipeline.start(spark, parallelism=2, checkpoint=chk, restart=pen.NoRestart())
    with jobs.running(job):
        for attempts in (1, 2):
            jobs.more_checkpoints(job)
            cancel(spark.sparkContext)
            jobs.until_job(job, lambda: jobs.restarts(job) >= attempts)  # noqa: B023
        tap.end(ROWS)
        jobs.finish(job)
    jobs.assert_numbered(sink.to_table(), ROWS)
    assert {each.error for each in job.exceptions} == {"WorkerCancelled"}
    for each in job.exceptions:
        assert "Spark job was cancelled" in each.message and "no restart is counted" in each.message


def test_a_cancelled_job_of_a_pipeline_without_checkpoints_ends_it(spark: Any) -> None:
    """B5: nothing could be replayed, so the job ends and says why."""
    job = jobs.source(None, 1_000).to(pen.CollectSink()).start(spark, parallelism=2)
    with jobs.running(job):
        jobs.until_job(job, lambda: job.status == "running")
        cancel_all(spark.sparkContext)
        with pytest.raises(pen.JobFailed, match="(?s)Spark job was cancelled.*checkpoint"):
            jobs.finish(job)
