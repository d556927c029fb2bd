"""Conditions on a state's keys: only the key groups that the keys are in are read, and of those only their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any

import pyarrow as pa

from penstock.engine.reading.choosing import likeliest, told
from penstock.engine.reading.keyed import OneOf, StateTable
from penstock.errors import ConfigError
from penstock.plan.keyhash import is_text, key_groups, lanes_of
from penstock.plan.schema import type_ddl

KEYS_MAX = 1_000
"""So many keys are looked up one by one; for more everything is read."""


def narrowed(table: StateTable, where: Sequence[OneOf], groups: range) -> list[StateTable]:
    """What must be read of the rows that meet all conditions and have a key group of the range: tables of neighbouring
    key groups."""
    wanted = _groups_of(table, where, groups)
    rows = tuple(each for each in where if each.column in table.schema.names)
    return [replace(table.within(each), where=rows) for each in _neighbours(wanted)]


def _groups_of(table: StateTable, where: Sequence[OneOf], groups: range) -> list[int]:
    within = set(range(max(0, groups.start), min(groups.stop, table.max_parallelism)))
    for each in where:
        if each.column == table.layout.group:
            within &= set(each.values.to_pylist())
    keys = _keys(table, where)
    if keys is not None:
        within &= set(key_groups(lanes_of(keys).h1, table.max_parallelism).tolist())
    return sorted(within)


def _keys(table: StateTable, where: Sequence[OneOf]) -> list[pa.Array] | None:
    """Every key that the conditions allow, as columns; None where they leave a part of the key open."""
    fewest: dict[str, pa.Array] = {}
    for each in where:
        if len(each.values) <= len(fewest.get(each.column, each.values)):
            fewest[each.column] = each.values
    names = table.layout.keys
    if not names or not all(name in fewest for name in names):
        return None
    if prod(len(fewest[name]) for name in names) > KEYS_MAX:
        return None
    rows = list(product(*(range(len(fewest[name])) for name in names)))
    numbers = zip(*rows, strict=True) if rows else [[] for _ in names]
    return [
        fewest[name].take(pa.array(column, pa.int64()))
        for name, column in zip(names, numbers, strict=True)
    ]


def _neighbours(groups: Sequence[int]) -> list[range]:
    runs: list[range] = []
    for group in groups:
        if runs and runs[-1].stop == group:
            runs[-1] = range(runs[-1].start, group + 1)
        else:
            runs.append(range(group, group + 1))
    return runs


# ---- values


def exactly(column: str, values: Sequence[Any], schema: pa.Schema) -> OneOf | None:
    """The condition that a column is one of some Python values; None where it cannot be said in the column's type."""
    kind = schema.field(column).type
    present = [value for value in values if value is not None]
    if not all(_fits(value, kind) for value in present):
        return None
    try:
        return OneOf(column, pa.array(present, kind))
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether this Python value means the same in that Arrow type: nothing is converted in silence."""
    types = pa.types
    match value:
        case bool():
            return bool(types.is_boolean(kind))
        case int():
            return bool(types.is_integer(kind))
        case str():
            return bool(types.is_string(kind) or types.is_large_string(kind))
        case bytes() | bytearray():
            return is_text(kind) and "binary" in str(kind)
        case datetime():
            return bool(types.is_timestamp(kind)) and (kind.tz is None) == (value.tzinfo is None)
        case date():
            return bool(types.is_date32(kind))
        case Decimal():
            return bool(types.is_decimal128(kind))
        case _:
            return False


def from_texts(texts: Mapping[str, str], table: StateTable) -> list[OneOf]:
    """The conditions that a person writes as `column=value`, for columns of the key and the key group."""
    known = [*table.layout.keys, table.layout.group]
    for column in texts:
        if column not in known:
            hint = likeliest(column, known)
            raise ConfigError(f"{column!r} is no column of the key{hint}; {told(known)}")
    return [_from_text(column, text, table.schema) for column, text in texts.items()]


def _from_text(column: str, text: str, schema: pa.Schema) -> OneOf:
    kind = schema.field(column).type
    try:
        return OneOf(column, pa.array([text]).cast(kind))
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"{column}={text!r} is no value of {type_ddl(kind)}: {error}") from error
