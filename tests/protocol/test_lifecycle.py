"""The life of a job: workers come and go, attempts are deployed and fail, until the job ends."""

from __future__ import annotations

import pytest

from penstock.protocol import restart
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, WorkerId
from penstock.protocol.lifecycle import (
    CONNECT_PATIENCE_MS,
    DROP_PATIENCE_MS,
    LAUNCH_FAILURES_MAX,
    LEAVE_PATIENCE_MS,
    RAN_WELL_MS,
    REJOIN_PATIENCE_MS,
    SILENT_PATIENCE_MS,
    JobMachine,
    LifecycleConfig,
)
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.phases import (
    AttemptOver,
    AttemptRuns,
    CancelLaunch,
    CannotConnect,
    ClaimAttempt,
    Claiming,
    Connecting,
    Deploying,
    Ended,
    Ending,
    Gathering,
    JobEnded,
    LaunchWorker,
    NotReady,
    Outcome,
    RequestStop,
    Running,
    SendDeploy,
    SendDrop,
    SendLeave,
    SendStart,
    SlotsMissing,
)

W0, W1, W2, W3 = (WorkerId(f"w{i}") for i in range(4))
E1, E2 = AttemptId(1), AttemptId(2)
NONE = CheckpointId(0)


def machine(**config: object) -> JobMachine:
    given = {"slots": 2, "strategy": restart.Fixed(attempts=3, delay_ms=100), **config}
    return JobMachine(LifecycleConfig(**given))  # type: ignore[arg-type]


def gathering(**config: object) -> JobMachine:
    made = machine(**config)
    made.begin(0.0)
    return made


def claiming(**config: object) -> JobMachine:
    made = gathering(**config)
    made.joined(W0, 0, 1.0)
    made.joined(W1, 1, 2.0)
    return made


def deploying(kind: SnapshotKind | None = None, **config: object) -> JobMachine:
    made = claiming(**config)
    made.claimed(E1, NONE, kind, 3.0)
    return made


def connecting(**config: object) -> JobMachine:
    made = deploying(**config)
    made.ready(W0, E1, {"a": "here"}, 4.0)
    made.ready(W1, E1, {"b": "there"}, 5.0)
    return made


def running(**config: object) -> JobMachine:
    made = connecting(**config)
    connect(made, E1, W0, W1)
    return made


def connect(made: JobMachine, attempt: AttemptId, *workers: WorkerId) -> list:
    """All of them have reached each other."""
    now_ms = made.phase.since_ms if isinstance(made.phase, Connecting) else 5.0
    return [
        action for worker in workers for action in made.connected(worker, attempt, now_ms + 1.0)
    ]


def ending(**config: object) -> JobMachine:
    made = running(**config)
    made.cancel(10.0)
    return made


def ended(**config: object) -> JobMachine:
    made = ending(**config)
    made.left(W0, "left", 11.0)
    made.left(W1, "left", 12.0)
    return made


def failed(**config: object) -> JobMachine:
    """Attempt 1 has failed at 10; both workers still have to drop it."""
    made = running(**config)
    made.attempt_failed(E1, "broken", 10.0)
    return made


PHASES = {
    "gathering": (gathering, Gathering),
    "claiming": (claiming, Claiming),
    "deploying": (deploying, Deploying),
    "connecting": (connecting, Connecting),
    "running": (running, Running),
    "failed": (failed, Gathering),
    "ending": (ending, Ending),
    "ended": (ended, Ended),
}


def kinds(actions: list) -> list[type]:
    return [type(action) for action in actions]


@pytest.mark.parametrize("name", PHASES)
def test_the_helpers_lead_where_they_say(name: str) -> None:
    make, phase = PHASES[name]
    assert isinstance(make().phase, phase)


# ---- coming to life


def test_one_worker_per_slot_is_launched_and_the_spare_ones() -> None:
    """R1."""
    assert machine(spare_workers=1).begin(0.0) == [
        LaunchWorker(0),
        LaunchWorker(1),
        LaunchWorker(2),
    ]


def test_nothing_is_claimed_before_every_slot_has_a_worker() -> None:
    made = gathering()
    assert made.joined(W0, 0, 1.0) == []
    assert made.joined(W1, 1, 2.0) == [ClaimAttempt()]


def test_every_worker_is_deployed_to_its_slot_and_nothing_runs_before_all_are_ready() -> None:
    """R1."""
    made = claiming()
    assert made.claimed(E1, NONE, None, 3.0) == [
        SendDeploy(W0, SlotId(0), E1),
        SendDeploy(W1, SlotId(1), E1),
    ]
    assert made.ready(W0, E1, {"a": "here"}, 4.0) == []
    actions = made.ready(W1, E1, {"b": "there"}, 5.0)
    everywhere = {0: {"a": "here"}, 1: {"b": "there"}}
    assert actions == [
        SendStart(W0, E1, everywhere),
        SendStart(W1, E1, everywhere),
    ]
    assert made.connected(W1, E1, 6.0) == []
    assert made.connected(W0, E1, 7.0) == [AttemptRuns(E1, NONE)]


