"""What a job may leave behind, and what it may not: files, checkpoints beyond `keep`, transactions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.engine.checkpoints.cleaning import TIDY_TRIES_MAX
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.shells.sim.world import World
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from tests.sim.kit import DRIVER, any_transaction, invariant, judged, newest, with_own_file

LEFT = "chk-900/0-1"


def leave(found: World, name: str = LEFT, data: bytes = b"left", ms: float = 0.0) -> None:
    """Somebody wrote this file at that moment."""
    found.disk.write(name, [data])
    now_ms, found.clock.now_ms = found.clock.now_ms, ms
    found.checkers.leftovers.on_written(name)
    found.clock.now_ms = now_ms


def keep(found: World, number: int) -> None:
    limits = replace(found.settings.coordinator, keep=number)
    found.settings = replace(found.settings, coordinator=limits)


# ---- I13: files


def test_a_file_that_is_left_breaks_i13(after: World) -> None:
    """I13."""
    leave(after)
    assert judged(after) == "I13"


def test_a_state_file_that_the_metadata_does_not_name_breaks_i13(after: World) -> None:
    """I13, bug-A1: also in the folder of a checkpoint that is kept."""
    leave(after, f"{paths.checkpoint_folder(newest(after).checkpoint)}/0-99")
    assert judged(after) == "I13"


def test_a_checkpoint_beyond_those_to_keep_breaks_i13(after: World) -> None:
    """I13, C5."""
    keep(after, len(after.checkers.manifests))
    assert judged(after) == "none"
    keep(after, len(after.checkers.manifests) - 1)
    assert judged(after) == "I13"


def test_a_checkpoint_that_was_left_behind_and_stays_breaks_i13(after: World) -> None:
    """I13: a later attempt went on from an older one, so it counts no more."""
    older = CheckpointId(sorted(after.checkers.manifests)[-2])
    attempt = AttemptId(after.checkers.newest_attempt + 1)
    record = records.RestoredRecord(attempt, older, CheckpointId(999), CheckpointId(990))
    after.checkers.on_listed(DRIVER, [])
    after.checkers.on_created(DRIVER, paths.restored(attempt), records.encode_restored(record))
    after.checkers.leftovers.check_files()
    assert invariant(after) == "I13"


def test_a_tombstone_that_is_left_breaks_i13(after: World) -> None:
    """I13."""
    leave(after, paths.metadata(CheckpointId(900)))
    assert judged(after) == "I13"


def test_a_file_that_came_after_the_last_look_is_not_held_against_the_job(after: World) -> None:
    """I13: a worker that nobody knew to be alive."""
    leave(after, ms=after.clock.now_ms + 1)
    assert judged(after) == "none"


def test_what_a_driver_that_was_overtaken_deletes_by_halves_later_is_not_either(
    after: World,
) -> None:
    """I13: when the last owner looked, the checkpoint was there and to be kept."""
    manifest = with_own_file(after)
    after.disk.delete(paths.metadata(manifest.checkpoint))
    assert judged(after) == "I13"
    after.problem = None
    after.clock.now_ms += 1
    after.checkers.leftovers.on_deleted(paths.metadata(manifest.checkpoint))
    assert judged(after) == "none"


@pytest.mark.parametrize("what", [LEFT, "", "owner"], ids=["delete", "list", "owner"])
def test_what_storage_refused_to_the_end_is_not_held_against_the_job(
    after: World, what: str
) -> None:
    """I13: but it must have been tried as often as it may be, and to the last."""
    leave(after)
    for _ in range(TIDY_TRIES_MAX - 2):
        after.checkers.leftovers.on_listed(DRIVER)
        after.checkers.on_refused(DRIVER, what or LEFT)
    assert judged(after) == "I13"
    after.problem = None
    after.checkers.leftovers.on_listed(DRIVER)
    after.checkers.on_refused(DRIVER, what)
    assert judged(after) == "none"
    after.clock.now_ms += 1
    after.checkers.leftovers.on_listed(DRIVER)
    assert judged(after) == "I13"


def test_a_checkpoint_that_was_kept_in_the_place_of_a_damaged_one_may_be_damaged_itself(
    after: World,
) -> None:
    """I13: when the job chose which to keep, it was whole."""
    everything = sorted(after.checkers.manifests)
    keep(after, len(everything) - 1)
    after.harmed = {paths.metadata(everything[0])}
    assert judged(after) == "I13"
    after.problem = None
    after.harmed = {paths.metadata(everything[0]), paths.metadata(everything[1])}
    assert judged(after) == "none"


def test_an_owner_that_does_not_know_what_to_restore_deletes_nothing(after: World) -> None:
    """I12, I13: the newest checkpoint is damaged, and nobody can say what still counts."""
    leave(after)
    attempt = AttemptId(after.checkers.newest_attempt + 1)
    record = records.encode_owner(records.OwnerRecord(attempt, DRIVER, 0.0))
    after.checkers.on_created(DRIVER, paths.owner(attempt), record)
    assert judged(after) == "none"


# ---- I11: transactions


@pytest.mark.parametrize("attempt", ["the last one", "an older one"])
def test_a_transaction_that_nobody_ended_breaks_i11(after: World, attempt: str) -> None:
    """I11: also one of a worker that had been given up, if it began before the last checkpoint."""
    _, entry = any_transaction(after)
    number = after.checkers.newest_attempt - (attempt == "an older one")
    after.table.prepared["forgotten"] = replace(entry, attempt=number)
    assert judged(after) == "I11"


def test_a_transaction_that_a_lost_worker_begins_behind_the_end_is_not_held_against_the_job(
    after: World,
) -> None:
    """I11: nobody can know of it before the job of this name starts again."""
    _, entry = any_transaction(after)
    late = replace(entry, began_ms=after.clock.now_ms, attempt=after.checkers.newest_attempt - 1)
    after.table.prepared["late"] = late
    assert judged(after) == "none"
    after.table.prepared["late"] = replace(late, attempt=after.checkers.newest_attempt)
    assert judged(after) == "I11", "the last attempt's own are another matter"


def test_metadata_of_a_calm_run_is_what_was_written(after: World) -> None:
    """The checks above start from a sound folder."""
    name = paths.metadata(newest(after).checkpoint)
    assert manifests.decode(after.disk.read(name), name) == newest(after)
