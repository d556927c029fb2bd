"""Back pressure as a number: the share of time in which a subtask could not go on because its outputs were full."""

from __future__ import annotations

from penstock.ports.clock import Clock

WINDOW_MS = 1_000.0
"""Over how long the share is taken, at least."""


class Pressure:
    """Told at every step whether the outputs are full; reads the clock only when that changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._full_ms = 0.0
        self._full_since_ms: float | None = None
        self._share = 0.0

    def note(self, full: bool) -> None:
        if full == (self._full_since_ms is not None):
            return
        now_ms = self._clock.monotonic_ms()
        if self._full_since_ms is not None:
            self._full_ms += now_ms - self._full_since_ms
        self._full_since_ms = now_ms if full else None

    def share(self) -> float:
        """0 to 1, of the last whole window."""
        now_ms = self._clock.monotonic_ms()
        passed_ms = now_ms - self._began_ms
        if passed_ms >= WINDOW_MS:
            full_ms = self._full_ms
            if self._full_since_ms is not None:
                full_ms += now_ms - self._full_since_ms
                self._full_since_ms = now_ms
            self._share = min(1.0, full_ms / passed_ms)
            self._began_ms, self._full_ms = now_ms, 0.0
        return self._share
