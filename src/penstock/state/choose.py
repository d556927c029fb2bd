"""Which fold keeps which aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.state.aggregates import Aggregate, result_field
from penstock.state.exact_sums import SumDecimals, SumIntegers
from penstock.state.flat import is_number
from penstock.state.folds import (
    Average,
    CountRows,
    CountValues,
    Extreme,
    ExtremeValue,
    First,
    Fold,
    Last,
    SumFloats,
)
from penstock.state.results import AGGREGATE


def make_folds(aggregates: Mapping[str, Aggregate], input_schema: pa.Schema) -> list[Fold]:
    """One fold per aggregate, with neighbouring state columns."""
    folds: list[Fold] = []
    at = 0
    for name, aggregate in aggregates.items():
        fold = _make_fold(name, aggregate, input_schema, at)
        fold.means = str(aggregate)
        folds.append(fold)
        at += len(fold.fields())
    return folds


def fold_schema(folds: Iterable[Fold]) -> pa.Schema:
    """The state columns of all folds. Each says which aggregate it belongs to."""
    return pa.schema(
        [
            field.with_metadata({**(field.metadata or {}), AGGREGATE: fold.means.encode()})
            for fold in folds
            for field in fold.fields()
        ]
    )


def _make_fold(name: str, aggregate: Aggregate, schema: pa.Schema, at: int) -> Fold:
    result = result_field(name, aggregate, schema).type
    if aggregate.column is None:
        return CountRows(name, -1, result, at)
    column = schema.get_field_index(aggregate.column)
    kind = schema.field(column).type
    match aggregate.function:
        case "count":
            return CountValues(name, column, kind, at)
        case "sum":
            return _make_sum(name, column, kind, at, result)
        case "avg":
            return Average(name, column, kind, at)
        case "first":
            return First(name, column, kind, at)
        case "last":
            return Last(name, column, kind, at)
        case word:
            make = Extreme if is_number(kind) else ExtremeValue
            return make(name, column, kind, at, largest=word == "max")


def _make_sum(name: str, column: int, kind: pa.DataType, at: int, result: pa.DataType) -> Fold:
    if pa.types.is_integer(kind):
        return SumIntegers(name, column, kind, at)
    if pa.types.is_floating(kind):
        return SumFloats(name, column, kind, at)
    return SumDecimals(name, column, kind, at, digits=result.precision)