def test_connected_of_another_attempt_does_not_count() -> None:
    """C7."""
    made = connecting()
    assert made.connected(W0, E2, 6.0) == []
    assert isinstance(made.phase, Connecting)
    assert made.phase.owed == {W0, W1}


def test_a_network_that_is_cut_is_waited_for_and_told_once() -> None:
    """R1: nothing has begun, so nothing has failed; the restart strategy is not asked."""
    made = failed()
    for worker in (W0, W1):
        made.dropped(worker, E1, 20.0)
    made.tick(200.0)
    made.claimed(E2, NONE, None, 201.0)
    made.ready(W0, E2, {}, 202.0)
    made.ready(W1, E2, {}, 203.0)
    assert made.unreached(W0, E2, ("b",), 203.0 + CONNECT_PATIENCE_MS - 1) == []
    told = made.unreached(W0, E2, ("b",), 203.0 + CONNECT_PATIENCE_MS)
    assert told == [CannotConnect(E2, W0, ("b",))]
    assert made.unreached(W0, E2, ("b",), 10_000.0) == []
    assert made.tick(10_000_000.0) == [] and len(made.failures_ms) == 1
    assert connect(made, E2, W0, W1) == [AttemptRuns(E2, NONE)]


@pytest.mark.parametrize(("late_ms", "fails"), [(-1.0, False), (0.0, True)])
def test_a_job_that_has_never_run_ends_where_workers_do_not_reach_each_other(
    late_ms: float, fails: bool
) -> None:
    """There may be no way between them at all: whoever set it up has to know."""
    made = connecting(slot_timeout_ms=30_000)
    made.unreached(W1, E1, ("host a",), 4_000.0)
    made.unreached(W1, E1, ("host a",), 9_000.0)
    made.tick(30_005.0 + late_ms)
    assert isinstance(made.phase, Ending) is fails
    if isinstance(made.phase, Ending):
        assert "no answer from host a" in made.phase.reason
        assert "spark.penstock.data.ports" in made.phase.reason
        assert "slot_timeout" in made.phase.reason


def test_a_worker_that_is_lost_while_it_connects_fails_the_attempt() -> None:
    """R1."""
    made = connecting()
    assert AttemptOver(E1) in made.left(W0, "killed", 6.0)
    assert isinstance(made.phase, Gathering)


def test_ready_of_another_attempt_or_of_a_stranger_does_not_count() -> None:
    """C7."""
    made = deploying()
    assert made.ready(W0, AttemptId(9), {}, 4.0) == []
    assert made.ready(W3, E1, {}, 4.0) == []
    assert isinstance(made.phase, Deploying)
    assert made.phase.owed == {W0, W1}


def test_ready_that_comes_again_is_started_again() -> None:
    """A lost Start heals: the worker still says Ready."""
    made = running()
    assert kinds(made.ready(W0, E1, {"a": "here"}, 9.0)) == [SendStart]


def test_too_few_workers_end_the_job_in_time_and_say_so() -> None:
    """bug-I4: the one that is there is told to leave."""
    made = gathering(slot_timeout_ms=1_000)
    made.joined(W0, 0, 1.0)
    assert made.tick(999.0) == []
    missing, leave = made.tick(1_000.0)
    assert leave == SendLeave(W0)
    assert isinstance(made.phase, Ending)
    assert missing == SlotsMissing(made.phase.reason, waits=False)
    assert "needs 2 workers" in made.phase.reason
    assert "only 1 registered within 1 s" in made.phase.reason
    assert "slot_timeout=" in made.phase.reason


