"""Folders that hosts only seem to share are noticed before anything runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.connectors.sinks.files import FileSink
from penstock.errors import ConfigError
from penstock.shells.spark import sharing
from penstock.shells.spark.sharing import (
    STALE_S,
    check_marks,
    existing_mark,
    is_on_disk,
    leave_mark,
    remove_marks,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that is not there does not come: how long it is looked for changes nothing."""
    monkeypatch.setattr(sharing, "VISIBLE_WITHIN_S", 0.0)


def test_a_worker_that_sees_the_drivers_mark_shares_the_folder(tmp_path: Path) -> None:
    check_marks([leave_mark("the folder", str(tmp_path / "deep/out"), "job")])


def test_a_worker_that_does_not_see_it_says_which_folder_on_which_host(tmp_path: Path) -> None:
    mark = replace(leave_mark("the folder of sink 'files'", str(tmp_path), "job"), host="driver-1")
    os.unlink(mark.file)
    told = (
        r"the folder of sink 'files' is not the same folder on \S+ as on driver-1.*all hosts share"
    )
    with pytest.raises(ConfigError, match=told):
        check_marks([mark])


def test_a_folder_of_the_same_name_with_another_jobs_file_is_not_the_same(tmp_path: Path) -> None:
    """Every host may have one from an earlier run."""
    file = tmp_path / "job.json"
    file.write_text("the driver's")
    mark = existing_mark("the checkpoint directory", str(file))
    check_marks([mark])
    file.write_text("another")
    with pytest.raises(ConfigError, match="the checkpoint directory"):
        check_marks([mark])


def test_marks_go_with_the_job_and_files_that_were_there_anyway_stay(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text("x")
    mark = leave_mark("the folder", str(tmp_path / "_staging"), "job")
    remove_marks([existing_mark("the directory", str(file)), mark])
    assert file.exists() and not os.path.exists(mark.file)


def test_marks_of_drivers_that_were_killed_go_a_day_later_and_no_sooner(tmp_path: Path) -> None:
    """Another driver of the same job may still need its own."""
    old, young = (leave_mark("the folder", str(tmp_path), "job") for _ in range(2))
    os.utime(old.file, (0, os.stat(old.file).st_mtime - STALE_S - 1))
    leave_mark("the folder", str(tmp_path), "job")
    assert not os.path.exists(old.file) and os.path.exists(young.file)


@pytest.mark.parametrize(
    ("location", "on_disk"),
    [
        ("/data/out", True),
        ("file:///data/out", True),
        ("s3://b/out", False),
        ("hdfs:///out", False),
    ],
)
def test_only_folders_on_disks_are_looked_at(location: str, on_disk: bool) -> None:
    assert is_on_disk(location) is on_disk


def test_the_file_sinks_mark_is_where_no_reader_looks(tmp_path: Path) -> None:
    folder = FileSink(str(tmp_path)).shared_folder()
    assert folder is not None and Path(folder).name.startswith("_")


def test_a_folder_that_the_driver_cannot_write_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="a part of the path is a file"):
        leave_mark("the folder", str(tmp_path / "file/out"), "job")
