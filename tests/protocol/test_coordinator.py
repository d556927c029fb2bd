"""The checkpoint coordinator: what is triggered when, and what becomes of each snapshot."""

from __future__ import annotations

import pytest

from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator import (
    Aborted,
    Answer,
    Completed,
    Coordinator,
    CoordinatorConfig,
    Discard,
    Expedite,
    FailAttempt,
    Ignored,
    Late,
    Persist,
    Persisting,
    Reason,
    SendAbort,
    SendTrigger,
    Subsume,
)
from penstock.protocol.ids import AttemptId, CheckpointId, RequestId, SubtaskId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.protocol.recovery import IDS_RESERVED
from penstock.protocol.snapshot import SubtaskSnapshot

X, Y = SubtaskId(0, 0), SubtaskId(0, 1)
E1, E2 = AttemptId(1), AttemptId(2)
R1, R2, R3 = (RequestId(number) for number in (1, 2, 3))
CHECKPOINT, FINAL, STOP = SnapshotKind.CHECKPOINT, SnapshotKind.FINAL, SnapshotKind.STOP


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def part(subtask: SubtaskId) -> SubtaskSnapshot:
    return SubtaskSnapshot(subtask, {})


def running(next_id: int = 1, completed: tuple = (), **config: object) -> Coordinator:
    """An attempt of two subtasks runs since time 0."""
    given = {"every_ms": 100, **config}
    made = Coordinator(CoordinatorConfig(**given), n(next_id), completed)  # type: ignore[arg-type]
    made.attempt_started(E1, (X, Y), max(completed, default=n(0)), 0.0)
    return made


def triggered(**config: object) -> Coordinator:
    """Snapshot 1 collects since time 100."""
    made = running(**config)
    assert made.tick(100.0) == [SendTrigger(SnapshotOrder(n(1), CHECKPOINT))]
    return made


def complete(made: Coordinator, checkpoint: CheckpointId, now_ms: float) -> list:
    made.acked(E1, checkpoint, [part(X), part(Y)], now_ms)
    return made.persisted(E1, checkpoint, now_ms)


def answers(actions: list) -> dict[RequestId, int]:
    return {each.request: each.checkpoint for each in actions if isinstance(each, Answer)}


def kinds(actions: list) -> list[type]:
    return [type(action) for action in actions]


# ---- triggering


def test_it_triggers_periodically_with_ids_that_grow() -> None:
    """C1, B1."""
    made = running()
    assert made.tick(99.9) == []
    assert made.tick(100.0) == [SendTrigger(SnapshotOrder(n(1), CHECKPOINT))]
    complete(made, n(1), 130.0)
    assert made.tick(199.9) == []
    assert made.tick(200.0) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]


def test_nothing_is_triggered_before_every_subtask_runs() -> None:
    """bug-A10, bug-A4: without a running attempt there is no trigger and no id is used."""
    made = Coordinator(CoordinatorConfig(every_ms=100))
    assert made.tick(1_000.0) == []
    assert made.request(R1, 1_000.0) == []
    assert made.request_last(STOP, 1_000.0) == [Ignored(Late.NOT_RUNNING)]
    assert made.next_id == 1
    assert made.wake_ms(0.0) is None


def test_after_the_attempt_has_ended_nothing_is_triggered() -> None:
    """bug-A4."""
    made = running()
    made.attempt_ended(50.0)
    assert made.tick(500.0) == []
    assert made.next_id == 1


def test_a_request_does_not_wait_for_the_period() -> None:
    """C1."""
    made = running(every_ms=None)
    assert made.tick(10_000.0) == []
    trigger = SendTrigger(SnapshotOrder(n(1), CHECKPOINT))
    assert made.request(R1, 10_000.0) == [trigger, Answer(R1, n(1))]


def test_a_request_while_one_is_pending_is_served_afterwards() -> None:
    """C1, B6, bug-A5: three requests, an abort, and all of them run."""
    made = running(every_ms=None, tolerable_failures=5)
    assert answers(made.request(R1, 0.0)) == {R1: 1}
    assert made.request(R2, 1.0) == []
    assert made.request(R3, 2.0) == []
    assert answers(made.declined(E1, n(1), "no", 3.0)) == {R2: 2}
    assert answers(complete(made, n(2), 4.0)) == {R3: 3}
    assert kinds(complete(made, n(3), 5.0)) == [Completed]


