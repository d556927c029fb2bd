"""`penstock gc`: finds what no checkpoint needs, deletes it, and leaves alone what a job that runs may need."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.engine.checkpoints import leases
from penstock.engine.checkpoints.leases import LEASE_MS, Borrower
from penstock.errors import StorageError
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.storage.filesystem import FilesystemStore, open_job
from penstock.storage.names import temp_beside
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from penstock.wire.tombstones import tombstone
from tests.engine.test_shared_life import Snapshot, manifest_of

LONG_AGO_S = 7_200


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStore:
    """A job in its third attempt, with the checkpoints 20 and 30."""
    store = open_job(str(tmp_path), "totals")
    for attempt in (1, 2, 3):
        record = records.OwnerRecord(AttemptId(attempt), "d")
        store.create(paths.owner(AttemptId(attempt)), records.encode_owner(record))
    restored = records.RestoredRecord(AttemptId(3), CheckpointId(20))
    store.create(paths.restored(AttemptId(3)), records.encode_restored(restored))
    complete(store, 20, 2, "shared/10-0-1-a", "shared/20-0-2-a")
    complete(store, 30, 3, "shared/20-0-2-a", "shared/30-0-3-a", "chk-30/0-3")
    return store


def complete(store: FilesystemStore, number: int, attempt: int, *files: str) -> None:
    for file in files:
        store.write(file, [b"12345"])
    made = manifest_of(number, Snapshot(attempt, 0, {0: set(files), 1: set()}))
    store.create(paths.metadata(CheckpointId(number)), manifests.encode(made))


def put(store: FilesystemStore, *files: str) -> None:
    for file in files:
        store.write(file, [b"1234567"])


def age(root: Path) -> None:
    """Everything was written long ago."""
    then = time.time() - LONG_AGO_S
    for path in root.rglob("*"):
        os.utime(path, (then, then))


def collected(path: Path | str, *options: str) -> dict[str, Any]:
    ran = CliRunner().invoke(app, ["gc", str(path), "--json", *options])
    assert ran.exit_code == 0, ran.output
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def names(result: dict[str, Any]) -> set[str]:
    return {each["file"] for each in result["garbage"]}


STRAYS = (
    "shared/15-0-2-a",  # of an attempt that is over
    "shared/29-0-3-a",  # of a snapshot that is over
    "chk-16/0-2",
    "chk-29/1-3",
)
NEEDED = (
    "shared/31-0-3-a",  # 31 may be under way
    "shared/5-0-4-a",  # somebody has claimed meanwhile
    "chk-31/0-3",
    "chk-29/0-4",
    "notes.txt",
)


def test_what_no_checkpoint_needs_is_listed_and_then_deleted(
    store: FilesystemStore, tmp_path: Path
) -> None:
    """T4, I12, I13: beside a job that runs."""
    put(store, *STRAYS, *NEEDED[:-1])
    Path(store.root, "notes.txt").write_text("mine")
    before = set(store.list())
    age(tmp_path)
    found = collected(store.root, "--dry-run")
    assert (names(found), found["dry_run"], found["bytes"]) == ({*STRAYS}, True, 28)
    assert all(each["why"] for each in found["garbage"])
    assert set(store.list()) == before
    deleted = collected(tmp_path)
    assert (names(deleted), deleted["failed"]) == ({*STRAYS}, [])
    assert set(store.list()) == before - {*STRAYS}
    assert names(collected(store.root)) == set()


def test_what_was_written_a_moment_ago_is_left_alone(store: FilesystemStore) -> None:
    """I12."""
    put(store, *STRAYS)
    assert names(collected(store.root, "--dry-run")) == set()
    assert names(collected(store.root, "--dry-run", "--older-than", "0 ms")) == {*STRAYS}


def test_an_attempt_that_has_not_looked_yet_ends_nothing(
    store: FilesystemStore, tmp_path: Path
) -> None:
    """I12, I18: what the one before it completes now may be what it goes on from."""
    record = records.encode_owner(records.OwnerRecord(AttemptId(4), "d"))
    store.create(paths.owner(AttemptId(4)), record)
    put(store, *NEEDED[:-1])
    age(tmp_path)
    assert names(collected(store.root)) == set()


def test_damage_and_readers_keep_what_they_may_need(store: FilesystemStore, tmp_path: Path) -> None:
    """I12, T5, P5."""
    put(store, "shared/25-0-3-read", "shared/26-0-3-free", "chk-25/0-3", "chk-26/0-3")
    store.create("chk-26/_metadata", tombstone(CheckpointId(26)))
    me = Borrower("me", lambda: time.time() * 1_000, lambda: f"{7:032x}")
    read = ["shared/25-0-3-read"]
    leases.take(store, CheckpointId(25), me, LEASE_MS, read)
    age(tmp_path)
    assert names(collected(store.root, "--dry-run")) == {"shared/26-0-3-free", "chk-26/0-3"}
    store.write("chk-28/_metadata", [b"damaged"])
    assert names(collected(store.root, "--dry-run")) == {"chk-26/0-3"}


def test_temporary_files_of_dead_writers_go(store: FilesystemStore, tmp_path: Path) -> None:
    """bug-D6."""
    left = Path(temp_beside(str(Path(store.root) / "chk-30" / "0-3")))
    left.write_bytes(b"half")
    age(tmp_path)
    assert names(collected(store.root)) == {f"chk-30/{left.name}"}
    assert not left.exists()


def test_a_path_without_a_job_is_an_error_and_people_get_a_table(
    store: FilesystemStore, tmp_path: Path
) -> None:
    """U1."""
    put(store, *STRAYS)
    age(tmp_path)
    shown = CliRunner().invoke(app, ["gc", store.root, "--dry-run"])
    assert shown.exit_code == 0
    assert "shared/15-0-2-a" in shown.output and "4 files would be deleted" in shown.output
    (tmp_path / "other").mkdir()
    refused = CliRunner().invoke(app, ["gc", str(tmp_path / "other"), "--json"])
    assert refused.exit_code == 1
    told = json.loads(refused.stdout.splitlines()[-1])
    assert told["kind"] == "ConfigError" and "nor a checkpoint directory" in str(told)
    wrong = CliRunner().invoke(app, ["gc", store.root, "--older-than", "soon", "--json"])
    assert wrong.exit_code == 1 and "--older-than" in wrong.stdout


def test_a_file_that_cannot_be_deleted_is_told_and_does_not_keep_the_others(
    store: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I25."""
    put(store, *STRAYS)
    age(tmp_path)
    delete = FilesystemStore.delete

    def refuse(self: FilesystemStore, name: str) -> None:
        if name == STRAYS[0]:
            raise StorageError("no right to do that")
        delete(self, name)

    monkeypatch.setattr(FilesystemStore, "delete", refuse)
    ran = CliRunner().invoke(app, ["gc", store.root, "--json"])
    assert ran.exit_code == 1
    (failed,) = json.loads(ran.stdout.splitlines()[-1])["failed"]
    assert (failed["file"], failed["reason"]) == (STRAYS[0], "no right to do that")
    assert {*STRAYS} & set(store.list()) == {STRAYS[0]}
