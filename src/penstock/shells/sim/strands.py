"""Background work that can stand still between any two storage operations, while the rest of the world goes on.

A strand has a stack of its own, and runs only while the scheduler waits for it: so a seed still decides everything.
Work of a process that has died is abandoned in the middle: whatever it had done by then is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import greenlet


class Abandoned(BaseException):
    """The process that wanted this is gone. No error of the work: nobody may catch it and go on."""


class Strand:
    """Begins with the first `resume`, and goes back to whoever made it with every `pause`."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        self._work = work
        self._stack = greenlet(self._run)

    def resume(self) -> None:
        """Runs the work on to its next pause, or to its end."""
        self._stack.switch()

    def pause(self) -> None:
        """Called by the work itself: the scheduler goes on, until it resumes this strand."""
        scheduler = self._stack.parent
        assert scheduler is not None
        scheduler.switch()

    def abandon(self) -> None:
        """The work ends where it stands. One that never began never does."""
        if self._stack:
            self._stack.throw(Abandoned)

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Abandoned:
            self.result = None
        except Exception as error:
            self.error = error
        self.done = True