@pytest.mark.parametrize("strategy", [restart.Fixed(attempts=1), restart.Exponential()])
def test_a_job_that_has_run_waits_for_slots_as_long_as_it_takes(strategy: restart.Strategy) -> None:
    """R1, I25: it is told after the slot timeout, and then after twice the time again and again."""
    made = running(slot_timeout_ms=1_000, strategy=strategy)
    made.left(W0, "its host is gone", 10.0)
    made.dropped(W1, E1, 11.0)
    told_s, now_ms = [], 10.0
    while (now_ms := made.wake_ms(now_ms) or 10**9) < 40_000.0:
        told_s += [now_ms // 1_000 for each in made.tick(now_ms) if isinstance(each, SlotsMissing)]
    assert told_s in ([1, 2, 4, 8, 16, 32], [2, 3, 5, 9, 17, 33]), "from the end of the pause on"
    assert isinstance(made.phase, Gathering)
    assert made.joined(W2, max(made.launches), 50_000.0) == [ClaimAttempt()]


def test_waiting_for_slots_says_how_many_are_there_and_since_when() -> None:
    made = running(slot_timeout_ms=30_000)
    made.launch_cancelled(0, "cancelled", 10.0)
    made.dropped(W1, E1, 11.0)
    (missing,) = [each for each in made.tick(30_010.0) if isinstance(each, SlotsMissing)]
    assert missing.waits
    assert "needs 2 workers" in missing.reason
    assert "only 1 are there after 30 s" in missing.reason
    assert "goes on" in missing.reason


def test_an_attempt_that_never_ran_gives_no_right_to_wait_for_ever() -> None:
    """Nobody knows yet whether the job fits on this Spark."""
    made = deploying(slot_timeout_ms=1_000)
    made.left(W0, "killed", 10.0)
    made.dropped(W1, E1, 11.0)
    made.tick(2_000.0)
    assert isinstance(made.phase, Ending)


def test_a_worker_lost_in_a_long_pause_between_attempts_is_waited_for() -> None:
    """R1, R2: the time for new workers begins when the pause of the restart strategy is over."""
    long = restart.Fixed(attempts=3, delay_ms=60_000)
    made = deploying(slot_timeout_ms=1_000, strategy=long)
    made.attempt_failed(E1, "boom", 10.0)
    made.dropped(W0, E1, 11.0)
    made.dropped(W1, E1, 11.0)
    made.left(W0, "killed", 30_000.0)
    assert isinstance(made.phase, Gathering)
    made.joined(W2, 0, 50_000.0)
    assert made.tick(60_010.0) == [ClaimAttempt()]


def test_a_worker_lost_while_the_attempt_is_claimed_is_waited_for() -> None:
    made = claiming()
    assert made.left(W0, "killed", 3.0) == []
    assert made.claimed(E1, NONE, None, 4.0) == []
    assert isinstance(made.phase, Gathering)
    assert made.joined(W2, 0, 5.0) == [ClaimAttempt()]


def test_a_claim_that_nobody_waits_for_any_more_is_forgotten() -> None:
    made = running()
    assert made.claimed(E2, NONE, None, 9.0) == []
    assert made.claim_failed("late", False, 9.0) == []
    assert isinstance(made.phase, Running)


# ---- twins and spares


def test_a_spare_worker_takes_the_place_of_a_lost_one_at_once() -> None:
    """R1: no process has to be started."""
    made = gathering(spare_workers=1)
    for worker, launch in ((W0, 0), (W1, 1), (W2, 2)):
        made.joined(worker, launch, 1.0)
    made.claimed(E1, NONE, None, 2.0)
    made.ready(W0, E1, {}, 3.0)
    made.ready(W1, E1, {}, 3.0)
    connect(made, E1, W0, W1)
    made.left(W0, "killed", 10.0)
    made.dropped(W1, E1, 11.0)
    assert made.tick(110.0) == [ClaimAttempt()]
    assert set(made.claimed(E2, NONE, None, 111.0)) == {
        SendDeploy(W2, SlotId(0), E2),
        SendDeploy(W1, SlotId(1), E2),
    }


def test_a_worker_of_an_unknown_launch_is_sent_away() -> None:
    """bug-I7: a twin of a launch that was given up."""
    made = running()
    assert made.joined(W3, 77, 20.0) == [SendLeave(W3), CancelLaunch(77)]
    assert W3 not in made.members


def test_a_worker_that_joins_a_running_job_waits_as_a_spare() -> None:
    """bug-I7: a twin of a live worker disturbs nobody."""
    made = running()
    assert made.joined(W3, 0, 20.0) == []
    assert made.members[W3].slot is None
    assert isinstance(made.phase, Running)


def test_surviving_workers_keep_their_slots() -> None:
    """bug-I1, bug-E9: the lost one is replaced, the other stays where it was."""
    made = running()
    made.left(W0, "killed", 10.0)
    made.dropped(W1, E1, 11.0)
    made.joined(W2, 0, 50.0)
    made.tick(110.0)
    assert set(made.claimed(E2, NONE, None, 120.0)) == {
        SendDeploy(W2, SlotId(0), E2),
        SendDeploy(W1, SlotId(1), E2),
    }


def test_a_slot_that_lost_its_worker_stays_on_its_host_if_somebody_is_there() -> None:
    """R4: copies of its state may be on that host's disk."""
    made = gathering()
    made.joined(W0, 0, 1.0, "a")
    made.joined(W1, 1, 2.0, "b")
    made.claimed(E1, NONE, None, 3.0)
    made.left(W0, "killed", 10.0)
    made.left(W1, "killed", 10.0)
    made.joined(W2, 0, 50.0, "b")
    made.joined(W3, 1, 50.0, "c")
    made.tick(110.0)
    assert set(made.claimed(E2, NONE, None, 120.0)) == {
        SendDeploy(W2, SlotId(1), E2),
        SendDeploy(W3, SlotId(0), E2),
    }


# ---- failures


def test_a_lost_worker_fails_the_attempt_and_everybody_drops_it() -> None:
    """R1, bug-I1."""
    made = running()
    assert made.left(W0, "killed", 10.0) == [AttemptOver(E1), SendDrop(W1, E1)]


def test_a_lost_spare_fails_nothing() -> None:
    made = running()
    made.joined(W3, 0, 20.0)
    assert made.left(W3, "killed", 21.0) == []
    assert isinstance(made.phase, Running)


def test_two_failures_in_one_tick_are_one_restart() -> None:
    """bug-A13."""
    made = running()
    assert kinds(made.attempt_failed(E1, "first", 10.0)) == [AttemptOver, SendDrop, SendDrop]
    assert made.attempt_failed(E1, "second", 10.0) == []
    assert made.left(W0, "killed", 10.0) == []
    assert len(made.failures_ms) == 1


def test_a_failure_of_an_old_attempt_is_ignored() -> None:
    """C7."""
    made = running()
    assert made.attempt_failed(AttemptId(0), "late", 10.0) == []
    assert made.attempt_failed(None, "nowhere", 10.0) == []
    assert isinstance(made.phase, Running)


def test_a_failure_while_deploying_is_a_failure_of_the_attempt() -> None:
    """R1: failure during recovery."""
    made = deploying()
    assert kinds(made.attempt_failed(E1, "restore failed", 4.0))[0] is AttemptOver
    assert isinstance(made.phase, Gathering)


def test_the_next_attempt_waits_for_the_delay_and_for_everybody_to_have_dropped() -> None:
    """R2."""
    made = failed()
    assert made.dropped(W0, E1, 20.0) == []
    assert made.dropped(W1, E1, 30.0) == []
    assert made.tick(109.9) == []
    assert made.tick(110.0) == [ClaimAttempt()]


def test_a_worker_that_never_drops_is_not_waited_for_where_others_can_take_over() -> None:
    """One stuck in user code: its watchdog ends it; a spare one takes its slot."""
    made = failed()
    made.dropped(W0, E1, 20.0)
    made.joined(W2, 0, 30.0)
    assert made.tick(10.0 + DROP_PATIENCE_MS - 1) == []
    assert made.tick(10.0 + DROP_PATIENCE_MS) == [ClaimAttempt()]


def test_a_late_drop_of_an_older_attempt_does_not_free_a_worker() -> None:
    """C7."""
    made = failed()
    made.dropped(W0, E1, 20.0)
    made.dropped(W1, E1, 20.0)
    made.tick(110.0)
    made.claimed(E2, NONE, None, 111.0)
    assert made.dropped(W0, E1, 112.0) == []
    assert made.members[W0].attempt == E2


def test_when_the_strategy_gives_up_the_job_fails_with_both_reasons() -> None:
    """R2."""
    made = running(strategy=restart.Never())
    actions = made.attempt_failed(E1, "ValueError in operator 'm'", 10.0)
    assert kinds(actions) == [AttemptOver, SendLeave, SendLeave]
    assert isinstance(made.phase, Ending)
    assert "ValueError in operator 'm'" in made.phase.reason
    assert "restarts are switched off" in made.phase.reason


def test_a_claim_that_fails_counts_as_a_failure_and_a_fatal_one_ends_the_job() -> None:
    """R1, bug-E2."""
    made = claiming()
    assert made.claim_failed("storage is slow", False, 3.0) == []
    assert isinstance(made.phase, Gathering)
    made = claiming()
    made.claim_failed("the newest checkpoint is damaged", True, 3.0)
    assert isinstance(made.phase, Ending)
    assert made.phase.outcome is Outcome.FAILED


# ---- launches


def test_a_worker_that_spark_does_not_bring_back_in_time_is_launched_anew() -> None:
    made = running()
    made.left(W0, "killed", 10.0)
    assert made.tick(9.0 + REJOIN_PATIENCE_MS) == []
    actions = made.tick(10.0 + REJOIN_PATIENCE_MS)
    assert actions[:2] == [CancelLaunch(0), LaunchWorker(2)]


def test_a_worker_that_comes_back_by_itself_is_not_launched_again() -> None:
    """bug-I1."""
    made = running()
    made.left(W0, "killed", 10.0)
    made.joined(W2, 0, 500.0)
    assert LaunchWorker(2) not in made.tick(10.0 + REJOIN_PATIENCE_MS)


def test_a_launch_that_ended_is_replaced_at_once() -> None:
    made = running()
    made.left(W0, "killed", 10.0)
    assert LaunchWorker(2) in made.launch_ended(0, "job failed", False, 11.0)


def test_a_launch_that_never_brought_a_worker_is_tried_again_after_a_pause() -> None:
    made = gathering()
    assert made.launch_ended(0, "no room", False, 10.0) == []
    assert made.wake_ms(10.0) == 210.0
    assert made.tick(210.0) == [LaunchWorker(2)]


def test_launches_that_keep_failing_end_the_job() -> None:
    """Everything has a limit."""
    made = gathering(slot_timeout_ms=10_000_000)
    now_ms = 0.0
    for _ in range(LAUNCH_FAILURES_MAX):
        launch = max(made.launches)
        made.launch_ended(launch, "no room", False, now_ms)
        now_ms = made.wake_ms(now_ms) or now_ms
        made.tick(now_ms)
    made.launch_ended(max(made.launches), "no room", False, now_ms)
    assert isinstance(made.phase, Ending | Ended)
    assert "no worker could be started" in made.phase.reason
    assert "no room" in made.phase.reason


def test_a_fatal_launch_error_ends_the_job_at_once() -> None:
    made = gathering()
    made.launch_ended(0, "another interpreter", True, 10.0)
    assert isinstance(made.phase, Ended)
    assert made.phase.reason == "another interpreter"


def test_the_end_of_an_unknown_launch_is_no_news() -> None:
    made = running()
    assert made.launch_ended(99, "?", True, 10.0) == []


# ---- workers whose Spark job somebody cancelled


@pytest.mark.parametrize(
    "strategy", [restart.Never(), restart.Fixed(attempts=0), restart.Exponential(initial_ms=60_000)]
)
def test_a_cancelled_worker_is_replaced_at_once_and_counts_for_no_strategy(
    strategy: restart.Strategy,
) -> None:
    """R1, R2: somebody pressed Spark's kill link; the job did nothing wrong."""
    made = running(strategy=strategy)
    assert made.launch_cancelled(0, "cancelled", 10.0) == [
        LaunchWorker(2),
        AttemptOver(E1, counts=False),
        SendDrop(W1, E1),
    ]
    assert made.dropped(W1, E1, 11.0) == []
    assert made.joined(W2, 2, 12.0) == [ClaimAttempt()], "no delay"
    assert made.failures_ms == []
    assert made.began_again


def test_a_cancelled_worker_that_leaves_afterwards_is_no_second_failure() -> None:
    """R2: its process goes on for a while; the end of its connection is no news."""
    made = running(strategy=restart.Never())
    made.launch_cancelled(0, "cancelled", 10.0)
    assert made.left(W0, "its connection broke", 11.0) == []
    made.dropped(W1, E1, 12.0)
    made.joined(W2, 2, 13.0)
    made.claimed(E2, NONE, None, 14.0)
    assert made.left(W0, "its connection broke", 15.0) == []
    assert isinstance(made.phase, Deploying)


def test_all_workers_cancelled_one_after_the_other_are_all_replaced() -> None:
    """R1, R2: Ctrl-C in a notebook."""
    made = running(strategy=restart.Never())
    made.launch_cancelled(0, "cancelled", 10.0)
    assert made.launch_cancelled(1, "cancelled", 20.0) == [LaunchWorker(3)]
    assert made.members == {}
    assert made.joined(W2, 2, 500.0) == []
    assert made.joined(W3, 3, 501.0) == [ClaimAttempt()]
    assert made.failures_ms == []


def test_a_cancelled_launch_that_brought_no_worker_yet_is_repeated_without_a_pause() -> None:
    """No limit is used up: launches that fail by themselves keep all their tries."""
    made = gathering(slot_timeout_ms=10_000_000)
    for _ in range(LAUNCH_FAILURES_MAX + 2):
        newest = max(made.launches)
        assert made.launch_cancelled(newest, "cancelled", 10.0) == [LaunchWorker(newest + 1)]
    assert isinstance(made.phase, Gathering)


def test_a_cancelled_spare_disturbs_nobody() -> None:
    """R1."""
    made = running(spare_workers=1)
    made.joined(W2, 2, 20.0)
    assert made.launch_cancelled(2, "cancelled", 30.0) == [LaunchWorker(3)]
    assert isinstance(made.phase, Running)
    assert W2 not in made.members


def test_a_worker_cancelled_while_the_attempt_is_claimed_is_waited_for() -> None:
    """R1."""
    made = claiming(strategy=restart.Never())
    assert made.launch_cancelled(0, "cancelled", 3.0) == [LaunchWorker(2)]
    assert made.claimed(E1, NONE, None, 4.0) == []
    assert made.joined(W2, 2, 5.0) == [ClaimAttempt()]


def test_without_checkpoints_a_cancelled_worker_ends_the_job() -> None:
    """B5: there is nothing to go on from."""
    made = running(strategy=restart.Never("there are no checkpoints"), goes_on=False)
    made.launch_cancelled(0, "its Spark job was cancelled", 10.0)
    assert isinstance(made.phase, Ending)
    assert made.phase.outcome is Outcome.FAILED
    assert "its Spark job was cancelled" in made.phase.reason
    assert "there are no checkpoints" in made.phase.reason


def test_a_failure_after_a_cancelled_worker_is_the_first_that_counts() -> None:
    """R2."""
    made = running(strategy=restart.Fixed(attempts=1, delay_ms=100))
    made.launch_cancelled(0, "cancelled", 10.0)
    made.dropped(W1, E1, 11.0)
    made.joined(W2, 2, 12.0)
    made.claimed(E2, NONE, None, 13.0)
    made.attempt_failed(E2, "broken", 14.0)
    assert made.failures_ms == [14.0]
    assert isinstance(made.phase, Gathering)
    assert made.phase.not_before_ms == 114.0


# ---- ending


def test_a_job_whose_last_snapshot_is_committed_ends() -> None:
    made = running()
    assert made.completed(E1, Outcome.FINISHED, 10.0) == [
        AttemptOver(E1),
        SendLeave(W0),
        SendLeave(W1),
    ]
    assert made.left(W0, "left", 11.0) == []
    actions = made.left(W1, "left", 12.0)
    assert actions == [CancelLaunch(0), CancelLaunch(1), JobEnded(Outcome.FINISHED, "")]


def test_whoever_does_not_leave_is_cancelled_in_the_end() -> None:
    """bug-I2: bounded."""
    made = ending()
    assert made.tick(10.0 + LEAVE_PATIENCE_MS - 1) == []
    actions = made.tick(10.0 + LEAVE_PATIENCE_MS)
    assert actions[-1] == JobEnded(Outcome.CANCELLED, "cancelled by the user")
    assert CancelLaunch(0) in actions


@pytest.mark.parametrize("name", [n for n in PHASES if n not in ("ending", "ended")])
def test_cancel_ends_the_job_in_every_phase(name: str) -> None:
    """bug-I2."""
    made = PHASES[name][0]()
    made.cancel(100.0)
    made.tick(100.0 + LEAVE_PATIENCE_MS)
    assert made.phase == Ended(Outcome.CANCELLED, "cancelled by the user")


@pytest.mark.parametrize("name", ["ending", "ended"])
def test_what_has_ended_is_not_ended_again(name: str) -> None:
    """bug-A4: no new attempt, whatever comes late."""
    made = PHASES[name][0]()
    before = made.phase
    assert made.cancel(50.0) == []
    assert made.stop(50.0) == []
    assert made.completed(E1, Outcome.FINISHED, 50.0) == []
    assert made.fail_for_good("late", 50.0) == []
    assert made.attempt_failed(E1, "late", 50.0) == []
    assert made.claimed(E2, NONE, None, 50.0) == []
    assert made.joined(W3, 0, 50.0) == [SendLeave(W3)]
    assert made.launch_ended(0, "late", True, 50.0) == []
    assert made.launch_cancelled(1, "late", 50.0) == []
    assert made.phase == before


def test_stop_asks_for_a_last_snapshot_once() -> None:
    made = running()
    assert made.stop(10.0) == [RequestStop()]
    assert made.stop(11.0) == []


@pytest.mark.parametrize("name", ["gathering", "claiming", "deploying", "failed"])
def test_a_job_that_does_not_run_stops_as_soon_as_it_does(name: str) -> None:
    made = PHASES[name][0]()
    assert made.stop(20.0) == []
    for worker, launch in ((W0, 0), (W1, 1)):
        if worker not in made.members:
            made.joined(worker, launch, 30.0)
        if name == "failed":
            made.dropped(worker, E1, 30.0)
    made.tick(2_000.0)
    attempt = made.phase.attempt if isinstance(made.phase, Deploying | Connecting) else E2
    made.claimed(attempt, NONE, None, 2_001.0)
    made.ready(W0, attempt, {}, 2_002.0)
    made.ready(W1, attempt, {}, 2_003.0)
    assert connect(made, attempt, W0, W1) == [AttemptRuns(attempt, NONE), RequestStop()]


def test_a_failure_while_stopping_stops_after_the_restart() -> None:
    """R1, bug-A16: the job that was stopped is not forgotten to be stopped."""
    made = running()
    made.stop(10.0)
    made.attempt_failed(E1, "broken", 11.0)
    made.dropped(W0, E1, 12.0)
    made.dropped(W1, E1, 12.0)
    made.tick(200.0)
    made.claimed(E2, NONE, None, 201.0)
    made.ready(W0, E2, {}, 202.0)
    made.ready(W1, E2, {}, 203.0)
    assert RequestStop() in connect(made, E2, W0, W1)


def test_what_restores_a_final_snapshot_has_finished() -> None:
    """R1, B10: the commits were repeated while restoring; there is nothing else to do."""
    made = deploying(SnapshotKind.FINAL)
    made.ready(W0, E1, {}, 4.0)
    actions = made.ready(W1, E1, {}, 5.0)
    assert kinds(actions) == [AttemptOver, SendLeave, SendLeave]
    assert made.phase == Ending(Outcome.FINISHED, "", 5.0 + LEAVE_PATIENCE_MS, ran=False)


@pytest.mark.parametrize(("stopping", "phase"), [(True, Ending), (False, Connecting)])
def test_what_restores_a_stop_snapshot_stops_only_if_it_was_being_stopped(
    stopping: bool, phase: type
) -> None:
    """bug-A16: a failed commit after the stop; and a job that is started again goes on."""
    made = deploying(SnapshotKind.STOP)
    if stopping:
        made.stop(3.5)
    made.ready(W0, E1, {}, 4.0)
    made.ready(W1, E1, {}, 5.0)
    assert isinstance(made.phase, phase)


# ---- deployments that hang


@pytest.mark.parametrize(("late_ms", "fails"), [(-1.0, False), (0.0, True), (1.0, True)])
def test_an_attempt_that_is_kept_waiting_too_long_fails(late_ms: float, fails: bool) -> None:
    """R1: at t-1, t and t+1; the failure is counted and names who was not ready."""
    made = deploying(deploy_timeout_ms=5_000)
    made.ready(W0, E1, {}, 4.0)
    now_ms = 3.0 + 5_000 + late_ms
    actions = made.tick(now_ms)
    assert isinstance(made.phase, Gathering if fails else Deploying)
    if not fails:
        assert actions == [] and made.wake_ms(now_ms) == 5_003.0
        return
    late, *rest = actions
    assert isinstance(late, NotReady)
    assert (late.attempt, late.workers) == (E1, (W1,))
    assert "not ready within 5 s: the worker of slot 1." in late.reason
    assert rest == [AttemptOver(E1), SendDrop(W0, E1), SendDrop(W1, E1)]
    assert made.failures_ms == [now_ms]


def test_who_is_ready_in_the_last_moment_is_ready() -> None:
    """R1."""
    made = deploying(deploy_timeout_ms=5_000)
    made.ready(W0, E1, {}, 4.0)
    made.ready(W1, E1, {}, 5_003.0)
    connect(made, E1, W0, W1)
    assert isinstance(made.phase, Running)
    assert AttemptOver not in kinds(made.tick(100_000.0))


def test_a_hanging_deployment_is_tried_as_often_as_the_strategy_says() -> None:
    """R2: it is a failure like any other."""
    made = deploying(deploy_timeout_ms=5_000, strategy=restart.Never("no"))
    late, over, *leaves = made.tick(6_000.0)
    assert kinds([late, over]) == [NotReady, AttemptOver]
    assert kinds(leaves) == [SendLeave, SendLeave]
    assert isinstance(made.phase, Ending)
    assert "not ready within 5 s: the workers of slots 0, 1" in made.phase.reason


# ---- nothing relies on one message arriving


@pytest.mark.parametrize(
    ("name", "repeated"),
    [
        ("gathering", []),
        ("claiming", []),
        ("deploying", [SendDeploy, SendDeploy]),
        ("connecting", [SendStart, SendStart]),
        ("running", []),
        ("failed", [SendDrop, SendDrop]),
        ("ending", [SendLeave, SendLeave]),
        ("ended", []),
    ],
)
def test_what_somebody_still_owes_an_answer_to_is_said_again(name: str, repeated: list) -> None:
    assert kinds(PHASES[name][0]().repeat()) == repeated


def test_a_worker_that_is_still_in_an_old_attempt_is_told_to_drop_it_again() -> None:
    made = failed()
    made.dropped(W0, E1, 20.0)
    made.joined(W2, 0, 30.0)
    made.tick(10.0 + DROP_PATIENCE_MS)
    made.claimed(E2, NONE, None, 2_000.0)
    made.ready(W0, E2, {}, 2_001.0)
    made.ready(W2, E2, {}, 2_001.0)
    connect(made, E2, W0, W2)
    assert isinstance(made.phase, Running)
    assert made.repeat() == [SendDrop(W1, E1)]


@pytest.mark.parametrize("name", PHASES)
def test_every_phase_answers_every_event(name: str) -> None:
    """No event raises in any phase, and none starts a second attempt beside the present one."""
    make = PHASES[name][0]
    events = [
        lambda m: m.joined(W3, 0, 99.0),
        lambda m: m.left(W0, "lost", 99.0),
        lambda m: m.left(W3, "lost", 99.0),
        lambda m: m.launch_ended(0, "ended", False, 99.0),
        lambda m: m.launch_cancelled(0, "cancelled", 99.0),
        lambda m: m.dropped(W0, E1, 99.0),
        lambda m: m.ready(W0, E1, {}, 99.0),
        lambda m: m.connected(W0, E1, 99.0),
        lambda m: m.crowded([0], 99.0),
        lambda m: m.unreached(W0, E1, ("b",), 99.0),
        lambda m: m.claimed(E2, NONE, None, 99.0),
        lambda m: m.claim_failed("no", False, 99.0),
        lambda m: m.attempt_failed(E1, "no", 99.0),
        lambda m: m.completed(E1, Outcome.FINISHED, 99.0),
        lambda m: m.tick(99.0),
        lambda m: m.stop(99.0),
        lambda m: m.cancel(99.0),
    ]
    for event in events:
        made = make()
        actions = event(made)
        assert kinds(actions).count(ClaimAttempt) <= 1
        wake_ms = made.wake_ms(99.0)
        assert wake_ms is None or wake_ms > 99.0


# ---- poison rows


def again(made: JobMachine, attempt: int, now_ms: float) -> None:
    """The next attempt runs."""
    made.dropped(W0, AttemptId(attempt), now_ms)
    made.dropped(W1, AttemptId(attempt), now_ms)
    made.tick(now_ms)
    made.claimed(AttemptId(attempt + 1), NONE, None, now_ms)
    made.ready(W0, AttemptId(attempt + 1), {}, now_ms)
    made.ready(W1, AttemptId(attempt + 1), {}, now_ms)
    made.connected(W0, AttemptId(attempt + 1), now_ms)
    made.connected(W1, AttemptId(attempt + 1), now_ms)
    assert isinstance(made.phase, Running)


@pytest.mark.parametrize(
    ("ran_ms", "progressed", "ends"),
    [(10.0, True, True), (2.0 * RAN_WELL_MS, False, True), (RAN_WELL_MS, True, False)],
)
def test_the_same_failure_ends_the_job_unless_an_attempt_ran_well_in_between(
    ran_ms: float, progressed: bool, ends: bool
) -> None:
    """R2: well is a checkpoint and a minute; a checkpoint alone may lie before the row, a minute alone too."""
    made = running(strategy=restart.Exponential(0, 1, same_failures_max=2))
    now_ms = 10.0
    made.attempt_failed(E1, "bad", now_ms, what="x")
    again(made, 1, now_ms := now_ms + 10)
    made.attempt_failed(E2, "bad", now_ms + ran_ms, what="x", progressed=progressed)
    assert isinstance(made.phase, Ending) is ends
    if isinstance(made.phase, Ending):
        assert made.phase.reason.startswith("bad (the same failure came 2 times in a row")


# ---- launches that go nowhere, and workers in the wrong place


def test_a_launch_that_brings_nobody_is_made_again_with_growing_patience() -> None:
    """R1: it may have gone to a host that is not there any more."""
    made = failed()
    made.left(W0, "host gone", 20.0)
    (_, relaunched) = made.tick(20.0 + REJOIN_PATIENCE_MS)
    now_ms = 20.0 + REJOIN_PATIENCE_MS
    for patience_ms in (SILENT_PATIENCE_MS, 2 * SILENT_PATIENCE_MS, 4 * SILENT_PATIENCE_MS):
        assert isinstance(relaunched, LaunchWorker)
        assert CancelLaunch not in kinds(made.tick(now_ms + patience_ms - 1))
        now_ms += patience_ms
        cancelled, relaunched = made.tick(now_ms)[:2]
        assert isinstance(cancelled, CancelLaunch)


def test_a_job_that_has_never_run_waits_for_its_launches_until_the_slot_timeout() -> None:
    """Spark may still be getting the resources."""
    made = gathering(slot_timeout_ms=10**9)
    assert made.tick(10.0**8) == []


def test_workers_that_crowd_are_launched_anew_between_two_attempts() -> None:
    made = failed()
    assert made.crowded([1], 20.0) == [CancelLaunch(1), LaunchWorker(2)]
    assert set(made.members) == {W0}
    assert made.crowded([1], 21.0) == []


def test_nobody_is_moved_while_the_job_runs() -> None:
    assert running().crowded([1], 20.0) == []
