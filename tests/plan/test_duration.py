"""Durations: what people write, in milliseconds, and what is refused."""

from datetime import timedelta

import pytest

from penstock.errors import ConfigError
from penstock.plan.duration import parse_duration_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500 ms", 500),
        ("1 second", 1_000),
        ("1.5 s", 1_500),
        ("0 seconds", 0),
        ("10 minutes", 600_000),
        ("2m", 120_000),
        (" 2 Hours ", 7_200_000),
        ("1 day", 86_400_000),
        ("3 secs", 3_000),
        (timedelta(seconds=2, milliseconds=5), 2_005),
    ],
)
def test_a_duration_becomes_whole_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "bad", ["", "5", "ms", "-1 s", "1 ss", "1 parsec", "1 s 2 ms", "1e3 s", None]
)
def test_a_malformed_duration_is_refused_with_what_was_given_and_examples(bad: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration_ms(bad, "every")  # type: ignore[arg-type]
    assert repr(bad) in str(caught.value)
    assert "every" in str(caught.value)
    assert '"500 ms"' in str(caught.value)


@pytest.mark.parametrize("number", [5, 0.5])
def test_a_bare_number_is_refused_with_a_hint_at_the_unit(number: float) -> None:
    with pytest.raises(ConfigError, match=f'say "{number} seconds" or "{number} ms"'):
        parse_duration_ms(number)  # type: ignore[arg-type]


@pytest.mark.parametrize("fine", ["0.1 ms", "1.0001 s", timedelta(microseconds=1)])
def test_what_is_finer_than_a_millisecond_is_refused(fine: str) -> None:
    with pytest.raises(ConfigError, match="finer than a millisecond"):
        parse_duration_ms(fine)


def test_a_negative_timedelta_is_refused() -> None:
    with pytest.raises(ConfigError, match="negative"):
        parse_duration_ms(timedelta(seconds=-1))
