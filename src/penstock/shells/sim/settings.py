"""What else a seed draws: how fast things are, how often snapshots are taken, what the limits are."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from penstock.engine.driver.manager import ManagerConfig
from penstock.protocol.coordinator import CoordinatorConfig
from penstock.protocol.lifecycle import LifecycleConfig
from penstock.protocol.restart import Exponential, Never, Strategy


@dataclass(frozen=True)
class Settings:
    frames_max: int
    """Room in a channel."""
    transit_ms: float
    """The longest that a frame is on its way, in half of the channels: rows pile up in them."""
    pace_ms: float
    """How long a source waits after a small batch."""
    slow: float
    """How much longer messages and launches take than usual."""
    write_ms: float
    """The longest that background work takes."""
    inline_bytes_max: int
    inflight_bytes_max: int
    spare_workers: int
    strategy: Strategy
    coordinator: CoordinatorConfig

    def manager(self, parallelism: int) -> ManagerConfig:
        lifecycle = LifecycleConfig(
            parallelism,
            spare_workers=self.spare_workers,
            strategy=self.strategy,
            slot_timeout_ms=60_000,
        )
        return ManagerConfig(lifecycle, self.coordinator)


def draw(rng: Random, durable: bool, exactly_once: bool) -> Settings:
    slow = rng.choice((1.0, 1.0, 20.0))
    write_ms = rng.choice((1.0, 20.0, 200.0))
    quick = slow == 1.0 and write_ms <= 20
    how = (
        rng.choice(("aligned", "unaligned", "unaligned", "expedited"))
        if exactly_once
        else "aligned"
    )
    frames_max = rng.choice((1, 2, 4))
    transit_ms = rng.choice((0.0, 5.0, 30.0))
    patience_ms = 2_000 if transit_ms > 5 else 150
    return Settings(
        frames_max=frames_max,
        transit_ms=transit_ms,
        pace_ms=rng.choice((0.0, 1.0, 5.0, 20.0)),
        slow=slow,
        write_ms=write_ms,
        inline_bytes_max=rng.choice((0, 0, 16_384)),
        inflight_bytes_max=rng.choice((200, 1 << 20, 1 << 20)),
        spare_workers=rng.choice((0, 0, 1)),
        strategy=Exponential(20, 500, same_failures_max=None) if durable else Never(),
        coordinator=CoordinatorConfig(
            every_ms=rng.choice((2, 5, 15, 60)),
            timeout_ms=max(patience_ms, rng.choice((150, 2_000))) if quick else 2_000,
            min_pause_ms=rng.choice((0, 0, 50)),
            max_concurrent=rng.choice((1, 1, 2, 3)) if how == "aligned" else 1,
            unaligned=how == "unaligned",
            aligned_timeout_ms=rng.choice((0.0, 3.0, 20.0, 200.0)) if how == "expedited" else None,
            tolerable_failures=rng.choice((0, 2, 1_000)),
            keep=rng.choice((1, 2, 3)),
        ),
    )