def test_who_asks_while_a_periodic_one_is_under_way_gets_the_next() -> None:
    """C1: it began before they asked, and may be without what they want to have in it."""
    made = triggered()
    assert made.request(R1, 110.0) == []
    assert made.request(R2, 111.0) == []
    assert answers(complete(made, n(1), 120.0)) == {R1: 2}
    assert answers(complete(made, n(2), 130.0)) == {R2: 3}


def test_a_request_outlives_the_attempt() -> None:
    """C1, R1: nothing was triggered for it yet; the next attempt does so, however long its period is."""
    made = triggered(every_ms=100)
    made.request(R1, 110.0)
    assert answers(made.attempt_ended(120.0)) == {}
    assert made.request(R2, 130.0) == []
    assert answers(made.attempt_started(E2, (X, Y), n(0), 200.0)) == {R1: 2}
    made.acked(E2, n(2), [part(X), part(Y)], 210.0)
    assert answers(made.persisted(E2, n(2), 210.0)) == {R2: 3}


def test_the_last_snapshot_is_the_answer_to_all_that_are_left() -> None:
    """C1: after it there is none."""
    made = triggered()
    made.request(R1, 110.0)
    made.request(R2, 110.0)
    made.request_last(STOP, 111.0)
    assert answers(complete(made, n(1), 120.0)) == {R1: 2, R2: 2}
    assert answers(made.request(R3, 125.0)) == {R3: 2}


def test_at_most_max_concurrent_are_pending() -> None:
    """B6."""
    made = running(max_concurrent=2)
    assert made.tick(100.0) == [SendTrigger(SnapshotOrder(n(1), CHECKPOINT))]
    assert made.tick(200.0) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]
    assert made.tick(300.0) == []
    assert SendTrigger(SnapshotOrder(n(3), CHECKPOINT)) in complete(made, n(1), 310.0)


def test_a_persisting_snapshot_still_counts_as_pending() -> None:
    """B6."""
    made = triggered()
    made.acked(E1, n(1), [part(X), part(Y)], 110.0)
    assert made.tick(500.0) == []


@pytest.mark.parametrize(("now_ms", "due"), [(179.9, False), (180.0, True), (180.1, True)])
def test_the_pause_between_two_is_kept(now_ms: float, due: bool) -> None:
    """B6."""
    made = triggered(every_ms=10, min_pause_ms=50)
    made.tick(100.0)
    complete(made, n(1), 130.0)
    assert (made.tick(now_ms) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]) is due


def test_the_pause_holds_for_requests_too() -> None:
    """B6."""
    made = running(every_ms=None, min_pause_ms=50)
    made.request(R1, 0.0)
    complete(made, n(1), 10.0)
    assert made.request(R2, 20.0) == []
    assert made.wake_ms(20.0) == 60.0
    assert answers(made.tick(60.0)) == {R2: 2}


# ---- timeouts


@pytest.mark.parametrize(("now_ms", "expired"), [(1099.0, False), (1100.0, True), (1101.0, True)])
def test_a_snapshot_expires_at_its_timeout(now_ms: float, expired: bool) -> None:
    """B6, C4: at t-1, t and t+1."""
    made = running(every_ms=100, timeout_ms=1_000)
    made.tick(100.0)
    actions = made.tick(now_ms)
    assert (SendAbort(n(1)) in actions) is expired
    if expired:
        aborted = next(a for a in actions if isinstance(a, Aborted))
        assert aborted.reason is Reason.TIMEOUT
        assert aborted.owed == {X, Y}
        assert Discard(n(1)) in actions


def test_the_last_ack_before_the_timeout_completes() -> None:
    """B6: persisting does not expire; whether it exists is for storage to say."""
    made = running(timeout_ms=1_000)
    made.tick(100.0)
    assert kinds(made.acked(E1, n(1), [part(X), part(Y)], 1099.0)) == [Persist]
    assert made.tick(2_000.0) == []


def test_a_late_ack_of_an_expired_snapshot_frees_its_files() -> None:
    """C4, bug-A1: chk 1 stays aborted and its files go."""
    made = running(timeout_ms=1_000, tolerable_failures=3)
    made.tick(100.0)
    made.acked(E1, n(1), [part(X)], 200.0)
    made.tick(1_100.0)
    before = dict(made.unfinished), list(made.completed), made.failures_in_a_row
    assert made.acked(E1, n(1), [part(Y)], 9_000.0) == [Ignored(Late.UNKNOWN), Discard(n(1))]
    assert (dict(made.unfinished), list(made.completed), made.failures_in_a_row) == before


