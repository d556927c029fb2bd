"""The ways into a running job that need no Spark to be proved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.engine.history.history import History
from penstock.engine.history.records import CheckpointInfo, Totals
from penstock.plan.physical import make_plan
from penstock.protocol.coordinator import Aborted, Reason
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.shells.spark.driver_loop import DriverLoop
from tests.engine.kit import ListSink, NumberSource, pipeline
from tests.engine.whole_job import Job

KIND = SnapshotKind.CHECKPOINT


class Asked:
    """The job's workers; to be woken makes happen what happens after a request."""

    def __init__(self, happens: Any) -> None:
        self.wake = happens


def test_a_checkpoint_on_request_is_a_new_one_and_not_one_from_the_past() -> None:
    """C6: also when the past is read while somebody waits."""
    history = History(make_plan(pipeline(NumberSource(1), ListSink()), 1, 8))

    def happens() -> None:
        old = CheckpointInfo(3, "checkpoint", "completed", 1.0, 5.0)
        history.remember([old], Totals(1))
        history.triggered(CheckpointId(104), KIND, 2.0)
        history.aborted(Aborted(CheckpointId(104), KIND, 0.0, 1.0, Reason.TIMEOUT, "", frozenset()))

        loop._requests.popleft()()

    def request(answer: Any) -> None:
        answer(CheckpointId(104))

    manager: Any = SimpleNamespace(history=history, request_checkpoint=request)
    workers: Any = Asked(happens)
    nothing: Any = None
    loop = DriverLoop("job", "job", manager, workers, nothing, nothing, lambda: None, True)
    assert loop.trigger_checkpoint(5.0).id == 104
    assert loop.checkpoint_summary().aborted == 1


def test_who_asks_for_a_checkpoint_gets_the_answer_to_their_own_request() -> None:
    """C1: not the one that somebody else asked for, though it ended first and began later than they asked."""
    history = History(make_plan(pipeline(NumberSource(1), ListSink()), 1, 8))

    def happens() -> None:
        for number in (7, 8):
            history.triggered(CheckpointId(number), KIND, 2.0)
            ended = (CheckpointId(number), KIND, 0.0, 1.0, Reason.TIMEOUT, "", frozenset())
            history.aborted(Aborted(*ended))
        loop._requests.popleft()()

    def request(answer: Any) -> None:
        answer(CheckpointId(8))

    manager: Any = SimpleNamespace(history=history, request_checkpoint=request)
    workers: Any = Asked(happens)
    nothing: Any = None
    loop = DriverLoop("job", "job", manager, workers, nothing, nothing, lambda: None, True)
    assert loop.trigger_checkpoint(5.0).id == 8


def test_a_job_that_never_ran_says_that_it_starts_until_all_of_it_is_gone() -> None:
    """I27: `running` would be wrong, and `failed` too early: somebody may wait for the cores."""
    job = Job(NumberSource(10), ListSink(), slot_timeout_ms=50)
    job.workers.workers.clear()
    job.workers.events.clear()
    nothing: Any = None
    workers: Any = job.workers
    loop = DriverLoop("job", "job", job.manager, workers, nothing, nothing, lambda: None, True)
    loop._publish(job.manager.status)
    job.run()
    loop._publish(job.manager.status)
    assert loop.status() == "starting"
    loop._over.set()
    assert loop.status() == "failed"


def test_the_last_checkpoint_that_completed_is_among_the_numbers() -> None:
    """U2, C6: how long it took and how large it is; one that is pending or aborted does not count."""
    job = Job(NumberSource(10**9), ListSink())
    workers: Any = job.workers
    nothing: Any = None
    loop = DriverLoop("job", "job", job.manager, workers, nothing, nothing, lambda: None, True)
    assert "penstock_last_checkpoint_seconds" not in loop.metrics()
    job.until(job.completed(2))
    newest = next(i for i in job.manager.history.checkpoints if i.status == "completed")
    numbers = loop.metrics()
    assert newest.duration_ms is not None
    assert numbers["penstock_last_checkpoint_seconds"] == newest.duration_ms / 1_000
    assert numbers["penstock_last_checkpoint_bytes"] == newest.bytes_full
    assert numbers["penstock_restarts_total"] == 0
