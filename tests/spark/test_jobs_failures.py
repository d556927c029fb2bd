"""Exceptions in user code, in a snapshot, in a restore and in a commit: transient ones change nothing in the
output, permanent ones reach the caller with all that a person needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S
from tests.spark.faults import (
    AFTER_COMMIT,
    PLACES,
    BumpyMap,
    BumpyOpen,
    BumpySink,
    Death,
    Fault,
)

pytestmark = pytest.mark.spark
ROWS, RATE = 2_000, 2_000


def run(spark: Any, pipeline: pen.Pipeline, tmp_path: Path, **options: Any) -> pen.Job:
    """To the end, with a new attempt at once after each failure."""
    chk = jobs.config(tmp_path / "chk", tolerable_failures=options.pop("tolerable_failures", 0))
    options = {"restart": jobs.AT_ONCE, "parallelism": 2} | options
    job = pipeline.start(spark, name="bumpy", checkpoint=chk, **options)
    with jobs.running(job):
        jobs.finish(job)
    return job


def test_an_exception_in_user_code_changes_nothing_in_the_output(
    spark: Any, tmp_path: Path
) -> None:
    """R1, I1, I2: the workers stay; the exception is in the job's history with its own traceback."""
    fault, sink, traces = Fault(tmp_path / "flag"), pen.CollectSink(), jobs.Traces()
    stream = jobs.source(ROWS, RATE).map_batches(BumpyMap(fault)).named("bumpy map")
    job = run(spark, jobs.count_up(stream).to(sink), tmp_path)
    assert fault.happened and jobs.restarts(job) == 1
    jobs.assert_numbered(sink.to_table(), ROWS)
    (told,) = job.exceptions
    assert told.operator == "bumpy map" and "in __call__" in told.traceback
    traces.none_left()


def test_an_exception_while_state_is_restored_changes_nothing_in_the_output(
    spark: Any, tmp_path: Path
) -> None:
    """R1, I1, I2: a restore that fails is tried again from the same checkpoint."""
    first, second = Fault(tmp_path / "first"), Fault(tmp_path / "second")
    sink = pen.CollectSink()
    stream = jobs.source(ROWS, RATE).map_batches(BumpyMap(first))
    counted = stream.key_by("k").process(BumpyOpen(second, after=first), jobs.NUMBERED)
    job = run(spark, counted.to(sink), tmp_path)
    assert first.happened and second.happened and jobs.restarts(job) == 2
    jobs.assert_numbered(sink.to_table(), ROWS)


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_in_a_sink_changes_nothing_in_the_output(
    spark: Any, tmp_path: Path, place: str
) -> None:
    """R1, E2, E3, I1, I10: in a write, in a snapshot, while it is made durable, in a commit."""
    fault = Fault(tmp_path / "flag")
    sink = BumpySink(place, fault)
    job = run(spark, jobs.count_up(jobs.source(ROWS, RATE)).to(sink), tmp_path)
    assert fault.happened
    jobs.assert_numbered(sink.to_table(), ROWS)
    assert jobs.restarts(job) == (0 if place == "commit" else 1), "a commit is tried again in place"


def test_rows_that_cannot_be_made_durable_are_read_again_however_much_is_tolerated(
    spark: Any, tmp_path: Path
) -> None:
    """B6, E2, I1: no later checkpoint of that attempt could complete, so the attempt ends at once."""
    fault = Fault(tmp_path / "flag")
    sink = BumpySink("durable", fault)
    pipeline = jobs.count_up(jobs.source(ROWS, RATE)).to(sink)
    job = run(spark, pipeline, tmp_path, tolerable_failures=3)
    assert fault.happened and jobs.restarts(job) == 1
    (told,) = job.exceptions
    assert "could not make its rows durable" in told.message and "in durable" in told.traceback
    jobs.assert_numbered(sink.to_table(), ROWS)


@pytest.mark.parametrize("place", [*PLACES[1:], AFTER_COMMIT])
def test_a_worker_that_dies_in_a_sink_changes_nothing_in_the_output(
    spark: Any, tmp_path: Path, place: str
) -> None:
    """R1, E2, I1, I9, I10: what a completed checkpoint promised is committed by whoever comes next, once."""
    death = Death(tmp_path / "flag")
    sink = BumpySink(place, death)
    job = run(spark, jobs.count_up(jobs.source(ROWS, RATE)).to(sink), tmp_path)
    assert death.happened and jobs.restarts(job) == 1
    assert job.exceptions[0].error == "WorkerLost"
    jobs.assert_numbered(sink.to_table(), ROWS)


