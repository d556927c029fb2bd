"""Ctrl-C and `kill` for a program whose jobs run: the jobs stop with a last checkpoint first.

Rules. The first SIGINT or SIGTERM stops every job of the program. Whoever waits for them in the main thread then goes
on, and the program ends as it always does. In a program that does not wait for its jobs, and where it has a handler of
its own, the signal does afterwards what it would have done without jobs. A second signal does that at once. In a
Python prompt and in a notebook Ctrl-C is not touched: it interrupts a cell, and is no wish to end a job.

A handler runs between any two instructions of the main thread, so ours takes no lock, logs nothing and waits for
nothing: the job's own thread does all that. Handlers can be set in the main thread only: a job that another one
starts has none.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    @property
    def over(self) -> bool:
        """The job has ended, and everything of it is gone."""
        ...

    def stop_for_signal(self, again: str) -> None:
        """Asks for the end; `again` says what else the person can do. Must not wait, lock or log."""
        ...


class Signals:
    """The handlers of this process, and what was there before them."""

    def __init__(self) -> None:
        self._jobs: list[Stoppable] = []
        self._before: dict[int, Handler] = {}
        self._first: deque[int] = deque(maxlen=1)
        """The signal that the jobs are stopped for. Whoever takes it out does what is left to do for it."""
        self._waiting = 0
        """How often the main thread waits for a job right now."""
        self._waited = False
        """The main thread has waited for one of these jobs: it learns that they have ended."""

    def watch(self, job: Stoppable) -> None:
        """Looks after a job that has just been started."""
        if not _in_main_thread():
            return
        self._pid = os.getpid()
        self._jobs = self._alive()
        if not self._jobs:
            self._waited = False
            self._first.clear()
        self._jobs.append(job)
        self._install()

    def job_ended(self) -> None:
        """From any thread, when a job is over: a program that does not wait for it is told now."""
        if self._waiting or self._alive() or not self._first or not self._is_due(self._first[0]):
            return
        if (number := self._taken()) is not None:
            os.kill(os.getpid(), number)  # the main thread runs the handler

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While somebody waits for a job."""
        if not _in_main_thread():
            yield
            return
        self._waiting += 1
        self._waited = True
        try:
            yield
        finally:
            self._waiting -= 1
        if not self._alive():
            self._settle()

    # ---- inside

    def _handle(self, number: int, frame: FrameType | None) -> None:
        alive = self._alive() if os.getpid() == self._pid else []
        if not alive or self._first:
            self._first.clear()
            self._as_before(number, frame)
            return
        self._first.append(number)
        again = "Ctrl-C again" if number == signal.SIGINT else "a second signal"
        for job in alive:
            job.stop_for_signal(f"{again} ends it at once")

    def _settle(self) -> None:
        """In the main thread, when the last job has ended."""
        self._restore()
        number = self._taken()
        if number is not None and self._is_due(number):
            self._as_before(number, None)

    def _is_due(self, number: int) -> bool:
        """Whether the signal still has to do what it would have done without jobs."""
        return not self._waited or _is_interactive() or _is_own(self._before.get(number))

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    def _install(self) -> None:
        for number in NUMBERS:
            current = signal.getsignal(number)
            ours = current == self._handle
            untouched = current in (None, signal.SIG_IGN) or (
                number == signal.SIGINT and _is_interactive()
            )
            if not ours and not untouched:
                self._before[number] = current
                signal.signal(number, self._handle)

    def _restore(self) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    def _alive(self) -> list[Stoppable]:
        return [job for job in self._jobs if not job.over]

    def _taken(self) -> int | None:
        try:
            return self._first.pop()
        except IndexError:
            return None


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_interactive() -> bool:
    """A Python prompt, IPython or a notebook."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _is_own(handler: Handler) -> bool:
    """Written by the user: neither Python's nor that of Spark, which cancels all Spark jobs and interrupts."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return not getattr(handler, "__module__", "").startswith("pyspark")


SIGNALS = Signals()
