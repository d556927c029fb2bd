"""Checkpoints on disk that are damaged: what a job does that is started on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS = 3_000


def tap(tmp_path: Path) -> Tap:
    return Tap(tmp_path / "end", rate=2_500, held=1_000)


def start(spark: Any, tmp_path: Path, sink: pen.Sink, **options: Any) -> pen.Job:
    pipeline = jobs.totals(tap(tmp_path).stream()).to(sink)
    checkpoint = jobs.config(tmp_path / "chk", every="1 hour")
    chosen = {"parallelism": 1, "restart": jobs.AT_ONCE, "name": "totals"} | options
    return pipeline.start(spark, checkpoint=checkpoint, **chosen)


def stopped_and_damaged(spark: Any, tmp_path: Path, sink: pen.Sink) -> tuple[Path, Path]:
    """The newest checkpoint, in which a bit has changed, and the one before."""
    job = start(spark, tmp_path, sink)
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.rows_in(job, "totals") > 0)
        job.trigger_checkpoint(timeout=PATIENCE_S)
        tap(tmp_path).more(2_000)
        jobs.until_job(job, lambda: jobs.rows_in(job, "totals") > 1_000)
        assert job.stop(timeout=PATIENCE_S)
    tap(tmp_path).end(ROWS)
    folders = sorted((tmp_path / "chk" / "totals").glob("chk-*"), key=lambda p: int(p.name[4:]))
    older, newest = folders[-2:]
    metadata = newest / "_metadata"
    data = bytearray(metadata.read_bytes())
    data[len(data) // 2] ^= 1
    metadata.write_bytes(bytes(data))
    return newest, older


def test_a_damaged_newest_checkpoint_is_refused_by_a_file_sink_until_a_person_decides(
    spark: Any, tmp_path: Path
) -> None:
    """I17, I24, T5: the error names the file and what to do, and doing that works."""
    sink = pen.FileSink(str(tmp_path / "out"), format="parquet")
    newest, older = stopped_and_damaged(spark, tmp_path, sink)
    before = sorted((tmp_path / "out").glob("*.parquet"))
    job = start(spark, tmp_path, sink)
    with jobs.running(job), pytest.raises(pen.JobFailed) as caught:
        jobs.finish(job)
    assert f"{newest.name}/_metadata" in str(caught.value)
    assert 'restore="<path of a checkpoint>"' in str(caught.value)
    assert sorted((tmp_path / "out").glob("*.parquet")) == before
    job = start(spark, tmp_path, sink, restore=str(older))
    with jobs.running(job):
        jobs.finish(job)
    assert job.status == "finished"


def test_a_damaged_newest_checkpoint_is_passed_over_where_no_sink_minds(
    spark: Any, tmp_path: Path
) -> None:
    """I17, T5: with a warning among the job's exceptions; C6: the history tells where it went on from."""
    newest, older = stopped_and_damaged(spark, tmp_path, pen.BlackholeSink())
    job = start(spark, tmp_path, pen.BlackholeSink())
    with jobs.running(job):
        jobs.finish(job)
    (warning,) = job.exceptions
    assert warning.error == "CheckpointCorrupt"
    assert f"{newest.name}/_metadata" in warning.message
    assert f"going on from {older.name[4:]}" in warning.message
    assert job.checkpoint_summary().restored_from == str(older)
