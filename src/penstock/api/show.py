"""Prints the first rows of a stream as a table."""

from __future__ import annotations

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

_CELL_MAX = 40


def print_table(rows: pa.Table, n: int, console: Console | None = None) -> None:
    """At most `n` rows; numbers to the right, long values cut."""
    table = Table()
    for field in rows.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(Text(field.name), justify="right" if number else "left")
    for row in zip(*(column.to_pylist() for column in rows.slice(0, n).columns)):
        table.add_row(*(Text(_cell(value)) for value in row))
    (console or Console()).print(table)


def _cell(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"
