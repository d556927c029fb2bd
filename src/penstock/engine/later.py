"""What the loop has to do at a later time: a list of functions with their times."""

from __future__ import annotations

from collections.abc import Callable


class Later:
    def __init__(self) -> None:
        self._waiting: list[tuple[float, Callable[[], None]]] = []

    def at(self, time_ms: float, action: Callable[[], None]) -> None:
        self._waiting.append((time_ms, action))

    def run_due(self, now_ms: float) -> None:
        """Does what is due, in the order in which it was put in. What that puts in waits for the next time."""
        due = [action for at, action in self._waiting if at <= now_ms]
        self._waiting = [(at, action) for at, action in self._waiting if at > now_ms]
        for action in due:
            action()

    @property
    def idle(self) -> bool:
        return not self._waiting

    @property
    def times_ms(self) -> list[float]:
        return [at for at, _ in self._waiting]
