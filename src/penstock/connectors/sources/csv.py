"""CSV files. A record is a line: values with line breaks inside are refused (Spark's default, too)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyarrow import csv as pa_csv

from penstock.connectors.schemas import plain_schema
from penstock.connectors.sources.chunks import START, Chunk, Mark
from penstock.connectors.sources.lines import (
    BAD_RECORD,
    BLOCK_BYTES,
    BadLines,
    Unparsable,
    line_blocks,
    read_lines,
    records,
)
from penstock.connectors.sources.listing import Listing
from penstock.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvFormat:
    """Columns are found by the names in the first line; without a header, by their order in the schema. An empty
    value is a null, `""` an empty string. A TIMESTAMP without a zone is taken as UTC."""

    def __init__(self, *, delimiter: str, header: bool, keep_bad: bool) -> None:
        self._delimiter = delimiter
        self._header = header
        self._keep_bad = keep_bad

    def infer(self, listing: Listing, name: str) -> pa.Schema:
        where = listing.shown(name)
        if not self._header:
            raise DataError(f'{where}: a CSV file without a header needs a schema="..."')
        names, mark = self._read_header(listing, name)
        with closing(listing.open_bytes(name)) as handle:
            block = next(line_blocks(handle, mark, where), None)
        if block is None:
            raise DataError(f'{where}: no rows to infer a schema from; give a schema="..."')
        try:
            table = self._read(block.data, names, {}, names)
        except pa.ArrowInvalid as error:
            raise DataError(f"{where}: cannot be read as CSV ({error})") from error
        return plain_schema(table.schema, where)

    def chunks(self, listing: Listing, name: str, schema: pa.Schema, at: Mark) -> Iterator[Chunk]:
        wanted = [field for field in schema if field.name != BAD_RECORD]
        names, mark = [field.name for field in wanted], (0, 1)
        if self._header:
            names, mark = self._read_header(listing, name)
            _require_columns(names, [field.name for field in wanted], listing.shown(name))
        parser = _Parser(self, names, schema)
        bad = BadLines(schema, keep=self._keep_bad)
        yield from read_lines(listing, name, mark if at == START else at, parser.parse, bad)

    def _read_header(self, listing: Listing, name: str) -> tuple[list[str], Mark]:
        """The column names, and where the line behind them starts."""
        where = listing.shown(name)
        with closing(listing.open_bytes(name)) as handle:
            block = next(line_blocks(handle, START, where))
        line = block.data.split(b"\n", 1)[0]
        try:
            text = line.removeprefix(_BYTE_ORDER_MARK).decode().rstrip("\r")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}, line 1: the header is not UTF-8 ({error})") from error
        names = next(csv.reader([text], delimiter=self._delimiter), [])
        if len(set(names)) != len(names) or not names:
            raise DataError(f"{where}, line 1: the header needs different column names: {text!r}")
        return names, (min(len(line) + 1, len(block.data)), 2)

    def _read(
        self, data: bytes, names: list[str], types: dict[str, pa.DataType], columns: list[str]
    ) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=max(len(data) + 1, BLOCK_BYTES)
            ),
            parse_options=pa_csv.ParseOptions(delimiter=self._delimiter),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=columns,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


class _Parser:
    """Parses blocks of one file."""

    def __init__(self, format_: CsvFormat, names: list[str], schema: pa.Schema) -> None:
        self._format = format_
        self._names = names
        self._schema = schema
        self._wanted = [field for field in schema if field.name != BAD_RECORD]
        self._types = [{field.name: field.type for field in self._wanted}]
        zoneless = {field.name: _without_zone(field.type) for field in self._wanted}
        if zoneless != self._types[0]:
            self._types.append(zoneless)

    def parse(self, data: bytes) -> pa.RecordBatch:
        table = self._read(data)
        if table.num_rows != records(data) or data.count(b'"') % 2:
            raise Unparsable("a value goes on over the end of the line, or a quote is not closed")
        return _to_batch(table, self._schema)

    def _read(self, data: bytes) -> pa.Table:
        """With zones in the timestamps or without: what worked last is tried first."""
        columns = [field.name for field in self._wanted]
        problem: Exception | None = None
        for types in list(self._types):
            try:
                table = self._format._read(data, self._names, types, columns)
            except (pa.ArrowInvalid, UnicodeDecodeError) as error:
                problem = problem or error
            else:
                self._types.sort(key=lambda each: each is not types)
                return table
        raise Unparsable(_without_row(str(problem)))


def _to_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    rows = table.num_rows
    arrays = []
    for field in schema:
        if field.name == BAD_RECORD:
            arrays.append(pa.nulls(rows, field.type))
            continue
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            raise Unparsable(f"column {field.name!r} is NOT NULL and has no value")
        arrays.append(column.cast(field.type).combine_chunks())
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _without_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit)
    return kind


def _without_row(message: str) -> str:
    """Arrow counts rows within the block; the number would only mislead beside ours."""
    return message.replace("Row #1: ", "")


def _require_columns(have: list[str], want: list[str], where: str) -> None:
    for name in want:
        if name not in have:
            raise DataError(
                f"{where}, line 1: there is no column {name!r}; the file has {', '.join(have)}"
            )
