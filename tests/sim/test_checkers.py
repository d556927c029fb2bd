"""A checker that cannot fail proves nothing: each one is fed a history that is wrong in one thing only.

The history is a real one, of a calm run of the simulator: everything in it is right until a test changes it.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.connectors.base import SinkContext
from penstock.ports.channel import Batch, End
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import (
    Abort,
    Committed,
    Deploy,
    Notify,
    SnapshotKind,
    SnapshotOrder,
    Sync,
    Trigger,
)
from penstock.shells.sim import cuts, world
from penstock.shells.sim.outside import SCHEMA, Transaction, batch_of
from penstock.shells.sim.world import Violation, World
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest
from tests.engine.kit import barrier
from tests.sim.kit import (
    DRIVER,
    any_transaction,
    calm,
    create,
    invariant,
    judged,
    newest,
    with_state,
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


# ---- messages


def trigger(checkpoint: int) -> Trigger:
    return Trigger(AttemptId(1), SnapshotOrder(CheckpointId(checkpoint), SnapshotKind.CHECKPOINT))


def test_an_id_that_goes_back_breaks_i7(after: World) -> None:
    """I7."""
    after.checkers.on_sent(0, trigger(902))
    after.checkers.on_sent(0, Abort(AttemptId(1), CheckpointId(902)))
    assert after.problem is None
    after.checkers.on_sent(0, trigger(901))
    assert invariant(after) == "I7"


def test_an_id_of_two_drivers_breaks_i7(after: World) -> None:
    """I7."""
    after.cluster.drivers *= 2
    after.checkers.on_sent(0, trigger(901))
    assert after.problem is None
    after.checkers.on_sent(1, trigger(901))
    assert invariant(after) == "I7"


def test_a_notice_before_the_metadata_breaks_i9(after: World) -> None:
    """I9."""
    after.checkers.on_sent(0, Notify(AttemptId(1), CheckpointId(901)))
    assert invariant(after) == "I9"


def test_a_table_that_calls_a_snapshot_complete_before_its_metadata_breaks_i9(after: World) -> None:
    """I9."""
    told = Sync(AttemptId(1), (), CheckpointId(901), newest(after).checkpoint)
    after.checkers.on_sent(0, told)
    assert after.problem is None
    after.checkers.on_sent(0, replace(told, completed=CheckpointId(901)))
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
                    after.checkers.on_answer(0, told)
    assert invariant(after) == "I10"


def test_a_transaction_that_becomes_visible_a_second_time_breaks_i10(after: World) -> None:
    """I10, bug-F17: a name that is used again, and the rows with it."""
    name, entry = any_transaction(after)
    after.table.prepared[name] = entry
    committer_of(after, entry).commit(name)
    assert invariant(after) == "I10"
    assert after.table.effects[name] == 2


def test_a_commit_that_is_repeated_after_a_failure_is_none_more(after: World) -> None:
    """I10: any number of calls, by any process, one effect."""
    name, entry = any_transaction(after)
    committer_of(after, entry).commit(name)
    committer_of(after, entry).commit(name)
    assert judged(after) == "none"


def test_a_commit_that_is_repeated_though_nothing_failed_breaks_i10(after: World) -> None:
    """I10: a committer that has done it need not be able to do it again."""
    name, entry = any_transaction(after)
    committer = committer_of(after, entry)
    committer.commit(name)
    committer.commit(name)
    assert invariant(after) == "I10"


def test_a_promise_that_is_not_kept_breaks_i10(after: World) -> None:
    """I10: every transaction that a checkpoint lists was made visible once."""
    after.table.effects[any_transaction(after)[0]] = 0
    assert judged(after) == "I10"


def committer_of(found: World, entry: Transaction) -> Any:
    sink = found.scenario.sinks[entry.operator]
    place = SinkContext("job", entry.operator, entry.index, 1, 9, SCHEMA, lambda _: None)
    return sink.committer(place)


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


def test_passing_over_a_sound_checkpoint_breaks_i7(after: World) -> None:
    """I7: of what a driver sees it takes the newest, whether or not anybody was told of it."""
    after.checkers.on_listed(DRIVER, after.disk.list())
    after.checkers.on_created(DRIVER, *restored_record(after, newest(after).checkpoint))
    assert after.problem is None
    after.checkers.on_created(DRIVER, *restored_record(after, CheckpointId(0)))
    assert invariant(after) == "I7"


def test_what_a_driver_could_not_see_is_not_passed_over(after: World) -> None:
    """I7: another one wrote it behind its back, and will find that it was overtaken."""
    gone = paths.metadata(newest(after).checkpoint)
    before = [name for name in after.disk.list() if name != gone]
    after.checkers.on_listed(DRIVER, before)
    older = CheckpointId(sorted(after.checkers.manifests)[-2])
    after.checkers.on_created(DRIVER, *restored_record(after, older))
    assert after.problem is None


def test_restoring_something_else_breaks_i24(after: World) -> None:
    """I24."""
    right = deploy(after, newest(after))
    after.checkers.on_sent(0, replace(right, snapshots=right.snapshots[1:]))
    assert invariant(after) == "I24"


def left_behind(found: World) -> None:
    """A later attempt begins with nothing, because it sees nothing."""
    found.checkers.on_listed(DRIVER, [])
    found.checkers.on_created(DRIVER, *restored_record(found, CheckpointId(0)))


def restored_record(found: World, restored: CheckpointId) -> tuple[str, bytes]:
    attempt = AttemptId(found.checkers.newest_attempt + 1)
    record = records.RestoredRecord(attempt, restored, CheckpointId(900), CheckpointId(800))
    return paths.restored(attempt), records.encode_restored(record)


def test_a_notice_of_a_void_checkpoint_breaks_i18(after: World) -> None:
    """I18."""
    left_behind(after)
    after.checkers.on_sent(0, Notify(AttemptId(1), newest(after).checkpoint))
    assert invariant(after) == "I18"


def test_a_commit_of_a_void_checkpoint_breaks_i18(after: World) -> None:
    """I18."""
    left_behind(after)
    after.table.effects.clear()
    after.checkers.on_commit(any_transaction(after)[0])
    assert invariant(after) == "I18"


# ---- storage


def test_deleting_a_file_of_a_checkpoint_that_exists_breaks_i12(after: World) -> None:
    """I12."""
    after.checkers.on_deleted(DRIVER, next(iter(with_state(after).files)))
    assert invariant(after) == "I12"


def test_deleting_a_checkpoint_that_is_to_be_kept_breaks_i12(after: World) -> None:
    """I12."""
    after.checkers.on_deleted(DRIVER, paths.metadata(newest(after).checkpoint))
    assert invariant(after) == "I12"


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
    barrier(CheckpointId(5)),
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
