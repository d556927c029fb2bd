"""Tables that fit a narrow terminal: fewer columns, shorter times, and long texts that go on in the next line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 100
"""From so many characters on there is room for every column."""


@dataclass(frozen=True)
class Column:
    name: str
    right: bool = False
    long: bool = False
    """It may be folded; the others are kept in one line."""
    wide_only: bool = False


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
) -> None:
    """`rows` have a text for every column, also for those that are left out."""
    shown = [n for n, each in enumerate(columns) if is_wide(console) or not each.wide_only]
    table = Table(title=Text(title) if title else None, title_justify="left")
    for each in (columns[n] for n in shown):
        side = "right" if each.right else "left"
        table.add_column(each.name, justify=side, no_wrap=not each.long, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(row[n]) for n in shown))
    console.print(table)


def is_wide(console: Console) -> bool:
    return console.width >= WIDE


def time_text(time: str, console: Console) -> str:
    """A time such as 2026-11-16 04:40:29; without the year where there is little room."""
    return time if is_wide(console) else time[5:]
