"""Damage excuses what it explains and nothing else: a driver that fails, and one that goes back, must have had to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.messages import Deploy, SlotId
from penstock.protocol.phases import Outcome
from penstock.shells.sim.world import World
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest
from penstock.wire.tombstones import tombstone
from tests.sim.kit import DRIVER, any_transaction, invariant, judged, newest, with_state

CORRUPT = "CheckpointCorrupt: the newest checkpoint cannot be used"


@pytest.fixture
def picky(after: World) -> World:
    """A run whose sinks mind rows that come twice."""
    return with_sinks(after, idempotent=False)


def with_sinks(found: World, *, idempotent: bool) -> World:
    for sink in found.scenario.sinks.values():
        sink.idempotent = idempotent
    return found


def fails(found: World, reason: str) -> str:
    """The driver gives up; what do the checkers say?"""
    driver = found.cluster.drivers[0]
    driver.manager.outcome, driver.manager.reason = Outcome.FAILED, reason
    found.checkers.leftovers.ended_ms.clear()
    found.checkers.after_driver(driver)
    return invariant(found)


def harm(found: World, manifest: Manifest) -> None:
    found.harmed.add(paths.metadata(manifest.checkpoint))


def oldest(found: World) -> Manifest:
    return found.checkers.manifests[min(found.checkers.manifests)]


# ---- a job that fails


def test_a_failure_without_damage_breaks_i27(picky: World) -> None:
    """I27."""
    assert fails(picky, CORRUPT) == "I27"


def test_a_damaged_newest_checkpoint_explains_that_a_job_fails(picky: World) -> None:
    """I17, I24."""
    harm(picky, newest(picky))
    assert fails(picky, CORRUPT) == "none"
    assert judged(picky) == "none", "nor must it finish"


def test_a_state_file_explains_it_only_if_the_newest_checkpoint_needs_it(picky: World) -> None:
    """I24."""
    folder = paths.checkpoint_folder(newest(picky).checkpoint)
    picky.harmed.add(f"{folder}/0-99")
    assert fails(picky, CORRUPT) == "I27"


def test_damage_to_an_older_checkpoint_explains_nothing(picky: World) -> None:
    """I17: the newest one is there to go on from."""
    harm(picky, oldest(picky))
    assert fails(picky, CORRUPT) == "I27"


def test_what_came_after_a_driver_looked_is_no_way_out(picky: World) -> None:
    """I24: another one, overtaken by then, has completed a checkpoint behind its back."""
    late = paths.metadata(newest(picky).checkpoint)
    harm(picky, picky.checkers.manifests[CheckpointId(sorted(picky.checkers.manifests)[-2])])
    assert fails(picky, CORRUPT) == "I27"
    picky.problem = None
    picky.checkers.on_listed(DRIVER, [name for name in picky.disk.list() if name != late])
    assert fails(picky, CORRUPT) == "none"


def test_damage_explains_no_other_failure(picky: World) -> None:
    """I27."""
    harm(picky, newest(picky))
    assert fails(picky, "StorageError: no") == "I27"


def test_damage_explains_nothing_where_no_sink_minds_to_go_back(after: World) -> None:
    """I17."""
    harm(with_sinks(after, idempotent=True), newest(after))
    assert fails(after, CORRUPT) == "I27"


def test_a_damaged_tombstone_looks_like_a_damaged_checkpoint(picky: World) -> None:
    """I24: until an attempt has gone on from an older one."""
    name = paths.metadata(CheckpointId(901))
    picky.checkers.on_created(DRIVER, name, tombstone(CheckpointId(901)))
    picky.harmed.add(name)
    assert fails(picky, CORRUPT) == "none"
    picky.checkers.on_created(DRIVER, *restored_record(picky, newest(picky).checkpoint))
    assert fails(picky, CORRUPT) == "I27"


def test_a_driver_may_only_be_fenced_by_another_one(picky: World) -> None:
    """I18."""
    assert fails(picky, "JobFenced: taken over") == "I27"
    picky.problem = None
    picky.checkers.on_created("driver-1", *owner_record(picky, "driver-1"))
    assert fails(picky, "JobFenced: taken over") == "none"


def owner_record(found: World, driver: str) -> tuple[str, bytes]:
    attempt = AttemptId(found.checkers.newest_attempt + 1)
    return paths.owner(attempt), records.encode_owner(records.OwnerRecord(attempt, driver, 0.0))


def restored_record(found: World, restored: CheckpointId) -> tuple[str, bytes]:
    attempt = AttemptId(found.checkers.newest_attempt + 1)
    record = records.RestoredRecord(attempt, restored, CheckpointId(990), CheckpointId(950))
    return paths.restored(attempt), records.encode_restored(record)


# ---- a job that goes back


def deploy(found: World, restored: Manifest) -> str:
    attempt = AttemptId(found.checkers.newest_attempt)
    message = Deploy(attempt, SlotId(0), restored.checkpoint, restored.snapshots)
    found.checkers.on_sent(0, message)
    return invariant(found)


def test_going_back_needs_damage_to_something_newer(after: World) -> None:
    """I17: damage to what is older is no reason."""
    harm(with_sinks(after, idempotent=True), oldest(after))
    assert deploy(after, oldest(after)) in ("I7", "I17")


def test_going_back_because_of_damage_is_fine_where_no_sink_minds(after: World) -> None:
    """I17."""
    harm(with_sinks(after, idempotent=True), newest(after))
    assert deploy(after, oldest(after)) == "none"
    assert after.checkers.went_back


def test_going_back_past_a_sound_checkpoint_breaks_i7(after: World) -> None:
    """I7, I17: no further than to the newest one that is whole."""
    harm(with_sinks(after, idempotent=True), newest(after))
    after.checkers.on_listed(DRIVER, after.disk.list())
    second = CheckpointId(sorted(after.checkers.manifests)[-2])
    after.checkers.on_created(DRIVER, *restored_record(after, second))
    assert after.problem is None
    after.checkers.on_created(DRIVER, *restored_record(after, CheckpointId(0)))
    assert invariant(after) == "I7"


def test_rows_may_come_twice_only_where_somebody_went_back(after: World) -> None:
    """I1: that it could have is not enough."""
    harm(with_sinks(after, idempotent=True), newest(after))
    name, entry = any_transaction(after)
    after.table.visible[f"{name}/again"] = replace(entry)
    assert judged(after) == "I1"
    after.problem = None
    after.checkers.went_back = True
    assert judged(after) == "none"


def test_metadata_that_is_created_anew_is_whole_again(after: World) -> None:
    """I24."""
    manifest = with_state(after)
    harm(after, manifest)
    name = paths.metadata(manifest.checkpoint)
    after.checkers.on_created(DRIVER, name, after.disk.read(name))
    assert not after.harmed
