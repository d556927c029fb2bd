"""The machine's own clocks."""

from __future__ import annotations

import time


class RealClock:
    """`ports.clock.Clock` by the operating system."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def wall_ms(self) -> float:
        return time.time() * 1000.0
