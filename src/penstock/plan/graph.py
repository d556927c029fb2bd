"""The logical graph: operators and the edges between them, as the API builds it.

A node's `create` makes a fresh, unopened operator; it is what is shipped to the workers. The plan never looks
inside an operator: what it must know is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Forward:
    """Subtask i to subtask i; chained into one task where possible."""


@dataclass(frozen=True, slots=True)
class Hash:
    """By key group of these columns."""

    keys: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    """The columns that the reader needs, keys included; None: all. Others do not travel."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Batches in turn to every subtask."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every batch to every subtask."""


Partitioning: TypeAlias = Forward | Hash | Rebalance | Broadcast


def carried(partitioning: Partitioning, schema: pa.Schema) -> pa.Schema:
    """The schema of the rows that travel along an edge, out of that of the rows that are put on it."""
    if isinstance(partitioning, Hash) and partitioning.columns is not None:
        return pa.schema([schema.field(name) for name in partitioning.columns])
    return schema


@dataclass(frozen=True, slots=True)
class Input:
    """An edge, seen from the operator it leads to."""

    operator: str
    partitioning: Partitioning


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `name` is the stable id that its state is found by."""

    name: str
    kind: str
    create: Callable[[], Any]
    inputs: tuple[Input, ...]
    schema: pa.Schema
    """Of the rows that come out; of those that go in where nothing comes out (a sink)."""
    role: str = "operator"
    """`source`, `operator` or `sink`."""
    connector: Any = None
    """The Source or Sink object, where there is one: the driver's own copy."""


@dataclass(frozen=True, slots=True)
class LogicalGraph:
    """Nodes in topological order: every input comes before its reader."""

    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
