"""The aggregate functions a user can ask for, and the type of what each gives.

Nulls are treated as Spark does: `count()` counts rows, `count(column)` those that are not null; `sum`, `min`,
`max` and `avg` pass over nulls and are null when there was nothing else; `first` and `last` take the value of the
first or last row, null or not.

| function | takes | gives |
|---|---|---|
| count | any column, or none | int64 |
| sum | integers | int64; an overflow fails the job with DataError |
| sum | floats | float64 |
| sum | decimal(p, s) | decimal(min(38, p + 10), s), exact; an overflow fails with DataError |
| avg | numbers | float64 |
| min, max, first, last | numbers, bool, dates and times, decimal, text, binary | the same type |

NaN: as in Spark it is larger than any other number. So `max` is NaN when any value is, `min` only when all are;
`sum` and `avg` become NaN. The sums of floats depend on the order of rows, as everywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.plan.keyhash import check_key_types, is_key_type

FUNCTIONS = ("count", "sum", "min", "max", "avg", "first", "last")
DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What to compute over the rows of a key. `column` is None for a count of rows."""

    function: str
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.function}({self.column or ''})"


def count(column: str | None = None) -> Aggregate:
    """Rows, or rows where `column` is not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:  # noqa: A001 (Spark's name)
    """The sum of the values that are not null."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:  # noqa: A001 (Spark's name)
    """The smallest value that is not null."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:  # noqa: A001 (Spark's name)
    """The largest value that is not null."""
    return Aggregate("max", column)


def avg(column: str) -> Aggregate:
    """The mean of the values that are not null."""
    return Aggregate("avg", column)


def first(column: str) -> Aggregate:
    """The value of the first row of the key."""
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """The value of the last row of the key so far."""
    return Aggregate("last", column)


def result_field(name: str, aggregate: Aggregate, input_schema: pa.Schema) -> pa.Field:
    """The column that an aggregate gives; SchemaError when it cannot be computed over this input."""
    if aggregate.function not in FUNCTIONS:
        known = ", ".join(FUNCTIONS)
        raise SchemaError(f"{name} = {aggregate}: no such aggregate; there are {known}")
    if aggregate.column is None:
        if aggregate.function != "count":
            raise SchemaError(f"{name} = {aggregate}: only count() goes without a column")
        return pa.field(name, pa.int64(), nullable=False)
    kind = _column_type(name, aggregate, aggregate.column, input_schema)
    match aggregate.function:
        case "count":
            return pa.field(name, pa.int64(), nullable=False)
        case "sum":
            return pa.field(name, _sum_type(name, aggregate, kind))
        case "avg":
            _sum_type(name, aggregate, kind)
            return pa.field(name, pa.float64())
        case _:
            return pa.field(name, _kept_type(name, aggregate, kind))


def result_schema(
    keys: Sequence[str], aggregates: Mapping[str, Aggregate], input_schema: pa.Schema
) -> pa.Schema:
    """The rows that an aggregation gives: the key columns, then the results in order."""
    check_key_types(input_schema, keys)
    if not aggregates:
        raise SchemaError("nothing to aggregate: give at least one, as in agg(n=count())")
    for name in aggregates:
        if name in keys:
            raise SchemaError(
                f"the result {name!r} has the name of a key column: give it another name"
            )
    results = [result_field(name, each, input_schema) for name, each in aggregates.items()]
    return pa.schema([*(input_schema.field(key) for key in keys), *results])


def _column_type(
    name: str, aggregate: Aggregate, column: str, input_schema: pa.Schema
) -> pa.DataType:
    indices = input_schema.get_all_field_indices(column)
    if len(indices) == 1:
        return input_schema.field(indices[0]).type
    if indices:
        raise SchemaError(f"{name} = {aggregate}: there are {len(indices)} columns {column!r}")
    close = difflib.get_close_matches(column, input_schema.names, 1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    columns = ", ".join(input_schema.names)
    raise SchemaError(
        f"{name} = {aggregate}: there is no column {column!r}{hint}; the columns are {columns}"
    )


def _sum_type(name: str, aggregate: Aggregate, kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_integer(kind):
        return pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_decimal128(kind):
        digits = kind.precision + 10
        return pa.decimal128(
            digits if digits < DECIMAL_DIGITS_MAX else DECIMAL_DIGITS_MAX, kind.scale
        )
    raise SchemaError(
        f"{name} = {aggregate}: column {aggregate.column!r} has type {kind}; "
        f"{aggregate.function} takes integers, floats and decimal128"
    )


def _kept_type(name: str, aggregate: Aggregate, kind: pa.DataType) -> pa.DataType:
    if is_key_type(kind) or pa.types.is_floating(kind):
        return kind
    raise SchemaError(
        f"{name} = {aggregate}: column {aggregate.column!r} has type {kind}; {aggregate.function} takes "
        "numbers, bool, dates and times, decimal128, string and binary"
    )
