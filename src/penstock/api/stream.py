"""Streams: what a pipeline is written with. Every mistake is reported on the line that makes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Never

import pyarrow as pa

from penstock.api import hints
from penstock.api.columns import (
    checked_keys,
    is_computed,
    key_expressions,
    made_schema,
    replaced,
    selected,
)
from penstock.api.steps import (
    Step,
    build_graph,
    check_name,
    next_label,
    sink_kind,
    sink_step,
    source_step,
)
from penstock.connectors.base import Sink, Source
from penstock.engine.operators.row import Row, batch_rows
from penstock.engine.operators.rows import (
    BatchFunction,
    Filter,
    FlatMapRows,
    MapBatches,
    MapRows,
    MaskFunction,
    RowFunction,
    Select,
    Union,
)
from penstock.errors import ConfigError, PlanError, SchemaError
from penstock.plan.expressions import Expression, col, refuse_spark_column
from penstock.plan.graph import Broadcast, Forward, Hash, LogicalGraph, Partitioning, Rebalance
from penstock.plan.schema import (
    parse_schema,
    schema_differences,
    to_ddl,
    type_ddl,
)

if TYPE_CHECKING:
    from penstock.api.keyed import KeyedStream
    from penstock.api.pipeline import Pipeline

_INSTEAD_OF_COPIES = {
    "key_by": (
        "Leave .broadcast() out: key_by already sends each row to the subtask of its key. State that is"
        " the same in every subtask, such as rules to look up, is not there yet"
    ),
    "to": "Leave .broadcast() out: each row already goes to the subtask of its key",
    "rebalance": "Leave one of the two out: .rebalance() gives each row to one subtask",
    "broadcast": "Leave the second .broadcast() out: every subtask has every row already",
}


class Stream:
    """Rows of one schema that keep coming. Made with `from_source`, `from_rows` and from other streams."""

    def __init__(self, step: Step, partitioning: Partitioning | None = None) -> None:
        self._step = step
        self._partitioning = partitioning or Forward()

    @property
    def schema(self) -> pa.Schema:
        return self._step.schema

    # ---- operators

    def map(self, function: RowFunction, schema: str | pa.Schema | None = None) -> Stream:
        """Each row to one row. `schema` is that of the result; the input's where it is left out."""
        return self._apply("map", MapRows, function, schema)

    def flat_map(self, function: RowFunction, schema: str | pa.Schema | None = None) -> Stream:
        """Each row to any number of rows, returned or yielded; of the input's schema where none is given."""
        return self._apply("flat_map", FlatMapRows, function, schema)

    def map_batches(self, function: BatchFunction, schema: str | pa.Schema | None = None) -> Stream:
        """Each `pa.RecordBatch` to a `pa.RecordBatch`: the fast way to run your own Python. The result has the
        input's schema where none is given."""
        return self._apply("map_batches", MapBatches, function, schema)

    def filter(self, condition: Expression | MaskFunction) -> Stream:
        """Keeps the rows where the condition is true: `pen.col("amount") > 0`, or a function that gets a whole
        `pa.RecordBatch` and returns one boolean per row as an Arrow or NumPy array."""
        label = next_label("filter", self._step)
        if isinstance(condition, Expression):
            kind = condition.result_type(self.schema, label)
            if not pa.types.is_boolean(kind):
                raise SchemaError(
                    f"{label}: a condition is true or false, and {condition} is {type_ddl(kind)};"
                    " compare it with something"
                )
        else:
            refuse_spark_column(condition, label)
            _require_callable(condition, label, 'an expression such as pen.col("amount") > 0')
        return self._then("filter", partial(Filter, condition), self.schema)

    def select(self, *columns: str | Expression, **named: str | Expression) -> Stream:
        """These columns, by name or as expressions: `select("user", total=pen.col("a") + pen.col("b"))`. "*" are all
        that there are."""
        label = next_label("select", self._step)
        return self._select("select", selected(columns, named, self.schema, label), label)

    def with_columns(self, *unnamed: Never, **named: str | Expression) -> Stream:
        """All columns and these: `with_columns(total=pen.col("a") + pen.col("b"))`. One that there is already is
        replaced in its place. Every expression reads the columns as they were."""
        label = next_label("with_columns", self._step)
        return self._select("with_columns", replaced(unnamed, named, self.schema, label), label)

    def union(self, *others: Stream) -> Stream:
        """The rows of all these streams, which must have the same schema."""
        label = next_label("union", self._step, *(other._step for other in _streams(others)))
        for number, other in enumerate(others, start=2):
            differences = schema_differences(other.schema, self.schema)
            if differences:
                raise SchemaError(
                    f"{label}: stream {number} ({other._step.label}) has another schema than the first"
                    f" ({self._step.label}): {'; '.join(differences)}"
                )
        inputs = tuple((each._step, each._partitioning) for each in (self, *others))
        schema = _union_schema(self.schema, [other.schema for other in others])
        return Stream(Step("union", partial(Union, schema), inputs, schema))

    def rebalance(self) -> Stream:
        """Deals batches out in turn to all subtasks of what comes next."""
        self._refuse_copies("rebalance")
        return Stream(self._step, Rebalance())

    def broadcast(self) -> Stream:
        """Gives every row to every subtask of what comes next: a sink behind it writes each row once per subtask.
        `take` and `show` have one subtask, and so show it once."""
        self._refuse_copies("broadcast")
        return Stream(self._step, Broadcast())

    def key_by(self, *keys: str | Expression, **named: str | Expression) -> KeyedStream:
        """All rows with equal values in these columns go to the same subtask, which keeps state for them. An
        expression becomes a column behind the others: `key_by("user", minute=pen.col("second") // 60)`."""
        from penstock.api.keyed import KeyedStream

        self._refuse_copies("key_by")
        label = f"key_by behind {self._step.label}"
        wanted = key_expressions(keys, named, self.schema, label)
        computed = [each for each in wanted if is_computed(each)]
        every = [*map(col, self.schema.names), *computed]
        rows = self._select("key_by", every, label) if computed else self
        return KeyedStream(rows._step, checked_keys(wanted, rows.schema, self.schema, label))

    def named(self, name: str) -> Stream:
        """Names the operator that makes these rows. Its state is found by this name: give one to keep it."""
        self._step.rename(name)
        return self

    # ---- ends

    def to(self, sink: Sink, name: str | None = None) -> Pipeline:
        """Writes the rows to a sink. What is returned can be started."""
        if not isinstance(sink, Sink):
            raise ConfigError(f"to: {_not_a_sink(sink)}")
        label = name or next_label(sink_kind(sink), self._step)
        try:
            sink.check(self.schema)
        except SchemaError as error:
            raise SchemaError(f"{label}: {error}") from error
        step = sink_step(sink, self._step, self._edge_to(sink, label))
        if name is not None:
            step.rename(name)
        return _pipeline(step)

    def take(self, n: int = 20) -> list[Row]:
        """The first rows, computed right here: no sink, no checkpoint, no Spark."""
        table = self._run_inline(n)
        return [row for batch in table.to_batches() for row in batch_rows(batch)][:n]

    def show(self, n: int = 20) -> None:
        """Prints the first rows as a table."""
        from penstock.api.show import print_table

        print_table(self._run_inline(n), n)

    def explain(self) -> str:
        """The operators that lead here, one per line, with their inputs and schemas."""
        return explain_graph(self.graph())

    def graph(self) -> LogicalGraph:
        """The logical graph of all that leads here."""
        return build_graph([self._step])

    if not TYPE_CHECKING:  # type checkers are to know the methods above and no others

        def __getattr__(self, name: str) -> Any:
            """Only for names that there are not: what somebody who knows Spark may have meant."""
            raise hints.missing("a stream", name, hints.STREAM)

    def __repr__(self) -> str:
        return f"Stream[{to_ddl(self.schema)}]"

    # ---- helpers

    def _edge_to(self, sink: Sink, label: str) -> Partitioning:
        """How the rows come to a sink: as they are, or to the subtask of their key where the sink wants that. There
        they are already if an operator has brought together all that have some of the key columns in common."""
        if not sink.keys:
            return self._partitioning
        _check_keys_of(sink, label)
        self._refuse_copies("to", label)
        keys = checked_keys([col(key) for key in sink.keys], self.schema, self.schema, label)
        keyed_by = self._step.keyed_by
        stays = isinstance(self._partitioning, Forward) and keyed_by and set(keyed_by) <= set(keys)
        return self._partitioning if stays else Hash(keys)

    def _refuse_copies(self, method: str, who: str = "") -> None:
        """Copies that are sent on would be taken for rows: each would count once per subtask."""
        if not self._step.copies and not isinstance(self._partitioning, Broadcast):
            return
        raise PlanError(
            f"{who or method} behind {self._step.label}: a broadcast leads here, so every subtask has a copy of each"
            f" row, and {who or method} would take the copies for rows of their own. {_INSTEAD_OF_COPIES[method]}"
        )

    def _run_inline(self, n: int) -> pa.Table:
        from penstock.api.config import whole_number

        whole_number(n, "n", 1, 1_000_000)
        inline = importlib.import_module("penstock.shells.inline")
        return inline.run_inline(self.graph(), n)

    def _apply(
        self, kind: str, operator: Any, function: Any, schema: str | pa.Schema | None
    ) -> Stream:
        label = next_label(kind, self._step)
        _require_callable(function, label, "a function")
        out = self.schema if schema is None else declared_schema(schema, label)
        create = partial(operator, function, out, declared=schema is not None)
        return self._then(kind, create, out)

    def _select(self, kind: str, chosen: list[Expression], label: str) -> Stream:
        schema = made_schema(chosen, self.schema, label)
        return self._then(kind, partial(Select, tuple(chosen), schema), schema)

    def _then(self, kind: str, create: Callable[[], Any], schema: pa.Schema) -> Stream:
        return Stream(Step(kind, create, ((self._step, self._partitioning),), schema))


