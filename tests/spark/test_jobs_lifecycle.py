"""A job is stopped, cancelled, started again, restored from a path; what is kept and what is deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S
from tests.spark.faults import BumpyMap, Fault
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS = 3_000


class Program:
    """The same program, started again and again: numbered rows into files. Its input ends when a test says so."""

    def __init__(self, spark: Any, tmp_path: Path) -> None:
        self.spark = spark
        self.out = tmp_path / "out"
        self.chk = tmp_path / "chk"
        self.tap = Tap(tmp_path / "end", rate=2_500, held=ROWS - 500)

    def start(self, name: str = "program", **options: Any) -> pen.Job:
        checkpoint = options.pop("checkpoint", None) or jobs.config(self.chk)
        pipeline = jobs.to_files(self.out, self.tap.stream())
        options = {"parallelism": 2, "restart": jobs.AT_ONCE} | options
        return pipeline.start(self.spark, name=name, checkpoint=checkpoint, **options)

    def rows(self) -> int:
        return jobs.read_parts(self.out).num_rows

    def first_rows(self, job: pen.Job) -> None:
        """Waits until some are visible."""
        jobs.until_job(job, lambda: self.rows() > 0)

    def finish(self, job: pen.Job) -> None:
        self.tap.end(ROWS)
        with jobs.running(job):
            jobs.finish(job)

    def check(self) -> None:
        jobs.assert_numbered(jobs.read_parts(self.out), ROWS)


@pytest.fixture
def program(spark: Any, tmp_path: Path) -> Program:
    return Program(spark, tmp_path)


def test_a_stopped_job_goes_on_without_loss_and_a_finished_one_writes_nothing_twice(
    program: Program,
) -> None:
    """R5, I1, I7, I11: stop, start, finish, start."""
    traces = jobs.Traces()
    job = program.start()
    with jobs.running(job):
        program.first_rows(job)
        assert job.stop(timeout=PATIENCE_S)
    assert job.status == "stopped" and 0 < program.rows() < ROWS
    assert job.checkpoints()[0].kind == "stop"
    last_id, before = job.checkpoints()[0].id, program.rows()
    taken, stopped_at = jobs.completed(job), job.checkpoints()[0].path

    job = program.start()
    program.finish(job)
    assert job.status == "finished" and program.rows() > before
    ids = [each.id for each in job.checkpoints()]
    assert ids == sorted(ids, reverse=True) and ids[0] > last_id, "ids never go back"
    assert last_id in ids, "C6: what the driver before saw is still told"
    summary = job.checkpoint_summary()
    assert summary.completed == jobs.completed(job) + taken and summary.restored == 1
    assert summary.restored_from == stopped_at
    program.check()

    job = program.start()
    program.finish(job)
    program.check()
    traces.none_left()


def test_a_cancelled_job_goes_on_from_its_last_checkpoint(program: Program) -> None:
    """R5, T3, I1, I11: what is visible is committed; what was not is read again."""
    job = program.start()
    with jobs.running(job):
        jobs.more_checkpoints(job, 2)
        assert job.cancel(timeout=PATIENCE_S)
    assert job.status == "cancelled"
    visible = jobs.read_parts(program.out)["i"].to_pylist()
    assert len(visible) == len(set(visible)) < ROWS
    job = program.start()
    program.finish(job)
    program.check()
    assert not list(program.out.glob("_staging/**/*.parquet"))


def test_the_wanted_number_of_checkpoints_is_kept(program: Program) -> None:
    """C5, T2, I13: `keep` completed ones, nothing of the others; each as its record tells."""
    job = program.start(checkpoint=jobs.config(program.chk, every="100 ms", keep=3))
    with jobs.running(job):
        jobs.more_checkpoints(job, 5)
        program.finish(job)
    kept = [each for each in job.checkpoints() if each.status == "completed"][:3]
    folders = sorted(path.parent for path in program.chk.glob("program/chk-*/_metadata"))
    assert sorted(Path(str(each.path)) for each in kept) == folders
    assert sorted(program.chk.glob("program/chk-*")) == folders


@pytest.mark.parametrize(
    ("retain", "left"), [("retain_on_cancel", True), ("delete_on_cancel", False)]
)
def test_what_a_cancelled_job_leaves_is_as_configured(
    program: Program, retain: str, left: bool
) -> None:
    """T3: on cancel."""
    job = program.start(checkpoint=jobs.config(program.chk, retain=retain))
    with jobs.running(job):
        jobs.more_checkpoints(job)
        assert job.cancel(timeout=PATIENCE_S)
    assert bool(list(program.chk.glob("*/chk-*/_metadata"))) == left


@pytest.mark.parametrize(("retain", "left"), [("delete_on_cancel", True), ("never_retain", False)])
def test_what_a_failed_job_leaves_is_as_configured(
    spark: Any, tmp_path: Path, retain: str, left: bool
) -> None:
    """T3: on failure."""
    tap = Tap(tmp_path / "end", rate=2_500, held=500)
    stream = tap.stream().map_batches(BumpyMap(Fault(tmp_path / "f", always=True)))
    chk = jobs.config(tmp_path / "chk", retain=retain)
    job = stream.to(pen.CollectSink()).start(spark, checkpoint=chk, restart=pen.NoRestart())
    with jobs.running(job), pytest.raises(pen.JobFailed, match="hit a bump"):
        jobs.more_checkpoints(job)
        tap.end(ROWS)
        jobs.finish(job)
    assert jobs.completed(job) > 0
    assert bool(list((tmp_path / "chk").glob("*/chk-*/_metadata"))) == left


def test_another_job_goes_on_from_a_path_and_leaves_the_original_as_it_is(
    program: Program,
) -> None:
    """R5, T4, I14: state, positions and transactions are those of the named checkpoint."""
    job = program.start()
    with jobs.running(job):
        jobs.more_checkpoints(job)
        assert job.stop(timeout=PATIENCE_S)
    stopped_at = str(job.checkpoints()[0].path)
    before = {path: path.read_bytes() for path in Path(stopped_at).rglob("*") if path.is_file()}
    other = program.start(name="other", restore=stopped_at)
    program.finish(other)
    program.check()
    after = {path: path.read_bytes() for path in Path(stopped_at).rglob("*") if path.is_file()}
    assert before == after


def test_a_job_begun_with_another_ones_checkpoint_needs_its_path_only_once(
    program: Program,
) -> None:
    """R5, I1: it ends before its first own checkpoint, and is then started like any other job."""
    job = program.start()
    with jobs.running(job):
        jobs.more_checkpoints(job)
        assert job.stop(timeout=PATIENCE_S)
    stopped_at = str(job.checkpoints()[0].path)
    rarely = jobs.config(program.chk, every="1 hour")
    other = program.start(name="other", restore=stopped_at, checkpoint=rarely)
    with jobs.running(other):
        jobs.until_job(other, lambda: other.status == "running")
        assert other.cancel(timeout=PATIENCE_S)
    assert not list(program.chk.glob("other/chk-*/_metadata"))
    again = program.start(name="other")
    program.finish(again)
    program.check()


def test_fresh_starts_anew_and_auto_goes_on_from_the_new_start(
    program: Program, tmp_path: Path
) -> None:
    """R5: what an earlier life of the job left does not come back."""
    job = program.start()
    program.finish(job)
    program.out, program.tap.file = tmp_path / "anew", tmp_path / "anew-end"
    job = program.start(restore="fresh")
    with jobs.running(job):
        program.first_rows(job)
        assert job.stop(timeout=PATIENCE_S)
    assert 0 < program.rows() < ROWS
    job = program.start()
    program.finish(job)
    program.check()


def test_a_checkpoint_on_request_commits_what_was_read_so_far(program: Program) -> None:
    """C1, C3, E2: no periodic one is due for an hour."""
    job = program.start(checkpoint=jobs.config(program.chk, every="1 hour"))
    with jobs.running(job):
        jobs.until_job(job, lambda: job.status == "running")
        assert program.rows() == 0
        first = job.trigger_checkpoint(timeout=PATIENCE_S)
        jobs.until_job(job, lambda: jobs.rows_in(job, "files") > 0)
        second = job.trigger_checkpoint(timeout=PATIENCE_S)
        assert [first.status, second.status] == ["completed", "completed"]
        assert second.id > first.id and len(second.subtasks) == 4
        assert second.path is not None and (Path(second.path) / "_metadata").is_file()
        jobs.until_job(job, lambda: program.rows() > 0)
    with pytest.raises(pen.PenstockError, match="has ended"):
        job.trigger_checkpoint(timeout=PATIENCE_S)
