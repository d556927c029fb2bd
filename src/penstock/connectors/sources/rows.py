"""Rows that the program itself holds, for examples, tests and small lookups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.base import END, EndOfInput, Source, SourceContext, SourceReader
from penstock.connectors.stripes import Stripes
from penstock.errors import DataError
from penstock.plan.schema import parse_schema
from penstock.protocol.snapshot import Plain

Row = Sequence[Any] | Mapping[str, Any]
_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class RowsSource(Source):
    """Tuples (in the order of the columns) or dicts (by name; a missing key is a null)."""

    def __init__(self, rows: Iterable[Row], schema: pa.Schema | str) -> None:
        self._schema = parse_schema(schema)
        self._batch = to_batch(list(rows), self._schema)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        rows = self._batch.num_rows
        block = max(1, -(-rows // context.max_parallelism))
        stripes = Stripes(context.lanes, context.max_parallelism, block, rows, positions)
        return RowsReader(self._batch, stripes)


class RowsReader(SourceReader):
    def __init__(self, batch: pa.RecordBatch, stripes: Stripes) -> None:
        self._batch = batch
        self._stripes = stripes
        self._last = ""

    def poll(self, max_rows: int) -> pa.RecordBatch | EndOfInput:
        runs = self._stripes.take(max_rows)
        if not runs:
            return END
        self._last = f"rows {runs[0][0]} to {sum(runs[-1]) - 1}"
        if len(runs) == 1:
            return self._batch.slice(*runs[0])
        return self._batch.take(pa.array(np.concatenate([np.arange(s, s + n) for s, n in runs])))

    def positions(self) -> Mapping[int, Plain]:
        return self._stripes.positions()

    def describe(self) -> str:
        return self._last


def to_batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """The rows as Arrow data; a `DataError` names the first row and column that do not fit."""
    cells = [_cells(number, row, schema.names) for number, row in enumerate(rows)]
    columns = list(zip(*cells, strict=True)) if cells else [()] * len(schema)
    arrays = [_column(field, column) for field, column in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cells(number: int, row: Row, names: Sequence[str]) -> Sequence[Any]:
    if isinstance(row, Mapping):
        unknown = [name for name in row if name not in names]
        if unknown:
            raise DataError(f"row {number}: no column {unknown[0]!r}; the columns are {names}")
        return [row.get(name) for name in names]
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        raise DataError(f"row {number}: {row!r} is no tuple; write ({row!r},) for one column")
    if len(row) != len(names):
        raise DataError(f"row {number}: {len(row)} values for {len(names)} columns {names}")
    return row


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        array = pa.array(values, field.type)
    except _CONVERSION_ERRORS:
        array = None
    if array is None or _is_lossy(field, values) or (not field.nullable and array.null_count):
        raise _misfit(field, values)
    return array


def _is_lossy(field: pa.Field, values: Sequence[Any]) -> bool:
    """Arrow cuts 1.5 down to 1 where an integer is wanted."""
    if not pa.types.is_integer(field.type):
        return False
    return any(isinstance(value, float) and not value.is_integer() for value in values)


def _misfit(field: pa.Field, values: Sequence[Any]) -> DataError:
    for number, value in enumerate(values):
        problem = _problem(field, value)
        if problem:
            return DataError(
                f"row {number}, column {field.name!r} ({field.type}): {value!r}: {problem}"
            )
    return DataError(f"column {field.name!r}: the values do not fit {field.type}")


def _problem(field: pa.Field, value: Any) -> str:
    if value is None:
        return "" if field.nullable else "the column is NOT NULL"
    if _is_lossy(field, [value]):
        return "not a whole number"
    try:
        pa.array([value], field.type)
    except _CONVERSION_ERRORS as error:
        return str(error)
    return ""