# ---- acknowledgements


def test_a_snapshot_is_complete_when_nobody_owes_and_the_metadata_is_durable() -> None:
    """C2, C3."""
    made = triggered()
    assert made.acked(E1, n(1), [part(X)], 110.0) == []
    (persist,) = made.acked(E1, n(1), [part(Y)], 120.0)
    assert isinstance(persist, Persist)
    assert persist.acks.keys() == {X, Y}
    assert made.newest_completed == 0
    (completed,) = made.persisted(E1, n(1), 130.0)
    assert completed.permit == CommitPermit(E1, n(1))
    assert made.newest_completed == 1


def test_a_duplicate_ack_counts_once() -> None:
    """C2: who still owes is tracked, not how many answered."""
    made = triggered()
    made.acked(E1, n(1), [part(X)], 110.0)
    assert made.acked(E1, n(1), [part(X)], 111.0) == [Ignored(Late.DUPLICATE)]
    assert made.unfinished[n(1)].owed == {Y}  # type: ignore[union-attr]


def test_acks_after_all_have_come_change_nothing() -> None:
    """I6."""
    made = triggered()
    made.acked(E1, n(1), [part(X), part(Y)], 110.0)
    assert made.acked(E1, n(1), [part(X)], 111.0) == [Ignored(Late.DUPLICATE)]
    made.persisted(E1, n(1), 112.0)
    assert made.acked(E1, n(1), [part(X)], 113.0) == [Ignored(Late.COMPLETED)]
    assert made.persisted(E1, n(1), 114.0) == [Ignored(Late.UNKNOWN)]


def test_an_ack_of_another_attempt_is_ignored() -> None:
    """C7."""
    made = triggered()
    assert made.acked(E2, n(1), [part(X), part(Y)], 110.0) == [Ignored(Late.OTHER_ATTEMPT)]
    assert made.declined(E2, n(1), "no", 110.0) == [Ignored(Late.OTHER_ATTEMPT)]
    assert n(1) in made.unfinished


def test_an_ack_of_a_subtask_that_is_not_asked_for_does_not_count() -> None:
    made = triggered()
    assert made.acked(E1, n(1), [part(SubtaskId(9, 9))], 110.0) == [Ignored(Late.DUPLICATE)]


def test_files_of_one_pending_snapshot_survive_answers_to_another() -> None:
    """bug-A2: two are pending, acks come in any order, nothing pending is deleted."""
    made = running(max_concurrent=2)
    made.tick(100.0)
    made.tick(200.0)
    actions = made.acked(E1, n(2), [part(X)], 210.0) + made.acked(E1, n(1), [part(Y)], 211.0)
    assert not [a for a in actions if isinstance(a, Discard)]
    assert kinds(made.acked(E1, n(1), [part(X)], 212.0)) == [Persist]


# ---- failures


def test_a_decline_aborts_everywhere_and_frees_the_files() -> None:
    """C4."""
    made = triggered(tolerable_failures=1)
    actions = made.declined(E1, n(1), "disk full", 110.0)
    assert kinds(actions) == [SendAbort, Aborted, Discard]
    assert actions[1].reason is Reason.DECLINED
    assert actions[1].detail == "disk full"
    assert made.live() == ()


def test_the_next_one_comes_although_one_failed() -> None:
    """bug-A8, I25."""
    made = triggered(tolerable_failures=1)
    made.declined(E1, n(1), "no", 110.0)
    assert made.tick(200.0) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]


def test_more_failures_in_a_row_than_tolerated_fail_the_attempt() -> None:
    """B6."""
    made = triggered(tolerable_failures=1, every_ms=100)
    assert FailAttempt not in kinds(made.declined(E1, n(1), "no", 110.0))
    made.tick(200.0)
    actions = made.declined(E1, n(2), "no", 210.0)
    assert kinds(actions) == [SendAbort, Aborted, Discard, FailAttempt]
    assert "2 in a row, 1 tolerated" in actions[-1].reason


