"""Restart strategies: a delay, or the reason for giving up."""

from __future__ import annotations

import pytest

from penstock.protocol.restart import (
    Exponential,
    Fixed,
    GiveUp,
    Never,
    Rate,
    RestartAfter,
    Strategy,
    decide,
)


def test_the_delay_doubles_up_to_its_limit() -> None:
    """R2."""
    strategy = Exponential(initial_ms=50, max_ms=300)
    failures = [float(i) for i in range(6)]
    delays = [decide(strategy, failures[: i + 1]) for i in range(6)]
    assert delays == [RestartAfter(ms) for ms in (50, 100, 200, 300, 300, 300)]


def test_a_quiet_time_starts_the_delays_again() -> None:
    """R2."""
    strategy = Exponential(initial_ms=50, reset_after_ms=1_000)
    assert decide(strategy, [0.0, 10.0, 1_009.0]) == RestartAfter(200)
    assert decide(strategy, [0.0, 10.0, 1_010.0]) == RestartAfter(50)


def test_a_very_long_series_does_not_overflow() -> None:
    assert decide(Exponential(max_ms=60_000), [float(i) for i in range(5_000)]) == RestartAfter(
        60_000
    )


@pytest.mark.parametrize(("failures", "gives_up"), [(1, False), (3, False), (4, True)])
def test_a_fixed_number_of_restarts(failures: int, gives_up: bool) -> None:
    """R2."""
    decision = decide(Fixed(attempts=3, delay_ms=70), [0.0] * failures)
    assert isinstance(decision, GiveUp) is gives_up
    if not gives_up:
        assert decision == RestartAfter(70)


@pytest.mark.parametrize(("span_ms", "gives_up"), [(999.0, True), (1_000.0, False)])
def test_a_rate_of_failures(span_ms: float, gives_up: bool) -> None:
    """R2: three within the interval are too many, three over a longer time are not."""
    decision = decide(Rate(failures_max=2, interval_ms=1_000, delay_ms=5), [0.0, 1.0, span_ms])
    assert isinstance(decision, GiveUp) is gives_up


def test_never_is_never() -> None:
    """R2, B5."""
    assert isinstance(decide(Never(), [0.0]), GiveUp)


@pytest.mark.parametrize("strategy", [Fixed(attempts=0), Rate(failures_max=0), Never()])
def test_giving_up_says_why(strategy: Strategy) -> None:
    decision = decide(strategy, [0.0])
    assert isinstance(decision, GiveUp)
    assert decision.reason
