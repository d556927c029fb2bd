"""Rows as multisets: how two collections of rows differ, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

Rows = Counter[str]
SHOWN = 5
LOST_OR_TOO_MANY = ("rows lost", "rows too many")


def count(rows: pa.Table | Sequence[pa.RecordBatch]) -> Rows:
    """Arrow data as a multiset of rows."""
    batches: Any = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return Rows(text(row) for batch in batches for row in batch.to_pylist())


def text(row: dict[str, Any]) -> str:
    """One row, the same for equal rows, and good to read."""
    return ", ".join(f"{name}={value!r}" for name, value in sorted(row.items()))


def require_equal(have: Rows, want: Rows, when: str) -> None:
    """Raises an `AssertionError` that says what is lost and what is too much."""
    __tracebackhide__ = True
    if have != want:
        raise AssertionError(f"{when}: {differing(have, want)}")


def differing(have: Rows, want: Rows, words: tuple[str, str] = LOST_OR_TOO_MANY) -> str:
    """`words` are for rows that are only in `want`, and for those that are only in `have`."""
    parts = [
        f"{name}: {rows.total()}, such as ({min(rows)})"
        for name, rows in zip(words, (want - have, have - want), strict=True)
        if rows
    ]
    return "; ".join(parts)


def listed(rows: Rows, limit: int = SHOWN) -> tuple[str, ...]:
    """The first rows with how often each is there."""
    lines = [f"{times} x  {row}" for row, times in sorted(rows.items())[:limit]]
    more = len(rows) - limit
    return (*lines, f"and {more} more") if more > 0 else tuple(lines)


def plus(parts: Iterable[Rows]) -> Rows:
    total = Rows()
    for part in parts:
        total.update(part)
    return total
