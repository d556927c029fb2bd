"""Bugs in the life of a job: workers that are lost or stay, attempts that follow each other, failures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.engine.driver.numbers import Numbers
from penstock.engine.worker import worker
from penstock.engine.worker.attempt import Attempt
from penstock.engine.worker.pressure import Pressure
from penstock.engine.worker.subtask import Subtask
from penstock.engine.worker.worker import Worker
from penstock.protocol import restart
from penstock.protocol.ids import AttemptId
from penstock.protocol.lifecycle import JobMachine
from penstock.shells.spark.driver_loop import DriverLoop
from penstock.shells.spark.signals import Signals
from tests.mutants.registry import simulated, swapped, tested


@simulated
def a_lost_worker_goes_unnoticed() -> AbstractContextManager[None]:
    """A worker that is gone fails nothing: the others wait for it for ever (R1, I25)."""
    return swapped(JobMachine, "_works_in_present_attempt", lambda self, member: False)


@simulated
def an_exception_costs_a_batch() -> AbstractContextManager[None]:
    """What user code raises is swallowed, and with it the rows that were being processed (R1)."""

    original = Worker._guarded

    def guarded(self: Worker, work: Callable[[], bool | None]) -> bool | None:
        if self.attempt is None or work != self.attempt.step:
            return original(self, work)
        try:
            return work()
        except ValueError:
            return True
        except Exception as error:
            return original(self, partial(_raise, error))

    return swapped(Worker, "_guarded", guarded)


def _raise(error: Exception) -> bool:
    raise error


@simulated
def a_worker_that_stays_restores_nothing() -> AbstractContextManager[None]:
    """Only a new process restores its state; one that had an attempt before begins with nothing (R1, bug-I8)."""
    original = Worker._on_deploy

    def on_deploy(self: Worker, message: Any) -> None:
        if self.attempt is not None or self._newest:
            message = replace(message, snapshots=())
        original(self, message)

    return swapped(Worker, "_on_deploy", on_deploy)


@simulated
def a_dropped_attempt_stays_open() -> AbstractContextManager[None]:
    """A worker forgets an attempt without closing its channels (I26, bug-I5)."""

    def drop(self: Worker) -> None:
        self.attempt = self._ready = None

    return swapped(Worker, "_drop_attempt", drop)


@simulated
def lost_orders_are_not_repeated() -> AbstractContextManager[None]:
    """A worker that did not hear that it should deploy or drop is waited for until the end of days (I25)."""
    return swapped(JobMachine, "repeat", lambda self: [])


@tested("tests/engine/test_worker.py::test_messages_about_another_attempt_are_dropped")
def messages_about_other_attempts_are_obeyed() -> AbstractContextManager[None]:
    """Nobody looks which attempt a message is about (I18, bug-I8)."""

    def mine(self: Worker, attempt: AttemptId) -> Attempt | None:
        return self.attempt

    return swapped(Worker, "_mine", mine)


@tested("tests/engine/test_attempt.py::test_a_closed_attempt_says_nothing_whatever_ends_late")
def a_closed_attempt_still_speaks() -> AbstractContextManager[None]:
    """An upload that ends after its attempt is acknowledged all the same (I18, bug-I8)."""

    def say(self: Attempt, message: Any) -> None:
        while self._outbox:
            self._send(self._outbox.popleft())
        if message is not None:
            self._send(message)

    return swapped(Attempt, "_say", say)


@tested("tests/protocol/test_lifecycle.py::test_two_failures_in_one_tick_are_one_restart")
def two_failures_are_two_restarts() -> AbstractContextManager[None]:
    """A second failure of an attempt that has failed already begins yet another one (bug-A13)."""

    def attempt_failed(self: JobMachine, attempt: Any, reason: str, now_ms: float, **_: Any) -> Any:
        return self._failed(reason, now_ms)

    return swapped(JobMachine, "attempt_failed", attempt_failed)


@tested(
    "tests/engine/test_attempt.py::test_a_source_pauses_behind_a_stop_barrier_and_goes_on_when_it_is_aborted"
)
def sources_read_on_behind_a_stop() -> AbstractContextManager[None]:
    """Stopping a job does not pause its sources: rows are processed that nobody will commit (P3)."""
    return swapped(Subtask, "_stop_behind", lambda self, order: self.chain.hold_nothing_back())


@tested(
    "tests/engine/test_attempt.py::test_a_source_pauses_behind_a_stop_barrier_and_goes_on_when_it_is_aborted"
)
def a_stop_that_failed_leaves_sources_paused() -> AbstractContextManager[None]:
    """The last snapshot is aborted, and the sources never go on (bug-A17, I25)."""
    original = Subtask.abort

    def abort(self: Subtask, checkpoint: Any) -> None:
        paused = self._paused_by
        original(self, checkpoint)
        self._paused_by = paused

    return swapped(Subtask, "abort", abort)


@tested(
    "tests/protocol/test_lifecycle.py"
    "::test_a_worker_lost_in_a_long_pause_between_attempts_is_waited_for"
)
def the_time_for_workers_runs_out_in_the_pause() -> AbstractContextManager[None]:
    """A worker lost late in a long pause between attempts ends the job (R1)."""

    def slots_by_ms(self: JobMachine, phase: Any) -> float:
        return float(phase.since_ms + self.config.slot_timeout_ms)

    return swapped(JobMachine, "_slots_by_ms", slots_by_ms)


@tested(
    "tests/protocol/test_lifecycle.py::test_a_job_that_has_run_waits_for_slots_as_long_as_it_takes"
)
def a_shortage_of_slots_ends_a_job_that_ran() -> AbstractContextManager[None]:
    """Whoever loses a worker while the cluster is full is ended for good (R1, I25)."""
    original = JobMachine._too_few

    def too_few(self: JobMachine, phase: Any, now_ms: float) -> Any:
        self.has_run = False
        return original(self, phase, now_ms)

    return swapped(JobMachine, "_too_few", too_few)


@tested(
    "tests/spark/test_signals.py::test_a_job_with_checkpoints_stops_and_one_without_is_cancelled"
)
def a_signal_cancels_the_job() -> AbstractContextManager[None]:
    """`kill` ends a job without a last checkpoint: what came since the last one is done again (P3)."""

    def stop_for_signal(self: DriverLoop, again: str) -> None:
        self._ask(self._manager.request_cancel)

    return swapped(DriverLoop, "stop_for_signal", stop_for_signal)


@tested("tests/spark/test_signals.py::test_a_second_signal_does_at_once_what_it_does_without_jobs")
def a_second_signal_is_swallowed() -> AbstractContextManager[None]:
    """A program whose job cannot stop cannot be ended (bug-I2)."""

    def handle(self: Signals, number: int, frame: Any) -> None:
        for job in self._alive():
            job.stop_for_signal("")

    return swapped(Signals, "_handle", handle)


@tested(
    "tests/spark/test_signals.py"
    "::test_a_program_that_does_not_wait_is_interrupted_when_its_jobs_have_ended"
)
def a_program_that_does_not_wait_never_hears_of_a_signal() -> AbstractContextManager[None]:
    """The signal ends the jobs, and the program goes on with whatever else it does (P3)."""
    return swapped(Signals, "job_ended", lambda self: None)


POISON = "tests/engine/test_poison.py"


@tested(f"{POISON}::test_a_row_that_always_fails_ends_the_job_and_is_named")
def a_poison_row_restarts_the_job_for_ever() -> AbstractContextManager[None]:
    """Nobody counts how often the same failure comes (R2)."""
    return swapped(restart.Repeats, "after", lambda self, what, ran_well: self)


@tested(f"{POISON}::test_a_service_that_does_not_answer_is_waited_for")
def trouble_that_passes_is_taken_for_a_poison_row() -> AbstractContextManager[None]:
    """A connection that is refused ten times ends a job that was to restart for ever (R2)."""
    return swapped(worker, "_ABOUT_VALUES", (Exception,))


@tested("tests/protocol/test_restart.py::test_two_failures_that_take_turns_are_counted_each")
def two_poison_rows_hide_each_other() -> AbstractContextManager[None]:
    """Two subtasks with a poison row each: whichever is faster ends the attempt, and counting begins again (R2)."""

    def after(self: restart.Repeats, what: str, *, ran_well: bool) -> restart.Repeats:
        count = self.count + 1 if what == self.newest and not ran_well else 1
        return restart.Repeats({what: count} if what else {}, what)

    return swapped(restart.Repeats, "after", after)


TOLD = "tests/engine/test_told.py"


@tested(f"{TOLD}::test_counters_never_go_down_and_no_series_goes_away")
def counters_begin_anew_with_every_attempt() -> AbstractContextManager[None]:
    """What earlier attempts had counted is forgotten (U2)."""

    def attempt_over(self: Numbers) -> None:
        self._workers = {}
        self._publish()

    return swapped(Numbers, "attempt_over", attempt_over)


@tested(
    "tests/engine/test_pressure.py"
    "::test_a_subtask_whose_output_is_full_is_pressed_until_there_is_room"
)
def back_pressure_is_never_seen() -> AbstractContextManager[None]:
    """Full outputs are not noted (U2, E5)."""
    return swapped(Pressure, "note", lambda self, full: None)


@tested("tests/engine/test_worker.py::test_a_failure_that_was_lost_is_said_again")
def a_start_that_is_repeated_is_answered_only_by_who_runs() -> AbstractContextManager[None]:
    """A worker that has failed meanwhile says nothing, and is waited for until the end of days (I25)."""
    original = Worker._on_start

    def on_start(self: Worker, attempt: AttemptId, endpoints: Any) -> None:
        if self._mine(attempt) is not None:
            original(self, attempt, endpoints)

    return swapped(Worker, "_on_start", on_start)
