"""What becomes of snapshots is watched from outside: each test tells the checkers of messages and files that no sound
driver sends and leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.engine.history.pages import decode, encode, make_entry
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import (
    Abort,
    Ack,
    Deploy,
    Drop,
    Notify,
    SnapshotKind,
    SnapshotOrder,
    Sync,
    ToWorker,
    Trigger,
)
from penstock.protocol.snapshot import OperatorSnapshot, Segment, SubtaskSnapshot
from penstock.shells.sim.world import World
from penstock.wire import paths
from penstock.wire.records import (
    OwnerRecord,
    RestoredRecord,
    encode_owner,
    encode_restored,
)
from tests.sim.kit import DRIVER, invariant, judged

KIND = SnapshotKind.CHECKPOINT
FILE = "chk-901/0-8"


@pytest.fixture
def running(after: World) -> World:
    """A driver that is not at its end; what lies on its disk comes from a run that was sound."""
    after.cluster.drivers[0].manager.outcome = None
    limits = replace(after.settings.coordinator, max_concurrent=2)
    after.settings = replace(after.settings, coordinator=limits)
    return after


def tell(found: World, *messages: ToWorker) -> None:
    for message in messages:
        found.checkers.on_sent(0, message)


def step(found: World) -> None:
    found.checkers.after_driver(found.cluster.drivers[0])


def trigger(n: int, attempt: int = 8) -> Trigger:
    return Trigger(AttemptId(attempt), SnapshotOrder(CheckpointId(n), KIND))


def abort(n: int) -> Abort:
    return Abort(AttemptId(8), CheckpointId(n))


def notify(n: int) -> Notify:
    return Notify(AttemptId(8), CheckpointId(n))


def sync(*live: int, completed: int = 0) -> Sync:
    entries = tuple(SnapshotOrder(CheckpointId(n), KIND) for n in live)
    return Sync(AttemptId(8), entries, CheckpointId(950), CheckpointId(completed))


def ack(found: World, n: int, file: str = "", attempt: int = 8) -> Ack:
    """From all subtasks at once."""
    segments = (Segment("s", b"", (), file=file),) if file else ()
    parts = {"operator": OperatorSnapshot(segments)}
    subtasks = found.cluster.drivers[0].plan.subtasks
    snapshots = tuple(SubtaskSnapshot(subtask, parts, False) for subtask in subtasks)
    return Ack(AttemptId(attempt), CheckpointId(n), snapshots)


def complete(found: World, n: int) -> None:
    """The metadata comes to exist."""
    found.checkers.manifests[CheckpointId(n)] = next(iter(found.checkers.manifests.values()))
    found.checkers.fates.on_complete(0, CheckpointId(n))


# ---- I6: a snapshot ends once


def test_a_snapshot_that_is_given_up_and_notified_breaks_i6(running: World) -> None:
    """I6."""
    tell(running, trigger(901), abort(901))
    assert running.problem is None
    running.checkers.manifests[CheckpointId(901)] = next(iter(running.checkers.manifests.values()))
    tell(running, notify(901))
    assert invariant(running) == "I6"


def test_a_snapshot_that_is_durable_and_given_up_breaks_i6(running: World) -> None:
    """I6."""
    tell(running, trigger(901))
    complete(running, 901)
    assert running.problem is None
    tell(running, abort(901))
    assert invariant(running) == "I6"


def test_a_snapshot_that_was_given_up_and_comes_to_exist_breaks_i6(running: World) -> None:
    """I6."""
    tell(running, trigger(901), abort(901))
    complete(running, 901)
    assert invariant(running) == "I6"


def test_a_snapshot_of_a_dropped_attempt_that_comes_to_exist_breaks_i6(running: World) -> None:
    """I6: not all had answered, so nobody may complete it."""
    tell(running, trigger(901), Drop(AttemptId(8)))
    complete(running, 901)
    assert invariant(running) == "I6"


def test_a_snapshot_that_all_have_answered_may_complete_after_its_attempt(running: World) -> None:
    """I6: but not after the next one has begun with an older one."""
    tell(running, trigger(901), trigger(902))
    for n in (901, 902):
        running.checkers.on_answer(0, ack(running, n))
    tell(running, Drop(AttemptId(8)))
    complete(running, 901)
    assert running.problem is None
    running.checkers.fates.on_sent(0, Deploy(AttemptId(9), SlotId(0), CheckpointId(901), ()))
    complete(running, 902)
    assert invariant(running) == "I6"


@pytest.mark.parametrize("again", [trigger(901), sync(901)], ids=["triggered", "live"])
def test_a_snapshot_that_is_over_and_goes_on_breaks_i6(running: World, again: ToWorker) -> None:
    """I6."""
    tell(running, trigger(901), sync(901))
    assert running.problem is None
    tell(running, abort(901), again)
    assert invariant(running) == "I6"


def history(found: World, **changes: Any) -> None:
    """The history says something else about the first snapshot in it."""
    name = found.disk.list(paths.HISTORY_FOLDER)[0]
    page = decode(found.disk.read(name), name)
    first = make_entry(replace(page.entries[0].info, **changes))
    found.disk.write(name, encode(page.totals, [first, *page.entries[1:]]))


def test_a_history_that_gives_a_durable_snapshot_up_breaks_i6(after: World) -> None:
    """I6."""
    history(after, status="aborted")
    assert judged(after) == "I6"


def test_a_history_that_completes_what_never_was_breaks_i6(after: World) -> None:
    """I6."""
    history(after, id=901)
    assert judged(after) == "I6"


# ---- I8: a complete one ends those before it


def test_a_pending_snapshot_older_than_a_complete_one_breaks_i8(running: World) -> None:
    """I8."""
    tell(running, trigger(901), trigger(902))
    complete(running, 902)
    tell(running, notify(902))
    assert running.problem is None, "the driver may be about to say it"
    step(running)
    assert invariant(running) == "I8"


@pytest.mark.parametrize("how", ["given up", "answered"])
def test_an_older_snapshot_that_was_given_up_or_answered_is_fine(running: World, how: str) -> None:
    """I8: of one that all have answered storage has the last word."""
    tell(running, trigger(901), trigger(902))
    complete(running, 902)
    tell(running, notify(902))
    if how == "given up":
        tell(running, abort(901))
    else:
        running.checkers.on_answer(0, ack(running, 901))
    step(running)
    assert running.problem is None


def test_a_table_with_a_live_snapshot_below_the_complete_one_breaks_i8(running: World) -> None:
    """I8."""
    complete(running, 902)
    tell(running, sync(901, completed=902))
    assert invariant(running) == "I8"


def ends(found: World) -> str:
    """The driver comes to its end: it looks through everything, and closes."""
    found.cluster.drivers[0].manager.outcome = found.cluster.drivers[
        0
    ].manager.machine.phase.outcome  # type: ignore[union-attr]
    found.checkers.on_listed(DRIVER, found.disk.list())
    found.checkers.fates.on_closed(0)
    return invariant(found)


@pytest.mark.parametrize("how", [abort(901), Drop(AttemptId(8))], ids=["aborted", "dropped"])
def test_a_file_of_a_snapshot_that_was_given_up_and_stays_breaks_i8(
    running: World, how: ToWorker
) -> None:
    """I8, bug-A1: not even until the job ends."""
    tell(running, trigger(901))
    running.disk.write(FILE, [b"state"])
    tell(running, how)
    assert ends(running) == "I8"


def test_a_file_that_a_late_answer_names_and_that_stays_breaks_i8(running: World) -> None:
    """I8, bug-A1: the driver has heard of it, and nobody will ever need it."""
    tell(running, trigger(901), abort(901))
    running.disk.write(FILE, [b"late"])
    running.checkers.on_answer(0, ack(running, 901, FILE))
    step(running)
    assert ends(running) == "I8"


@pytest.mark.parametrize("why", ["deleted", "refused", "written later"])
def test_a_file_that_the_driver_could_not_know_of_or_delete_is_fine(
    running: World, why: str
) -> None:
    """I8: the last sweep has it, or the next."""
    tell(running, trigger(901))
    running.disk.write(FILE, [b"state"])
    tell(running, abort(901))
    if why == "deleted":
        running.disk.delete(FILE)
    elif why == "refused":
        running.checkers.on_refused(DRIVER, FILE)
    else:
        running.checkers.on_written(FILE)
    assert ends(running) == "none"


# ---- I13: what is beyond those to keep goes while the job runs


def keep(found: World, number: int) -> None:
    limits = replace(found.settings.coordinator, keep=number)
    found.settings = replace(found.settings, coordinator=limits)


def test_a_checkpoint_that_stays_until_the_job_ends_breaks_i13(running: World) -> None:
    """I13, C5: a job may run for months before its last sweep."""
    keep(running, len(running.checkers.manifests))
    assert ends(running) == "none"
    keep(running, len(running.checkers.manifests) - 1)
    assert ends(running) == "I13"


@pytest.mark.parametrize("why", ["refused", "unsure", "only restored", "overtaken"])
def test_a_checkpoint_that_could_not_go_before_is_fine(running: World, why: str) -> None:
    """I13: the last sweep has it, or the next."""
    keep(running, len(running.checkers.manifests) - 1)
    attempt = AttemptId(running.checkers.newest_attempt + 1)
    if why == "refused":
        running.checkers.on_refused(DRIVER, paths.metadata(min(running.checkers.manifests)))
    elif why == "unsure":
        running.checkers.on_refused(DRIVER, paths.OWNER_FOLDER)
    elif why == "only restored":
        newest = max(running.checkers.manifests)
        record = RestoredRecord(attempt, newest, CheckpointId(999), CheckpointId(990))
        running.checkers.on_created(DRIVER, paths.restored(attempt), encode_restored(record))
    else:
        record = encode_owner(OwnerRecord(attempt, "driver-1", 0.0))
        running.checkers.on_created("driver-1", paths.owner(attempt), record)
    assert ends(running) == "none"


def shared_stays(found: World, by: str = DRIVER) -> None:
    """The oldest checkpoint goes, and a file stays that it alone referred to."""
    manifests = found.checkers.manifests
    oldest = min(n for n, manifest in manifests.items() if manifest.files)
    name = f"shared/{oldest}-7-1-state"
    manifests[oldest] = replace(manifests[oldest], snapshots=ack(found, oldest, name).snapshots)
    found.disk.write(name, [b"state"])
    found.disk.delete(paths.metadata(oldest))
    keep(found, len(manifests) - 1)
    found.checkers.on_deleted(by, paths.metadata(oldest))


def test_a_shared_file_that_stays_until_the_job_ends_breaks_i13(running: World) -> None:
    """I13."""
    shared_stays(running)
    assert ends(running) == "I13"


def test_a_shared_file_is_not_for_a_driver_to_delete_that_was_replaced(running: World) -> None:
    """I13: the new owner has deleted the checkpoint, and its files come next. Seed 55585."""
    shared_stays(running)
    attempt = AttemptId(running.checkers.newest_attempt + 1)
    record = encode_owner(OwnerRecord(attempt, "driver-1", 0.0))
    running.checkers.on_created("driver-1", paths.owner(attempt), record)
    assert ends(running) == "none"


def test_a_shared_file_stays_that_a_dead_driver_made_useless_behind_the_owners_back(
    running: World,
) -> None:
    """I13: it still holds the file for a checkpoint that it does not know to have gone."""
    running.checkers.fates.of(0)
    shared_stays(running, by="driver-1")
    assert ends(running) == "none"


def test_a_shared_file_that_was_useless_before_its_driver_looked_breaks_i13(
    running: World,
) -> None:
    """I13: a claim finds what others have left behind."""
    running.checkers.fates.of(0)
    shared_stays(running, by="driver-1")
    running.checkers.on_listed(DRIVER, running.disk.list())
    assert ends(running) == "I13"


# ---- I26: not more than allowed


def test_more_pending_snapshots_than_allowed_break_i26(running: World) -> None:
    """I26."""
    tell(running, trigger(901), trigger(902), trigger(902))
    assert running.problem is None, "told to two workers is pending once"
    tell(running, trigger(903))
    assert invariant(running) == "I26"


def test_snapshots_that_are_over_make_room(running: World) -> None:
    """I26: given up, complete, or of an attempt that is over."""
    tell(running, trigger(901), trigger(902), abort(901), trigger(903))
    complete(running, 902)
    tell(running, trigger(904), Drop(AttemptId(8)), trigger(905, 9), trigger(906, 9))
    assert running.problem is None


def test_a_table_with_more_live_snapshots_than_allowed_breaks_i26(running: World) -> None:
    """I26."""
    tell(running, sync(901, 902))
    assert running.problem is None
    tell(running, sync(901, 902, 903))
    assert invariant(running) == "I26"
