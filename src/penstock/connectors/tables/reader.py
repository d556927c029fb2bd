"""Reads a table: the latest row of each key, of the transactions that are committed when it is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.location import absolute
from penstock.connectors.sinks.folder import open_folder
from penstock.connectors.tables import definition
from penstock.connectors.tables.definition import MARKER
from penstock.connectors.tables.files import RowsFile
from penstock.connectors.tables.merging import merged
from penstock.connectors.tables.names import TableFile, look
from penstock.connectors.tables.rows import GROUPS, group_of, stamped_schema
from penstock.errors import ConfigError, DataError, SchemaError
from penstock.plan.schema import require_columns, type_ddl
from penstock.redaction import redacted

TRIES = 5
"""Files that were merged into others stay for minutes. A reader that is slower than that looks again, so often."""
EVERY_GROUP = range(GROUPS)


def read_table(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    where: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """The table that a `pen.UpsertFileSink` keeps in this folder, as it is now: the latest row of each key. The job
    may be running. `columns` are those that are wanted. `where={"user": "ada"}` has values of key columns, and reads
    little when it has all of them."""
    table = Table(path, storage_options)
    return table.read(table.selected(columns), table.key_of(where or {}))


class Table:
    """A table in a folder."""

    def __init__(self, path: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self._path = redacted(absolute(path).rstrip("/"))
        self._folder = open_folder(absolute(path), storage_options or {})
        found = definition.read(self._folder, self._path)
        if found is None:
            raise ConfigError(
                f"{self._path} is no table: it has no {MARKER}. A pen.UpsertFileSink makes one when its job has"
                " started (job.checkpoints() is not empty then);"
                " what a pen.FileSink has written is read with Spark, pandas or pyarrow"
            )
        self.schema = found.schema
        self.keys = found.keys

    def selected(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of these columns."""
        if columns is None:
            return self.schema
        if isinstance(columns, str):
            raise ConfigError(f"read_table: columns={columns!r} is no list; write [{columns!r}]")
        require_columns(columns, self.schema, "read_table: columns")
        return pa.schema([self.schema.field(name) for name in columns])

    def key_of(self, where: Mapping[str, Any]) -> dict[str, pa.Scalar]:
        """Values of key columns, as the table has them."""
        others = [name for name in where if name not in self.keys]
        if others:
            raise SchemaError(
                f"read_table: where has {others[0]!r}, and takes only columns of the key, {', '.join(self.keys)};"
                " filter what is returned by others"
            )
        return {name: self._value(name, value) for name, value in where.items()}

    def look(self) -> list[TableFile]:
        """The files that have the rows of the table as it is now."""
        return look(self._folder)

    def read(
        self,
        wanted: pa.Schema,
        key: Mapping[str, pa.Scalar],
        groups: range = EVERY_GROUP,
        files: Sequence[TableFile] | None = None,
    ) -> pa.Table:
        """The rows of these key groups that have these values in their key, out of these files; from the files that
        there are now where none are given, or some of them are gone."""
        if len(key) == len(self.keys):
            group = group_of([pa.array([key[name].as_py()], key[name].type) for name in self.keys])
            groups = range(max(groups.start, group), min(groups.stop, group + 1))
        gone: FileNotFoundError | None = None
        for _ in range(TRIES):
            try:
                chosen = self.look() if files is None or gone else files
                return self._read(wanted, key, groups, chosen)
            except FileNotFoundError as error:
                gone = error
        raise DataError(
            f"{self._path}: files went away {TRIES} times while they were read; is somebody deleting them? ({gone})"
        )

    def _read(
        self,
        wanted: pa.Schema,
        key: Mapping[str, pa.Scalar],
        groups: range,
        files: Sequence[TableFile],
    ) -> pa.Table:
        if not files or not groups:
            return wanted.empty_table()
        needed = {*self.keys, *wanted.names}
        schema = stamped_schema(pa.schema([f for f in self.schema if f.name in needed]))
        with ExitStack() as opened:
            rows_files = (
                RowsFile(self._folder, file, schema.names, groups.start) for file in files
            )
            sources = [opened.enter_context(closing(each)) for each in rows_files]
            pieces = merged(sources, self.keys, schema, groups.start, groups.stop)
            rows = [_with(piece, key).select(wanted.names).cast(wanted) for piece in pieces]
        return pa.concat_tables([wanted.empty_table(), *rows])

    def _value(self, name: str, value: Any) -> pa.Scalar:
        kind = self.schema.field(name).type
        try:
            return pa.scalar(value, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"read_table: where has {value!r} for {name!r}, which is {type_ddl(kind)} ({error})"
            ) from error


def _with(rows: pa.Table, key: Mapping[str, pa.Scalar]) -> pa.Table:
    """Those that have these values in these columns."""
    if not key:
        return rows
    same = [
        pc.equal(rows.column(name), value) if value.is_valid else pc.is_null(rows.column(name))
        for name, value in key.items()
    ]
    return rows.filter(reduce(pc.and_, same))
