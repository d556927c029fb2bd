"""Restart strategies: a delay, or the reason for giving up."""

from __future__ import annotations

import pytest

from penstock.protocol.restart import (
    REPEATS_KEPT,
    Exponential,
    Fixed,
    GiveUp,
    Never,
    Rate,
    Repeats,
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


# ---- poison rows


def repeated(*whats: str, ran_well: bool = False) -> Repeats:
    made = Repeats()
    for what in whats:
        made = made.after(what, ran_well=ran_well)
    return made


def test_the_same_failure_again_and_again_ends_the_job() -> None:
    """R2: with the default delays after about half a minute."""
    strategy = Exponential()
    assert isinstance(decide(strategy, [0.0] * 9, repeated(*["x"] * 9)), RestartAfter)
    decision = decide(strategy, [0.0] * 10, repeated(*["x"] * 10))
    assert isinstance(decision, GiveUp)
    assert "the same failure came 10 times in a row" in decision.reason
    assert "same_failures=None" in decision.reason


def test_one_that_is_asked_to_try_for_ever_does() -> None:
    strategy = Exponential(same_failures_max=None)
    assert isinstance(decide(strategy, [0.0] * 99, repeated(*["x"] * 99)), RestartAfter)


def test_failures_that_are_not_about_rows_are_not_counted_and_disturb_no_count() -> None:
    """A lost worker between two failures at a poison row does not make the row good."""
    assert repeated("", "", "").count == 0
    assert repeated("x", "", "x", "").count == 0
    assert repeated("x", "", "x", "", "x").count == 3


def test_two_failures_that_take_turns_are_counted_each() -> None:
    """Two subtasks with a poison row each: whichever is faster ends the attempt."""
    assert repeated("x", "y", "x", "y", "x").count == 3


def test_an_attempt_that_ran_well_begins_the_count_anew() -> None:
    assert repeated("x", "x").after("x", ran_well=True).count == 1


def test_the_count_is_bounded() -> None:
    many = repeated(*(str(i) for i in range(3 * REPEATS_KEPT)))
    assert len(many.counts) <= REPEATS_KEPT
