"""Operators without state: rows or batches in, rows or batches out.

User code runs inside `process`. What it raises goes up as it is: the subtask says where it happened. What it
returns is checked here, against the schema that was declared when the pipeline was built; the input's, where none was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.engine.operators.base import Operator, OperatorContext
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows, not_declared
from penstock.errors import SchemaError
from penstock.plan.expressions import Expression
from penstock.plan.schema import schema_differences, to_ddl

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
MaskFunction: TypeAlias = Callable[[pa.RecordBatch], Any]
RowFunction: TypeAlias = Callable[[Row], Any]

_MISTAKEN = (AttributeError, TypeError)
"""What Python raises where a batch is used like a row."""


_WHOLE_BATCH = "the function of {} gets a whole batch (a pyarrow.RecordBatch), not a row"


class _Named(Operator):
    """Knows its name, for messages."""

    _name = "operator"

    def open(self, context: OperatorContext) -> None:
        self._name = context.operator


class MapBatches(_Named):
    """A batch to a batch of the declared schema, by a user function. `declared` is False where that is the input's."""

    def __init__(self, function: BatchFunction, schema: pa.Schema, declared: bool = True) -> None:
        self.function = function
        self._schema = schema
        self._declared = declared

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        try:
            given = self.function(batch)
        except _MISTAKEN as error:
            hint = f"{_WHOLE_BATCH.format('map_batches')}; for rows use .map(...)"
            error.add_note(f"{self._name}: {hint}")
            raise
        result = checked_batch(given, self._schema, self._name, self._declared)
        return (result,) if result.num_rows else ()


class Filter(_Named):
    """Keeps the rows where the condition is true: an expression, or a function of a batch to a mask."""

    def __init__(self, condition: Expression | MaskFunction) -> None:
        self._condition = condition
        self.function = None if isinstance(condition, Expression) else condition

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        mask = self._mask(batch)
        kept = mask.true_count
        if kept == batch.num_rows:
            return (batch,)
        return (batch.filter(mask),) if kept else ()

    def _mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        if isinstance(self._condition, Expression):
            return self._condition.array(batch)
        try:
            mask = self._condition(batch)
        except _MISTAKEN as error:
            error.add_note(f"{self._name}: {batch_hint(self._condition, batch.schema)}")
            raise
        return checked_mask(
            mask, batch.num_rows, self._name, batch_hint(self._condition, batch.schema)
        )


class Select(_Named):
    """One expression per column of the result."""

    def __init__(self, expressions: tuple[Expression, ...], schema: pa.Schema) -> None:
        self._expressions = expressions
        self._schema = schema

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        arrays = [expression.array(batch) for expression in self._expressions]
        return (pa.RecordBatch.from_arrays(arrays, schema=self._schema),)


class MapRows(_Named):
    """A row to a row, by a user function."""

    def __init__(self, function: RowFunction, schema: pa.Schema, declared: bool = True) -> None:
        self.function = function
        self._schema = schema
        self._declared = declared

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._to_batch = RowsToBatch(self._schema, context.operator, declared=self._declared)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        return self._to_batch.batches(map(self.function, batch_rows(batch)))


class FlatMapRows(MapRows):
    """A row to any number of rows, by a user function that returns or yields them."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        return self._to_batch.batches(self._results(batch))

    def _results(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for row in batch_rows(batch):
            results = self.function(row)
            if results is None:
                raise SchemaError(
                    f"{self._name}: the function of flat_map returned None for {row!r}; return a list of rows,"
                    " an empty one for none, or yield them"
                )
            yield from checked_rows(results, self._name)


class Union(Operator):
    """The meeting point of streams whose columns have the same names and types; which are NOT NULL may differ."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        if batch.schema is self._schema or batch.schema.equals(self._schema):
            return (batch,)
        return (pa.RecordBatch.from_arrays(batch.columns, schema=self._schema),)


def checked_batch(
    result: Any, schema: pa.Schema, operator: str, declared: bool = True
) -> pa.RecordBatch:
    """The batch a user function returned, if it has exactly the columns of the schema."""
    if not isinstance(result, pa.RecordBatch):
        raise SchemaError(f"{operator}: {_not_a_batch(result)}")
    if result.schema is schema or result.schema.equals(schema):
        return _no_forbidden_nulls(result, schema, operator)
    differences = schema_differences(result.schema, schema)
    if differences:
        raise SchemaError(f"{operator}: {_other_schema('; '.join(differences), schema, declared)}")
    same = pa.RecordBatch.from_arrays(result.columns, schema=schema)
    return _no_forbidden_nulls(same, schema, operator)


def _other_schema(differences: str, schema: pa.Schema, declared: bool) -> str:
    if declared:
        return (
            f"the function returned another schema than declared: {differences}. Declared: {to_ddl(schema)}."
            " Cast or rename inside the function, or change schema=..."
        )
    return f"the function returned another schema than its input has: {differences}. {not_declared(schema)}"


def batch_hint(function: Any, schema: pa.Schema) -> str:
    """For who takes the batch for a row. The column in it is one that the function mentions."""
    code = getattr(function, "__code__", None)
    mentioned = (*code.co_consts, *code.co_names) if code is not None else ()
    column = next((name for name in schema.names if name in mentioned), schema.names[0])
    compared = '== "..."' if pa.types.is_string(schema.field(column).type) else "> 0"
    return (
        f"{_WHOLE_BATCH.format('a filter')}; a condition on columns is written"
        f' pen.col("{column}") {compared}'
    )


def checked_mask(mask: Any, rows: int, operator: str, hint: str = "") -> pa.BooleanArray:
    """The mask a user function returned, if it has one boolean per row."""
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    elif isinstance(mask, np.ndarray):
        mask = pa.array(mask)
    if not isinstance(mask, pa.Array) or not pa.types.is_boolean(mask.type):
        shown = mask.type if isinstance(mask, pa.Array) else type(mask).__name__
        raise SchemaError(
            f"{operator}: the function of a filter must return one boolean per row as a pyarrow or NumPy"
            f" array, and returned {shown}" + (f"; {hint}" if hint else "")
        )
    if len(mask) != rows:
        raise SchemaError(f"{operator}: the mask has {len(mask)} values for {rows} rows")
    return mask


def checked_rows(results: Any, operator: str) -> Iterable[Any]:
    """What a user function gave as rows: an iterable, or None for no rows."""
    if results is None:
        return ()
    if isinstance(results, (Row, dict, str, bytes)) or not isinstance(results, Iterable):
        raise SchemaError(
            f"{operator}: the function must return or yield any number of rows, and returned"
            f" {results!r} ({type(results).__name__}); put a single row into a list"
        )
    return results


def _no_forbidden_nulls(batch: pa.RecordBatch, schema: pa.Schema, operator: str) -> pa.RecordBatch:
    for position, field in enumerate(schema):
        if not field.nullable and batch.column(position).null_count:
            raise SchemaError(
                f"{operator}: the function returned nulls in column {field.name!r}, which is NOT NULL"
            )
    return batch


def _not_a_batch(result: Any) -> str:
    kind = type(result).__name__
    if result is None:
        return "the function returned None instead of a pyarrow.RecordBatch; is a return missing?"
    hints = {
        "Table": "use table.to_batches() inside the function and return one, or combine_chunks",
        "DataFrame": "use pa.RecordBatch.from_pandas(frame, preserve_index=False)",
    }
    hint = hints.get(kind, "map_batches is for functions of a batch to a batch; for rows use map")
    return f"the function returned {kind} instead of a pyarrow.RecordBatch; {hint}"
