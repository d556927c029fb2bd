"""Paths that can never work: refused at the start, for good, in words that say what, where and what to do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.base import Sink, SinkContext, SourceContext
from penstock.connectors.sinks import folder
from penstock.engine.spec import JobSpec
from penstock.engine.worker.worker import Worker
from penstock.errors import ConfigError
from penstock.plan.physical import make_plan
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Deploy, Failed, Start
from penstock.storage.memory import MemoryStore
from tests.engine.kit import HeldBackground, ListDriver, ManualClock, NoHost, NumberSource, pipeline

NOBODY = 65_534
ROWS = pa.record_batch({"n": [1]})


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    for each in path.rglob("*"):
        each.chmod(0o755)
    shutil.rmtree(path)


@contextmanager
def as_somebody_without_rights() -> Iterator[None]:
    """The superuser may do everything, so somebody else has to try."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def context() -> SinkContext:
    return SinkContext("job", "out", 0, 1, 1, ROWS.schema, lambda item: None)


def place() -> SourceContext:
    return SourceContext("files", 0, 1, 8, lambda: 0.0)


def reported(sink: Sink) -> Failed:
    """What a worker says that cannot write there."""
    spec = JobSpec("job", make_plan(pipeline(NumberSource(10), sink), 1, 8), open_store=MemoryStore)
    driver = ListDriver()
    worker = Worker(lambda: spec, driver, NoHost(), ManualClock(), HeldBackground())
    one = AttemptId(1)
    driver.inbox.extend([Deploy(one, SlotId(0), CheckpointId(0), ()), Start(one, {})])
    worker.step()
    failed, *again = [message for message in driver.sent if isinstance(message, Failed)]
    assert all(each == failed for each in again), "said again to whoever asks again"
    return failed


def bad_places(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "file").write_text("x")
    return {
        "/proc/nope": "cannot be made",
        str(tmp_path / "file"): "a part of the path is a file",
        str(tmp_path / "file/deep/er"): "a part of the path is a file",
        str(tmp_path / ("x" * 300)): "too long",
    }


def test_a_sink_that_can_never_write_is_refused_before_anything_is_launched(tmp_path: Path) -> None:
    """E4: no Spark is started, no checkpoint folder is made."""
    for path, hint in bad_places(tmp_path).items():
        stream = pen.from_rows([(1,)], "n BIGINT").to(pen.FileSink(path))
        with pytest.raises(ConfigError, match=hint) as caught:
            stream.start(name="bad", checkpoint=pen.CheckpointConfig(tmp_path / "chk"))
        assert f"cannot write to {path} on " in str(caught.value)
        assert "name another path" in str(caught.value)
    assert not (tmp_path / "chk").exists()


def test_a_source_that_can_never_be_read_is_refused_before_anything_is_launched(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("x")
    for path, says in (("file/deep", "a part of the path is a file"), ("nope", "no such file")):
        source = pen.FileSource(str(tmp_path / path), "csv", "n BIGINT")
        with pytest.raises(pen.PenstockError, match=says):
            pen.from_source(source).to(pen.BlackholeSink()).start(name="bad")


def test_a_worker_that_can_never_write_fails_the_job_for_good(tmp_path: Path) -> None:
    """R2: where the driver cannot know, the worker says that a restart is of no use."""
    for path, hint in bad_places(tmp_path).items():
        failed = reported(pen.FileSink(path))
        assert failed.fatal
        assert failed.error == "ConfigError"
        assert hint in failed.message
        assert path in failed.message


def test_a_folder_that_takes_no_files_fails_the_job_for_good() -> None:
    """/proc is there, is a folder, and looks writable to the superuser: only writing shows it."""
    writer = pen.FileSink("/proc").writer(context()) if os.geteuid() == 0 else None
    if writer is None:
        pytest.skip("needs the superuser: to others the folder does not look writable")
    with pytest.raises(ConfigError, match="cannot write to /proc on "):
        writer.write(ROWS)


def test_no_right_to_write_is_refused(public: Path) -> None:
    (public / "out").mkdir(mode=0o555)
    with as_somebody_without_rights():
        for path in (public / "out", public / "out/deep"):
            with pytest.raises(ConfigError, match=rf"cannot write to {path} .*\(EACCES\); give"):
                pen.FileSink(str(path)).check_access()


def test_no_right_to_read_is_an_error_and_not_an_empty_folder(public: Path) -> None:
    """E1, I22: a folder below that cannot be listed would be rows that are missing without a word."""
    (public / "in").mkdir()
    (public / "in/a.csv").write_text("n\n1\n")
    for closed in ("in", "in/deep"):
        (public / closed).mkdir(exist_ok=True)
        (public / closed).chmod(0)
        with as_somebody_without_rights():
            for path in ("in", "in/*.csv") if closed == "in" else ("in",):
                source = pen.FileSource(str(public / path), "csv", "n BIGINT")
                with pytest.raises(ConfigError, match=rf"{public / closed}.* \(EACCES\); give"):
                    source.reader(place(), {})
        (public / closed).chmod(0o755)


def test_a_file_that_may_not_be_read_fails_the_job_for_good(public: Path) -> None:
    for kind in ("csv", "json", "parquet", "csv.gz"):
        path = public / f"a.{kind}"
        path.write_text("x")
        path.chmod(0)
        with as_somebody_without_rights():
            source = pen.FileSource(f"{public}/*.{kind}", kind.removesuffix(".gz"), "n BIGINT")
            with pytest.raises(ConfigError, match=rf"cannot read {path} .*\(EACCES\); give"):
                source.reader(place(), {}).poll(1)


def test_a_full_disk_is_no_reason_to_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1, R2: what may pass is left to the restart strategy."""
    full = OSError(28, "No space left on device")

    def fail(*_: Any) -> None:
        raise full

    monkeypatch.setattr(folder.LocalFolder, "_create", fail)
    failed = reported(pen.FileSink(str(tmp_path)))
    assert not failed.fatal
    assert "No space left" in failed.message


def test_a_store_that_refuses_a_file_fails_the_job_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = fsspec.filesystem("memory")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("AccessDenied")

    monkeypatch.setattr(type(memory), "open", refuse)
    failed = reported(pen.FileSink("memory://nowhere/out"))
    assert failed.fatal
    assert "cannot write to /nowhere/out" in failed.message


@pytest.mark.parametrize("path", ["", "  ", "a\0b"])
def test_what_is_no_path_is_refused_at_once(path: str) -> None:
    with pytest.raises(ConfigError, match="is not a path"):
        pen.FileSink(path)
    with pytest.raises(ConfigError, match="is not a path"):
        pen.FileSource(path, "csv")
