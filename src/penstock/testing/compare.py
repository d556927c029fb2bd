"""What it means that two runs gave the same result.

Rows that come out of a pipeline are compared as a multiset: each as often as in the undisturbed run. That is too strict
where the rows depend on how the input was cut into batches, as those of a running aggregate do: it emits, per batch,
the new value of every key in it. There only the last row of each key has one right answer: `last_per("user")`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.connectors.tables.sink import UpsertFileSink
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.errors import ConfigError
from penstock.plan.graph import Hash, LogicalGraph, Node
from penstock.testing import multiset
from penstock.testing.multiset import Rows

Table: TypeAlias = Sequence[dict[str, Any]]
View: TypeAlias = Callable[[Table], Any]
Comparison: TypeAlias = str | View
"""`"rows"`, `last_per(...)`, or a function that makes something comparable of a list of rows."""


@dataclass(frozen=True)
class Difference:
    """What was expected and what was seen, as lines for people."""

    summary: str
    expected: tuple[str, ...]
    seen: tuple[str, ...]


def all_rows(rows: Table) -> Rows:
    """Every row, as often as it is there, in no order."""
    return Rows(multiset.text(row) for row in rows)


@dataclass(frozen=True)
class LastPer:
    """The last row of each key."""

    columns: tuple[str, ...]

    def __call__(self, rows: Table) -> dict[str, str]:
        return {
            multiset.text({name: row[name] for name in self.columns}): multiset.text(row)
            for row in rows
        }


def last_per(*columns: str) -> LastPer:
    """Compares only the last row of each key: for running aggregates and other updates by key."""
    if not columns or not all(isinstance(column, str) for column in columns):
        raise ConfigError(f"last_per: give the names of the key columns, not {columns!r}")
    return LastPer(columns)


def view_for(node: Node, graph: LogicalGraph, wanted: Comparison | None) -> View:
    """How the rows of this sink are compared; chosen by what stands in front of it where nobody said."""
    if wanted is None:
        return _of_table(node.connector) or _usual(graph.node(node.inputs[0].operator))
    if wanted == "rows":
        return all_rows
    if isinstance(wanted, LastPer):
        missing = [name for name in wanted.columns if name not in node.schema.names]
        if missing:
            raise ConfigError(
                f"compare: sink {node.name!r} has no column {missing[0]!r}; it has {node.schema.names}"
            )
        return wanted
    if callable(wanted):
        return wanted
    raise ConfigError(
        f'compare: {wanted!r} is not known; give "rows", last_per("key", ...) or a function of the rows'
    )


def _of_table(sink: Any) -> View | None:
    """Of a sink that keeps the last row of each key, perhaps inside of another one."""
    sink = getattr(sink, "inside", sink)
    return LastPer(sink.keys) if isinstance(sink, UpsertFileSink) else None


def _usual(upstream: Node) -> View:
    made = getattr(upstream.create, "func", None)
    edge = upstream.inputs[0].partitioning if upstream.inputs else None
    if made is RunningAggregate and isinstance(edge, Hash):
        return LastPer(edge.keys)
    return all_rows


def difference(
    have: Any,
    want: Any,
    *,
    once: bool = True,
    words: tuple[str, str] = multiset.LOST_OR_TOO_MANY,
) -> Difference | None:
    """None where they agree. `once=False` lets rows come more often, and leaves other comparisons alone."""
    if have == want:
        return None
    if isinstance(have, Counter) and isinstance(want, Counter):
        return _rows_differ(have, want, words) if once or want - have else None
    if not once:
        return None
    if isinstance(have, Mapping) and isinstance(want, Mapping):
        return _mappings_differ(have, want)
    return Difference("the results differ", (_short(want),), (_short(have),))


def _rows_differ(have: Rows, want: Rows, words: tuple[str, str]) -> Difference:
    wrong = [row for row in sorted(have | want) if have[row] != want[row]]
    return Difference(
        multiset.differing(have, want, words),
        multiset.listed(Rows({row: want[row] for row in wrong})),
        multiset.listed(Rows({row: have[row] for row in wrong})),
    )


def _mappings_differ(have: Mapping[Any, Any], want: Mapping[Any, Any]) -> Difference:
    every = {**want, **have}
    keys = [key for key in every if have.get(key) != want.get(key)]
    shown = keys[: multiset.SHOWN]
    return Difference(
        f"{len(keys)} of {len(every)} keys have another value",
        tuple(f"{key}: {_short(want.get(key, 'nothing'))}" for key in shown),
        tuple(f"{key}: {_short(have.get(key, 'nothing'))}" for key in shown),
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def to_rows(answer: Any, schema: pa.Schema, what: str) -> list[dict[str, Any]]:
    """What a `read` function returned, as rows of the sink's schema: a table, a DataFrame, dicts or tuples."""
    try:
        return _converted(answer, schema)
    except (pa.ArrowException, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{what} did not return rows of the sink's schema ({', '.join(schema.names)}): {error}. Return a pa.Table,"
            " or a list of dicts or tuples."
        ) from error


def _converted(answer: Any, schema: pa.Schema) -> list[dict[str, Any]]:
    if hasattr(answer, "to_pylist"):
        answer = answer.to_pylist()
    elif hasattr(answer, "to_dict"):
        answer = answer.to_dict("records")
    rows = [_named(row, schema.names) for row in answer]
    loose = pa.schema([field.with_nullable(True) for field in schema])
    made: list[dict[str, Any]] = pa.Table.from_pylist(rows, loose).to_pylist()
    return made


def _named(row: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {name: row[name] for name in names}
    return dict(zip(names, row, strict=True))
