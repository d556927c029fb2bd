"""Sources and sinks that fail by script, on real workers: each failure comes once, whichever process gets there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.testing import FaultySink, FaultySource, fail_after, fail_before
from tests.spark import jobs
from tests.spark.taps import NumbersUntilTold, Tap

pytestmark = pytest.mark.spark
ROWS = 2_000


def test_scripted_failures_of_both_ends_change_nothing_in_the_output(
    spark: Any, tmp_path: Path
) -> None:
    """R1, E1, E3, I1: a read and a prepare that fail, a commit that took effect and fails, a recovery that fails."""
    tap = Tap(tmp_path / "end", rate=2_000, held=ROWS - 200)
    source = FaultySource(
        NumbersUntilTold(tap), [fail_before("read", 5), fail_before("recover", 1)]
    )
    collected = pen.CollectSink()
    sink = FaultySink(collected, [fail_after("prepare", 3), fail_after("commit", 2)])
    chk = jobs.config(tmp_path / "chk")
    pipeline = jobs.count_up(pen.from_source(source, "numbers")).to(sink)
    job = pipeline.start(
        spark, name="by script", checkpoint=chk, restart=jobs.AT_ONCE, parallelism=2
    )
    with jobs.running(job):
        jobs.until_job(job, lambda: "prepare 3" in told(job))
        tap.end(ROWS)
        jobs.finish(job)
    jobs.assert_numbered(collected.to_table(), ROWS)
    for once in ("read 5 fails", "recover 1 fails", "prepare 3 is done and fails"):
        assert told(job).count(once) == 1, "each failure came once"


def told(job: pen.Job) -> str:
    return " ".join(f"{failure.error} {failure.message}" for failure in job.exceptions)
