"""Rows that the code cannot handle end a job that restarts for ever otherwise; trouble that passes does not."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.protocol import restart
from penstock.protocol.phases import Outcome
from tests.engine.kit import Do, ListSink, NumberSource
from tests.engine.whole_job import Job

THREE_TIMES = restart.Exponential(1, 1, same_failures_max=3)


def failing(error: Callable[[int], Exception], times: int = 10**9, at: int = 50) -> Do:
    """Raises at a row, so often."""
    count = iter(range(times))

    def work(batch: pa.RecordBatch) -> None:
        if at in batch.column(0).to_pylist() and (number := next(count, None)) is not None:
            raise error(number)

    return Do(work)


def run(work: Do, strategy: restart.Strategy = THREE_TIMES) -> tuple[Job, Outcome]:
    job = Job(NumberSource(200), ListSink(), operator=lambda: work, strategy=strategy)
    return job, job.run()


def test_a_row_that_always_fails_ends_the_job_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R2, E2: operator, error, place and what to do; until then the log counts."""
    with caplog.at_level(logging.WARNING, "penstock"):
        job, outcome = run(failing(lambda _: ValueError("no number: 'abc'")))
    assert outcome is Outcome.FAILED
    assert job.manager.machine.attempts == 3
    reason = job.manager.reason
    assert reason.startswith("ValueError in operator 'work': no number: 'abc' (at ")
    assert "the same failure came 3 times in a row" in reason
    assert "mend the code, or filter such rows out before, and start the job again" in reason
    assert "this failure came 2 times, and ends the job if it comes 3 times" in caplog.text


def test_what_the_sinks_have_committed_before_the_row_stays() -> None:
    """R2, I1: started again with mended code it goes on behind that."""
    broken, _ = run(failing(lambda _: KeyError("gone"), at=150))
    again = Job(NumberSource(200), broken.sink, store=broken.store, driver="b")
    assert again.run() is Outcome.FINISHED
    assert again.sink.numbers == list(range(200))


def test_objects_that_lie_elsewhere_in_memory_make_no_other_failure() -> None:
    job, outcome = run(failing(lambda n: TypeError(f"<Row object at 0x7f{n:010x}> has no price")))
    assert outcome is Outcome.FAILED
    assert job.manager.machine.attempts == 3


@pytest.mark.parametrize("error", [ConnectionRefusedError, TimeoutError, RuntimeError])
def test_a_service_that_does_not_answer_is_waited_for(error: type[Exception]) -> None:
    """R1: the error says nothing about the row, and passes."""
    job, outcome = run(failing(lambda _: error("no answer"), times=20))
    assert outcome is Outcome.FINISHED
    assert job.manager.machine.attempts == 21
    assert job.sink.numbers == list(range(200))


def test_failures_that_differ_are_not_the_same() -> None:
    _, outcome = run(failing(lambda n: ValueError(f"request {n} had no answer"), times=20))
    assert outcome is Outcome.FINISHED


def test_a_failure_that_passes_in_time_ends_nothing() -> None:
    job, outcome = run(failing(lambda _: ValueError("not yet"), times=2))
    assert outcome is Outcome.FINISHED
    assert job.manager.machine.attempts == 3


@pytest.mark.parametrize(
    "strategy", [restart.Fixed(30, 1), restart.Exponential(1, 1, same_failures_max=None)]
)
def test_who_chose_his_own_limit_or_none_keeps_it(strategy: restart.Strategy) -> None:
    """R2."""
    job, outcome = run(failing(lambda _: ValueError("bad"), times=25), strategy)
    assert outcome is Outcome.FINISHED
    assert job.manager.machine.attempts == 26
