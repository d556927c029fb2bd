"""What a table is: its columns and its key, in a small file in its folder. Columns may be added, and never taken
away."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.connectors.base import SinkContext
from penstock.connectors.sinks.files import path_safe, staged_path
from penstock.connectors.sinks.folder import Folder
from penstock.connectors.tables.names import ROWS
from penstock.errors import CheckpointCorrupt, ConfigError, DataError, SchemaError
from penstock.plan.schema import type_ddl
from penstock.wire import document

MARKER = "_penstock_table.json"
_KIND = "penstock-table"
_VERSION = 1
_ANOTHER_FOLDER = "write to another folder, or delete this one to begin anew"


@dataclass(frozen=True, slots=True)
class TableRecord:
    """How it is written."""

    key: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """Names and types, for people."""
    schema: bytes
    """The same as Arrow says it."""


@dataclass(frozen=True)
class Definition:
    """The columns of a table, and those of its key."""

    schema: pa.Schema
    keys: tuple[str, ...]


def encode(definition: Definition) -> bytes:
    schema = definition.schema
    columns = tuple((field.name, type_ddl(field.type)) for field in schema)
    record = TableRecord(definition.keys, columns, schema.serialize().to_pybytes())
    return document.write(record, _KIND, _VERSION)


def decode(data: bytes, where: str) -> Definition:
    try:
        record: TableRecord = document.read(data, _KIND, {_VERSION: TableRecord}, where)
        schema = pa.ipc.read_schema(pa.py_buffer(record.schema))
    except (CheckpointCorrupt, pa.ArrowException) as error:
        raise DataError(f"{where} does not say what the table is: {error}") from error
    return Definition(schema, record.key)


def read(folder: Folder, path: str) -> Definition | None:
    """What the table in a folder is; None where there is none. `path` is how messages call the folder."""
    try:
        handle = folder.open(MARKER)
    except FileNotFoundError:
        return None
    try:
        return decode(bytes(handle.read()), f"{path}/{MARKER}")
    finally:
        handle.close()


def expected(folder: Folder, path: str, schema: pa.Schema, keys: Sequence[str]) -> Definition:
    """What the table is when rows of this schema are written to it. Raises where they cannot be."""
    there = read(folder, path)
    if there is None:
        problem = _other_files(folder)
        there = read(folder, path)  # another subtask may have made the table meanwhile
        if there is None and problem:
            raise ConfigError(f"UpsertFileSink: {path} {problem}")
    if there is None:
        return Definition(schema.remove_metadata(), tuple(keys))
    if there.keys != tuple(keys):
        raise ConfigError(
            f"UpsertFileSink: {path} is a table with the key {_named(there.keys)}, and the sink has {_named(keys)};"
            f" {_ANOTHER_FOLDER}"
        )
    return Definition(_widened(there.schema, schema, path), there.keys)


def settle(folder: Folder, path: str, context: SinkContext, keys: Sequence[str]) -> Definition:
    """Writes down what the table is, where that is not written there already. All subtasks do so and come to the
    same; another job that writes something else there at this moment is noticed afterwards."""
    wanted = expected(folder, path, context.schema, keys)
    if read(folder, path) == wanted:
        return wanted
    _write(folder, context, encode(wanted))
    return expected(folder, path, context.schema, keys)


def _write(folder: Folder, context: SinkContext, data: bytes) -> None:
    """Under a name like that of a staged file: if this breaks off, the next attempt removes it."""
    place = f"{path_safe(context.operator)}-{context.index}-{context.attempt}"
    staged = staged_path(path_safe(context.job), f"{place}-0-{uuid.uuid4().hex[:8]}.json")
    handle = folder.create(staged)
    try:
        handle.write(data)
    finally:
        handle.close()
    folder.seal(staged)
    folder.move(staged, MARKER)


def _other_files(folder: Folder) -> str:
    """What is in a folder that is no table, and must not be there."""
    if folder.list(ROWS):
        return f"has rows of a table and no {MARKER} that says what they are; put it back, or {_ANOTHER_FOLDER}"
    there = [*folder.list(""), *folder.folders("")]
    others = [name for name in there if not name.startswith(("_", "."))]
    if not others:
        return ""
    return f"is no table and holds {others[0]!r}; name a folder that is empty or not there yet, for the table alone"


def _widened(there: pa.Schema, schema: pa.Schema, path: str) -> pa.Schema:
    """The columns of both. A row from before a column was there has null in it, so it can be null."""
    gone = [name for name in there.names if name not in schema.names]
    changed = [f for f in schema if f.name in there.names and there.field(f.name).type != f.type]
    if gone or changed:
        what = (
            _changed(changed[0], there) if changed else f"column {gone[0]!r} is not there any more"
        )
        raise SchemaError(
            f"UpsertFileSink: {path} has a table of another schema: {what}. Columns can be added, but not taken away or"
            f" changed: bring it back with .with_columns(...), or {_ANOTHER_FOLDER}"
        )
    known = [_either_nullable(field, schema.field(field.name)) for field in there]
    added = [field.with_nullable(True) for field in schema if field.name not in there.names]
    return pa.schema([*known, *added])


def _changed(field: pa.Field, there: pa.Schema) -> str:
    before = type_ddl(there.field(field.name).type)
    return f"column {field.name!r} is {type_ddl(field.type)}, and was {before}"


def _either_nullable(field: pa.Field, now: pa.Field) -> pa.Field:
    return field.with_nullable(field.nullable or now.nullable)


def _named(keys: Sequence[str]) -> str:
    return ", ".join(map(repr, keys))
