"""The steps of a pipeline as the user writes them, and how they become the logical graph.

Every operator is one `Step`; streams only point at steps, so a stream can be consumed any number of times.
Names that the user did not give are made when the graph is: kind and position, such as "map-2", the same for
the same program every time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Sink, Source
from penstock.errors import PlanError
from penstock.plan.graph import Broadcast, Input, LogicalGraph, Node, Partitioning

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}", re.ASCII)


@dataclass(eq=False)
class Step:
    """One operator before it has its final name."""

    kind: str
    create: Callable[[], Any]
    inputs: tuple[tuple[Step, Partitioning], ...]
    schema: pa.Schema
    role: str = "operator"
    connector: Any = None
    given_name: str | None = None
    keyed_by: tuple[str, ...] = ()
    """Columns of the rows that come out: those with equal values in them come out of one subtask, in order."""
    position: int = field(init=False)
    """What its number would be if there were nothing but this step and what leads to it."""
    copies: bool = field(init=False)
    """Whether a broadcast leads here: every subtask then has a copy of those rows."""

    def __post_init__(self) -> None:
        self.position = sum(1 for _ in in_order([parent for parent, _ in self.inputs])) + 1
        self.copies = any(
            parent.copies or isinstance(edge, Broadcast) for parent, edge in self.inputs
        )

    @property
    def label(self) -> str:
        """Its name in messages while the pipeline is being written."""
        return self.given_name or automatic_name(self.kind, self.position)

    def rename(self, name: str) -> None:
        check_name(name)
        if self.given_name not in (None, name):
            raise PlanError(
                f"operator {self.given_name!r} cannot be named {name!r} as well: the name is what its"
                " state is found by, so it has only one"
            )
        self.given_name = name


def next_label(kind: str, *parents: Step) -> str:
    """The label that a step of this kind would get behind these: for errors found before it is made."""
    return automatic_name(kind, sum(1 for _ in in_order(parents)) + 1)


def automatic_name(kind: str, position: int) -> str:
    return f"{kind}-{position}"


def check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} is not a name for an operator: up to 100 letters, digits, spaces and . _ -,"
            " starting with a letter or digit"
        )


def in_order(ends: Iterable[Step]) -> Iterator[Step]:
    """Every step that leads to these, inputs first, each once. Without recursion: pipelines can be long."""
    seen: set[int] = set()
    for end in ends:
        stack = [(end, False)]
        while stack:
            step, inputs_done = stack.pop()
            if inputs_done:
                yield step
            elif id(step) not in seen:
                seen.add(id(step))
                stack.append((step, True))
                stack.extend((parent, False) for parent, _ in reversed(step.inputs))


def build_graph(ends: Iterable[Step]) -> LogicalGraph:
    """The logical graph of everything that leads to these steps."""
    steps = list(in_order(ends))
    names = _final_names(steps)
    return LogicalGraph(tuple(_node(step, names) for step in steps))


def _final_names(steps: list[Step]) -> dict[int, str]:
    names: dict[int, str] = {}
    owners: dict[str, str] = {}
    for position, step in enumerate(steps, start=1):
        automatic = automatic_name(step.kind, position)
        name = step.given_name or automatic
        shown = f"operator {position} ({step.kind})"
        if name in owners:
            raise PlanError(
                f"two operators have the name {name!r}: {owners[name]} and {shown}; state is found by"
                f" name, so give one of them another with {_how_to_name(step)}"
            )
        owners[name] = shown
        names[id(step)] = name
    return names


def _how_to_name(step: Step) -> str:
    return '.to(sink, name="...")' if step.role == "sink" else '.named("...")'


def _node(step: Step, names: dict[int, str]) -> Node:
    return Node(
        name=names[id(step)],
        kind=step.kind,
        create=step.create,
        inputs=tuple(Input(names[id(parent)], edge) for parent, edge in step.inputs),
        schema=step.schema,
        role=step.role,
        connector=step.connector,
    )


def source_step(source: Source, schema: pa.Schema) -> Step:
    create = partial(make_source_operator, source)
    return Step(_kind_of(source, "source"), create, (), schema, "source", source)


def sink_step(sink: Sink, parent: Step, partitioning: Partitioning) -> Step:
    create = partial(make_sink_operator, sink)
    inputs = ((parent, partitioning),)
    return Step(sink_kind(sink), create, inputs, parent.schema, "sink", sink)


def sink_kind(sink: object) -> str:
    return _kind_of(sink, "sink")


def make_source_operator(source: Source) -> Any:
    """Runs in the worker."""
    from penstock.engine.operators.connect import SourceOperator

    return SourceOperator(source)


def make_sink_operator(sink: Sink) -> Any:
    """Runs in the worker."""
    from penstock.engine.operators.connect import SinkOperator

    return SinkOperator(sink)


def _kind_of(connector: object, otherwise: str) -> str:
    """GeneratorSource -> generator-source."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", type(connector).__name__)
    kind = "-".join(word.lower() for word in words)
    return kind if _NAME.fullmatch(kind) and len(kind) < 60 else otherwise