@pytest.mark.parametrize("last", [False, True])
def test_an_attempt_that_is_to_fail_gets_no_new_snapshot(last: bool) -> None:
    """B6, C6: one that is due at that very moment would be begun by nobody and never end."""
    made = triggered(timeout_ms=1_000)
    if last:
        made.request_last(STOP, 200.0)
    else:
        made.request(R1, 200.0)
    actions = made.tick(1_100.0)
    assert kinds(actions) == [SendAbort, Aborted, Discard, FailAttempt]
    assert made.tick(5_000.0) == []
    made.attempt_ended(5_000.0)
    begun = made.attempt_started(E2, (X, Y), n(0), 6_000.0)
    assert SendTrigger(SnapshotOrder(n(2), CHECKPOINT)) in [*begun, *made.tick(6_100.0)]


def test_a_success_forgives_the_failures_before_it() -> None:
    """B6."""
    made = triggered(tolerable_failures=1)
    made.declined(E1, n(1), "no", 110.0)
    made.tick(200.0)
    complete(made, n(2), 210.0)
    made.tick(300.0)
    assert FailAttempt not in kinds(made.declined(E1, n(3), "no", 310.0))


def test_a_decline_of_a_snapshot_that_is_over_counts_for_nothing() -> None:
    """bug-A7: 2 completes, then declines of 1 and 2 come."""
    made = running(max_concurrent=2)
    made.tick(100.0)
    made.tick(200.0)
    complete(made, n(2), 210.0)
    for late in (n(1), n(2)):
        assert made.declined(E1, late, "late", 220.0) == [Ignored(Late.UNKNOWN)]
    assert made.failures_in_a_row == 0


def test_metadata_that_could_not_be_written_aborts() -> None:
    """C3, C4."""
    made = triggered(tolerable_failures=1)
    made.acked(E1, n(1), [part(X), part(Y)], 110.0)
    actions = made.persist_failed(n(1), "disk full", 120.0)
    assert actions[1].reason is Reason.NOT_DURABLE
    assert made.newest_completed == 0
    assert made.persist_failed(n(1), "again", 130.0) == [Ignored(Late.UNKNOWN)]


def test_metadata_that_could_not_be_written_is_a_failed_checkpoint() -> None:
    """C4: a store that takes no metadata must not let a job run on for ever without a checkpoint."""
    made = triggered(tolerable_failures=1)
    for number, fails in ((1, False), (2, True)):
        made.acked(E1, n(number), [part(X), part(Y)], number * 100.0)
        actions = made.persist_failed(n(number), "disk full", number * 100.0 + 50)
        assert (FailAttempt in kinds(actions)) is fails
        made.tick(number * 100.0 + 100)
    (told,) = [action for action in actions if isinstance(action, FailAttempt)]
    assert "its metadata could not be written (disk full); 2 in a row" in told.reason


# ---- subsuming and keeping


def test_completing_one_ends_every_older_one() -> None:
    """C5, I8."""
    made = running(max_concurrent=3)
    for now_ms in (100.0, 200.0, 300.0):
        made.tick(now_ms)
    actions = complete(made, n(2), 310.0)
    aborted = [a for a in actions if isinstance(a, Aborted)]
    assert [(a.checkpoint, a.reason) for a in aborted] == [(1, Reason.SUBSUMED)]
    assert made.live()[0].id == 3
    assert made.failures_in_a_row == 0


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_as_many_as_asked_for_are_kept(keep: int) -> None:
    """C5."""
    made = running(keep=keep)
    gone: list[int] = []
    for i in range(1, 6):
        made.tick(i * 100.0)
        for action in complete(made, n(i), i * 100.0 + 10):
            if isinstance(action, Subsume):
                gone += action.checkpoints
    assert made.completed == list(range(6 - keep, 6))
    assert gone == list(range(1, 6 - keep))


def test_one_that_becomes_durable_after_a_newer_one_is_kept_in_order() -> None:
    """C5: the store took longer over 1 than over 2."""
    made = running(max_concurrent=2, keep=1)
    made.tick(100.0)
    made.tick(200.0)
    made.acked(E1, n(1), [part(X), part(Y)], 210.0)
    complete(made, n(2), 220.0)
    actions = made.persisted(E1, n(1), 230.0)
    assert Subsume((n(1),)) in actions
    assert made.newest_completed == 2


# ---- attempts


