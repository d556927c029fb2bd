"""What becomes of work that a source has given away: nothing yet, a value, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Answer(Generic[T]):
    """Made and read in one thread: whoever does the work hands it over there."""

    def __init__(self) -> None:
        self.ready = False
        self._value: T
        self._error: BaseException | None = None

    def set(self, value: T) -> None:
        self._value = value
        self.ready = True

    def fail(self, error: BaseException) -> None:
        self._error = error
        self.ready = True

    def get(self) -> T:
        """Only when it is ready. Raises what the work raised."""
        if self._error is not None:
            raise self._error
        return self._value


def answered(work: Callable[[], T]) -> Answer[T]:
    """Does the work right here."""
    answer: Answer[T] = Answer()
    try:
        answer.set(work())
    except Exception as error:
        answer.fail(error)
    return answer
