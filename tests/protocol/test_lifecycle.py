"""The life of a job: workers come and go, attempts are deployed and fail, until the job ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from penstock.protocol import lifecycle, restart
from penstock.protocol.ids import AttemptId, CheckpointId, WorkerId
from penstock.protocol.lifecycle import (
    AttemptOver,
    AttemptRuns,
    CancelLaunch,
    ClaimAttempt,
    Ended,
    Gathering,
    JobEnded,
    JobMachine,
    LaunchWorker,
    LifecycleConfig,
    Outcome,
    RequestStop,
    Running,
    SendDeploy,
    SendDrop,
    SendLeave,
    SendStart,
)
from penstock.protocol.messages import SnapshotKind

A, B, C = (WorkerId(name) for name in "abc")
E1, E2 = AttemptId(1), AttemptId(2)
NONE = CheckpointId(0)
T = TypeVar("T")


def only(actions: list[lifecycle.Action], kind: type[T]) -> list[T]:
    return [action for action in actions if isinstance(action, kind)]


def begun(slots: int = 2, **config: Any) -> JobMachine:
    options: dict[str, Any] = {"strategy": restart.Fixed(5, 100)}
    machine = JobMachine(LifecycleConfig(slots, **{**options, **config}))
    machine.begin(0)
    return machine


def deploying(**config: Any) -> JobMachine:
    machine = begun(**config)
    machine.joined(A, 0, 10)
    machine.joined(B, 1, 20)
    machine.claimed(E1, NONE, None, 30)
    return machine


def running(**config: Any) -> JobMachine:
    machine = deploying(**config)
    machine.ready(A, E1, {"x": "1"}, 40)
    machine.ready(B, E1, {"y": "2"}, 50)
    return machine


# ---- coming to life


def test_nothing_is_claimed_before_every_slot_has_a_worker() -> None:
    """bug-I4."""
    machine = begun()
    assert machine.joined(A, 0, 10) == []
    assert machine.joined(B, 1, 20) == [ClaimAttempt()]


def test_nothing_runs_before_every_worker_is_ready() -> None:
    """bug-A10."""
    machine = deploying()
    assert machine.ready(A, E1, {"x": "1"}, 40) == []
    assert machine.ready(A, E1, {"x": "1"}, 41) == []
    actions = machine.ready(B, E1, {"y": "2"}, 50)
    assert [start.worker for start in only(actions, SendStart)] == [A, B]
    assert only(actions, SendStart)[0].endpoints == {0: {"x": "1"}, 1: {"y": "2"}}
    assert only(actions, AttemptRuns) == [AttemptRuns(E1, NONE)]


def test_a_start_that_was_lost_is_said_again_when_the_worker_says_ready_again() -> None:
    machine = running()
    assert [s.worker for s in only(machine.ready(A, E1, {}, 60), SendStart)] == [A]


def test_too_few_workers_fail_the_job_in_time_and_those_that_came_leave() -> None:
    """bug-I4, bug-I2."""
    machine = begun(slot_timeout_ms=1_000)
    machine.joined(A, 0, 10)
    assert machine.tick(999) == []
    actions = machine.tick(1_000)
    assert SendLeave(A) in actions
    actions = machine.left(A, "told to", 1_100)
    (ended,) = only(actions, JobEnded)
    assert ended.outcome is Outcome.FAILED
    assert "needs 2 workers" in ended.reason
    assert "only 1 registered" in ended.reason
    assert only(actions, CancelLaunch) == [CancelLaunch(0), CancelLaunch(1)]


def test_a_launch_that_fails_is_tried_again_with_growing_pauses_and_not_for_ever() -> None:
    machine = begun(slots=1)
    now, launch = 0.0, 0
    for _ in range(lifecycle.LAUNCH_FAILURES_MAX):
        assert only(machine.launch_ended(launch, "no", False, now), JobEnded) == []
        now += 1_000_000
        (again,) = only(machine.tick(now), LaunchWorker)
        launch = again.launch
        machine.phase = Gathering(now, now, now)
    (ended,) = only(machine.launch_ended(launch, "no python", False, now), JobEnded)
    assert "no python" in ended.reason


def test_a_launch_that_can_never_work_ends_the_job_at_once() -> None:
    machine = begun()
    machine.joined(A, 0, 10)
    actions = machine.launch_ended(1, "pyarrow is missing", True, 20)
    assert SendLeave(A) in actions


# ---- failures


def test_a_lost_worker_ends_the_attempt_and_the_others_stay() -> None:
    """R1, bug-I1: only the lost one is replaced; the survivor keeps its slot."""
    machine = running()
    actions = machine.left(A, "killed", 100)
    assert only(actions, AttemptOver) == [AttemptOver(E1)]
    assert only(actions, SendDrop) == [SendDrop(B, E1)]
    assert only(actions, SendLeave) == []
    machine.dropped(B, E1, 110)
    assert machine.tick(200) == []
    assert machine.joined(C, 0, 300) == [ClaimAttempt()]
    deploys = only(machine.claimed(E2, CheckpointId(3), None, 310), SendDeploy)
    assert {(d.worker, d.slot) for d in deploys} == {(C, 0), (B, 1)}


def test_a_spare_worker_takes_over_as_soon_as_the_delay_is_over() -> None:
    machine = begun(spare_workers=1)
    for launch, worker in enumerate((A, B, C)):
        machine.joined(worker, launch, 10)
    machine.claimed(E1, NONE, None, 30)
    machine.ready(A, E1, {}, 40)
    machine.ready(B, E1, {}, 50)
    machine.left(A, "killed", 100)
    machine.dropped(B, E1, 110)
    assert machine.tick(199) == []
    assert machine.tick(200) == [ClaimAttempt()]


def test_two_failures_in_one_tick_are_one_restart() -> None:
    """bug-A13."""
    machine = running()
    assert only(machine.attempt_failed(E1, "first", 100), AttemptOver)
    assert machine.attempt_failed(E1, "second", 100) == []
    assert machine.failures_ms == [100]


def test_a_failure_of_an_older_attempt_is_no_failure() -> None:
    """C7."""
    machine = running()
    assert machine.attempt_failed(AttemptId(0), "zombie", 100) == []
    assert isinstance(machine.phase, Running)


def test_the_next_attempt_waits_until_everyone_has_dropped_the_last_one() -> None:
    machine = running()
    machine.attempt_failed(E1, "oops", 100)
    machine.dropped(A, E1, 110)
    assert machine.tick(300) == []
    assert machine.dropped(B, E1, 310) == [ClaimAttempt()]


def test_who_does_not_drop_in_time_is_not_waited_for_where_a_spare_is_there() -> None:
    machine = begun(spare_workers=1)
    for launch, worker in enumerate((A, B, C)):
        machine.joined(worker, launch, 10)
    machine.claimed(E1, NONE, None, 30)
    machine.attempt_failed(E1, "oops", 100)
    machine.dropped(A, E1, 110)
    assert machine.tick(1_599) == []
    assert machine.tick(100 + lifecycle.DROP_PATIENCE_MS) == [ClaimAttempt()]


def test_what_was_lost_is_said_again() -> None:
    machine = deploying()
    machine.ready(A, E1, {}, 40)
    assert [d.worker for d in only(machine.repeat(), SendDeploy)] == [B]
    machine.attempt_failed(E1, "oops", 100)
    machine.dropped(A, E1, 110)
    assert machine.repeat() == [SendDrop(B, E1)]


def test_the_strategy_decides_when_it_is_enough() -> None:
    """R2."""
    machine = running(strategy=restart.Never())
    actions = machine.attempt_failed(E1, "ZeroDivisionError", 100)
    assert set(only(actions, SendLeave)) == {SendLeave(A), SendLeave(B)}
    machine.left(A, "", 110)
    (ended,) = only(machine.left(B, "", 120), JobEnded)
    assert ended.outcome is Outcome.FAILED
    assert "ZeroDivisionError" in ended.reason
    assert "switched off" in ended.reason


def test_a_worker_lost_while_a_claim_is_under_way_leads_back_to_gathering() -> None:
    machine = begun()
    machine.joined(A, 0, 10)
    machine.joined(B, 1, 20)
    machine.left(A, "killed", 25)
    assert machine.claimed(E1, NONE, None, 30) == []
    assert isinstance(machine.phase, Gathering)
    assert machine.joined(C, 0, 40) == [ClaimAttempt()]


def test_a_lost_worker_that_sparks_own_retry_does_not_bring_back_gets_a_new_launch() -> None:
    machine = running()
    machine.left(A, "killed", 100)
    late = 100 + lifecycle.REJOIN_PATIENCE_MS
    assert only(machine.tick(late - 1), LaunchWorker) == []
    actions = machine.tick(late)
    assert only(actions, CancelLaunch) == [CancelLaunch(0)]
    assert only(actions, LaunchWorker) == [LaunchWorker(2)]
    assert machine.joined(C, 0, late + 1) == [SendLeave(C), CancelLaunch(0)]


def test_a_job_of_spark_that_ended_is_launched_again_at_once() -> None:
    machine = running()
    machine.left(A, "cancelled in the UI", 100)
    assert LaunchWorker(2) in machine.launch_ended(0, "cancelled", False, 110)


# ---- endings


@pytest.mark.parametrize("make", [begun, deploying, running])
def test_cancel_ends_the_job_in_every_phase(make: Callable[[], JobMachine]) -> None:
    machine = make()
    workers = sorted(machine.members)
    actions = machine.cancel(100)
    assert only(actions, SendLeave) == [SendLeave(worker) for worker in workers]
    actions += machine.tick(100 + lifecycle.LEAVE_PATIENCE_MS)
    (ended,) = only(actions, JobEnded)
    assert ended.outcome is Outcome.CANCELLED
    assert machine.cancel(9_999) == []
    assert machine.joined(C, 0, 9_999) == [SendLeave(C)]


def test_stop_asks_for_a_last_snapshot_now_or_when_the_job_runs_again() -> None:
    machine = running()
    assert machine.stop(100) == [RequestStop()]
    assert machine.stop(101) == []
    machine.attempt_failed(E1, "oops", 110)
    machine.dropped(A, E1, 111)
    machine.dropped(B, E1, 112)
    machine.tick(300)
    machine.claimed(E2, CheckpointId(1), SnapshotKind.CHECKPOINT, 310)
    machine.ready(A, E2, {}, 320)
    assert RequestStop() in machine.ready(B, E2, {}, 330)


@pytest.mark.parametrize(
    ("kind", "wanted", "outcome"),
    [
        (SnapshotKind.FINAL, False, Outcome.FINISHED),
        (SnapshotKind.STOP, True, Outcome.STOPPED),
    ],
)
def test_a_restored_end_is_an_end_when_its_commits_are_repeated(
    kind: SnapshotKind, wanted: bool, outcome: Outcome
) -> None:
    """bug-A16, I27: nothing runs again behind the last snapshot."""
    machine = begun()
    machine.joined(A, 0, 10)
    machine.joined(B, 1, 20)
    if wanted:
        machine.stop(25)
    machine.claimed(E1, CheckpointId(7), kind, 30)
    machine.ready(A, E1, {}, 40)
    actions = machine.ready(B, E1, {}, 50)
    assert only(actions, SendStart) == []
    machine.left(A, "", 60)
    (ended,) = only(machine.left(B, "", 70), JobEnded)
    assert ended.outcome is outcome


def test_a_stopped_job_that_is_started_again_goes_on() -> None:
    machine = begun()
    machine.joined(A, 0, 10)
    machine.joined(B, 1, 20)
    machine.claimed(E1, CheckpointId(7), SnapshotKind.STOP, 30)
    machine.ready(A, E1, {}, 40)
    assert only(machine.ready(B, E1, {}, 50), SendStart)


def test_an_ending_job_waits_for_its_workers_but_not_for_ever() -> None:
    """bug-I2."""
    machine = running()
    machine.completed(E1, Outcome.FINISHED, 100)
    assert machine.tick(100 + lifecycle.LEAVE_PATIENCE_MS - 1) == []
    actions = machine.tick(100 + lifecycle.LEAVE_PATIENCE_MS)
    assert only(actions, JobEnded) == [JobEnded(Outcome.FINISHED, "")]
    assert machine.phase == Ended(Outcome.FINISHED, "")


def test_every_phase_answers_every_event() -> None:
    """No event raises, whenever it comes, and an ended job stays ended."""
    events: list[Callable[[JobMachine], object]] = [
        lambda m: m.joined(C, 1, 500),
        lambda m: m.left(A, "killed", 500),
        lambda m: m.left(C, "never seen", 500),
        lambda m: m.ready(A, E1, {}, 500),
        lambda m: m.dropped(A, E1, 500),
        lambda m: m.claimed(E2, NONE, None, 500),
        lambda m: m.claim_failed("no", False, 500),
        lambda m: m.attempt_failed(E1, "no", 500),
        lambda m: m.launch_ended(0, "no", False, 500),
        lambda m: m.completed(E1, Outcome.FINISHED, 500),
        lambda m: m.stop(500),
        lambda m: m.tick(500),
        lambda m: m.repeat(),
        lambda m: m.wake_ms(500),
    ]

    def ending() -> JobMachine:
        machine = running()
        machine.cancel(400)
        return machine

    def ended() -> JobMachine:
        machine = ending()
        machine.tick(400 + lifecycle.LEAVE_PATIENCE_MS)
        return machine

    for make in (begun, deploying, running, ending, ended):
        for first in events:
            for second in events:
                machine = make()
                first(machine)
                second(machine)
                if make is ended:
                    assert isinstance(machine.phase, Ended)
