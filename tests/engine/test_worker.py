"""The worker: deploys and drops attempts, answers again what was lost, reports failures, leaves."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.operators.base import Operator, OperatorContext
from penstock.engine.spec import JobSpec
from penstock.engine.worker.inline import NoNetwork
from penstock.engine.worker.worker import Worker
from penstock.errors import PlanError
from penstock.plan.physical import make_plan
from penstock.ports.channel import ChannelLost
from penstock.ports.control import DriverLost
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import (
    Ack,
    Connected,
    Deploy,
    Drop,
    Dropped,
    Failed,
    Leave,
    Ready,
    SnapshotKind,
    SnapshotOrder,
    Start,
    Status,
    Sync,
    Trigger,
    Unreached,
)
from penstock.storage.memory import MemoryStore
from penstock.wire.control import WireError
from tests.engine.kit import (
    Do,
    HeldBackground,
    ListDriver,
    ListSink,
    ManualClock,
    NoHost,
    NumberSource,
    pipeline,
)

E1, E2 = AttemptId(1), AttemptId(2)
N1 = CheckpointId(1)
CHECKPOINT = SnapshotKind.CHECKPOINT


def deploy(attempt: AttemptId) -> Deploy:
    return Deploy(attempt, SlotId(0), CheckpointId(0), ())


class Bench:
    def __init__(self, operator: Callable[[], Operator] = Do) -> None:
        self.driver, self.clock = ListDriver(), ManualClock()
        self.background = HeldBackground()
        self.store, self.sink = MemoryStore(), ListSink()
        self.made: list[Operator] = []

        def make() -> Operator:
            self.made.append(operator())
            return self.made[-1]

        plan = make_plan(pipeline(NumberSource(1_000), self.sink, make), 1, 8)
        spec = JobSpec("job", plan, buffer_timeout_ms=0.0, open_store=lambda: self.store)
        self.worker = Worker(lambda: spec, self.driver, NoHost(), self.clock, self.background)

    def tell(self, *messages: object) -> list:
        """What the worker answers to these messages, in one round."""
        before = len(self.driver.sent)
        self.driver.inbox.extend(messages)  # type: ignore[arg-type]
        self.clock.now_ms += 1
        self.worker.step()
        return self.driver.sent[before:]


def running(operator: Callable[[], Operator] = Do) -> Bench:
    bench = Bench(operator)
    bench.tell(deploy(E1), Start(E1, {}))
    return bench


def broken(message: str, error: type[Exception] = ValueError) -> Callable[[], Operator]:
    def fail(batch: pa.RecordBatch) -> None:
        raise error(message)

    return lambda: Do(fail)


def broken_at(moment: str, error: Exception) -> Callable[[], Operator]:
    def make() -> Operator:
        operator = Do()
        operator.at[moment] = error
        return operator

    return make


# ---- deployments


def test_it_says_ready_when_everything_is_restored() -> None:
    assert Bench().tell(deploy(E1)) == [Ready(E1, SlotId(0), {})]


class Promise(Do):
    """Commits again what a checkpoint promised, through the driver, as soon as it is opened."""

    def open(self, context: OperatorContext) -> None:
        context.to_driver("rows")


def test_what_a_restore_commits_reaches_the_driver_before_ready() -> None:
    """E2: a job may end with this deployment, if it restored its last checkpoint."""
    answers = Bench(Promise).tell(deploy(E1))
    assert [type(answer).__name__ for answer in answers] == ["Collected", "Ready"]


def test_a_deployment_that_is_repeated_is_answered_again_and_not_made_again() -> None:
    """The first answer was lost."""
    bench = Bench()
    bench.tell(deploy(E1))
    assert bench.tell(deploy(E1)) == [Ready(E1, SlotId(0), {})]
    assert len(bench.made) == 1


class SlowNetwork(NoNetwork):
    """Others do not answer until somebody says so."""

    silent: tuple[str, ...] = ("host b",)
    is_settled = False
    lost = ""

    def unreached(self) -> tuple[str, ...]:
        return self.silent

    def settled(self) -> None:
        self.is_settled = True

    def check(self) -> None:
        if self.lost:
            raise ChannelLost(self.lost)


def far() -> tuple[Bench, SlowNetwork]:
    bench, network = Bench(), SlowNetwork()
    bench.worker._host = SimpleNamespace(network=lambda attempt: network)  # type: ignore[assignment]
    bench.tell(deploy(E1))
    return bench, network


def test_nothing_runs_before_all_others_have_answered_and_who_is_silent_is_told() -> None:
    """R1: a network that is cut is waited for."""
    bench, network = far()
    assert bench.tell(Start(E1, {})) == []
    assert bench.worker.attempt is not None and not bench.worker.attempt.running
    assert bench.tell(Start(E1, {})) == [Unreached(E1, ("host b",))]
    network.silent = ()
    assert bench.tell() == [Connected(E1)]
    assert bench.worker.attempt.running
    assert Connected(E1) in bench.tell(Start(E1, {})), "the first answer may have been lost"


def test_what_others_connected_by_is_given_up_when_everybody_runs() -> None:
    bench, network = far()
    network.silent = ()
    bench.tell(Start(E1, {}))
    assert not network.is_settled
    bench.tell(Sync(E1, (), CheckpointId(0), CheckpointId(0)))
    assert network.is_settled


def test_a_peer_that_is_lost_ends_the_attempt_although_nothing_is_sent_to_it() -> None:
    """R1: a job that stands still because of a cut must not look as if it ran."""
    bench, network = far()
    network.silent = ()
    bench.tell(Start(E1, {}))
    network.lost = "a does not hear from b any more"
    (failed,) = [each for each in bench.tell() if isinstance(each, Failed)]
    assert (failed.error, failed.message) == ("ChannelLost", "a does not hear from b any more")
    assert not failed.fatal


def test_nothing_runs_before_the_start() -> None:
    bench = Bench()
    bench.tell(deploy(E1))
    assert not bench.worker.step()
    assert bench.worker.attempt is not None
    assert not bench.worker.attempt.running


def test_a_start_that_comes_twice_starts_once() -> None:
    bench = running()
    subtasks = bench.worker.attempt.subtasks  # type: ignore[union-attr]
    bench.tell(Start(E1, {}))
    assert bench.worker.attempt.subtasks is subtasks  # type: ignore[union-attr]


def test_a_newer_deployment_replaces_the_older_one_with_fresh_operators() -> None:
    """bug-I8: nothing of the old attempt is left in the next."""
    bench = running()
    first = bench.worker.attempt
    assert bench.tell(deploy(E2)) == [Ready(E2, SlotId(0), {})]
    assert bench.worker.attempt is not first
    assert first is not None
    assert not first.running
    assert [operator.closed for operator in bench.made] == [1, 0]  # type: ignore[attr-defined]


def test_an_older_deployment_is_ignored() -> None:
    """C7."""
    bench = Bench()
    bench.tell(deploy(E2))
    assert bench.tell(deploy(E1)) == []
    assert bench.worker.attempt.id == E2  # type: ignore[union-attr]


def test_messages_about_another_attempt_are_dropped() -> None:
    """C7, I18."""
    bench = running()
    assert bench.tell(Trigger(AttemptId(9), SnapshotOrder(N1, CHECKPOINT))) == []
    bench.worker.step()
    assert not [m for m in bench.driver.sent if isinstance(m, Ack)]


# ---- dropping


def test_a_drop_is_carried_out_and_confirmed_also_the_second_time() -> None:
    bench = running()
    assert bench.tell(Drop(E1)) == [Dropped(E1)]
    assert bench.worker.attempt is None
    assert bench.tell(Drop(E1)) == [Dropped(E1)]


def test_a_late_drop_of_an_older_attempt_leaves_the_present_one_alone() -> None:
    """C7."""
    bench = running()
    bench.tell(deploy(E2))
    assert bench.tell(Drop(E1)) == [Dropped(E1)]
    assert bench.worker.attempt.id == E2  # type: ignore[union-attr]


def test_a_dropped_attempt_is_not_deployed_again() -> None:
    """A deployment that was delayed past the drop."""
    bench = running()
    bench.tell(Drop(E1))
    assert bench.tell(deploy(E1)) == []
    assert bench.worker.attempt is None


# ---- failures


def test_a_failure_names_the_operator_the_position_and_has_the_traceback() -> None:
    bench = Bench(broken("bad amount"))
    bench.tell(deploy(E1))
    (failed,) = [m for m in bench.tell(Start(E1, {})) if isinstance(m, Failed)]
    assert (failed.attempt, failed.error, failed.operator) == (E1, "ValueError", "work")
    assert "bad amount" in failed.message
    assert "number 2" in failed.message, "where the rows came from"
    assert "in fail" in failed.traceback
    assert any("attempt 1 runs" in line for line in failed.journal)
    assert not failed.fatal


def test_a_failure_ends_the_attempt_and_not_the_worker() -> None:
    """R1, bug-I1."""
    bench = running(broken("once"))
    assert bench.worker.attempt is None
    assert bench.made[0].closed == 1  # type: ignore[attr-defined]
    assert [type(m) for m in bench.tell(deploy(E2))] == [Ready]


def test_a_failure_that_was_lost_is_said_again() -> None:
    """The job manager says deploy or start again, or syncs: it has not heard."""
    bench = running(broken("once"))
    assert [type(m) for m in bench.tell(deploy(E1))] == [Failed]
    sync = Sync(E1, (), CheckpointId(0), CheckpointId(0))
    assert [type(m) for m in bench.tell(sync)] == [Failed]
    assert [type(m) for m in bench.tell(Start(E1, {}))] == [Failed]


def test_an_exception_in_a_restore_is_a_failure_of_the_attempt() -> None:
    """R1."""
    (failed,) = Bench(broken_at("open", RuntimeError("no such table"))).tell(deploy(E1))
    assert isinstance(failed, Failed)
    assert failed.operator == "work"
    assert "no such table" in failed.message


def test_an_exception_in_a_snapshot_is_a_failure_of_the_attempt() -> None:
    """R1."""
    bench = running(broken_at("freeze", RuntimeError("cannot freeze")))
    (failed,) = bench.tell(Trigger(E1, SnapshotOrder(N1, CHECKPOINT)))
    assert isinstance(failed, Failed)
    assert "cannot freeze" in failed.message


def test_an_exception_in_close_does_not_stop_the_others_from_closing() -> None:
    bench = running(broken_at("close", RuntimeError("stuck")))
    assert bench.tell(Drop(E1)) == [Dropped(E1)]
    assert bench.made[0].closed == 1  # type: ignore[attr-defined]


def test_a_mistake_in_the_plan_is_fatal() -> None:
    """A restart would not help."""
    bench = Bench(broken("no such column", PlanError))
    bench.tell(deploy(E1))
    (failed,) = [m for m in bench.tell(Start(E1, {})) if isinstance(m, Failed)]
    assert failed.fatal


@pytest.mark.parametrize("prepared", [("a", 1), lambda: ("a", 1), np.int64(7), {"when": object()}])
def test_a_transaction_that_no_checkpoint_can_keep_is_told_by_the_sink(prepared: object) -> None:
    """E1, S10: and for good, for the next attempt would meet it again."""
    bench = running()
    bench.sink.prepared = prepared
    bench.tell(Trigger(E1, SnapshotOrder(N1, CHECKPOINT)))
    bench.tell()
    (failed,) = [m for m in bench.driver.sent if isinstance(m, Failed)]
    assert failed.operator == "out"
    assert re.search(r"prepare\(\) returned cannot be kept.*is not plain data", failed.message)
    assert failed.fatal


def test_a_position_that_no_checkpoint_can_keep_is_told_by_the_source() -> None:
    """E1, S10."""
    bench = running()
    source = bench.worker.attempt.subtasks[0].chain.source  # type: ignore[union-attr]
    source._reader.at = np.int64(3)  # type: ignore[union-attr]
    (failed,) = bench.tell(Trigger(E1, SnapshotOrder(N1, CHECKPOINT)))
    assert isinstance(failed, Failed)
    assert "the position of lane 0 from positions() cannot be kept" in failed.message
    assert (failed.operator, failed.fatal) == ("numbers", True)


def test_an_answer_that_cannot_be_sent_ends_the_attempt_and_not_the_worker() -> None:
    """R1."""
    bench = Bench()
    send = bench.driver.send

    def refuse(message: object) -> None:
        if isinstance(message, Ack):
            raise WireError("too large")
        send(message)  # type: ignore[arg-type]

    bench.driver.send = refuse  # type: ignore[method-assign]
    bench.tell(deploy(E1), Start(E1, {}))
    bench.tell(Trigger(E1, SnapshotOrder(N1, CHECKPOINT)))
    (failed,) = bench.tell()
    assert isinstance(failed, Failed)
    assert "too large" in failed.message


# ---- heartbeats and leaving


def test_a_sync_is_answered_with_numbers() -> None:
    bench = running()
    answers = bench.tell(Sync(E1, (), CheckpointId(0), CheckpointId(0)))
    (status,) = [m for m in answers if isinstance(m, Status)]
    assert status.slot == SlotId(0)
    assert any("penstock_records_out_total" in name for name in status.metrics)


def test_a_worker_that_was_not_started_yet_answers_a_sync_with_ready() -> None:
    """Its Start, or its Ready, was lost."""
    bench = Bench()
    bench.tell(deploy(E1))
    sync = Sync(E1, (), CheckpointId(0), CheckpointId(0))
    assert bench.tell(sync) == [Ready(E1, SlotId(0), {})]


def test_it_leaves_when_it_is_told_to() -> None:
    bench = running()
    bench.driver.inbox.append(Leave())
    bench.worker.run()
    assert bench.worker.attempt is None


def test_it_drops_its_attempt_when_the_driver_is_gone() -> None:
    bench = running()
    bench.driver.gone = True
    with pytest.raises(DriverLost):
        bench.worker.run()
    assert bench.worker.attempt is None
    assert bench.made[0].closed == 1  # type: ignore[attr-defined]


def test_two_hundred_attempts_in_one_worker_leave_nothing_behind() -> None:
    """bug-I8, I26: failures at every moment."""
    moments = ["", "open", "freeze", "close"]
    count = iter(range(10_000))

    def make() -> Operator:
        moment = moments[next(count) % len(moments)]
        return broken_at(moment, RuntimeError(moment))() if moment else Do()

    bench = Bench(make)
    for number in range(1, 201):
        attempt = AttemptId(number)
        bench.tell(deploy(attempt), Start(attempt, {}))
        bench.tell(Trigger(attempt, SnapshotOrder(CheckpointId(number), CHECKPOINT)))
        bench.tell(Drop(attempt))
    assert bench.worker.attempt is None
    assert [operator.closed for operator in bench.made] == [1] * 200  # type: ignore[attr-defined]
    assert not bench.background.waiting
