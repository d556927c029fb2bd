"""Bad input: each gets a PenstockError that says what, where and what to do, and leaves no worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import clock_of_jobs
from tests.spark.faults import Unsendable

pytestmark = pytest.mark.spark


@contextmanager
def refused(error: type[Exception], *says: str) -> Iterator[None]:
    """Raises this error with these words in it and leaves nothing behind."""
    traces = jobs.Traces()
    with pytest.raises(error) as caught:
        yield
    assert isinstance(caught.value, pen.PenstockError)
    text = str(caught.value)
    assert [word for word in says if word not in text] == [], text
    traces.none_left()


def run(spark: Any, stream: pen.Stream, tmp_path: Path, **options: Any) -> None:
    """With the default strategy, which restarts for ever: what cannot get better must end the job itself."""
    options = {"checkpoint": jobs.config(tmp_path / "chk"), "name": "bad"} | options
    job = stream.to(pen.BlackholeSink()).start(spark, parallelism=2, **options)
    with jobs.running(job):
        jobs.finish(job)


# ---- the checkpoint directory


def test_a_checkpoint_directory_that_cannot_be_made(spark: Any, tmp_path: Path) -> None:
    """T1: the path goes through a file."""
    (tmp_path / "file").write_text("not a folder")
    with refused(pen.StorageError, str(tmp_path / "file")):
        run(spark, jobs.source(10), tmp_path, checkpoint=jobs.config(tmp_path / "file" / "chk"))


def test_a_checkpoint_directory_with_files_of_somebody_else(spark: Any, tmp_path: Path) -> None:
    """T2: nothing foreign is taken for ours, or touched."""
    theirs = tmp_path / "chk" / "bad" / "letters.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("dear reader")
    with refused(pen.ConfigError, str(theirs.parent), "letters.txt"):
        run(spark, jobs.source(10), tmp_path)
    assert theirs.read_text() == "dear reader"


def test_a_restore_path_that_is_no_checkpoint(spark: Any, tmp_path: Path) -> None:
    with refused(pen.ConfigError, "restore=", "chk-<n>"):
        run(spark, jobs.source(10), tmp_path, restore=str(tmp_path / "nothing"))


def test_a_restore_path_without_metadata(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "chk-7").mkdir()
    with refused(pen.PenstockError, str(tmp_path / "chk-7")):
        run(spark, jobs.source(10), tmp_path, restore=str(tmp_path / "chk-7"))


def test_state_of_another_pipeline_is_not_dropped_silently(spark: Any, tmp_path: Path) -> None:
    """R8: both sides are listed."""
    counted = jobs.count_up(jobs.source(200))
    run(spark, counted, tmp_path)
    renamed = jobs.source(200).key_by("k").process(jobs.Nth(), jobs.NUMBERED).named("renamed")
    with refused(pen.JobFailed, "'nth'", "'renamed'"):
        run(spark, renamed, tmp_path)


# ---- data


def test_a_file_that_is_not_what_its_format_says(spark: Any, tmp_path: Path) -> None:
    """E1: the file is named, and no restart is tried."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_text("this is no parquet")
    source = pen.FileSource(str(tmp_path / "in"), format="parquet", schema="v BIGINT")
    with refused(pen.JobFailed, "DataError", "a.parquet"):
        run(spark, pen.from_source(source), tmp_path)


@pytest.mark.parametrize(
    ("format", "text"),
    [("csv", "v\n1\n2\nthree\n4\n"), ("json", '{"v": 1}\n{"v": 2}\n\n{"v": thr\n{"v": 4}\n')],
)
def test_a_record_that_does_not_parse(spark: Any, tmp_path: Path, format: str, text: str) -> None:
    """E1: file and line are named, and what else could be done with such lines."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.{format}").write_text(text)
    source = pen.FileSource(str(tmp_path / "in"), format=format, schema="v BIGINT")
    with refused(pen.JobFailed, f"a.{format}", "line 4", 'bad_records="column"'):
        run(spark, pen.from_source(source), tmp_path)


def test_bad_records_can_be_kept_in_a_column(spark: Any, tmp_path: Path) -> None:
    """E1: nothing is lost, and the job goes on."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("v\n1\n2\nthree\n4\n")
    source = pen.FileSource(
        str(tmp_path / "in"), format="csv", schema="v BIGINT", bad_records="column"
    )
    sink = pen.CollectSink()
    job = pen.from_source(source).to(sink).start(spark)
    with jobs.running(job):
        jobs.finish(job)
    rows = sorted((row["v"] or 0, row["_bad_record"]) for row in sink.to_pylist())
    assert rows == [(0, "three"), (1, None), (2, None), (4, None)]


# ---- functions


def test_a_function_that_returns_another_schema(spark: Any, tmp_path: Path) -> None:
    """The operator is named, and the difference; no restart is tried."""
    stream = jobs.source(100).map_batches(rename_a_column).named("renamer")
    with refused(pen.JobFailed, "SchemaError", "'renamer'", "other"):
        run(spark, stream, tmp_path)


def rename_a_column(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.rename_columns(["i", "k", "other"])


def test_a_function_that_cannot_be_sent_to_the_workers(spark: Any, tmp_path: Path) -> None:
    connection = Unsendable()
    stream = jobs.source(100).map_batches(lambda batch: batch.filter(connection))
    with refused(pen.PlanError, "cannot pickle a connection", "`open`"):
        run(spark, stream, tmp_path)


# ---- slots


def test_a_plan_that_needs_more_slots_than_there_are(spark: Any, tmp_path: Path) -> None:
    """bug-I4: known before anything is launched."""
    with refused(pen.LaunchError, "needs 8 workers", "has 6"):
        jobs.source(100).to(pen.BlackholeSink()).start(spark, parallelism=8)


def test_slots_that_others_hold(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bug-I4, bug-I2: after `slot_timeout` the job fails and says what holds the cores; its workers leave."""
    first = jobs.source(None, 100).to(pen.BlackholeSink()).start(spark, name="a", parallelism=4)
    with jobs.running(first):
        jobs.until_job(first, lambda: first.status == "running")
        theirs, clock = jobs.workers(), clock_of_jobs(monkeypatch)
        second = (
            jobs.source(100)
            .to(pen.BlackholeSink())
            .start(spark, name="b", parallelism=4, slot_timeout="1 hour")
        )
        with jobs.running(second), pytest.raises(pen.JobFailed) as caught:
            jobs.until_job(second, lambda: second.metrics()["penstock_workers"] == 2)
            clock.ahead_ms = 3_600_000
            jobs.finish(second)
        text = str(caught.value)
        assert "4 workers" in text and "2 registered" in text and "6 cores" in text, text
        jobs.until(lambda: jobs.workers() == theirs)
        assert first.status == "running"
