"""At least once on real Spark: nothing waits for a barrier that is late, and after a failure no row is missing."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S
from tests.spark.taps import Slow, Tap, all_at_once

pytestmark = pytest.mark.spark
ROWS = 20_000
FAST = 1_000_000
"""Rows of the fast stream are numbered from here on."""


def renumbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    i = pc.add(batch["i"], FAST)
    return pa.RecordBatch.from_arrays([i, batch["k"], batch["v"]], schema=batch.schema)


def test_rows_flow_while_a_barrier_is_late_and_none_is_missing_after_a_failure(
    spark: Any, tmp_path: Path
) -> None:
    """B4: one barrier stands behind rows that take minutes. What comes meanwhile by the other channels is processed,
    is in the snapshot although it is behind its barrier, and so comes again after a failure."""
    slow, tap = Slow(tmp_path / "released"), Tap(tmp_path / "end", rate=2_000, held=1_000)
    late = all_at_once(tmp_path / "late", ROWS).rebalance().map_batches(slow, schema=jobs.SCHEMA)
    both = late.union(tap.stream("fast numbers").map_batches(renumbered, schema=jobs.SCHEMA))
    counted, sink = jobs.count_up(both), pen.CollectSink()
    passed = counted.filter(pen.col("i") >= FAST).to(pen.BlackholeSink(), name="passed")
    pipeline = pen.Pipeline(counted.to(sink), passed)
    chk = jobs.config(tmp_path / "chk", every="1 hour", mode="at_least_once")
    job = pipeline.start(spark, parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    with jobs.running(job), ThreadPoolExecutor(1) as aside:
        jobs.until_job(job, lambda: jobs.rows_in(job, "passed") == 1_000)
        taken = aside.submit(job.trigger_checkpoint, PATIENCE_S)
        jobs.until_job(job, lambda: tap.snapshots() == 2)
        tap.more(3_000)
        jobs.until_job(job, lambda: jobs.rows_in(job, "passed") == 3_000)
        assert not taken.done(), "the late barrier came too early to prove anything"
        slow.release()
        assert taken.result().status == "completed"
        jobs.kill(jobs.workers()[0])
        jobs.until_job(job, lambda: jobs.restarts(job) > 0)
        tap.end(4_000)
        jobs.finish(job)
    found = Counter(sink.to_table()["i"].to_pylist())
    assert set(found) == {*range(ROWS), *range(FAST, FAST + 4_000)}
    assert all(found[i] == 2 for i in range(FAST + 1_000, FAST + 3_000)), "they came once more"
    assert all(found[i] == 1 for i in range(FAST, FAST + 1_000))
