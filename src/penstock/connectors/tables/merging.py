"""Several files as one: for each key the row with the highest version. Never more than a piece of them in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.connectors.tables.files import RowsFile, conform
from penstock.connectors.tables.rows import GROUPS, newest

PIECE_ROWS = 262_144


def united_schema(files: Sequence[RowsFile]) -> pa.Schema:
    """All columns that any of the files has. Files say themselves what is in them: whoever merges them may be an older
    program than the one that wrote them."""
    return pa.unify_schemas([file.schema for file in files])


def merged(
    files: Sequence[RowsFile],
    keys: Sequence[str],
    schema: pa.Schema,
    start: int = 0,
    end: int = GROUPS,
) -> Iterator[pa.Table]:
    """The rows of these key groups, in the order of their groups."""
    for until in _cuts(sum(file.rows for file in files), start, end):
        parts = [conform(file.before(until), schema) for file in files]
        rows = newest([part for part in parts if part.num_rows] or parts[:1], keys)
        if rows.num_rows:
            yield rows


def _cuts(rows: int, start: int, end: int) -> list[int]:
    """Where the pieces end. Keys are spread evenly over the groups."""
    pieces = max(1, min(end - start, rows * (end - start) // (GROUPS * PIECE_ROWS) + 1))
    return [start + (end - start) * number // pieces for number in range(1, pieces + 1)]
