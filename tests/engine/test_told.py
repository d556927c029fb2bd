"""What a job tells people about itself: restarts in the log, numbers after the end, failures under the right name."""

from __future__ import annotations

import logging
import re

import pyarrow as pa
import pytest

from penstock.engine.driver.restarting import restart_line
from penstock.engine.metrics import series
from penstock.engine.operators.base import FrozenOperator, OperatorContext
from penstock.errors import SchemaError
from penstock.ports.control import LaunchEnded, Received
from penstock.protocol import restart
from penstock.protocol.ids import AttemptId, CheckpointId, WorkerId
from penstock.protocol.lifecycle import JobMachine, LifecycleConfig
from penstock.protocol.messages import Decline, SnapshotOrder
from penstock.protocol.phases import Outcome
from penstock.state.keyed import Keyed
from tests.engine.kit import Do, ListSink, NumberSource
from tests.engine.test_manager import Job


def fails_once_at(number: int) -> Do:
    """Made anew for each attempt: the list is shared, so that only the first one fails."""
    failures = iter([True])

    def once(batch: pa.RecordBatch) -> None:
        if number in batch.column(0).to_pylist() and next(failures, False):
            raise ValueError("bad row")

    return Do(once)


class Counted(Do):
    """Has a state with one key."""

    def open(self, context: OperatorContext) -> None:
        keys, values = pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())])
        keyed = Keyed(keys, context.max_parallelism)
        self.table = keyed.table("value", "seen", values)
        self.table.add(keyed.space.upsert([pa.array([1], pa.int64())]).new)

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        return FrozenOperator(tables=(self.table.freeze(),))


# ---- restarts


def test_the_log_says_when_a_job_is_tried_again_and_how_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R2."""
    work = fails_once_at(50)
    job = Job(NumberSource(200), ListSink(), operator=lambda: work)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert job.run() is Outcome.FINISHED
    told = [record.getMessage() for record in caplog.records]
    assert "ValueError in operator 'work': bad row" in told[0]
    assert told[1] == (
        "job job: trying again in 0.005 s from the newest checkpoint: restart 1, failure 1 of 3 that"
        " restart=pen.FixedDelay(...) allows"
    )
    assert len(told) == 2


def test_the_log_says_which_checkpoint_a_job_goes_on_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R5: for whoever wants to know; it is no warning."""
    first = Job(NumberSource(10**9), ListSink())
    first.until(first.completed(2))
    with caplog.at_level(logging.INFO, "penstock"):
        second = Job(NumberSource(10**9), first.sink, store=first.store, driver="b")
        second.until(lambda: second.manager.status == "running")
    newest = second.manager.history.checkpoints[0].id
    (told,) = [each for each in caplog.records if "goes on from" in each.getMessage()]
    assert told.levelno == logging.INFO
    assert re.search(
        rf"job job: goes on from checkpoint {newest} of \d{{4}}-\d\d-\d\d ", told.getMessage()
    )


def test_a_failure_that_ends_the_job_promises_no_restart(caplog: pytest.LogCaptureFixture) -> None:
    """R2."""
    work = fails_once_at(50)
    job = Job(NumberSource(200), ListSink(), operator=lambda: work, strategy=restart.Never("no"))
    with caplog.at_level(logging.WARNING, "penstock"):
        assert job.run() is Outcome.FAILED
    assert "trying again" not in caplog.text


@pytest.mark.parametrize(
    ("strategy", "durable", "told"),
    [
        (
            restart.Exponential(),
            True,
            "in 0.05 s from the newest checkpoint: restart 1, with growing",
        ),
        (restart.Exponential(), True, "restart=pen.FixedDelay(attempts=3) would set one"),
        (restart.Exponential(0), True, "at once from"),
        (restart.Rate(3, 60_000, 10), True, "allows 3 failures within 60 s"),
        (restart.Fixed(2, 1_500), False, "in 1.5 s from scratch, because it takes no checkpoints"),
    ],
)
def test_every_strategy_says_how_to_limit_it(
    strategy: restart.Strategy, durable: bool, told: str
) -> None:
    """R2."""
    machine = JobMachine(LifecycleConfig(1, strategy=strategy))
    machine.begin(0.0)
    machine.joined(WorkerId("w"), 0, 1.0)
    machine.claimed(AttemptId(1), CheckpointId(0), None, 2.0)
    machine.attempt_failed(AttemptId(1), "no", 3.0)
    assert told in restart_line(machine, durable)


def test_a_restart_that_does_not_count_has_no_number(caplog: pytest.LogCaptureFixture) -> None:
    """R2: somebody cancelled the Spark job of the worker; the failure after that is the first one."""
    work = fails_once_at(3_000)
    job = Job(NumberSource(4_000), ListSink(), operator=lambda: work)
    job.until(job.completed(1))
    with caplog.at_level(logging.WARNING, "penstock"):
        job.workers.events.append(LaunchEnded(0, "cancelled", cancelled=True))
        job.workers.kill(WorkerId("w0"))
        assert job.run() is Outcome.FINISHED
    cancelled, going_on, failed, again = caplog.messages
    assert "WorkerCancelled: cancelled from outside; no restart is counted for it" in cancelled
    assert going_on == "job job: going on at once from the newest checkpoint"
    assert "bad row" in failed
    assert "restart 1, failure 1 of 3" in again


