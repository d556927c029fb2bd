"""The checkpoint coordinator: triggers, answers, limits, endings."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from penstock.protocol import coordinator as machine
from penstock.protocol.coordinator import (
    Aborted,
    Completed,
    Coordinator,
    CoordinatorConfig,
    Discard,
    FailAttempt,
    Ignored,
    Late,
    Persist,
    Reason,
    SendAbort,
    SendTrigger,
    Subsume,
)
from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import SubtaskSnapshot

SUBTASKS = [SubtaskId(0, 0), SubtaskId(0, 1), SubtaskId(1, 0)]
E1, E2 = AttemptId(1), AttemptId(2)
T = TypeVar("T")


def only(actions: list[machine.Action], kind: type[T]) -> list[T]:
    return [action for action in actions if isinstance(action, kind)]


def running(now_ms: float = 0.0, **config: Any) -> Coordinator:
    options: dict[str, Any] = {"every_ms": 100, "timeout_ms": 1_000, "tolerable_failures": 99}
    made = Coordinator(CoordinatorConfig(**{**options, **config}))
    made.attempt_started(E1, SUBTASKS, CheckpointId(0), now_ms)
    return made


def ack(
    made: Coordinator, checkpoint: int, *subtasks: SubtaskId, attempt: AttemptId = E1, at: float = 0
) -> list[machine.Action]:
    parts = [SubtaskSnapshot(subtask, {}) for subtask in subtasks]
    return made.acked(attempt, CheckpointId(checkpoint), parts, at)


def complete(made: Coordinator, checkpoint: int, at: float) -> list[machine.Action]:
    ack(made, checkpoint, *SUBTASKS, at=at)
    return made.persisted(E1, CheckpointId(checkpoint), at)


# ---- triggering


def test_snapshots_are_triggered_periodically_with_increasing_ids() -> None:
    """B1, C1."""
    made = running()
    assert made.tick(99) == []
    assert made.tick(100) == [SendTrigger(CheckpointId(1), SnapshotKind.CHECKPOINT)]
    complete(made, 1, 150)
    assert made.tick(199) == []
    assert made.tick(200) == [SendTrigger(CheckpointId(2), SnapshotKind.CHECKPOINT)]


def test_a_person_may_ask_for_one_at_any_time() -> None:
    """C1."""
    made = running()
    assert only(made.request(10), SendTrigger)
    assert made.request(11) == []
    follow_up = complete(made, 1, 20)
    assert only(follow_up, SendTrigger) == [SendTrigger(CheckpointId(2), SnapshotKind.CHECKPOINT)]


def test_nothing_is_triggered_while_no_attempt_runs() -> None:
    """bug-A4, bug-A10."""
    made = Coordinator(CoordinatorConfig(every_ms=100))
    assert made.tick(1_000) == []
    assert made.request(1_000) == [Ignored(Late.NOT_RUNNING)]
    assert made.request_last(SnapshotKind.STOP, 1_000) == [Ignored(Late.NOT_RUNNING)]
    assert made.next_id == 1


def test_no_more_snapshots_are_pending_than_allowed() -> None:
    """B6, I26."""
    made = running(max_concurrent=2)
    for now in (100, 200, 300, 400):
        made.tick(now)
    assert [n for n, _ in made.live()] == [1, 2]


def test_the_pause_counts_from_the_end_of_the_last_snapshot() -> None:
    """B6."""
    made = running(min_pause_ms=500)
    made.tick(100)
    complete(made, 1, 300)
    assert made.tick(799) == []
    assert only(made.tick(800), SendTrigger)


def test_it_says_when_it_wants_to_be_woken() -> None:
    made = running()
    assert made.wake_ms(0) == 100
    made.tick(100)
    assert made.wake_ms(100) == 1_100
    complete(made, 1, 150)
    assert made.wake_ms(150) == 200


# ---- answers


def test_a_snapshot_is_complete_when_nobody_owes_and_the_metadata_is_durable() -> None:
    """C2, C3, I5, I9."""
    made = running()
    made.tick(100)
    assert ack(made, 1, SUBTASKS[0]) == []
    assert ack(made, 1, SUBTASKS[1]) == []
    (persist,) = ack(made, 1, SUBTASKS[2])
    assert isinstance(persist, Persist)
    assert set(persist.acks) == set(SUBTASKS)
    assert made.newest_completed == 0
    (completed,) = only(made.persisted(E1, CheckpointId(1), 120), Completed)
    assert completed.permit.checkpoint == 1
    assert made.newest_completed == 1


def test_an_ack_that_comes_twice_counts_once() -> None:
    """C2: who still owes is tracked, not how many answered."""
    made = running()
    made.tick(100)
    ack(made, 1, SUBTASKS[0])
    assert ack(made, 1, SUBTASKS[0]) == [Ignored(Late.DUPLICATE)]
    assert ack(made, 1, SUBTASKS[0]) == [Ignored(Late.DUPLICATE)]
    assert only(ack(made, 1, SUBTASKS[1]), Persist) == []


def test_an_ack_while_the_metadata_is_written_changes_nothing() -> None:
    made = running()
    made.tick(100)
    ack(made, 1, *SUBTASKS)
    assert ack(made, 1, SUBTASKS[0]) == [Ignored(Late.DUPLICATE)]


def test_acks_of_another_attempt_are_ignored() -> None:
    """C7, I18."""
    made = running()
    made.tick(100)
    assert ack(made, 1, *SUBTASKS, attempt=E2) == [Ignored(Late.OTHER_ATTEMPT)]
    assert made.declined(E2, CheckpointId(1), "late", 110) == [Ignored(Late.OTHER_ATTEMPT)]
    assert [n for n, _ in made.live()] == [1]


def test_a_late_ack_is_thrown_away_with_its_files_unless_the_snapshot_is_complete() -> None:
    """C4, bug-A1, I6."""
    made = running(timeout_ms=1_000)
    made.tick(100)
    made.tick(1_100)
    late = ack(made, 1, SUBTASKS[0], at=5_000)
    assert late == [Ignored(Late.UNKNOWN), Discard(CheckpointId(1))]
    complete(made, 2, 5_000)
    assert ack(made, 2, SUBTASKS[0], at=5_001) == [Ignored(Late.COMPLETED)]


def test_a_decline_aborts_and_the_next_one_is_triggered() -> None:
    """C4, bug-A8."""
    made = running()
    made.tick(100)
    actions = made.declined(E1, CheckpointId(1), "disk full", 250)
    (aborted,) = only(actions, Aborted)
    assert (aborted.reason, aborted.detail) == (Reason.DECLINED, "disk full")
    assert aborted.owed == frozenset(SUBTASKS)
    assert only(actions, SendAbort) == [SendAbort(CheckpointId(1))]
    assert only(actions, Discard) == [Discard(CheckpointId(1))]
    assert only(actions, SendTrigger) == [SendTrigger(CheckpointId(2), SnapshotKind.CHECKPOINT)]


@pytest.mark.parametrize(("now", "expired"), [(1_099, False), (1_100, True), (1_101, True)])
def test_a_snapshot_expires_at_its_timeout_and_not_before(now: float, expired: bool) -> None:
    """B6, C4."""
    made = running()
    made.tick(100)
    aborted = only(made.tick(now), Aborted)
    assert [a.reason for a in aborted] == ([Reason.TIMEOUT] if expired else [])


def test_the_last_ack_at_the_moment_of_the_timeout_is_in_time_if_it_is_heard_first() -> None:
    made = running()
    made.tick(100)
    ack(made, 1, *SUBTASKS, at=1_100)
    assert only(made.tick(1_100), Aborted) == []
    assert only(made.persisted(E1, CheckpointId(1), 1_200), Completed)


# ---- endings


def test_completing_one_subsumes_older_ones_and_keeps_as_many_as_wanted() -> None:
    """C5, I8."""
    made = running(max_concurrent=3, keep=2)
    for now in (100, 200, 300):
        made.tick(now)
    actions = complete(made, 2, 320)
    (aborted,) = only(actions, Aborted)
    assert (aborted.checkpoint, aborted.reason) == (1, Reason.SUBSUMED)
    assert [n for n, _ in made.live()] == [3]
    assert only(actions, Subsume) == []
    complete(made, 3, 330)
    made.tick(500)
    assert only(complete(made, 4, 510), Subsume) == [Subsume((CheckpointId(2),))]
    assert made.completed == [3, 4]


def test_a_subsumed_snapshot_is_no_failure_and_neither_is_its_decline() -> None:
    """bug-A7."""
    made = running(max_concurrent=2, tolerable_failures=0)
    made.tick(100)
    made.tick(200)
    assert only(complete(made, 2, 220), FailAttempt) == []
    assert made.declined(E1, CheckpointId(1), "late", 230) == [Ignored(Late.UNKNOWN)]
    assert made.failures_in_a_row == 0


def test_too_many_failures_in_a_row_fail_the_attempt_and_a_success_forgives_them() -> None:
    """B6."""
    made = running(tolerable_failures=1)
    made.tick(100)
    assert only(made.declined(E1, CheckpointId(1), "no", 110), FailAttempt) == []
    made.tick(200)
    complete(made, 2, 210)
    made.tick(300)
    assert only(made.declined(E1, CheckpointId(3), "no", 310), FailAttempt) == []
    made.tick(400)
    (failed,) = only(made.declined(E1, CheckpointId(4), "no", 410), FailAttempt)
    assert "2 in a row" in failed.reason


def test_metadata_that_could_not_be_written_aborts_the_snapshot() -> None:
    """C3."""
    made = running()
    made.tick(100)
    ack(made, 1, *SUBTASKS)
    (aborted,) = only(made.persist_failed(CheckpointId(1), "disk full", 120), Aborted)
    assert aborted.reason is Reason.NOT_DURABLE
    assert made.newest_completed == 0
    assert made.persisted(E1, CheckpointId(1), 130) == [Ignored(Late.UNKNOWN)]


def test_the_end_of_an_attempt_aborts_what_is_collected_but_not_what_is_persisted() -> None:
    """R1: whether a persisting one is complete is for storage to say."""
    made = running(max_concurrent=2)
    made.tick(100)
    made.tick(200)
    ack(made, 1, *SUBTASKS)
    actions = made.attempt_ended(210)
    assert [a.checkpoint for a in only(actions, Aborted)] == [2]
    assert only(made.persisted(E1, CheckpointId(1), 220), Completed)
    assert made.failures_in_a_row == 0


def test_a_new_attempt_goes_on_with_new_ids_and_forgets_what_it_went_back_behind() -> None:
    """C7, I7."""
    made = running(keep=5)
    for checkpoint in (1, 2):
        made.tick(100 * checkpoint)
        complete(made, checkpoint, 100 * checkpoint + 10)
    made.attempt_ended(250)
    made.attempt_started(E2, SUBTASKS, CheckpointId(1), 300)
    assert made.completed == [1]
    assert made.tick(400) == [SendTrigger(CheckpointId(3), SnapshotKind.CHECKPOINT)]


# ---- the last snapshot


@pytest.mark.parametrize("kind", [SnapshotKind.FINAL, SnapshotKind.STOP])
def test_a_last_snapshot_waits_for_the_pending_one_and_is_taken_once(kind: SnapshotKind) -> None:
    """B10, I27, bug-A11."""
    made = running()
    made.tick(100)
    assert made.request_last(kind, 110) == []
    actions = complete(made, 1, 120)
    assert only(actions, SendTrigger) == [SendTrigger(CheckpointId(2), kind)]
    actions = complete(made, 2, 130)
    assert [c.kind for c in only(actions, Completed)] == [kind]
    assert made.tick(10_000) == []
    assert made.request_last(kind, 10_000) == [Ignored(Late.STOPPING)]
    assert made.request(10_000) == [Ignored(Late.STOPPING)]


def test_a_last_snapshot_that_fails_is_tried_again() -> None:
    """bug-A17: nobody waits for ever."""
    made = running()
    made.request_last(SnapshotKind.FINAL, 50)
    actions = made.declined(E1, CheckpointId(1), "disk full", 60)
    assert only(actions, SendTrigger) == [SendTrigger(CheckpointId(2), SnapshotKind.FINAL)]
