"""Keyed streams: rows by key, so that an operator can keep state for each."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Never

import pyarrow as pa

from penstock.api import hints
from penstock.api.steps import Step, next_label
from penstock.api.stream import Stream, declared_schema
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.process import Process, StatefulFunction, check_function
from penstock.errors import ConfigError, PenstockError, PlanError, SchemaError
from penstock.plan.expressions import Column, Expression, is_spark_column, refuse_spark_column
from penstock.plan.graph import Hash
from penstock.state.aggregates import FUNCTIONS, Aggregate, result_field


class KeyedStream:
    """Made with `stream.key_by(...)`."""

    def __init__(self, step: Step, keys: tuple[str, ...]) -> None:
        self._step = step
        self._keys = keys

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that go in."""
        return self._step.schema

    def agg(self, *unnamed: Never, **aggregates: Aggregate) -> Stream:
        """Running aggregates: `agg(n=pen.count(), total=pen.sum("amount"))`.

        For every batch, one row with the new values for each key in it: the key columns, then the results.
        """
        label = next_label("agg", self._step)
        if unnamed:
            raise _unnamed_result(label, unnamed[0])
        if not aggregates:
            raise PlanError(
                f'{label}: give at least one aggregate, as in agg(total=pen.sum("amount"))'
            )
        fields = [self.schema.field(key) for key in self._keys]
        wanted = {name: _aggregate(label, name, each) for name, each in aggregates.items()}
        fields += [self._result(label, name, each) for name, each in wanted.items()]
        create = partial(RunningAggregate, self._keys, wanted)
        used = {*self._keys, *(each.column for each in wanted.values())}
        columns = tuple(name for name in self.schema.names if name in used)
        edge = Hash(self._keys, columns)
        inputs = ((self._step, edge),)
        return Stream(Step("agg", create, inputs, pa.schema(fields), keyed_by=self._keys))

    def process(
        self, function: StatefulFunction | type[StatefulFunction], schema: str | pa.Schema
    ) -> Stream:
        """Your own function with state per key: an object with `process(key, rows, ctx)`, which yields rows, or
        `process_batch(batch, ctx)`; with `open(ctx)` to declare state and `close()` where needed."""
        label = next_label("process", self._step)
        check_function(function, label)
        out = declared_schema(schema, label)
        create = partial(Process, function, self._keys, out)
        return Stream(Step("process", create, ((self._step, Hash(self._keys)),), out))

    if not TYPE_CHECKING:  # type checkers are to know the methods above and no others

        def __getattr__(self, name: str) -> Any:
            """Only for names that there are not: what may have been meant."""
            if name in dir(Stream):
                raise AttributeError(
                    f"a stream by key has no {name!r}: it has .agg(...) and .process(...); {name} goes before"
                    " key_by or behind those"
                )
            raise hints.missing("a stream by key", name, hints.KEYED)

    def __repr__(self) -> str:
        return f"KeyedStream[by {', '.join(self._keys)}]"

    def _result(self, label: str, name: str, aggregate: Aggregate) -> pa.Field:
        if name in self._keys:
            raise SchemaError(
                f"{label}: {name!r} is a key column already; name the result otherwise"
            )
        try:
            return result_field(name, aggregate, self.schema)
        except SchemaError as error:
            raise SchemaError(f"{label}: {error}") from error


def _aggregate(label: str, name: str, given: object) -> Aggregate:
    """An aggregate over a column by its name; `pen.sum(pen.col("x"))` means `pen.sum("x")`."""
    refuse_spark_column(given, label, f"write {name}={_like_spark(given)} instead")
    if not isinstance(given, Aggregate):
        if forgotten := hints.not_called(given):
            raise ConfigError(f"{label}: {name}=... is no aggregate: {forgotten}")
        raise ConfigError(
            f"{label}: {name}={given!r} is no aggregate; use pen.count(), pen.sum(column), pen.min,"
            " pen.max, pen.avg, pen.first or pen.last"
        )
    if given.column is None or isinstance(given.column, str):
        return given
    return replace(given, column=_column_name(given.column, f"{label}, {name}"))


def _unnamed_result(label: str, given: object) -> PenstockError:
    """Results are columns, so each needs a name."""
    refuse_spark_column(given, label, f"write agg(n={_like_spark(given)}) instead")
    if isinstance(given, Aggregate):
        column = "" if given.column is None else f'"{given.column}"'
        shown = f"agg(n=pen.{given.function}({column}))"
        return PlanError(f"{label}: every result needs a name of its own; write {shown}")
    if forgotten := hints.not_called(given):
        return ConfigError(f"{label}: {forgotten}, with a name: agg(n=...)")
    return ConfigError(
        f"{label}: {given!r} is no aggregate with a name; write agg(n=pen.count(), ...) with one name per result"
    )


def _like_spark(column: object) -> str:
    """What the same aggregate is called here: Column<'sum(x)'> is pen.sum("x")."""
    found = re.search(r"(\w+)\((\w*)\)", str(column)) if is_spark_column(column) else None
    function, of = found.groups() if found else ("", "")
    if function not in FUNCTIONS:
        return 'pen.sum("x")'
    return f'pen.{function}("{of}")' if of not in ("", "1") else f"pen.{function}()"


def _column_name(key: object, label: str) -> str:
    refuse_spark_column(key, label)
    if isinstance(key, Column):
        return key.column
    if isinstance(key, Expression):
        raise PlanError(
            f"{label}: {key} is no plain column; make it one with .with_columns(...) first"
        )
    if not isinstance(key, str):
        raise ConfigError(f"{label}: {key!r} ({type(key).__name__}) is no column name")
    return key
