"""How rows become bytes: one encoder per file format, writing into an open file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as pa_csv

from penstock.connectors.sinks.jsonlines import to_json_lines
from penstock.errors import DataError, SchemaError

Format: TypeAlias = Literal["parquet", "csv", "json"]
ROW_GROUP_ROWS = 262_144
ROW_GROUP_BYTES = 8 << 20


class Encoder(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> None:
        """Writes what is left; the file itself is closed by whoever opened it."""
        ...


class ParquetEncoder:
    """Gathers batches into large row groups, up to limits that bound memory and the pause of writing one."""

    def __init__(self, handle: Any, schema: pa.Schema, buffer_bytes: int) -> None:
        self._writer = pq.ParquetWriter(
            handle, schema, compression="snappy", use_dictionary=False, store_schema=True
        )
        self._schema = schema
        self._bytes_max = min(ROW_GROUP_BYTES, buffer_bytes)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= self._bytes_max:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, schema=self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._batches, self._rows, self._bytes = [], 0, 0


class CsvEncoder:
    """A header in every file; a null is an empty value, an empty string is `""`."""

    def __init__(self, handle: Any, schema: pa.Schema, buffer_bytes: int) -> None:
        self._writer = pa_csv.CSVWriter(handle, schema)
        self._is_single = len(schema) == 1

    def write(self, batch: pa.RecordBatch) -> None:
        if self._is_single and batch.column(0).null_count:
            raise DataError(
                f"FileSink: a null in {batch.schema.names[0]!r}, the only column, would be an empty"
                " CSV line, which readers pass over; filter nulls out, or use parquet or json"
            )
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()


class JsonEncoder:
    def __init__(self, handle: Any, schema: pa.Schema, buffer_bytes: int) -> None:
        self._handle = handle

    def write(self, batch: pa.RecordBatch) -> None:
        self._handle.write(to_json_lines(batch))

    def finish(self) -> None:
        """Nothing is held back."""


ENCODERS: dict[Format, Callable[[Any, pa.Schema, int], Encoder]] = {
    "parquet": ParquetEncoder,
    "csv": CsvEncoder,
    "json": JsonEncoder,
}


def require_writable(format_: Format, schema: pa.Schema, sink: str = "FileSink") -> None:
    """Raises `SchemaError` for a column that the format cannot hold: each is tried with a row of its own."""
    if not len(schema):
        raise SchemaError(f"{sink}: there are no columns to write")
    names = schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"{sink}: two columns are called {twice!r}; rename one of them")
    for field in schema:
        _try_column(format_, pa.field(field.name, field.type), sink)


def _try_column(format_: Format, field: pa.Field, sink: str) -> None:
    schema = pa.schema([field, pa.field(f"{field.name} and another", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type), pa.array([1])], schema=schema)
    try:
        encoder = ENCODERS[format_](pa.BufferOutputStream(), schema, ROW_GROUP_BYTES)
        encoder.write(batch)
        encoder.finish()
    except (pa.ArrowException, SchemaError) as error:
        raise SchemaError(
            f"{sink}: {format_} cannot hold column {field.name!r} of type {field.type} ({error});"
            " convert or drop the column, or use another format"
        ) from error