# ---- for good


def fails(spark: Any, pipeline: pen.Pipeline, tmp_path: Path, **options: Any) -> pen.JobFailed:
    traces = jobs.Traces()
    with pytest.raises(pen.JobFailed) as caught:
        run(spark, pipeline, tmp_path, **({"restart": pen.NoRestart()} | options))
    traces.none_left()
    return caught.value


def test_a_permanent_exception_reaches_the_caller_with_operator_position_and_traceback(
    spark: Any, tmp_path: Path
) -> None:
    """R2: the user's own traceback, the operator's name, and where the rows of the batch came from."""
    stream = jobs.source(ROWS, RATE).map_batches(BumpyMap(Fault(tmp_path / "f", always=True)))
    text = str(fails(spark, stream.named("bumpy map").to(pen.CollectSink()), tmp_path))
    assert "ValueError in operator 'bumpy map': the map hit a bump" in text
    assert "generated rows" in text
    assert 'faults.py", line' in text and "in __call__" in text


def test_a_permanent_exception_in_a_restore_names_the_operator(spark: Any, tmp_path: Path) -> None:
    """R2."""
    function = BumpyOpen(Fault(tmp_path / "f", always=True), after=None)
    counted = jobs.source(ROWS).key_by("k").process(function, jobs.NUMBERED).named("counter")
    text = str(fails(spark, counted.to(pen.CollectSink()), tmp_path))
    assert "ValueError in operator 'counter': the open hit a bump" in text and "in open" in text


@pytest.mark.parametrize("place", PLACES)
def test_a_permanent_exception_in_a_sink_names_the_sink(
    spark: Any, tmp_path: Path, place: str
) -> None:
    """E3, R2: the job fails rather than skip a commit; nothing of it is visible."""
    sink = BumpySink(place, Fault(tmp_path / "f", always=True))
    text = str(fails(spark, jobs.source(ROWS, RATE).to(sink, name="bumpy sink"), tmp_path))
    assert "bumpy sink" in text and f"the {place} hit a bump" in text
    assert "in reached" in text, "the traceback of the sink's own code"
    assert sink.to_table().num_rows == 0


# ---- without checkpoints


def test_without_checkpoints_a_failure_ends_the_job_and_says_so(spark: Any, tmp_path: Path) -> None:
    """B5: nothing is ever replayed."""
    stream = jobs.source(ROWS).map_batches(BumpyMap(Fault(tmp_path / "f")))
    job = stream.to(pen.CollectSink()).start(spark, parallelism=2)
    with jobs.running(job), pytest.raises(pen.JobFailed, match="(?s)hit a bump.*checkpoint"):
        jobs.finish(job)


def test_without_checkpoints_a_killed_worker_ends_the_job_and_says_so(spark: Any) -> None:
    """B5: the message says what would have helped."""
    job = jobs.source(None, 1_000).to(pen.CollectSink()).start(spark, parallelism=2)
    with jobs.running(job):
        jobs.until_job(job, lambda: job.status == "running")
        jobs.kill(jobs.workers()[0])
        with pytest.raises(pen.JobFailed, match="(?s)lost.*checkpoint"):
            jobs.finish(job)


def test_without_checkpoints_sinks_commit_while_the_job_runs(spark: Any, tmp_path: Path) -> None:
    """B5, E2."""
    sink = pen.CollectSink()
    pipeline = jobs.source(None, 2_000)
    files = tmp_path / "out"
    both = pen.Pipeline(pipeline.to(sink), pipeline.to(pen.FileSink(str(files))))
    job = both.start(spark, parallelism=2)
    with jobs.running(job):
        jobs.until_job(job, lambda: sink.to_table().num_rows > 0)
        jobs.until_job(job, lambda: jobs.read_parts(files).num_rows > 0)
        assert job.stop(timeout=PATIENCE_S)
    assert job.status == "stopped"
    assert sorted(sink.to_table()["i"].to_pylist()) == sorted(
        jobs.read_parts(files)["i"].to_pylist()
    )