def from_source(source: Source, name: str | None = None) -> Stream:
    """The rows of a source."""
    if not isinstance(source, Source):
        raise ConfigError(f"from_source: {_not_a_source(source)}")
    step = source_step(source, declared_schema(source.schema, "from_source"))
    if name is not None:
        check_name(name)
        step.rename(name)
    return Stream(step)


def from_rows(rows: Iterable[Any], schema: str | pa.Schema) -> Stream:
    """A few rows at hand, for tries and tests: `from_rows([("a", 1)], "k STRING, v BIGINT")`."""
    from penstock.connectors.sources.rows import RowsSource

    return from_source(RowsSource(list(rows), declared_schema(schema, "from_rows")))


def declared_schema(schema: str | pa.Schema, label: str) -> pa.Schema:
    """A schema that the user gave, with the operator in the error where it is wrong."""
    try:
        parsed = parse_schema(schema)
    except SchemaError as error:
        raise SchemaError(f"{label}: {error}") from error
    if not len(parsed):
        raise SchemaError(f"{label}: the schema has no columns")
    return parsed


def explain_graph(graph: LogicalGraph) -> str:
    """One line per operator."""
    width = max(len(node.name) for node in graph.nodes)
    lines = []
    for node in graph.nodes:
        edges = ", ".join(f"{each.operator} ({_edge(each.partitioning)})" for each in node.inputs)
        came = f"from {edges}; " if edges else ""
        lines.append(f"{node.name:<{width}}  {came}{to_ddl(node.schema)}")
    return "\n".join(lines)