def test_the_end_of_an_attempt_aborts_what_collects_and_keeps_what_persists() -> None:
    """C4: storage decides about the one whose metadata is being written."""
    made = running(max_concurrent=2)
    made.tick(100.0)
    made.tick(200.0)
    made.acked(E1, n(1), [part(X), part(Y)], 210.0)
    actions = made.attempt_ended(220.0)
    assert [a.checkpoint for a in actions if isinstance(a, Aborted)] == [2]
    assert [a.checkpoint for a in actions if isinstance(a, Discard)] == [2]
    assert isinstance(made.unfinished[n(1)], Persisting)
    (completed,) = made.persisted(E1, n(1), 230.0)
    assert completed.permit == CommitPermit(E1, n(1))


def test_the_end_of_an_attempt_is_no_failure_of_its_snapshots() -> None:
    made = triggered()
    made.attempt_ended(110.0)
    assert made.failures_in_a_row == 0


def test_ids_go_on_in_the_next_attempt() -> None:
    """C1, C7, I7, bug-E18: no id is used twice, and none is skipped within a driver's life."""
    made = triggered()
    made.attempt_ended(110.0)
    made.attempt_started(E2, (X, Y), n(0), 200.0)
    assert made.tick(300.0) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]


def test_a_new_attempt_forgets_what_is_newer_than_it_restored() -> None:
    """R1: after a fall-back the newer ones are no restore points any more."""
    made = running(next_id=9, completed=(n(5), n(8)))
    made.attempt_ended(10.0)
    made.attempt_started(E2, (X, Y), n(5), 20.0)
    assert made.completed == [5]


def test_a_driver_never_uses_ids_that_it_has_not_reserved() -> None:
    """C7, I7: another driver begins above the reserved ones; every snapshot so far was given up."""
    made = running(tolerable_failures=1_000, next_id=1)
    made.ids_until = n(3)
    for now_ms, checkpoint in ((100.0, 1), (200.0, 2)):
        assert made.tick(now_ms) == [SendTrigger(SnapshotOrder(n(checkpoint), CHECKPOINT))]
        made.declined(E1, n(checkpoint), "no", now_ms + 1)
    (failed,) = made.tick(300.0)
    assert isinstance(failed, FailAttempt)
    assert made.next_id == 3


def test_a_completed_checkpoint_reserves_more_ids() -> None:
    """C7: its metadata says so."""
    made = triggered()
    made.ids_until = n(2)
    complete(made, n(1), 110.0)
    assert made.ids_until == 1 + IDS_RESERVED


@pytest.mark.parametrize("tolerable", [0, 150, 1_000])
def test_the_ids_that_are_reserved_last_for_all_failures_that_are_tolerated(tolerable: int) -> None:
    """B6, C7: the attempt ends for what was configured, and not for want of ids."""
    made = running(tolerable_failures=tolerable)
    made.ids_until = n(1 + made.config.ids_reserved)
    failures, now_ms = 0, 0.0
    failed: list[FailAttempt] = []
    while not failed:
        now_ms += 100.0
        (trigger,) = made.tick(now_ms)
        assert isinstance(trigger, SendTrigger), trigger
        actions = made.declined(E1, trigger.order.id, "disk full", now_ms + 1)
        failures += 1
        failed = [action for action in actions if isinstance(action, FailAttempt)]
    assert failures == tolerable + 1
    assert f"{tolerable} tolerated" in failed[0].reason


def test_a_completed_checkpoint_reserves_ids_for_tolerated_failures_too() -> None:
    """C7."""
    made = triggered(tolerable_failures=500)
    made.ids_until = n(2)
    complete(made, n(1), 110.0)
    assert made.ids_until == 1 + IDS_RESERVED + 500


# ---- last snapshots


def test_a_last_snapshot_is_the_only_one_from_then_on() -> None:
    """B10: when all sources have ended there is one more, and only one."""
    made = running()
    assert made.request_last(FINAL, 10.0) == [SendTrigger(SnapshotOrder(n(1), FINAL))]
    assert made.request_last(FINAL, 11.0) == [Ignored(Late.STOPPING)]
    assert answers(made.request(R1, 12.0)) == {R1: 1}
    assert kinds(complete(made, n(1), 20.0)) == [Completed]
    assert made.request(R2, 21.0) == [Ignored(Late.STOPPING)]
    assert made.tick(10_000.0) == []


def test_a_last_snapshot_waits_for_those_under_way() -> None:
    made = triggered()
    assert made.request_last(STOP, 110.0) == []
    assert SendTrigger(SnapshotOrder(n(2), STOP)) in complete(made, n(1), 120.0)


