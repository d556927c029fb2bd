"""Conditions on the key of a state: only the key group that the key is in is read, and of that only its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.engine.reading.choosing import likeliest, told
from penstock.engine.reading.keyed import Equal, StateTable
from penstock.engine.reading.tables import Table
from penstock.errors import ConfigError
from penstock.plan.keyhash import key_groups, key_hashes
from penstock.plan.schema import type_ddl


def narrowed(table: Table, texts: Mapping[str, str]) -> Table:
    """The rows that meet all conditions, each a column of the key, or the key group, and the text of its value. Upper
    and lower case of a column's name make no difference, as in Spark."""
    if not texts:
        return table
    if not isinstance(table, StateTable):
        raise ConfigError("conditions on the key go with the kind 'state' only")
    where = tuple(_equal(column, text, table) for column, text in texts.items())
    groups = _groups_of(where, table)
    if len(groups) == 1:
        (group,) = groups
        table = table.within(range(group, group + 1))
    elif groups:
        table = table.within(range(0))
    return replace(table, where=where)


def _equal(column: str, text: str, table: StateTable) -> Equal:
    known = {name.lower(): name for name in (*table.layout.keys, table.layout.group)}
    if column.lower() not in known:
        names = list(known.values())
        raise ConfigError(
            f"{column!r} is no column of the key{likeliest(column, names)}; {told(names)}"
        )
    name = known[column.lower()]
    kind = table.schema.field(name).type
    try:
        (value,) = pa.array([text]).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"{name}={text!r} is no value of {type_ddl(kind)}: {error}") from error
    return Equal(name, value)


def _groups_of(where: Sequence[Equal], table: StateTable) -> set[int]:
    """The key groups that rows must have, each for another reason. None where a part of the key is left open."""
    values = {each.column: each.value for each in where}
    groups = {values[name].as_py() for name in (table.layout.group,) if name in values}
    keys = table.layout.keys
    if keys and all(name in values for name in keys):
        columns = [pa.array([values[name]], values[name].type) for name in keys]
        groups.add(int(key_groups(key_hashes(columns)[0], table.max_parallelism)[0]))
    return groups
