"""A checker that cannot fail proves nothing: each one is fed a history that is wrong in one thing only.

The history is a real one, of a calm run of the simulator: everything in it is right until a test changes it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.ports.channel import Barrier, Batch, End
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Committed, Deploy, Notify, SnapshotKind, Trigger
from penstock.shells.sim import cuts, world
from penstock.shells.sim.faults import Faults
from penstock.shells.sim.outside import Transaction, batch_of
from penstock.shells.sim.scenario import Drawn, draw_everything
from penstock.shells.sim.world import Violation, World
from penstock.wire import manifest as manifests
from penstock.wire import paths
from penstock.wire.manifest import Manifest


def calm(_world: World, rng: Random) -> Drawn:
    """What the seed draws, without faults; every snapshot is kept, and all is aligned."""
    drawn = draw_everything(_world, rng)
    coordinator = replace(
        drawn.settings.coordinator, unaligned=False, aligned_timeout_ms=None, keep=100
    )
    settings = replace(drawn.settings, coordinator=coordinator, inline_bytes_max=0)
    return replace(drawn, faults=Faults(), exactly_once=True, durable=True, settings=settings)


def finished_world() -> World:
    """A calm run with rows and an aggregate, several checkpoints and several transactions."""
    for seed in range(500):
        found = World(seed, draw=calm)
        if not (found.scenario.expected and found.scenario.aggregates):
            continue
        found.run()
        if len(found.checkers.manifests) >= 3 and len(found.table.visible) >= 4:
            return found
    raise AssertionError("no seed has such a run any more")


@pytest.fixture
def after() -> World:
    """A finished run, nothing wrong with it."""
    found = finished_world()
    found.checkers.at_end()
    assert found.problem is None
    return found


def invariant(found: World) -> str:
    return (found.problem or "none").partition(":")[0]


def newest(found: World) -> Manifest:
    return found.checkers.manifests[max(found.checkers.manifests)]


def with_state(found: World) -> Manifest:
    """A checkpoint that has a state file."""
    return next(m for m in found.checkers.manifests.values() if m.files)


def create(found: World, manifest: Manifest) -> str:
    """The checkpoint comes to exist; what do the checkers say?"""
    found.checkers.on_created(paths.metadata(manifest.checkpoint), manifests.encode(manifest))
    return invariant(found)


def judged(found: World) -> str:
    found.checkers.at_end()
    return invariant(found)


def any_transaction(found: World) -> tuple[str, Transaction]:
    return next(
        (name, entry)
        for name, entry in found.table.visible.items()
        if entry.operator in found.scenario.expected
    )


# ---- output


def test_a_row_that_is_missing_breaks_i1(after: World) -> None:
    """I1."""
    name, _ = any_transaction(after)
    del after.table.visible[name]
    assert judged(after) == "I1"


def test_a_row_that_comes_twice_breaks_i1(after: World) -> None:
    """I1."""
    name, entry = any_transaction(after)
    after.table.visible[f"{name}/again"] = entry
    assert judged(after) == "I1"


def test_an_update_that_comes_twice_breaks_i1(after: World) -> None:
    """I1."""
    entry = next(t for t in after.table.visible.values() if t.operator in after.scenario.aggregates)
    after.table.visible["again"] = entry
    assert judged(after) == "I1"


def test_rows_that_change_places_break_i4() -> None:
    """I4."""
    source: Any = SimpleNamespace(base=0, rows_per_lane=(99,))
    ids = [n for n in range(60) if cuts.row(n)[1] == cuts.row(0)[1]]
    early, late = (
        Transaction("sink", 0, 1, n, ((number, 0, 0),)) for n, number in enumerate(ids[:2])
    )
    assert list(cuts.out_of_order(source, [early, late])) == []
    swapped = [replace(early, checkpoint=1), replace(late, checkpoint=0)]
    assert list(cuts.out_of_order(source, swapped)) == [(ids[1], ids[0])]


def test_a_transaction_that_nobody_ended_breaks_i11(after: World) -> None:
    """I11."""
    _, entry = any_transaction(after)
    after.table.prepared["forgotten"] = entry
    assert judged(after) == "I11"


# ---- checkpoints


def test_a_source_position_that_is_off_by_one_breaks_i2(after: World) -> None:
    """I2."""
    manifest = with_state(after)
    snapshots = []
    for snapshot in manifest.snapshots:
        parts = {
            name: replace(part, lanes={lane: max(0, at - 1) for lane, at in part.lanes.items()})
            for name, part in snapshot.operators.items()
        }
        snapshots.append(replace(snapshot, operators=parts))
    assert create(after, replace(manifest, snapshots=tuple(snapshots))) == "I2"


def test_a_subtask_that_is_missing_breaks_i5(after: World) -> None:
    """I5."""
    manifest = newest(after)
    assert create(after, replace(manifest, snapshots=manifest.snapshots[1:])) == "I5"


def test_a_file_that_is_missing_breaks_i5(after: World) -> None:
    """I5."""
    manifest = with_state(after)
    after.disk.delete(next(iter(manifest.files)))
    assert create(after, manifest) == "I5"


@pytest.mark.parametrize("damage", ["short", "zeros"])
def test_a_file_with_other_bytes_breaks_i5(after: World, damage: str) -> None:
    """I5: as a torn write would leave it."""
    manifest = with_state(after)
    name = next(iter(manifest.files))
    data = after.disk.read(name)
    after.disk.write(name, [data[: len(data) // 2] if damage == "short" else bytes(len(data))])
    assert create(after, manifest) == "I5"


def test_metadata_that_is_written_over_breaks_i5(after: World) -> None:
    """I5."""
    after.checkers.on_written(paths.metadata(CheckpointId(1)))
    assert invariant(after) == "I5"


def test_a_snapshot_that_ends_twice_breaks_i6(after: World) -> None:
    """I6."""
    driver = after.cluster.drivers[-1]
    done = driver.manager.history.checkpoints[0]
    other: Any = "aborted" if done.status == "completed" else "completed"
    changed: Any = SimpleNamespace(
        number=driver.number,
        manager=SimpleNamespace(
            coordinator=driver.manager.coordinator,
            history=SimpleNamespace(checkpoints=[replace(done, status=other)]),
            outcome=None,
        ),
    )
    after.checkers.after_driver(driver)
    assert after.problem is None
    after.checkers.after_driver(changed)
    assert invariant(after) == "I6"


def pending_driver(found: World, pending: int, completed: int) -> Any:
    """A driver that has so many snapshots pending, the first with id 1."""
    ids = [CheckpointId(n) for n in range(1, pending + 1)]
    coordinator = SimpleNamespace(
        unfinished=ids,
        config=found.settings.coordinator,
        live=lambda: [SimpleNamespace(checkpoint=n) for n in ids],
        newest_completed=CheckpointId(completed),
    )
    history = SimpleNamespace(checkpoints=[])
    manager = SimpleNamespace(coordinator=coordinator, history=history, outcome=None)
    return SimpleNamespace(number=0, manager=manager)


def test_a_pending_snapshot_older_than_a_complete_one_breaks_i8(after: World) -> None:
    """I8."""
    after.checkers.after_driver(pending_driver(after, 1, completed=0))
    assert after.problem is None
    after.checkers.after_driver(pending_driver(after, 1, completed=2))
    assert invariant(after) == "I8"


def test_more_pending_snapshots_than_allowed_break_i26(after: World) -> None:
    """I26."""
    after.checkers.after_driver(pending_driver(after, 9, completed=0))
    assert invariant(after) == "I26"


# ---- messages


def trigger(checkpoint: int) -> Trigger:
    return Trigger(AttemptId(1), CheckpointId(checkpoint), SnapshotKind.CHECKPOINT)


def test_an_id_that_goes_back_breaks_i7(after: World) -> None:
    """I7."""
    after.checkers.on_sent(7, trigger(902))
    after.checkers.on_sent(7, trigger(901))
    assert invariant(after) == "I7"


def test_an_id_of_two_drivers_breaks_i7(after: World) -> None:
    """I7."""
    after.checkers.on_sent(7, trigger(901))
    after.checkers.on_sent(8, trigger(901))
    assert invariant(after) == "I7"


def test_a_notice_before_the_metadata_breaks_i9(after: World) -> None:
    """I9."""
    after.checkers.on_sent(0, Notify(AttemptId(1), CheckpointId(901)))
    assert invariant(after) == "I9"


def test_a_commit_before_the_metadata_breaks_i9(after: World) -> None:
    """I9."""
    after.checkers.on_commit("sink/0/901/1")
    assert invariant(after) == "I9"


def test_a_worker_that_lies_about_its_commits_breaks_i10(after: World) -> None:
    """I10."""
    for manifest in after.checkers.manifests.values():
        for snapshot in manifest.snapshots:
            for part in snapshot.operators.values():
                if part.transactions:
                    after.table.visible.clear()
                    slot = SlotId(snapshot.subtask.index)
                    told = Committed(AttemptId(1), slot, manifest.checkpoint)
                    after.checkers.on_answer(told)
    assert invariant(after) == "I10"


def deploy(found: World, restored: Manifest | None) -> Deploy:
    newest_attempt = AttemptId(found.checkers.newest_attempt)
    at = restored.checkpoint if restored is not None else CheckpointId(0)
    snapshots = restored.snapshots if restored is not None else ()
    return Deploy(newest_attempt, SlotId(0), at, snapshots)


def test_going_back_behind_rows_that_are_out_breaks_i17(after: World) -> None:
    """I17."""
    for sink in after.scenario.sinks.values():
        sink.idempotent = False
    after.checkers.on_sent(0, deploy(after, newest(after)))
    assert after.problem is None
    after.checkers.on_sent(0, deploy(after, None))
    assert invariant(after) == "I17"


def test_going_back_behind_what_was_told_breaks_i7(after: World) -> None:
    """I7: also where no row is out yet."""
    after.table.visible.clear()
    after.checkers.on_sent(0, deploy(after, None))
    assert invariant(after) == "I7"


def test_restoring_something_else_breaks_i24(after: World) -> None:
    """I24."""
    right = deploy(after, newest(after))
    after.checkers.on_sent(0, replace(right, snapshots=right.snapshots[1:]))
    assert invariant(after) == "I24"


def left_behind(found: World) -> None:
    """A later attempt begins with nothing."""
    record = manifests_record(found)
    found.checkers.on_created(*record)


def manifests_record(found: World) -> tuple[str, bytes]:
    from penstock.wire import records

    attempt = AttemptId(found.checkers.newest_attempt + 1)
    record = records.RestoredRecord(attempt, CheckpointId(0), CheckpointId(900), CheckpointId(800))
    return paths.restored(attempt), records.encode_restored(record)


def test_a_notice_of_a_void_checkpoint_breaks_i18(after: World) -> None:
    """I18."""
    left_behind(after)
    after.checkers.on_sent(0, Notify(AttemptId(1), newest(after).checkpoint))
    assert invariant(after) == "I18"


def test_a_commit_of_a_void_checkpoint_breaks_i18(after: World) -> None:
    """I18."""
    left_behind(after)
    after.checkers.on_commit(any_transaction(after)[0])
    assert invariant(after) == "I18"


# ---- storage


def test_deleting_a_file_of_a_checkpoint_that_exists_breaks_i12(after: World) -> None:
    """I12."""
    after.checkers.on_deleted(next(iter(with_state(after).files)))
    assert invariant(after) == "I12"


def test_deleting_a_checkpoint_that_is_to_be_kept_breaks_i12(after: World) -> None:
    """I12."""
    after.checkers.on_deleted(paths.metadata(newest(after).checkpoint))
    assert invariant(after) == "I12"


def test_a_file_that_is_left_breaks_i13(after: World) -> None:
    """I13."""
    after.disk.write("chk-900/0-1", [b"left"])
    after.checkers.written_ms["chk-900/0-1"] = 0.0
    assert judged(after) == "I13"


def test_a_key_in_two_subtasks_breaks_i15(after: World) -> None:
    """I15."""
    manifest = with_state(after)
    doubled = []
    for snapshot in manifest.snapshots:
        parts = {
            name: replace(part, segments=part.segments * 2)
            for name, part in snapshot.operators.items()
        }
        doubled.append(replace(snapshot, operators=parts))
    assert create(after, replace(manifest, snapshots=tuple(doubled))) == "I15"


# ---- rows in flight


SENT = [
    Batch(batch_of([1, 2])),
    Batch(batch_of([3])),
    Barrier(CheckpointId(5)),
    Batch(batch_of([4])),
]
ROWS = [cuts.row(number) for number in (1, 2, 3)]


def test_the_rows_before_a_barrier_or_an_end_are_those_of_the_snapshot() -> None:
    """I3."""
    assert cuts.sent_before(SENT, CheckpointId(5)) == ROWS
    assert cuts.sent_before([*SENT[:2], End()], CheckpointId(5)) == ROWS
    assert cuts.sent_before(SENT[:2], CheckpointId(5)) is None


@pytest.mark.parametrize("count", range(4))
def test_any_end_of_what_was_sent_may_be_in_flight(count: int) -> None:
    """I3."""
    assert cuts.compare(ROWS[3 - count :], ROWS, []) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ROWS[:2],
        [ROWS[0], ROWS[2]],
        [ROWS[1], ROWS[1], ROWS[2]],
        [ROWS[2], ROWS[1]],
        [*ROWS, ROWS[2]],
    ],
    ids=["the last is lost", "a gap", "a repeat", "out of order", "one too many"],
)
def test_rows_in_flight_that_are_lost_repeated_or_swapped_break_i3(
    wrong: list[tuple[int, int, int]],
) -> None:
    """I3, bug-C1."""
    assert cuts.compare(wrong, ROWS, []) != ""


def test_rows_that_were_restored_may_be_in_flight_again_but_only_once() -> None:
    """I3, bug-C10."""
    old = cuts.row(9)
    assert cuts.compare([old, *ROWS], ROWS, [old]) == ""
    assert cuts.compare([old, old, *ROWS], ROWS, [old]) != ""
    assert cuts.compare([old, *ROWS], ROWS, []) != ""


def test_rows_in_flight_in_a_run_that_aligns_break_i3(after: World) -> None:
    """I3: taken from a run that does not align."""
    for seed in range(500):
        other = World(seed)
        other.run()
        for manifest in other.checkers.manifests.values():
            if any(snapshot.inflight for snapshot in manifest.snapshots):
                config = replace(
                    other.settings.coordinator, unaligned=False, aligned_timeout_ms=None
                )
                other.settings = replace(other.settings, coordinator=config)
                other.checkers.cuts.check(manifest, None)
                assert invariant(other) == "I3"
                return
    raise AssertionError("no seed has rows in flight any more")


# ---- the end


def test_a_job_that_never_ends_breaks_i25(monkeypatch: pytest.MonkeyPatch) -> None:
    """I25."""
    monkeypatch.setattr(world, "STEPS_MAX", 5)
    with pytest.raises(Violation, match="I25"):
        World(1, draw=calm).run()


def test_a_process_that_stays_breaks_i26(after: World) -> None:
    """I26."""
    next(iter(after.cluster.processes.values())).alive = True
    assert judged(after) == "I26"


def test_a_job_that_only_stops_breaks_i27(after: World) -> None:
    """I27."""
    for driver in after.cluster.drivers:
        driver.alive = False
    assert judged(after) == "I27"


def test_a_second_final_checkpoint_breaks_i27(after: World) -> None:
    """I27."""
    last = newest(after)
    after.checkers.manifests[CheckpointId(900)] = replace(last, checkpoint=CheckpointId(900))
    assert judged(after) == "I27"
