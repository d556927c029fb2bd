"""The folder of copies on a host: this job's and this user's alone, and gone when nobody needs it any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.shells.spark import copies_dir
from penstock.shells.spark.copies_dir import PREFIX, copies_name, local_dir, open_copies, sweep
from penstock.storage.local_copies import CopiedStore, LocalCopies
from penstock.storage.memory import MemoryStore

NAME = copies_name("totals", "/chk/totals", 1.0)


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/blockmgr-1,/elsewhere/blockmgr-2")
    return tmp_path


def opened(name: str = NAME) -> LocalCopies:
    made = open_copies(name)
    assert made is not None
    return made


def put(copies: LocalCopies, file: str = "chk-1/0-1") -> None:
    writing = CopiedStore(MemoryStore(), copies).begin(file)
    writing.write(b"abc")
    writing.finish()


def test_copies_lie_beside_the_blocks_of_spark(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those go with the executor. Without a word from Spark it is the folder for temporary files."""
    assert local_dir() == parent
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(parent / "given"))
    assert local_dir() == parent / "given"
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert local_dir().is_dir()


def test_jobs_of_one_name_have_copies_of_their_own() -> None:
    """R4: in another directory, or in one that was made anew, the same file has other content."""
    others = [
        copies_name("totals", "/other/totals", 1.0),
        copies_name("totals", "/chk/totals", 2.0),
        copies_name("sums", "/chk/totals", 1.0),
    ]
    assert len({NAME, *others}) == 4
    put(opened())
    assert [opened(name).list() for name in others] == [[], [], []]
    assert opened().list() == ["chk-1/0-1"]


def test_copies_are_nobody_elses_business(parent: Path) -> None:
    """Folders are 0700 and files 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        put(opened())
    finally:
        os.umask(before)
    found = list(parent.rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o600}


@pytest.mark.parametrize("theirs", ["open to all", "a link", "a file"])
def test_a_folder_that_somebody_else_may_have_made_is_not_used(
    parent: Path, caplog: pytest.LogCaptureFixture, theirs: str
) -> None:
    """There may be other users where everybody may write."""
    if theirs == "open to all":
        (parent / NAME).mkdir()
        (parent / NAME).chmod(0o755)
    elif theirs == "a link":
        (parent / "elsewhere").mkdir(0o700)
        (parent / NAME).symlink_to(parent / "elsewhere")
    else:
        (parent / NAME).write_text("")
    assert open_copies(NAME) is None
    assert "no copies of state are kept on this host" in caplog.text


def test_a_host_without_a_place_for_copies_does_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R4: that fails no deployment."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/proc/none/blockmgr-1")
    assert open_copies(NAME) is None
    assert "no copies of state are kept on this host" in caplog.text


def test_the_last_worker_of_a_job_that_is_over_removes_its_folder(parent: Path) -> None:
    """R4, I26."""
    first, second = opened(), opened()
    put(first)
    first.close(over=True)
    assert second.list() == ["chk-1/0-1"]
    second.close(over=True)
    assert list(parent.iterdir()) == []


def test_a_worker_that_goes_while_the_job_does_not_leaves_the_copies(parent: Path) -> None:
    """R4: its successor reads them."""
    worker = opened()
    put(worker)
    worker.close(over=False)
    assert opened().list() == ["chk-1/0-1"]


def test_what_killed_workers_left_goes_after_a_day_and_what_is_in_use_stays(parent: Path) -> None:
    """R4, I26: by the next worker of any job."""
    killed, alive, young = (copies_name(name, "/chk", 1.0) for name in ("a", "b", "c"))
    put(held := opened(killed))
    held.close(over=False)
    in_use = opened(alive)
    put(in_use)
    opened(young).close(over=False)
    long_ago = os.stat(parent / killed / "lock").st_mtime - copies_dir.FORGOTTEN_AFTER_S - 1
    for name in (killed, alive):
        os.utime(parent / name / "lock", (long_ago, long_ago))
    another = opened()
    assert {path.name for path in parent.glob(f"{PREFIX}*")} == {NAME, alive, young}
    assert in_use.list() == ["chk-1/0-1"]
    another.close(over=True)


def test_a_folder_whose_lock_was_removed_goes_too(parent: Path) -> None:
    """By programs that tidy up temporary files."""
    put(held := opened())
    (parent / NAME / "lock").unlink()
    held.close(over=True)
    sweep(parent, older_than_s=-1.0)
    assert list(parent.iterdir()) == []


def test_a_folder_that_is_being_removed_is_made_anew(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making and locking it another worker may have removed it."""
    first = opened()
    original, times = copies_dir._open_lock, []

    def removed_meanwhile(folder: Path, flags: int = 0) -> int:
        lock = original(folder, flags)
        if not times:
            times.append(1)
            first.close(over=True)
        return lock

    monkeypatch.setattr(copies_dir, "_open_lock", removed_meanwhile)
    second = opened()
    put(second)
    assert second.list() == ["chk-1/0-1"] and (parent / NAME / "lock").exists()
