"""Which transactions are in a file, noted in the file itself.

A transaction is committed when its file is there. When files have been merged and the old ones are gone, the merged one
must still tell: a checkpoint may be restored months later, and what it promised is then committed again. Writers number
their transactions and commit them in that order, so a range of numbers for each is enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from penstock.errors import DataError

KEY = b"penstock.committed"
WRITERS_MAX = 10_000
"""One is made for each subtask whenever the job starts or is restarted; of more the oldest are forgotten."""
Ranges: TypeAlias = list[tuple[int, int]]
Ledger: TypeAlias = Mapping[str, Ranges]
"""For each writer, by its id: first and last numbers, ascending. Writers that were noted first come first."""


def one(writer: str, number: int) -> Ledger:
    return {writer: [(number, number)]}


def has(ledger: Ledger, writer: str, number: int) -> bool:
    return any(first <= number <= last for first, last in ledger.get(writer, ()))


def united(ledgers: Iterable[Ledger]) -> Ledger:
    """All that any of them has; they come from the oldest to the newest."""
    every: dict[str, Ranges] = {}
    for ledger in ledgers:
        for writer, ranges in ledger.items():
            every[writer] = _joined([*every.pop(writer, []), *ranges])
    return dict(list(every.items())[-WRITERS_MAX:])


def _joined(ranges: Ranges) -> Ranges:
    made: Ranges = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return made


def encode(ledger: Ledger) -> bytes:
    return json.dumps(ledger, separators=(",", ":")).encode("ascii")


def decode(metadata: Mapping[bytes, bytes] | None, where: str) -> Ledger:
    """What stands in the footer of a file."""
    try:
        tree = json.loads((metadata or {})[KEY])
        return {str(w): [(int(a), int(b)) for a, b in ranges] for w, ranges in tree.items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a file of a table, or a damaged one ({error!r})") from error
