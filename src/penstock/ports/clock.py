"""Time as an argument: a real clock in the shells, a virtual one in the simulator."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> float:
        """Milliseconds from an arbitrary start; never goes back."""
        ...

    def wall_ms(self) -> float:
        """Milliseconds since 1970, for people, for file names and for the age of state; may jump."""
        ...