def _edge(partitioning: Partitioning) -> str:
    word = type(partitioning).__name__.lower()
    return f"{word} by {', '.join(partitioning.keys)}" if hasattr(partitioning, "keys") else word


def _union_schema(first: pa.Schema, others: list[pa.Schema]) -> pa.Schema:
    """A column is NOT NULL only where it is in all of them."""
    return pa.schema(
        field.with_nullable(
            field.nullable or any(each.field(field.name).nullable for each in others)
        )
        for field in first
    )


def _streams(others: tuple[Any, ...]) -> tuple[Stream, ...]:
    for other in others:
        if not isinstance(other, Stream):
            raise ConfigError(f"union: {other!r} is not a stream")
    if not others:
        raise PlanError("union: give at least one other stream")
    return others


def _require_callable(function: object, label: str, wanted: str) -> None:
    if not callable(function):
        raise ConfigError(f"{label}: {function!r} ({type(function).__name__}) is not {wanted}")


def _not_a_sink(given: object) -> str:
    if isinstance(given, type) and issubclass(given, Sink):
        return f"{given.__name__} is the class; make a sink of it with parentheses: .to({given.__name__}(...))"
    hint = f"; for files there: pen.FileSink({given!r})" if isinstance(given, str) else ""
    return f"{given!r} is not a sink; use pen.FileSink, pen.CollectSink or a pen.Sink of your own{hint}"


def _check_keys_of(sink: Sink, label: str) -> None:
    """What a sink of the user's own may get wrong."""
    if not isinstance(sink.keys, tuple):
        raise PlanError(
            f'{label}: keys of the sink must be a tuple of columns, such as ("user",), not {sink.keys!r}'
        )
    if sink.hold is not None:
        raise PlanError(
            f"{label}: a sink has either hold or keys: rows that wait may come back in the subtask of another key"
        )


def _not_a_source(given: object) -> str:
    if isinstance(given, type) and issubclass(given, Source):
        name = given.__name__
        return f"{name} is not a source but the class; make one with parentheses: from_source({name}(...))"
    return f"{given!r} is not a source; use pen.GeneratorSource, pen.FileSource or a pen.Source of your own"


def _pipeline(step: Step) -> Pipeline:
    from penstock.api.pipeline import Pipeline

    return Pipeline.of(step)
