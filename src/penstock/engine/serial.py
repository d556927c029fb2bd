"""Background work that must happen one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.ports.background import Background

T = TypeVar("T")


class Serial:
    """A queue in front of a `Background`: the next piece begins when the one before has ended."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None], Any]] = deque()
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._busy and not self._waiting

    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._waiting.append((work, done, failed))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        work, done, failed = self._waiting.popleft()
        self._busy = True

        def ended(tell: Callable[[Any], None], result: Any) -> None:
            self._busy = False
            try:
                tell(result)
            finally:
                self._next()

        self._background.submit(
            work, lambda result: ended(done, result), lambda error: ended(failed, error)
        )
