"""What happened in a simulated run, line by line: readable for people, and a hash for machines."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from functools import cache
from typing import Any

LINES_KEPT = 400
LONG = frozenset({"snapshots", "endpoints", "metrics", "traceback", "journal", "item"})
"""Fields of messages that nobody wants to read in a trace."""


class Trace:
    """Keeps every line when `verbose`, else only the last ones; the hash covers all of them."""

    def __init__(self, verbose: bool = False) -> None:
        self._digest = hashlib.sha256()
        self._lines: list[str] = []
        self._verbose = verbose

    def note(self, now_ms: float, who: str, what: str) -> None:
        line = f"{now_ms:10.3f}  {who:<12} {what}"
        self._digest.update(line.encode())
        self._lines.append(line)
        if not self._verbose and len(self._lines) > LINES_KEPT:
            del self._lines[: LINES_KEPT // 2]

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()[:16]

    def lines(self) -> list[str]:
        return list(self._lines)


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
