"""Opening a job's folder, and stores behind URLs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.errors import CheckpointCorrupt, ConfigError, StorageError
from penstock.protocol.ids import AttemptId
from penstock.storage import local
from penstock.storage.filesystem import FilesystemStore, open_job
from penstock.wire import paths, records


@pytest.fixture(autouse=True)
def _empty_memory() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()


def test_the_first_start_makes_the_folder_and_the_second_goes_on_in_it(tmp_path: Path) -> None:
    """T2: <dir>/<job-id>/, with a record of whose it is."""
    store = open_job(str(tmp_path), "my totals", created_ms=5.0)
    assert Path(store.root) == tmp_path / paths.job_id("my totals")
    assert records.decode_job(store.read(paths.JOB), paths.JOB).name == "my totals"
    store.write("chk-1/_metadata", [b"x"])
    assert open_job(f"{tmp_path}/", "my totals").list() == ["chk-1/_metadata", "job.json"]


def test_a_folder_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "totals").mkdir()
    (tmp_path / "totals/thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"not empty and not a Penstock job.*thesis.txt"):
        open_job(str(tmp_path), "totals")
    assert [path.name for path in (tmp_path / "totals").iterdir()] == ["thesis.txt"]


def test_a_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    """bug-E15, also where a disk does not tell upper from lower case."""
    open_job(str(tmp_path), "Totals")
    (tmp_path / "Totals").rename(tmp_path / "totals")
    with pytest.raises(ConfigError, match="belongs to the job 'Totals', not to 'totals'"):
        open_job(str(tmp_path), "totals")


def test_a_damaged_job_record_is_reported(tmp_path: Path) -> None:
    store = open_job(str(tmp_path), "totals")
    store.write(paths.JOB, [b"{}"])
    with pytest.raises(CheckpointCorrupt, match=r"job\.json.*put the file back"):
        open_job(str(tmp_path), "totals")


def test_a_directory_that_cannot_be_written_says_so_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> int:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(local.os, "mkdir", refuse)
    with pytest.raises(StorageError, match=r"Permission denied \(EACCES\).*another directory"):
        open_job(str(tmp_path / "no"), "totals")


@pytest.mark.parametrize("directory", ["", "  ", None, 7])
def test_a_directory_must_be_text(directory: Any) -> None:
    with pytest.raises(ConfigError, match="must be a path or a URL"):
        open_job(directory, "totals")


def test_a_job_can_live_behind_a_url() -> None:
    """T1: any fsspec URL."""
    store = open_job("memory://bucket/chk", "totals")
    assert store.root == "memory://bucket/chk/totals"
    assert open_job("memory://bucket/chk", "totals").list() == ["job.json"]


@pytest.mark.parametrize("url", ["ftp://host/chk", "webhdfs://host/chk", "hdfs://host/chk"])
def test_a_store_that_cannot_create_exclusively_is_refused(url: str) -> None:
    """I18: fsspec's default asks first and writes then; that cannot fence a second driver."""
    with pytest.raises(StorageError, match="cannot create a file exclusively.*use a local path"):
        FilesystemStore(url)


def test_a_client_that_ignores_the_exclusive_flag_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I18: create-exclusive is probed before the store is used."""
    real = MemoryFileSystem.pipe_file

    def overwrite(self: Any, path: str, value: bytes, mode: str = "", **options: Any) -> None:
        real(self, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", overwrite)
    with pytest.raises(StorageError, match="overwrites where it was asked to create exclusively"):
        FilesystemStore("memory://bucket/chk")
    assert fsspec.filesystem("memory").find("/bucket") == []


def test_a_write_that_the_store_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """bug-H1: success is reported but the file is not what was sent."""
    store = FilesystemStore("memory://bucket/chk")
    real = MemoryFileSystem.pipe_file
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda s, p, v, **o: real(s, p, v[:1], **o))
    with pytest.raises(StorageError, match="wrote 3 bytes, the store has 1"):
        store.write("shared/a", [b"abc"])


def test_short_answers_of_a_remote_store_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """bug-E6."""
    store = FilesystemStore("memory://bucket/chk")
    store.write("shared/a", [bytes(range(50))])
    real = MemoryFileSystem.cat_file
    monkeypatch.setattr(
        MemoryFileSystem,
        "cat_file",
        lambda s, p, start=0, end=0, **o: real(s, p, start, min(end, start + 7)),
    )
    assert store.read("shared/a", 5, 40) == bytes(range(5, 45))


def test_secrets_never_reach_an_error_or_a_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Security: storage options stay out of messages, causes and representations."""
    options = {"key": "AKIA-key", "client_kwargs": {"nested": ["hunter2-secret"]}}

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ValueError("bad key AKIA-key / hunter2-secret at s3://me:pw1234@host/x")

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    with pytest.raises(StorageError) as caught:
        FilesystemStore("s3://me:pw1234@bucket/chk", options)
    shown = f"{caught.value} {caught.value.__cause__}"
    assert "cannot open s3://***@bucket/chk: ValueError: bad key ***" in shown
    for secret in ("AKIA", "hunter2", "pw1234"):
        assert secret not in shown


def test_a_store_shows_its_root_and_nothing_else(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path), {"password": "hunter2"})
    assert repr(store) == f"FilesystemStore({str(tmp_path)!r})"


def test_a_folder_with_leftovers_of_its_own_is_taken_again(tmp_path: Path) -> None:
    """T3: a job that deletes its checkpoints may be killed in the middle of that."""
    store = open_job(str(tmp_path), "totals")
    store.write(paths.owner(AttemptId(1)), [b"x"])
    store.delete(paths.JOB)
    assert paths.JOB in open_job(str(tmp_path), "totals").list()


def test_whoever_only_reads_writes_nothing_and_may_read_from_any_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P5, I18: no probe is left where nobody may write, and what a job may not live on can still be read."""
    FilesystemStore("memory://bucket/chk").write("job.json", [b"x"])

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    monkeypatch.setattr("penstock.storage.remote.EXCLUSIVE", ())
    with pytest.raises(StorageError, match="cannot create a file exclusively"):
        FilesystemStore("memory://bucket/chk")
    store = FilesystemStore.to_read("memory://bucket/chk")
    assert store.list() == ["job.json"] and store.read("job.json") == b"x"
    with pytest.raises(StorageError, match="read-only"):
        store.create("chk-1/_metadata", b"x")


def test_a_local_folder_that_is_read_is_not_made(tmp_path: Path) -> None:
    assert FilesystemStore.to_read(str(tmp_path / "no")).list() == []
    assert not (tmp_path / "no").exists()
