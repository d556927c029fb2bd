"""How rows of state look to people: the key's columns, the values as the job itself knows them, and the key group.

What lies in a checkpoint has marks before the names, and columns that only the engine needs. There are four layouts:
aggregates, the other states of own functions by key, those by subtask, and rows that wait for a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.engine.operators.held_rows import ROW, held_rows
from penstock.errors import CheckpointCorrupt
from penstock.state.lifetime import TOUCHED, without_moments
from penstock.state.results import Result, results_of
from penstock.state.segments import GROUP_COLUMN
from penstock.state.table import (
    BELOW_PREFIX,
    KEY_PREFIX,
    SPLIT_LIST,
    STATE_KIND,
    UNION_LIST,
    VALUE_PREFIX,
)

GROUP = "key_group"
SUBTASK = "subtask"
"""Where there is no key: whose entry it is."""
_BY_SUBTASK = (SPLIT_LIST.encode(), UNION_LIST.encode())


@dataclass(frozen=True)
class Layout:
    """`schema` has the columns of the key first and the key group, or what stands in its place, last."""

    schema: pa.Schema
    keys: tuple[str, ...]
    _columns: Callable[[pa.RecordBatch], Sequence[pa.Array]]

    @property
    def group(self) -> str:
        """What the column of the key group is called."""
        return str(self.schema.names[-1])

    def shown(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Stored rows as people know them."""
        *columns, groups = self._columns(without_moments(stored))
        return pa.RecordBatch.from_arrays([*columns, groups.cast(pa.int32())], schema=self.schema)


def layout_of(stored: pa.Schema) -> Layout:
    """The layout of a state whose rows are stored with this schema."""
    fields = [field for field in stored if field.name not in (GROUP_COLUMN, TOUCHED.name)]
    if [field.name for field in fields] == [ROW] and pa.types.is_struct(fields[0].type):
        return _layout([], list(fields[0].type), _held)
    kind = (stored.metadata or {}).get(STATE_KIND)
    if kind in _BY_SUBTASK:
        named = [field.with_name(field.name.removeprefix(VALUE_PREFIX)) for field in fields]
        return _layout([], named, _as_stored, SUBTASK)
    keys, values = _keys_and_values(fields)
    if kind != b"aggregate":
        return _layout(keys, values, _as_stored)
    results = results_of(values)
    return _layout(keys, [each.field for each in results], partial(_aggregated, results))


def _keys_and_values(fields: Sequence[pa.Field]) -> tuple[list[pa.Field], list[pa.Field]]:
    """What is below a key is shown with the values."""
    marks = [field.name.partition(".")[0] + "." for field in fields]
    order = [
        mark for mark in (KEY_PREFIX, BELOW_PREFIX, VALUE_PREFIX) for _ in range(marks.count(mark))
    ]
    if KEY_PREFIX not in marks or marks != order:
        shown = ", ".join(field.name for field in fields)
        raise CheckpointCorrupt(f"no state of this Penstock has the columns {shown}")
    named = [field.with_name(field.name.partition(".")[2]) for field in fields]
    count = marks.count(KEY_PREFIX)
    return named[:count], named[count:]


def _aggregated(results: Sequence[Result], batch: pa.RecordBatch) -> Sequence[pa.Array]:
    columns = batch.drop_columns([GROUP_COLUMN]).columns
    keys = len(columns) - sum(len(each.columns) for each in results)
    kept = columns[keys:]
    made = (each.compute([kept[number] for number in each.columns]) for each in results)
    return [*columns[:keys], *made, batch.column(GROUP_COLUMN)]


def _as_stored(batch: pa.RecordBatch) -> Sequence[pa.Array]:
    return [*batch.drop_columns([GROUP_COLUMN]).columns, batch.column(GROUP_COLUMN)]


def _held(batch: pa.RecordBatch) -> Sequence[pa.Array]:
    return [*held_rows(batch).columns, batch.column(GROUP_COLUMN)]


def _layout(
    keys: Sequence[pa.Field],
    values: Sequence[pa.Field],
    columns: Callable[[pa.RecordBatch], Sequence[pa.Array]],
    last: str = GROUP,
) -> Layout:
    group = pa.field(last, pa.int32(), nullable=False)
    names = distinct(field.name for field in (*keys, *values, group))
    fields = [
        pa.field(name, field.type, field.nullable)
        for name, field in zip(names, (*keys, *values, group), strict=True)
    ]
    return Layout(pa.schema(fields), tuple(names[: len(keys)]), columns)


def distinct(names: Iterable[str]) -> list[str]:
    """Each once, also for Spark, which takes `User` and `user` for one: what comes later and is called like something
    before it gets an underscore in front."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        while name.lower() in taken:
            name = f"_{name}"
        taken.add(name.lower())
        made.append(name)
    return made
