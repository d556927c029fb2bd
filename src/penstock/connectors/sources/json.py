"""JSON lines: one object per line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
from pyarrow import json as pa_json

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

_LINE_FEED = ord("\n")
_OPENING = ord("{")


class JsonFormat:
    """A key that is missing is a null; a key that is not in the schema is passed over."""

    def __init__(self, *, keep_bad: bool) -> None:
        self._keep_bad = keep_bad

    def infer(self, listing: Listing, name: str) -> pa.Schema:
        where = listing.shown(name)
        with closing(listing.open_bytes(name)) as handle:
            block = next(line_blocks(handle, START, where))
        try:
            return plain_schema(_read(block.data, None).schema, where)
        except Unparsable as error:
            raise DataError(f"{where}: cannot be read as JSON lines ({error})") from error

    def chunks(self, listing: Listing, name: str, schema: pa.Schema, at: Mark) -> Iterator[Chunk]:
        bad = BadLines(schema, keep=self._keep_bad)
        parse = _Parser(schema).parse
        yield from read_lines(listing, name, at, parse, bad)


class _Parser:
    """Arrow reads no dates and times from JSON text: those columns are read as strings first."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._wanted = pa.schema(
            [
                pa.field(field.name, pa.string() if _as_text(field.type) else field.type)
                for field in schema
                if field.name != BAD_RECORD
            ]
        )

    def parse(self, data: bytes) -> pa.RecordBatch:
        table = _read(data, self._wanted)
        if table.num_rows != records(data):
            raise Unparsable("not one JSON object per line")
        arrays = [self._column(table, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        if field.name == BAD_RECORD:
            return pa.nulls(table.num_rows, field.type)
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            raise Unparsable(f"column {field.name!r} is NOT NULL and has no value")
        try:
            return column.cast(field.type).combine_chunks()
        except pa.ArrowInvalid as error:
            raise Unparsable(f"column {field.name!r}: {error}") from error


def _as_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind))


def _read(data: bytes, schema: pa.Schema | None) -> pa.Table:
    _require_objects(data)
    options = pa_json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, BLOCK_BYTES))
    parse_options = pa_json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"
    )
    try:
        return pa_json.read_json(
            pa.BufferReader(data), read_options=options, parse_options=parse_options
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Unparsable(str(error).removesuffix(" in row 0")) from error


def _require_objects(data: bytes) -> None:
    """What Arrow's reader must not be given: bytes that are not UTF-8 go through it unseen, and a line such as
    `null` ends the whole process (seen with pyarrow 26)."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Unparsable(f"not UTF-8 ({error.reason} at byte {error.start})") from error
    raw = np.frombuffer(data, np.uint8)
    starts = np.flatnonzero(raw[:-1] == _LINE_FEED) + 1
    if data[:1] == b"{" and bool((raw[starts] == _OPENING).all()):
        return
    for line in data.split(b"\n"):
        text = line.strip()
        if text and not text.startswith(b"{"):
            raise Unparsable("a JSON object in braces is expected")
