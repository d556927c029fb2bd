"""What happened in a simulated run, line by line: readable for people, and a hash for machines.

Almost nobody ever looks at a run that went well: lines are only made when they are asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from functools import cache
from typing import Any

LINES_KEPT = 400
LONG = frozenset({"snapshots", "endpoints", "metrics", "traceback", "journal", "item"})
"""Fields of messages that nobody wants to read in a trace."""


class Trace:
    """`lines` has every line when `verbose`, else only the last ones; the hash covers all of them."""

    def __init__(self, verbose: bool = False) -> None:
        self._entries: list[tuple[float, str, str, Any]] = []
        self._verbose = verbose

    def note(self, now_ms: float, who: str, what: str, message: Any = None) -> None:
        """`message`: a control message that belongs behind the words."""
        self._entries.append((now_ms, who, what, message))

    @property
    def hash(self) -> str:
        text = "".join(_line(*entry) for entry in self._entries)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def lines(self) -> list[str]:
        shown = self._entries if self._verbose else self._entries[-LINES_KEPT:]
        return [_line(*entry) for entry in shown]


def _line(now_ms: float, who: str, what: str, message: Any) -> str:
    words = what if message is None else f"{what} {brief(message)}"
    return f"{now_ms:10.3f}  {who:<12} {words}"


def brief(message: Any) -> str:
    """A control message in a few words."""
    kind: Any = type(message)
    words = [f"{name}={_value(getattr(message, name))}" for name in _names(kind)]
    return f"{kind.__name__} {' '.join(words)}"


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in LONG)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + " ".join(_value(entry) for entry in value) + "]"
    return str(value)[:80]
