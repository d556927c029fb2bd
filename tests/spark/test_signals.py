"""What Ctrl-C and `kill` do to a program with jobs: the rules of the handlers, with jobs that do as they are told.

The same with real programs and real jobs is in `test_jobs_signals`.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.protocol.phases import Outcome
from penstock.shells.spark.driver_loop import DriverLoop
from penstock.shells.spark.signals import Signals
from tests.engine.kit import ListSink, NumberSource
from tests.engine.whole_job import Job

INT, TERM = signal.SIGINT, signal.SIGTERM


class Obedient:
    """A job that ends when a test says so."""

    def __init__(self) -> None:
        self.over = False
        self.asked: list[str] = []

    def stop_for_signal(self, again: str) -> None:
        self.asked.append(again)


class Own:
    """A handler of the user's."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, number: int, frame: Any) -> None:
        self.calls.append(number)


@pytest.fixture(autouse=True)
def own() -> Iterator[dict[int, Own]]:
    """Each test begins with handlers of its own, and none stays."""
    before = {number: signal.getsignal(number) for number in (INT, TERM)}
    own = {number: Own() for number in (INT, TERM)}
    for number, handler in own.items():
        signal.signal(number, handler)
    yield own
    for number, known in before.items():
        signal.signal(number, known)


@pytest.fixture
def python_s() -> None:
    """Python's own handler of Ctrl-C, as a plain program has it."""
    signal.signal(INT, signal.default_int_handler)


def watched(count: int = 1) -> tuple[Signals, list[Obedient]]:
    signals, jobs = Signals(), [Obedient() for _ in range(count)]
    for job in jobs:
        signals.watch(job)
    return signals, jobs


@pytest.mark.parametrize("number", [INT, TERM])
def test_the_first_signal_stops_every_job_and_nothing_else(
    own: dict[int, Own], number: signal.Signals
) -> None:
    """P3."""
    _, jobs = watched(2)
    signal.raise_signal(number)
    assert [len(job.asked) for job in jobs] == [1, 1]
    assert "ends it at once" in jobs[0].asked[0]
    assert own[number].calls == [], "it comes when the jobs have ended"


@pytest.mark.parametrize("second", [INT, TERM])
def test_a_second_signal_does_at_once_what_it_does_without_jobs(
    own: dict[int, Own], second: signal.Signals
) -> None:
    _, (job,) = watched()
    signal.raise_signal(TERM)
    signal.raise_signal(second)
    assert own[second].calls == [second]
    assert len(job.asked) == 1
    assert signal.getsignal(TERM) is own[TERM], "and the handlers are as they were"


def test_who_waits_for_the_job_goes_on_when_it_has_stopped(python_s: None) -> None:
    """P3: no KeyboardInterrupt: the program prints its results and ends."""
    signals, (job,) = watched()
    with signals.waiting():
        signal.raise_signal(INT)
        assert job.asked
        job.over = True
        signals.job_ended()
    assert signal.getsignal(INT) is signal.default_int_handler


def test_a_second_ctrl_c_interrupts_who_waits(python_s: None) -> None:
    signals, _ = watched()
    with pytest.raises(KeyboardInterrupt), signals.waiting():
        signal.raise_signal(INT)
        signal.raise_signal(INT)


def test_a_program_that_does_not_wait_is_interrupted_when_its_jobs_have_ended(
    python_s: None,
) -> None:
    """A loop of its own would go on for ever."""
    signals, jobs = watched(2)
    signal.raise_signal(INT)
    for job in jobs[:1]:
        job.over = True
        signals.job_ended()
    jobs[1].over = True
    with pytest.raises(KeyboardInterrupt):
        signals.job_ended()


def test_a_poll_now_and_then_counts_as_waiting(python_s: None) -> None:
    signals, (job,) = watched()
    with signals.waiting():
        assert not job.over
    signal.raise_signal(INT)
    job.over = True
    signals.job_ended()
    with signals.waiting():
        assert job.over