def test_a_last_snapshot_that_fails_is_tried_again() -> None:
    """bug-A17: one subtask declines, the job goes on until it succeeds."""
    made = running(tolerable_failures=3)
    made.request_last(STOP, 10.0)
    assert SendTrigger(SnapshotOrder(n(2), STOP)) in made.declined(E1, n(1), "no", 20.0)


@pytest.mark.parametrize("first", [STOP, FINAL])
def test_end_of_input_and_a_stop_in_one_tick_end_the_job_once(first: SnapshotKind) -> None:
    """bug-A11, all orders: nothing is taken that nobody needs, FINAL wins over STOP."""
    second = FINAL if first is STOP else STOP
    made = triggered()
    made.request_last(first, 110.0)
    made.request_last(second, 110.0)
    assert SendTrigger(SnapshotOrder(n(2), FINAL)) in complete(made, n(1), 120.0)


def test_a_new_attempt_has_no_last_snapshot_yet() -> None:
    made = running()
    made.request_last(STOP, 10.0)
    made.attempt_ended(20.0)
    made.attempt_started(E2, (X, Y), n(0), 30.0)
    assert made.last_kind is None
    assert made.tick(130.0) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]


# ---- the clock


def test_it_says_when_it_wants_to_be_woken() -> None:
    made = running(timeout_ms=1_000, max_concurrent=2)
    assert made.wake_ms(0.0) == 100.0
    made.tick(100.0)
    assert made.wake_ms(100.0) == 200.0
    made.tick(200.0)
    assert made.wake_ms(200.0) == 1_100.0


# ---- unaligned


def test_unaligned_checkpoints_are_urgent_from_the_start() -> None:
    """B7."""
    made = running(unaligned=True)
    assert made.tick(100.0) == [SendTrigger(SnapshotOrder(n(1), CHECKPOINT, urgent=True))]
    assert made.live() == (SnapshotOrder(n(1), CHECKPOINT, urgent=True),)


def test_with_no_patience_for_alignment_a_checkpoint_is_urgent_from_the_start() -> None:
    """B8: there is nothing to wait for, so nobody is told twice."""
    made = running(aligned_timeout_ms=0.0)
    assert made.tick(100.0) == [SendTrigger(SnapshotOrder(n(1), CHECKPOINT, urgent=True))]
    assert made.tick(101.0) == []
    made = running(aligned_timeout_ms=0.0)
    assert made.request_last(FINAL, 10.0) == [SendTrigger(SnapshotOrder(n(1), FINAL))], "B9"


@pytest.mark.parametrize(("now_ms", "hurries"), [(149.0, False), (150.0, True), (151.0, True)])
def test_a_checkpoint_that_takes_too_long_to_align_is_expedited(
    now_ms: float, hurries: bool
) -> None:
    """B8, bug-B8: at t-1, t and t+1."""
    made = triggered(aligned_timeout_ms=50.0)
    assert made.wake_ms(100.0) == 150.0
    assert made.tick(now_ms) == (
        [Expedite(SnapshotOrder(n(1), CHECKPOINT, urgent=True))] if hurries else []
    )
    assert made.live() == (SnapshotOrder(n(1), CHECKPOINT, urgent=hurries),)
    assert made.tick(now_ms + 100) == (
        [] if hurries else [Expedite(SnapshotOrder(n(1), CHECKPOINT, urgent=True))]
    )


def test_a_checkpoint_that_is_aligned_in_time_is_never_expedited() -> None:
    """B8."""
    made = triggered(aligned_timeout_ms=50.0)
    made.acked(E1, n(1), [part(X), part(Y)], 149.0)
    assert made.tick(151.0) == []


@pytest.mark.parametrize("kind", [FINAL, STOP])
def test_a_last_snapshot_is_always_aligned(kind: SnapshotKind) -> None:
    """B9: nothing of it is left in flight."""
    made = running(unaligned=True)
    assert made.request_last(kind, 10.0) == [SendTrigger(SnapshotOrder(n(1), kind))]
    made = running(aligned_timeout_ms=50.0)
    made.request_last(kind, 10.0)
    assert made.tick(70.0) == []


