"""The columns that `select`, `with_columns` and `key_by` make: by name, by expression, all of them as "*".

A column has the name that it is given (`twice=...` or `.alias("twice")`), else that of the column it was, else the text
of its expression, such as `(n + 1)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.errors import ConfigError, PlanError, SchemaError
from penstock.plan.expressions import Alias, Column, Expression, col, refuse_spark_column
from penstock.plan.keyhash import check_key_types
from penstock.plan.schema import require_columns

ALL = "*"


def selected(
    columns: Iterable[object], named: Mapping[str, object], schema: pa.Schema, label: str
) -> list[Expression]:
    """What `select` was given, one expression per column."""
    chosen = [each for given in columns for each in _expanded(_expression(given, label), schema)]
    chosen += _with_names(named, label)
    if not chosen:
        raise PlanError(
            f"{label}: give at least one column; the columns are: {', '.join(schema.names)}"
        )
    return chosen


def replaced(
    unnamed: tuple[object, ...], named: Mapping[str, object], schema: pa.Schema, label: str
) -> list[Expression]:
    """All columns: those that are named anew in their place, new ones behind the others."""
    if unnamed or not named:
        raise PlanError(
            f'{label}: give every column its name, as in with_columns(twice=pen.col("{schema.names[0]}") * 2); a dict'
            " of columns is given as with_columns(**columns)"
        )
    new = {each.name(): each for each in _with_names(named, label)}
    kept = [new.pop(name) if name in new else col(name) for name in schema.names]
    return [*kept, *new.values()]


def made_schema(chosen: list[Expression], schema: pa.Schema, label: str) -> pa.Schema:
    """Of the rows that come out."""
    fields = [_field(expression, schema, label) for expression in chosen]
    names = [each.name for each in fields]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(
                f"{label}: two columns are called {name!r}; rename one with .alias(), or replace it with"
                " .with_columns(...)"
            )
    return pa.schema(fields)


# ---- keys


def key_expressions(
    keys: tuple[object, ...], named: Mapping[str, object], schema: pa.Schema, label: str
) -> list[Expression]:
    """What `key_by` was given, one expression per column of the key."""
    wanted = [_key(each, label) for each in keys] + _with_names(named, label)
    if not wanted:
        raise PlanError(f"{label}: give at least one column; they are: {', '.join(schema.names)}")
    for expression in wanted:
        if is_computed(expression) and expression.name() in schema.names:
            raise SchemaError(
                f"{label}: {expression} would be called {expression.name()!r}, and there is such a column; give the"
                " key another name, as in key_by(other=...), or replace the column with .with_columns(...) first"
            )
    return wanted


def is_computed(expression: Expression) -> bool:
    """Whether a key is more than a column as it is."""
    return not isinstance(_plain(expression), Column)


def checked_keys(
    wanted: list[Expression], schema: pa.Schema, given: pa.Schema, label: str
) -> tuple[str, ...]:
    """The names of key columns, all of which `schema` has and can be keys; the user knows the columns of `given`."""
    names = tuple(expression.name() for expression in wanted)
    require_columns([name for name in names if name not in schema.names], given, label)
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"{label}: column {name!r} is given twice")
    try:
        check_key_types(schema, names)
    except SchemaError as error:
        raise SchemaError(f"{label}: {error}{_whole(wanted, schema)}") from error
    return names


def _key(given: object, label: str) -> Expression:
    refuse_spark_column(given, label)
    if not isinstance(given, str | Expression):
        raise ConfigError(f"{label}: {given!r} ({type(given).__name__}) is no column name")
    return _expression(given, label)


def _whole(wanted: list[Expression], schema: pa.Schema) -> str:
    """A computed key is a fraction mostly because of a division."""
    fractions = [
        each
        for each in wanted
        if is_computed(each) and pa.types.is_floating(schema.field(each.name()).type)
    ]
    return "; a // b divides to whole numbers, a / b to fractions" if fractions else ""


# ---- helpers


def _expanded(expression: Expression, schema: pa.Schema) -> list[Expression]:
    if isinstance(expression, Column) and expression.column == ALL:
        return [col(name) for name in schema.names]
    return [expression]


def _with_names(named: Mapping[str, object], label: str) -> list[Expression]:
    return [_expression(value, label).alias(name) for name, value in named.items()]


def _plain(expression: Expression) -> Expression:
    """A column that is given its own name is the column itself."""
    if isinstance(expression, Alias) and isinstance(expression.value, Column):
        return expression.value if expression.value.column == expression.new_name else expression
    return expression


def _field(expression: Expression, schema: pa.Schema, label: str) -> pa.Field:
    if isinstance(expression, Column):
        require_columns((expression.column,), schema, label)
        return schema.field(expression.column)
    kind = expression.result_type(schema, label)
    if pa.types.is_null(kind):
        raise SchemaError(f'{label}: {expression} has no type; give it one: .cast("STRING")')
    return pa.field(expression.name(), kind)


def _expression(value: object, label: str) -> Expression:
    if isinstance(value, Expression):
        return value
    refuse_spark_column(value, label)
    if isinstance(value, str):
        return col(value)
    raise ConfigError(
        f"{label}: {value!r} ({type(value).__name__}) is no column; give a name or an expression, and"
        " pen.lit(value) for a constant"
    )
