"""The steps of a suite: whatever fails in one is told with the step, the calls before it and the rule it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__tracebackhide__ = True
"""pytest shows what is wrong, and not how it was found."""
CALLS_SHOWN = 8
Answer = TypeVar("Answer")


class Steps:
    """What a suite is doing, so that whatever fails is told with the step and with the rule that it is about."""

    def __init__(self) -> None:
        self._calls: list[str] = []

    def run(self, step: str, rule: str, check: Callable[[], None]) -> None:
        self._calls = []
        try:
            check()
        except AssertionError as wrong:
            shown = self._calls[-CALLS_SHOWN:]
            lines = (
                [f"  calls  {shown[0]}", *(f"         {call}" for call in shown[1:])]
                if shown
                else []
            )
            told = "\n".join([str(wrong), f"  step   {step}", *lines, f"  rule   {rule}"])
            cause = wrong.__cause__
        else:
            return
        raise AssertionError(told) from cause

    def begin(self) -> None:
        """Something new: earlier calls explain nothing any more."""
        self._calls = []

    def call(self, who: str, what: str, work: Callable[[], Answer]) -> Answer:
        """Calls the user's code, and tells what it raised."""
        self._calls.append(f"{who}: {what}")
        return self.quietly(what, work)

    def quietly(self, what: str, work: Callable[[], Answer]) -> Answer:
        """The same for a call that belongs to no story."""
        try:
            return work()
        except StepFailed:
            raise
        except Exception as error:
            raise StepFailed(f"{what} raised {type(error).__name__}: {error}") from error

    def refuse(self, problem: str | None) -> None:
        if problem:
            raise StepFailed(problem)


class StepFailed(AssertionError):
    """The user's code raised, or returned what it must not."""
