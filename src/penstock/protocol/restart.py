"""Whether and when a job that failed is started again: four strategies, each a pure function of the failures.

`decide(strategy, failures_ms)` gets the times of all failures so far, the newest last, and answers with a delay or
with the reason for giving up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Exponential:
    """The delay doubles with every failure, and starts again after a quiet time without one."""

    initial_ms: int = 50
    max_ms: int = 60_000
    multiplier: float = 2.0
    reset_after_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay every time, at most `attempts` times."""

    attempts: int = 3
    delay_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Gives up when there are more than `failures_max` failures within `interval_ms`."""

    failures_max: int = 3
    interval_ms: int = 60_000
    delay_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Never:
    """The first failure ends the job. `why` is told with it."""

    why: str = "restarts are switched off"


Strategy: TypeAlias = Exponential | Fixed | Rate | Never


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Decision: TypeAlias = RestartAfter | GiveUp


def decide(strategy: Strategy, failures_ms: Sequence[float]) -> Decision:
    match strategy:
        case Exponential():
            return RestartAfter(_exponential_delay_ms(strategy, failures_ms))
        case Fixed(attempts, delay_ms):
            if len(failures_ms) > attempts:
                return GiveUp(f"failed {len(failures_ms)} times; {attempts} restarts are allowed")
            return RestartAfter(delay_ms)
        case Rate(failures_max, interval_ms, delay_ms):
            recent = [at for at in failures_ms if failures_ms[-1] - at < interval_ms]
            if len(recent) > failures_max:
                return GiveUp(
                    f"failed {len(recent)} times within {interval_ms} ms; {failures_max} are allowed"
                )
            return RestartAfter(delay_ms)
        case Never(why):
            return GiveUp(why)
        case _:
            assert_never(strategy)


def _exponential_delay_ms(strategy: Exponential, failures_ms: Sequence[float]) -> int:
    """Counts the failures of the present series: those with no quiet time between them."""
    series = 1
    for earlier, later in zip(reversed(failures_ms[:-1]), reversed(failures_ms[1:]), strict=True):
        if later - earlier >= strategy.reset_after_ms:
            break
        series += 1
    exponent = min(series - 1, 64)
    return int(min(strategy.max_ms, strategy.initial_ms * strategy.multiplier**exponent))