def test_a_handler_of_the_user_s_runs_once_when_the_jobs_have_ended(own: dict[int, Own]) -> None:
    """Also where the program waits; such a handler often ends the program, which would cut the stop short."""
    signals, (job,) = watched()
    with signals.waiting():
        signal.raise_signal(TERM)
        assert own[TERM].calls == []
        job.over = True
        signals.job_ended()
        assert own[TERM].calls == [], "before anybody goes on who waits"
    assert own[TERM].calls == [TERM]
    signals.job_ended()
    assert own[TERM].calls == [TERM]


def test_handlers_are_restored_after_the_last_job(own: dict[int, Own]) -> None:
    signals, jobs = watched(2)
    for job in jobs:
        assert signal.getsignal(INT) is not own[INT]
        with signals.waiting():
            job.over = True
    assert (signal.getsignal(INT), signal.getsignal(TERM)) == (own[INT], own[TERM])


def test_a_signal_after_the_last_job_is_the_program_s_own(own: dict[int, Own]) -> None:
    """Nobody has waited for it, so the handlers are still ours."""
    _, (job,) = watched()
    job.over = True
    signal.raise_signal(INT)
    assert own[INT].calls == [INT]
    assert job.asked == []


def test_a_handler_set_after_the_start_is_left_alone(own: dict[int, Own]) -> None:
    signals, (job,) = watched()
    later = Own()
    signal.signal(TERM, later)
    with signals.waiting():
        job.over = True
    assert signal.getsignal(TERM) is later


def test_in_a_prompt_ctrl_c_is_left_alone(
    own: dict[int, Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever interrupts a cell of a notebook does not want to end a job; a kernel that is told to end does."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    _, (job,) = watched()
    signal.raise_signal(INT)
    assert own[INT].calls == [INT] and job.asked == []
    signal.raise_signal(TERM)
    assert len(job.asked) == 1


def test_ignored_signals_stay_ignored() -> None:
    """nohup, and programs in the background of a script."""
    signal.signal(INT, signal.SIG_IGN)
    _, (job,) = watched()
    signal.raise_signal(INT)
    assert job.asked == []


def test_jobs_of_other_threads_are_left_alone(own: dict[int, Own]) -> None:
    """Python sets handlers in the main thread only."""
    signals, job = Signals(), Obedient()
    thread = threading.Thread(target=signals.watch, args=(job,))
    thread.start()
    thread.join()
    assert signal.getsignal(TERM) is own[TERM]


def test_plain_kill_ends_a_program_that_does_not_wait() -> None:
    """By the signal itself, so that whoever started it sees that: 143 in a shell."""
    program = (
        "import signal, threading\n"
        "from penstock.shells.spark.signals import Signals\n"
        "class Job:\n"
        "    over = False\n"
        "    def stop_for_signal(self, again):\n"
        "        self.over = True\n"
        "        print('stopping', flush=True)\n"
        "        threading.Thread(target=signals.job_ended).start()\n"
        "signals = Signals()\n"
        "signals.watch(Job())\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "threading.Event().wait(600)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-TERM, "stopping\n", "")


@pytest.mark.parametrize(
    ("durable", "outcome", "said"),
    [
        (True, Outcome.STOPPED, "job job: stopping with a last checkpoint (again)"),
        (False, Outcome.CANCELLED, "job job: ending (again)"),
    ],
)
def test_a_job_with_checkpoints_stops_and_one_without_is_cancelled(
    caplog: pytest.LogCaptureFixture, durable: bool, outcome: Outcome, said: str
) -> None:
    """P3: said in one line, by the job's own thread and not in the handler."""
    job = Job(NumberSource(10**9), ListSink(), durable=durable)
    job.until(lambda: job.manager.status == "running")
    nothing: Any = None
    workers: Any = type("Workers", (), {"wake": lambda self: None})()
    loop = DriverLoop("job", "job", job.manager, workers, nothing, nothing, lambda: None, durable)
    with caplog.at_level(logging.WARNING, "penstock"):
        loop.stop_for_signal("again")
        assert caplog.messages == []
        loop._requests.popleft()()
    assert caplog.messages == [said]
    assert job.run() is outcome
