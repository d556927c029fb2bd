"""What a start says about checkpoints of earlier runs, and about a local Spark that is too small. Needs no Spark."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.api.config import JobSettings
from penstock.api.pipeline import job_settings
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.protocol.ids import CheckpointId
from penstock.shells.spark import session
from penstock.shells.spark.earlier import require_checkpoint, warn_of_no_name
from penstock.shells.spark.start import _wish
from penstock.storage.filesystem import FilesystemStore, open_job
from penstock.wire.tombstones import tombstone


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStore:
    """Checkpoints 3 and 12 completed, 5 was given up."""
    made = open_job(str(tmp_path), "job", created_ms=1.0)
    made.create("chk-3/_metadata", b"something")
    made.create("chk-12/_metadata", b"something")
    made.create("chk-5/_metadata", tombstone(CheckpointId(5)))
    return made


def settings(store: FilesystemStore, unnamed: bool = True, restore: str = "auto") -> JobSettings:
    checkpoint = pen.CheckpointConfig(str(Path(store.root).parent))
    made = job_settings(
        name="job", parallelism=1, checkpoint=checkpoint, restart=None, restore=restore
    )
    return replace(made, unnamed=unnamed)


# ---- restoring by path


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(
    store: FilesystemStore,
) -> None:
    """R5."""
    with pytest.raises(pen.ConfigError) as caught:
        require_checkpoint(store, CheckpointId(7), f"{store.root}/chk-7")
    text = str(caught.value)
    assert f"restore='{store.root}/chk-7': there is no such checkpoint" in text
    assert f"in {store.root} there are: chk-3, chk-12" in text


def test_a_checkpoint_of_which_something_is_left_is_for_others_to_judge(
    store: FilesystemStore,
) -> None:
    store.create("chk-8/0-1", b"state")
    require_checkpoint(store, CheckpointId(3), "chk-3")
    require_checkpoint(store, CheckpointId(8), "chk-8")


def test_a_restore_path_in_a_folder_that_is_no_job_says_so(tmp_path: Path) -> None:
    """Its files are not looked through: it may be any folder."""
    (tmp_path / "chk-3").mkdir()
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(pen.ConfigError, match="is not the folder of a Penstock job"):
        require_checkpoint(FilesystemStore(str(tmp_path)), CheckpointId(7), "chk-7")


def test_a_job_without_checkpoints_says_that_it_has_none(tmp_path: Path) -> None:
    with pytest.raises(pen.ConfigError, match="no such checkpoint; .*/job has none"):
        require_checkpoint(open_job(str(tmp_path), "job"), CheckpointId(7), "chk-7")


def test_a_start_asks_for_the_checkpoint_before_it_starts_anything(
    store: FilesystemStore,
) -> None:
    """R5."""
    made = pen.from_rows([(1,)], "n INT").to(pen.BlackholeSink())
    checkpoint = pen.CheckpointConfig(str(Path(store.root).parent))
    with pytest.raises(pen.ConfigError, match="there are: chk-3, chk-12"):
        made.start(name="other", checkpoint=checkpoint, restore=f"{store.root}/chk-7")


# ---- jobs without a name


def test_a_job_without_a_name_that_finds_older_state_is_warned(
    store: FilesystemStore, caplog: pytest.LogCaptureFixture
) -> None:
    """R5: all jobs without a name share the name 'job'."""
    assert _wish(settings(store), store) == RestoreWish()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "without a name" in record.getMessage() and store.root in record.getMessage()
    assert "goes on from the last checkpoint" in record.getMessage()
    assert 'name="..."' in record.getMessage()


def test_no_warning_where_the_job_has_a_name_begins_anew_or_finds_nothing(
    store: FilesystemStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_no_name(settings(store, unnamed=False), store)
    warn_of_no_name(settings(store, restore="fresh"), store)
    store.delete("chk-3/_metadata")
    store.delete("chk-12/_metadata")
    warn_of_no_name(settings(store), store)
    assert caplog.records == []


# ---- slots of the local Spark


def test_a_local_spark_that_is_too_small_says_what_every_slot_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names are those that the user gave, also where they do not fit a path."""
    context: Any = object()
    monkeypatch.setattr(session, "_used", {"1234abcd a/b c": 4})
    monkeypatch.setattr(session, "slots_of", lambda _: 4)
    with pytest.raises(pen.LaunchError) as caught:
        session._stop_unused(context, 7)
    text = str(caught.value)
    assert "has 4 slots, 4 of them used by 'a/b c'" in text
    assert (
        "this job needs 7 more: 5 for its workers, one each, and 2 that every job leaves free"
        in text
    )