def test_after_too_much_in_flight_the_next_checkpoint_is_aligned_and_nothing_is_counted() -> None:
    """B7, I26: once; then they are unaligned again."""
    made = running(unaligned=True, aligned_timeout_ms=None)
    made.tick(100.0)
    actions = made.declined(E1, n(1), "too much", 110.0, overflow=True)
    aborted = next(a for a in actions if isinstance(a, Aborted))
    assert aborted.reason is Reason.OVERFLOW
    assert not any(isinstance(a, FailAttempt) for a in actions)
    assert made.tick(200.0) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]
    assert SendTrigger(SnapshotOrder(n(3), CHECKPOINT, urgent=True)) in [
        *complete(made, n(2), 210.0),
        *made.tick(300.0),
    ]


def test_an_overflow_under_aligned_timeout_is_followed_by_one_that_is_not_expedited() -> None:
    """B8."""
    made = triggered(aligned_timeout_ms=50.0)
    made.tick(150.0)
    made.declined(E1, n(1), "too much", 160.0, overflow=True)
    assert made.tick(200.0) == [SendTrigger(SnapshotOrder(n(2), CHECKPOINT))]
    assert made.tick(260.0) == []


# ---- what a snapshot builds on


def bases(made: Coordinator) -> dict[int, int]:
    return {order.id: order.base for order in made.live()}


def test_a_snapshot_builds_on_the_newest_that_this_attempt_completed() -> None:
    """S6, bug-D1: never on one that is not complete, however new it is."""
    made = triggered(incremental=True, max_concurrent=3, tolerable_failures=5)
    made.tick(200.0)
    assert bases(made) == {1: 0, 2: 0}
    complete(made, n(1), 210.0)
    made.tick(310.0)
    assert bases(made) == {2: 0, 3: 1}
    made.declined(E1, n(2), "no", 320.0)
    made.tick(420.0)
    assert bases(made) == {3: 1, 4: 1}
    complete(made, n(4), 430.0)
    made.tick(530.0)
    assert bases(made) == {5: 4}


def test_a_snapshot_of_an_attempt_that_was_restored_builds_on_what_it_was_restored_from() -> None:
    """S6, R1: its subtasks have the state of that one, and of no newer one that an earlier attempt completed."""
    made = running(incremental=True)
    made.tick(100.0)
    complete(made, n(1), 110.0)
    made.tick(210.0)
    made.acked(E1, n(2), [part(X), part(Y)], 220.0)
    made.attempt_ended(230.0)
    made.persisted(E1, n(2), 240.0)
    made.attempt_started(E2, (X, Y), n(1), 300.0)
    made.tick(400.0)
    assert bases(made) == {3: 1}


def test_a_job_that_begins_builds_on_nothing() -> None:
    """S6, T4: also where it was restored from another job's checkpoint: those are not its files."""
    made = running(incremental=True)
    made.completed = [n(7)]
    made.attempt_started(E2, (X, Y), n(0), 0.0)
    made.tick(100.0)
    assert bases(made) == {1: 0}


def test_without_increments_every_snapshot_is_whole() -> None:
    """S6: `incremental=False`."""
    made = running(completed=(n(4),), next_id=5)
    made.tick(100.0)
    assert bases(made) == {5: 0}
    assert made.pinned == frozenset()


def test_an_order_that_is_said_again_builds_on_the_same() -> None:
    """B8, S6: subtasks that heard the first word of it and those that heard the second must agree."""
    made = running(incremental=True, max_concurrent=2, aligned_timeout_ms=500.0)
    made.tick(100.0)
    made.tick(200.0)
    complete(made, n(1), 210.0)
    expedited = [each.order for each in made.tick(700.0) if isinstance(each, Expedite)]
    assert expedited == [SnapshotOrder(n(2), CHECKPOINT, urgent=True, base=n(0))]
    assert bases(made)[2] == 0


def test_the_base_of_an_unfinished_snapshot_is_pinned() -> None:
    """T4, bug-D1: until it is complete or given up; also when nobody knows yet whether it is complete."""
    made = running(incremental=True, completed=(n(4),), next_id=5, keep=1, max_concurrent=2)
    assert made.pinned == frozenset()
    made.tick(100.0)
    made.tick(200.0)
    assert made.pinned == {4}
    assert [a for a in complete(made, n(5), 210.0) if isinstance(a, Subsume)] == [Subsume((n(4),))]
    assert made.pinned == {4}, "6 still may refer to it"
    made.acked(E1, n(6), [part(X), part(Y)], 220.0)
    made.attempt_ended(230.0)
    assert made.pinned == {4}
    made.persist_failed(n(6), "no", 240.0)
    assert made.pinned == frozenset()
