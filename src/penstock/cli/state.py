"""`penstock state`: rows of the state in a checkpoint, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date, time
from itertools import islice
from math import isfinite
from typing import Any

import pyarrow as pa
from rich.console import Console

from penstock.cli.tables import Column, print_table
from penstock.engine.reading.borrowing import borrow
from penstock.engine.reading.request import Request
from penstock.errors import ConfigError
from penstock.plan.schema import type_ddl
from penstock.shells.borrower import this_process
from penstock.storage.filesystem import FilesystemStore

CONVERTED_AT_ONCE = 256
_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "uint")


def read_state(request: Request, limit: int) -> dict[str, Any]:
    """The first rows of a table."""
    store, me = FilesystemStore.to_read(request.root), this_process()
    borrowed = borrow(store, request, me)
    table = borrowed.table
    try:
        batches = borrowed.read(store, me)
        rows = list(islice((row for batch in batches for row in _plain_rows(batch)), limit + 1))
    finally:
        borrowed.give_back(store)
    return {
        "path": store.root,
        "checkpoint": borrowed.checkpoint,
        "kind": str(request.choice.kind),
        "operator": table.operator or None,
        "state": table.state or None,
        "columns": {field.name: type_ddl(field.type) for field in table.schema},
        "rows": rows[:limit],
        "more": len(rows) > limit,
    }


def conditions(where: Sequence[str]) -> dict[str, str]:
    """What a person writes as `column=value`."""
    made: dict[str, str] = {}
    for condition in where:
        column, equals, value = condition.partition("=")
        if not equals or column in made:
            raise ConfigError(
                f"--where {condition!r}: write column=value, once for each column of the key"
            )
        made[column] = value
    return made


def _plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """A few at a time: mostly only the first are wanted."""
    for start in range(0, len(batch), CONVERTED_AT_ONCE):
        for row in batch.slice(start, CONVERTED_AT_ONCE).to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """A value that JSON has; what it has not is text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case bytes():
            return value.hex()
        case date() | time():
            return value.isoformat()
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case _:
            return str(value)


# ---- for people


def show_state(found: dict[str, Any], console: Console) -> None:
    columns = [
        Column(name, right=kind.startswith(_NUMBERS), long=not kind.startswith(_NUMBERS))
        for name, kind in found["columns"].items()
    ]
    rows = [[_shown(row[column.name]) for column in columns] for row in found["rows"]]
    print_table(console, columns, rows, _title(found))
    if found["more"]:
        told = f"the first {len(rows):,} rows; --limit shows more, --where those of one key"
        console.print(told, markup=False, soft_wrap=True)


def _title(found: dict[str, Any]) -> str:
    what = f"state {found['state']!r} of operator {found['operator']!r}"
    return f"{what if found['operator'] else found['kind']}, checkpoint {found['checkpoint']}"


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return "null" if value is None else str(value)
