"""Background work that can stand still between any two storage operations, while the rest of the world goes on.

A strand runs on a thread of its own, but only while the scheduler waits for it: one of the two is always asleep, so a
seed still decides everything. Work of a process that has died is abandoned in the middle: whatever it had done by then
is done.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any


class Abandoned(BaseException):
    """The process that wanted this is gone. No error of the work: nobody may catch it and go on."""


class _Runner:
    """A thread and the baton between it and the scheduler. It carries out one piece of work after the other."""

    def __init__(self) -> None:
        self.work: Callable[[], None] | None = None
        self._go, self._back = Lock(), Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = Thread(target=self._loop, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Called by the scheduler, which sleeps until the work pauses or has ended."""
        self._go.release()
        self._back.acquire()

    def pause(self) -> None:
        """Called by the work, which sleeps until the scheduler lets it run again."""
        self._back.release()
        self._go.acquire()

    def end(self) -> None:
        self.work = None
        self._go.release()
        self._thread.join()

    def _loop(self) -> None:
        self._go.acquire()
        while self.work is not None:
            self.work()
            self.pause()


class Strands:
    """The threads of one world, used again and again."""

    def __init__(self) -> None:
        self._idle: list[_Runner] = []

    def take(self) -> _Runner:
        return self._idle.pop() if self._idle else _Runner()

    def give_back(self, runner: _Runner) -> None:
        self._idle.append(runner)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class Strand:
    def __init__(self, strands: Strands, work: Callable[[], Any]) -> None:
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        self._work = work
        self._abandoned = False
        self._strands = strands
        self._runner: _Runner | None = None

    def resume(self) -> None:
        """Runs the work on to its next pause, or to its end."""
        runner = self._runner
        if runner is None:
            runner = self._runner = self._strands.take()
            runner.work = self._run
        runner.run()
        if self.done:
            self._strands.give_back(runner)

    def pause(self) -> None:
        """Called by the work itself: the scheduler goes on, until it resumes this strand."""
        if self._runner is not None:
            self._runner.pause()
        if self._abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """The work ends where it stands. One that never began never does."""
        self._abandoned = True
        if self._runner is not None and not self.done:
            self.resume()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Abandoned:
            self.result = None
        except Exception as error:
            self.error = error
        self.done = True
