"""What a local disk must do beyond the conformance suite: durability, permissions, links, error messages."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CheckpointCorrupt, StorageError
from penstock.storage import local
from penstock.storage.local import LocalStore
from tests.storage.small_disk import small_disk


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "job"))


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_files_and_folders_belong_to_their_owner_alone(store: LocalStore) -> None:
    """Local directories are 0700 and files 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        store.write("chk-1/0-1", [b"x"])
        store.create("owner/0000000001", b"x")
    finally:
        os.umask(before)
    root = Path(store.root)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert len(modes) == 5


@pytest.mark.parametrize("act", ["write", "create"])
def test_content_is_synced_before_its_name_and_the_name_before_the_return(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """T1: un-fsynced data that is lost in a crash was never called written."""
    (Path(store.root) / "shared").mkdir(parents=True)
    steps: list[str] = []

    def noting(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            steps.append(f"{name} folder" if is_folder else name)
            return real(*args, **kwargs)

        monkeypatch.setattr(local.os, name, call)

    for name in ("fsync", "replace", "link"):
        noting(name)
    if act == "write":
        store.write("shared/a", [b"x"])
        assert steps == ["fsync", "replace", "fsync folder"]
    else:
        store.create("shared/a", b"x")
        assert steps == ["fsync", "link", "fsync folder"]


def test_a_new_folder_is_synced_in_its_parent(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = local._fsync_folder
    monkeypatch.setattr(local, "_fsync_folder", lambda path: (synced.append(path), real(path)))
    store.write("chk-1/0-1", [b"x"])
    root = Path(store.root)
    assert synced == [str(root.parent), str(root), str(root / "chk-1")]


def test_short_reads_are_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """bug-E6: a read that returns one to three bytes at a time still gives the whole range."""
    store.write("shared/a", [bytes(range(100))])
    real = os.pread
    monkeypatch.setattr(local.os, "pread", lambda fd, n, at: real(fd, min(n, 1 + at % 3), at))
    assert store.read("shared/a", 10, 50) == bytes(range(10, 60))
    assert store.read("shared/a") == bytes(range(100))


def test_a_file_that_shrinks_while_it_is_read_is_damaged(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("shared/a", [b"0123456789"])
    monkeypatch.setattr(local.os, "pread", lambda fd, n, at: b"" if at >= 5 else b"01234")
    with pytest.raises(CheckpointCorrupt, match="became shorter while it was read: 5 of 10"):
        store.read("shared/a")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_every_failing_step_of_a_write_is_a_storage_error_without_a_trace(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    """R1, bug-D6: the error names the path and the reason, and no temporary file stays."""
    store.write("shared/a", [b"old"])
    with monkeypatch.context() as patch:
        patch.setattr(local.os, step, failing(code))
        with pytest.raises(StorageError, match="cannot write .*shared/a") as caught:
            store.write("shared/a", [b"new"])
    assert os.strerror(code) in str(caught.value)
    assert errno.errorcode[code] in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert store.read("shared/a") == b"old"
    assert store.leftovers(older_than_s=-60) == []


@pytest.mark.parametrize("chunks", [[b"x" * 1_000_000], [b"x" * 1_000] * 1_000])
def test_a_write_that_the_disk_cut_short_is_an_error(
    store: LocalStore, chunks: list[bytes]
) -> None:
    """T1, bug-H6: a disk that fills up takes the first part of a chunk and says so by a number only."""
    store.write("shared/a", [b"old"])
    with (
        small_disk(600_123),
        pytest.raises(StorageError, match=r"cannot write .*shared/a: .*EFBIG"),
    ):
        store.write("shared/a", chunks)
    with (
        small_disk(600_123),
        pytest.raises(StorageError, match=r"cannot create .*shared/b: .*EFBIG"),
    ):
        store.create("shared/b", b"".join(chunks))
    assert store.list() == ["shared/a"]
    assert store.read("shared/a") == b"old"
    assert store.leftovers(older_than_s=-60) == []


def test_a_disk_without_hard_links_cannot_fence_and_says_so(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I18: create-exclusive is refused where the disk cannot do it."""
    monkeypatch.setattr(local.os, "link", failing(errno.EOPNOTSUPP))
    with pytest.raises(StorageError, match=r"no hard links.*another disk"):
        store.create("owner/0000000001", b"x")
    assert store.list() == []
    assert store.leftovers(older_than_s=-60) == []


def test_a_link_that_was_made_although_it_reported_failure_counts(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network disk repeats a request whose answer was lost, and then finds its own file."""
    real = os.link

    def link_twice(source: str, target: str, **options: Any) -> None:
        real(source, target, **options)
        real(source, target, **options)

    monkeypatch.setattr(local.os, "link", link_twice)
    assert store.create("owner/0000000001", b"x") is True


def test_deleting_the_last_file_removes_its_folders_but_not_the_root(store: LocalStore) -> None:
    store.write("taskowned/a/b/c", [b"x"])
    store.write("taskowned/d", [b"x"])
    store.delete("taskowned/a/b/c")
    root = Path(store.root)
    assert sorted(path.name for path in root.rglob("*")) == ["d", "taskowned"]
    store.delete("taskowned/d")
    assert root.is_dir()
    assert list(root.iterdir()) == []


def test_a_deletion_is_durable_before_the_next_one_begins(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: a power cut must not bring the metadata of a checkpoint back whose files are gone. What is synced is the
    folder that lost a name, also if that is the one above."""
    synced: list[str] = []
    for name in ("chk-1/0-1", "chk-1/_metadata"):
        store.write(name, [b"x"])
    real = local._fsync_folder
    monkeypatch.setattr(local, "_fsync_folder", lambda path: (synced.append(path), real(path)))
    store.delete("chk-1/_metadata")
    assert synced == [f"{store.root}/chk-1"]
    store.delete("chk-1/0-1")
    assert synced[1:] == [store.root]


def test_empty_folders_go_also_where_others_have_removed_some_already(store: LocalStore) -> None:
    store.write("shared/a", [b"x"])
    (Path(store.root) / "taskowned/a").mkdir(parents=True)
    store.delete("taskowned/a/b/c")
    assert [path.name for path in Path(store.root).iterdir()] == ["shared"]


def test_a_folder_that_others_remove_again_and_again_is_made_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean-up prunes empty folders while others begin to write into them."""
    real, removals = local._make_folders, iter(range(20))

    def removed_at_once(folder: str) -> None:
        real(folder)
        if next(removals, None) is not None:
            os.rmdir(folder)

    store.write("shared/a", [b"x"])
    monkeypatch.setattr(local, "_make_folders", removed_at_once)
    store.write("chk-1/0-1", [b"x"])
    assert store.read("chk-1/0-1") == b"x"


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """R5, I18: a driver that saw no owner and no checkpoint would begin anew, over those who are there."""
    store.write("chk-1/_metadata", [b"x"])
    monkeypatch.setattr(local.os, "scandir", failing(code))
    for folder in ("", "owner"):
        with pytest.raises(StorageError, match=rf"cannot list .*{errno.errorcode[code]}"):
            store.list(folder)


def test_a_temporary_file_of_a_dead_writer_is_hidden_listed_and_deletable(
    store: LocalStore,
) -> None:
    """I13: what a killed process left can be found and removed, and what is being written is left alone."""
    store.write("chk-1/0-1", [b"x"])
    for name, age in (("old", 7200), ("young", 60)):
        path = Path(store.root) / "chk-1" / f".tmp-{name}"
        path.write_bytes(b"half")
        modified = path.stat().st_mtime - age
        os.utime(path, (modified, modified))
    assert store.list() == ["chk-1/0-1"]
    assert store.leftovers(older_than_s=3600) == ["chk-1/.tmp-old"]
    store.delete("chk-1/.tmp-old")
    assert store.leftovers(older_than_s=0) == ["chk-1/.tmp-young"]


def test_a_link_out_of_the_directory_is_not_followed(store: LocalStore, tmp_path: Path) -> None:
    """Security: the resolved path must lie under the root, for folders and for files."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store.write("shared/a", [b"x"])
    (Path(store.root) / "taskowned").symlink_to(outside)
    (Path(store.root) / "shared/link").symlink_to(outside / "secret")
    for act in (
        lambda: store.read("taskowned/secret"),
        lambda: store.write("taskowned/new", [b"x"]),
        lambda: store.delete("taskowned/secret"),
        lambda: store.read("shared/link"),
    ):
        with pytest.raises(StorageError):
            act()
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert store.list() == ["shared/a", "shared/link", "taskowned"]
    store.delete("shared/link")
    assert (outside / "secret").exists()


def test_a_root_behind_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "chk").symlink_to(tmp_path / "disk")
    store = LocalStore(str(tmp_path / "chk/job"))
    store.write("shared/a", [b"x"])
    assert (tmp_path / "disk/job/shared/a").read_bytes() == b"x"


def test_a_file_where_the_directory_should_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "chk").write_text("not a folder")
    store = LocalStore(str(tmp_path / "chk/job"))
    with pytest.raises(StorageError, match=r"cannot write .*ENOTDIR.*name a directory"):
        store.write("shared/a", [b"x"])
