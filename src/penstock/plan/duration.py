"""Durations as people write them, "500 ms" or "10 minutes", to whole milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from penstock.errors import ConfigError

_UNITS_MS = {
    "ms": 1,
    "milli": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
_SHAPE = re.compile(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*([A-Za-z]+)\s*", re.ASCII)
_EXAMPLES = 'write it like "500 ms", "1 second", "1.5 s", "10 minutes" or "2 hours"'


def parse_duration_ms(value: str | timedelta, what: str = "duration") -> int:
    """Whole milliseconds. `what` names the argument in the error."""
    if isinstance(value, timedelta):
        return _from_timedelta(value, what)
    if not isinstance(value, str):
        raise ConfigError(_not_text(value, what))
    match = _SHAPE.fullmatch(value)
    unit = _unit_ms(match[2]) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{what}: {value!r} is not a duration; {_EXAMPLES}")
    return _whole(Decimal(match[1]) * unit, value, what)


def _unit_ms(word: str) -> int | None:
    lower = word.lower()
    if lower in _UNITS_MS:
        return _UNITS_MS[lower]
    singular = lower.removesuffix("s")
    return _UNITS_MS.get(singular) if len(singular) > 1 else None


def _from_timedelta(value: timedelta, what: str) -> int:
    if value < timedelta(0):
        raise ConfigError(f"{what}: {value!r} is negative; a duration is zero or more")
    micros = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return _whole(Decimal(micros) / 1_000, value, what)


def _whole(milliseconds: Decimal, value: object, what: str) -> int:
    if milliseconds != int(milliseconds):
        raise ConfigError(
            f"{what}: {value!r} is finer than a millisecond, the smallest unit; {_EXAMPLES}"
        )
    return int(milliseconds)


def _not_text(value: object, what: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'{what}: {value!r} has no unit; say "{value} seconds" or "{value} ms"'
    return f"{what}: {value!r} ({type(value).__name__}) is not a duration; {_EXAMPLES}"
