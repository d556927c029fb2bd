"""From the logical graph to what runs: chains of operators become tasks, tasks become subtasks, edges channels.

Two operators share a task when the edge between them is forward and it is the only input of the second: rows then go
from one to the other by a function call. Everything else crosses a channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.errors import PlanError
from penstock.plan.graph import Forward, LogicalGraph, Node, Partitioning, carried
from penstock.protocol.ids import ChannelId, SubtaskId


@dataclass(frozen=True)
class Link:
    """An operator inside a task; `children` are the numbers of the links that its rows go to directly."""

    node: Node
    children: tuple[int, ...]
    edges: tuple[int, ...]
    """The numbers of the edges that its rows leave the task by."""


@dataclass(frozen=True)
class Task:
    """A chain (a tree) of operators that runs as one; the first link is the one with channels."""

    number: int
    links: tuple[Link, ...]

    @property
    def head(self) -> Node:
        return self.links[0].node

    @property
    def name(self) -> str:
        return " > ".join(link.node.name for link in self.links)


@dataclass(frozen=True)
class PhysicalEdge:
    """All channels between two tasks for one input of the second's head."""

    number: int
    source: int
    target: int
    port: int
    partitioning: Partitioning
    schema: pa.Schema


@dataclass(frozen=True)
class PhysicalPlan:
    tasks: tuple[Task, ...]
    edges: tuple[PhysicalEdge, ...]
    parallelism: int
    max_parallelism: int

    @cached_property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        return tuple(
            SubtaskId(task.number, index)
            for task in self.tasks
            for index in range(self.parallelism)
        )

    def channels(self, edge: PhysicalEdge) -> Iterator[ChannelId]:
        for source in range(self.parallelism):
            yield from self.out_of(edge, source)

    def into(self, edge: PhysicalEdge, index: int) -> Iterator[ChannelId]:
        """The channels of an edge that end at an index, by the index they come from."""
        return (ChannelId(edge.number, source, index) for source in self._opposite(edge, index))

    def out_of(self, edge: PhysicalEdge, index: int) -> Iterator[ChannelId]:
        """Those that begin at an index, by the index they lead to."""
        return (ChannelId(edge.number, index, target) for target in self._opposite(edge, index))

    def _opposite(self, edge: PhysicalEdge, index: int) -> Iterable[int]:
        return (index,) if isinstance(edge.partitioning, Forward) else range(self.parallelism)

    def inputs(self, subtask: SubtaskId) -> tuple[ChannelId, ...]:
        """In a fixed order: by edge, then by the index they come from."""
        edges = (edge for edge in self.edges if edge.target == subtask.task)
        return tuple(channel for edge in edges for channel in self.into(edge, subtask.index))

    def outputs(self, subtask: SubtaskId, edge: int) -> tuple[ChannelId, ...]:
        """Ordered by target index."""
        return tuple(self.out_of(self.edges[edge], subtask.index))

    @cached_property
    def regions(self) -> tuple[frozenset[SubtaskId], ...]:
        """Pipelined regions: subtasks that are joined by channels fail and restart together."""
        parent = {subtask: subtask for subtask in self.subtasks}

        def root(subtask: SubtaskId) -> SubtaskId:
            while parent[subtask] != subtask:
                subtask = parent[subtask]
            return subtask

        for edge in self.edges:
            for channel in self.channels(edge):
                source = root(SubtaskId(edge.source, channel.source))
                parent[root(SubtaskId(edge.target, channel.target))] = source
        groups: dict[SubtaskId, set[SubtaskId]] = {}
        for subtask in self.subtasks:
            groups.setdefault(root(subtask), set()).add(subtask)
        return tuple(frozenset(members) for _, members in sorted(groups.items()))


def make_plan(graph: LogicalGraph, parallelism: int, max_parallelism: int) -> PhysicalPlan:
    if not 1 <= parallelism <= max_parallelism <= 32_768:
        raise PlanError(
            f"parallelism {parallelism} and max_parallelism {max_parallelism} do not go together: "
            "1 <= parallelism <= max_parallelism <= 32768 must hold."
        )
    task_of = _assign_tasks(graph)
    heads = [node for node in graph.nodes if not _is_chained(node)]
    edges = _make_edges(graph, heads, task_of)
    tasks = tuple(_make_task(n, graph, task_of, edges) for n in range(len(heads)))
    return PhysicalPlan(tasks, tuple(edge for edge, _ in edges), parallelism, max_parallelism)


def _is_chained(node: Node) -> bool:
    return len(node.inputs) == 1 and isinstance(node.inputs[0].partitioning, Forward)


def _assign_tasks(graph: LogicalGraph) -> dict[str, int]:
    task_of: dict[str, int] = {}
    count = 0
    for node in graph.nodes:
        if _is_chained(node):
            task_of[node.name] = task_of[node.inputs[0].operator]
        else:
            task_of[node.name] = count
            count += 1
    return task_of


def _make_edges(
    graph: LogicalGraph, heads: list[Node], task_of: dict[str, int]
) -> list[tuple[PhysicalEdge, str]]:
    """Each edge with the name of the operator whose rows it carries."""
    edges: list[tuple[PhysicalEdge, str]] = []
    for head in heads:
        for port, source in enumerate(head.inputs):
            upstream = graph.node(source.operator)
            edge = PhysicalEdge(
                number=len(edges),
                source=task_of[upstream.name],
                target=task_of[head.name],
                port=port,
                partitioning=source.partitioning,
                schema=carried(source.partitioning, upstream.schema),
            )
            edges.append((edge, upstream.name))
    return edges


def _make_task(
    number: int,
    graph: LogicalGraph,
    task_of: dict[str, int],
    edges: list[tuple[PhysicalEdge, str]],
) -> Task:
    nodes = [node for node in graph.nodes if task_of[node.name] == number]
    position = {node.name: i for i, node in enumerate(nodes)}
    links = tuple(
        Link(
            node=node,
            children=tuple(
                position[child.name] for child in nodes[1:] if child.inputs[0].operator == node.name
            ),
            edges=tuple(edge.number for edge, name in edges if name == node.name),
        )
        for node in nodes
    )
    return Task(number, links)
