"""A value that is worked out later, once, by whichever thread asks for it first."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """What it raised it raises again: a transaction that could not be made durable never becomes so by asking."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._lock = Lock()
        self._value: T
        self._error: BaseException | None = None

    def get(self) -> T:
        with self._lock:
            if self._work is not None:
                work, self._work = self._work, None
                try:
                    self._value = work()
                except BaseException as error:
                    self._error = error
            if self._error is not None:
                raise self._error
            return self._value
