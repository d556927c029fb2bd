"""The last things that happened in a process, kept for the moment something goes wrong."""

from __future__ import annotations

from collections import deque

EVENTS_KEPT = 100


class Journal:
    """Short lines with the time; the newest ones travel with every failure report."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=EVENTS_KEPT)

    def note(self, now_ms: float, line: str) -> None:
        self._lines.append(f"{now_ms / 1000:.3f} {line}")

    def last(self, count: int = 30) -> tuple[str, ...]:
        return tuple(self._lines)[-count:]
