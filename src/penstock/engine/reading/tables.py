"""What a reader of a checkpoint sees: tables. It knows nothing else of how state is stored.

A table can be cut into pieces that are read on their own, in other processes, when the metadata of the checkpoint may
be gone already: a piece carries all that it needs besides the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from penstock.ports.store import CheckpointStore

PIECE_ROWS_LEAST = 50_000
"""Fewer rows are not worth a process of their own."""


class Table(Protocol):
    """`operator` and `state` are empty for a table that is about several."""

    @property
    def operator(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int:
        """At most so many: filters, and keys without a value, are known only when they are read."""
        ...

    @property
    def files(self) -> frozenset[str]:
        """Those that must stay until it is read."""
        ...

    def pieces(self, most: int) -> Sequence[Table]:
        """At least one and at most so many, of nearly one size."""
        ...

    def read(self, store: CheckpointStore) -> Iterator[pa.RecordBatch]:
        """All rows, verified. Raises `CheckpointCorrupt`, with file and block, where they are not what was written."""
        ...


def shares(rows: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Cuts a sequence of things with so many rows into at most `most` shares of nearly one size, none of them too
    small: the first thing and the end of each. At least one share, which may have nothing in it."""
    count = max(1, min(most, sum(rows) // PIECE_ROWS_LEAST))
    aim = sum(rows) / count
    made: list[tuple[int, int]] = []
    start = seen = 0
    for end, more in enumerate(rows, start=1):
        seen += more
        if seen >= aim * (len(made) + 1) and len(made) < count - 1:
            made.append((start, end))
            start = end
    return made if made and start == len(rows) else [*made, (start, len(rows))]