# ---- numbers


def test_a_finished_job_keeps_its_numbers() -> None:
    """C6, U2: also those of a job that was over before anyone asked for them."""
    job = Job(NumberSource(100), ListSink())
    assert job.run() is Outcome.FINISHED
    for operator in ("work", "out"):
        assert job.manager.metrics[f'penstock_records_in_total{{operator="{operator}"}}'] == 100


def test_counters_never_go_down_and_no_series_goes_away() -> None:
    """U2: they are there with 0 before the first row, stay between attempts, and go on in the next one; rows that are
    processed again count again."""
    work = fails_once_at(2_000)
    job = Job(NumberSource(3_000), ListSink(), operator=lambda: work)
    seen = dict(job.manager.metrics)
    counters = [name for name in seen if "_total" in name]
    assert len(counters) == 6 and not any(seen.values())
    while not job.manager.ended:
        job.step()
        now = job.manager.metrics
        assert now.keys() >= seen.keys()
        assert all(now[name] >= seen[name] for name in counters)
        seen = dict(now)
    assert job.manager.machine.attempts == 2
    read = seen['penstock_records_out_total{operator="numbers"}']
    assert read > 3_000, "some rows were read twice"


def test_the_lag_of_a_source_and_the_size_of_state_are_told() -> None:
    """U2, C6: state as it is in the newest checkpoint; at once where a job goes on from one."""
    source = NumberSource(1_000_000)
    source.lag = {"rows": 7}
    job = Job(source, ListSink(), operator=Counted)
    job.until(job.completed(2))
    job.until(lambda: 'penstock_source_lag{operator="numbers",unit="rows"}' in job.manager.metrics)
    numbers = job.manager.metrics
    assert numbers['penstock_source_lag{operator="numbers",unit="rows"}'] == 7
    assert numbers['penstock_state_rows{operator="work",state="seen"}'] == 1
    assert numbers['penstock_state_bytes{operator="work",state="seen"}'] > 0
    again = Job(source, job.sink, operator=Counted, store=job.store, driver="b")
    again.until(lambda: again.manager.machine.attempts == 1)
    assert again.manager.metrics['penstock_state_rows{operator="work",state="seen"}'] == 1


def test_a_source_that_cannot_tell_its_lag_disturbs_nothing() -> None:
    source = NumberSource(1_000)
    source.lag = None
    assert Job(source, ListSink()).run() is Outcome.FINISHED


def test_a_name_with_quotes_makes_no_other_series() -> None:
    assert series("rows", operator='a "b" \\', unit=1) == 'rows{operator="a \\"b\\" \\\\",unit="1"}'


# ---- failures under the right name


def test_rows_that_cannot_be_made_durable_are_the_sink_s_failure() -> None:
    """E2: whichever operator happens to be at work when it comes out."""
    sink = ListSink()
    sink.prepare_error = OSError("disk full")
    job = Job(NumberSource(1_000_000), sink, strategy=restart.Never("no"))
    assert job.run() is Outcome.FAILED
    (told,) = job.manager.history.exceptions
    assert told.operator == "out"
    assert told.message.startswith("sink 'out' could not make its rows durable: OSError: disk full")
    assert "number" not in told.message, "where the source stands has nothing to do with it"


def test_a_checkpoint_that_fails_later_does_not_get_the_traceback_of_a_tolerated_one() -> None:
    """B6: one failure is tolerated here; the second one is a timeout, which has no traceback."""
    job = Job(NumberSource(1_000_000), ListSink(), strategy=restart.Never("no"))
    job.until(job.completed(1))
    job.background.held = True
    job.until(lambda: bool(job.manager.coordinator.unfinished))
    pending = max(job.manager.coordinator.unfinished)
    declined = Decline(AttemptId(1), pending, "no room", "Traceback of the refusal")
    job.workers.events.append(Received(WorkerId("w0"), declined))
    job.until(lambda: job.manager.outcome is not None)
    newest = job.manager.history.exceptions[0]
    assert newest.error == "CheckpointFailed"
    assert newest.traceback == ""


def test_the_name_of_an_operator_is_not_said_twice() -> None:
    """A message that begins with the operator's name is told without it beside the name."""

    def refuse(batch: pa.RecordBatch) -> None:
        raise SchemaError("work: the function returned 3")

    job = Job(NumberSource(10), ListSink(), operator=lambda: Do(refuse))
    assert job.run() is Outcome.FAILED
    assert job.manager.reason.startswith("SchemaError in operator 'work': the function returned 3")
