"""Streaming DataFrames as sources: each row once whatever is killed, back pressure, clean-up, and Spark's query as a
part of the job."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.shells.spark import stream_query
from tests.chaos.plays import assert_so_far
from tests.spark import frames, jobs
from tests.spark.ends import PATIENCE_S, until
from tests.spark.taps import Slow

pytestmark = pytest.mark.spark
LABEL = "penstock frames: frame"


def queries(spark: Any) -> list[Any]:
    return [query for query in spark.streams.active if query.name == LABEL]


@pytest.mark.parametrize("kind", ["counting", "files"])
def test_each_row_counts_once_through_killed_workers_and_a_killed_query(
    spark: Any, tmp_path: Path, kind: str, draw: random.Random
) -> None:
    """E1, R1, I1, I2, U3: Spark's query has the job's name, is told of in the job's exceptions when it ends, and is
    started again without the workers noticing; staged rows that no checkpoint needs go; nothing is left behind."""
    traces = jobs.Traces()
    job = frames.start(frames.FRAMES[kind](spark, tmp_path), tmp_path)
    with jobs.running(job):
        for _ in range(2):
            seen = frames.rows_out(tmp_path)
            jobs.until_job(job, lambda seen=seen: frames.rows_out(tmp_path) > seen)
            jobs.let_pass(draw.uniform(0, 1))
            jobs.kill(draw.choice(jobs.workers()))
            assert_so_far(tmp_path / "out")
        until(lambda: bool(queries(spark)))
        restarts = jobs.restarts(job)
        queries(spark)[0].stop()
        jobs.until_job(job, lambda: any(e.error == "QueryFailed" for e in job.exceptions))
        until(lambda: bool(queries(spark)))
        seen = frames.rows_out(tmp_path)
        jobs.until_job(job, lambda: frames.rows_out(tmp_path) > seen)
        until(lambda: len(frames.staged(tmp_path)) < 60)
        assert restarts <= jobs.restarts(job) <= 2, "the query alone was started again"
        frames.wait_for_every_row(job, tmp_path)
        assert job.stop(timeout=PATIENCE_S)
    assert not queries(spark)
    assert_so_far(tmp_path / "out")
    traces.none_left(files_more=12)


def test_spark_waits_for_a_slow_job(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back pressure: what is staged and not read stays within its bound; then all of it comes, each row once."""
    monkeypatch.setattr(stream_query, "STAGED_BYTES_MAX", 20_000)
    frame = frames.counting(spark, tmp_path)
    slow = Slow(tmp_path / "released")
    rows = pen.from_dataframe(frame, "frame").map_batches(slow)
    keyed = rows.map_batches(frames.with_keys, jobs.SCHEMA)
    pipeline = jobs.count_up(keyed).to(pen.FileSink(str(tmp_path / "out")), name="out")
    job = pipeline.start(name="frames", checkpoint=jobs.config(tmp_path / "chk"))
    with jobs.running(job):
        jobs.more_checkpoints(job, 3)
        jobs.until_job(job, lambda: len(frames.staged(tmp_path)) >= 3)
        jobs.more_checkpoints(job, 10)
        bytes_staged = frames.bytes_staged(tmp_path)
        assert bytes_staged < 60_000, "the bound, a batch more, and what two checkpoints keep"
        slow.release()
        seen = frames.rows_out(tmp_path)
        jobs.until_job(job, lambda: frames.rows_out(tmp_path) > seen + 10 * frames.ROWS_PER_BATCH)
        frames.wait_for_every_row(job, tmp_path)
        assert job.stop(timeout=PATIENCE_S)
    assert_so_far(tmp_path / "out")


def test_a_query_that_cannot_go_on_ends_the_job_with_what_to_do(spark: Any, tmp_path: Path) -> None:
    """A staging folder that somebody emptied, and a restart strategy that gives up: with the reason, and no query or
    worker stays."""
    frame = frames.counting(spark, tmp_path)
    with jobs.running(frames.start(frame, tmp_path)) as job:
        jobs.until_job(job, lambda: frames.rows_out(tmp_path) > 0)
        assert job.stop(timeout=PATIENCE_S)
    (folder,) = (path.parent for path in (tmp_path / "chk").rglob("set.json"))
    shutil.rmtree(folder)
    with pytest.raises(pen.JobFailed, match='removed.*restore="fresh"'):
        frames.start(frame, tmp_path).await_termination(PATIENCE_S)
    failing = frame.selectExpr("if(i > 1000, raise_error('bad row'), i) as i")
    job = frames.numbered(failing).to(pen.BlackholeSink()).start(name="frames", parallelism=1)
    with jobs.running(job), pytest.raises(pen.JobFailed, match="bad row"):
        job.await_termination(PATIENCE_S)
    assert not queries(spark)
    until(lambda: not jobs.workers() and not jobs.threads())


def test_a_session_without_room_for_sparks_own_query_is_refused(spark: Any, tmp_path: Path) -> None:
    """The fixture's Spark has six slots."""
    with pytest.raises(pen.LaunchError, match="one more for Spark's own query.*has 6"):
        frames.start(frames.rates(spark, tmp_path), tmp_path, parallelism=6)
    assert not queries(spark) and not jobs.workers()
