"""From operators to tasks, channels and regions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import PlanError
from penstock.plan.graph import (
    Broadcast,
    Forward,
    Hash,
    Input,
    LogicalGraph,
    Node,
    Partitioning,
    Rebalance,
)
from penstock.plan.physical import PhysicalPlan, make_plan
from penstock.protocol.ids import ChannelId, SubtaskId

SCHEMA = pa.schema([("k", pa.int64())])


def node(name: str, *inputs: tuple[str, Partitioning]) -> Node:
    edges = tuple(Input(operator, how) for operator, how in inputs)
    return Node(name, "test", object, edges, SCHEMA, "operator" if inputs else "source")


def plan(*nodes: Node, parallelism: int = 2) -> PhysicalPlan:
    return make_plan(LogicalGraph(nodes), parallelism, 128)


def names(made: PhysicalPlan) -> list[list[str]]:
    return [[link.node.name for link in task.links] for task in made.tasks]


def test_forward_edges_are_chained_into_one_task() -> None:
    made = plan(
        node("source"), node("map", ("source", Forward())), node("sink", ("map", Forward()))
    )
    assert names(made) == [["source", "map", "sink"]]
    assert made.edges == ()


def test_a_stream_with_two_readers_is_a_tree_in_one_task() -> None:
    made = plan(node("source"), node("a", ("source", Forward())), node("b", ("source", Forward())))
    assert names(made) == [["source", "a", "b"]]
    assert made.tasks[0].links[0].children == (1, 2)


def test_an_operator_with_two_inputs_begins_a_task_though_both_are_forward() -> None:
    """B12: it must align over both."""
    made = plan(
        node("left"), node("right"), node("union", ("left", Forward()), ("right", Forward()))
    )
    assert names(made) == [["left"], ["right"], ["union"]]
    assert [edge.port for edge in made.edges] == [0, 1]
    assert made.inputs(SubtaskId(2, 1)) == (ChannelId(0, 1, 1), ChannelId(1, 1, 1))


@pytest.mark.parametrize("how", [Hash(("k",)), Rebalance(), Broadcast()])
def test_an_edge_that_redistributes_has_a_channel_between_every_two_subtasks(
    how: Partitioning,
) -> None:
    made = plan(node("source"), node("op", ("source", how)), parallelism=3)
    (edge,) = made.edges
    pairs = [(channel.source, channel.target) for channel in made.channels(edge)]
    assert pairs == [(s, t) for s in range(3) for t in range(3)]
    assert made.outputs(SubtaskId(0, 1), 0) == tuple(ChannelId(0, 1, t) for t in range(3))


def test_subtasks_that_no_channel_joins_are_regions_of_their_own() -> None:
    chained = plan(node("source"), node("sink", ("source", Forward())))
    assert [len(region) for region in chained.regions] == [1, 1]


def test_a_shuffle_makes_one_region_of_all_its_subtasks() -> None:
    made = plan(node("source"), node("agg", ("source", Hash(("k",)))), node("alone"), parallelism=2)
    sizes = sorted(len(region) for region in made.regions)
    assert sizes == [1, 1, 4]
    assert frozenset().union(*made.regions) == frozenset(made.subtasks)


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(PlanError, match="parallelism 200 and max_parallelism 128"):
        plan(node("source"), parallelism=200)


def test_only_the_columns_that_the_reader_needs_travel() -> None:
    wide = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("unused", pa.string())])
    source = Node("source", "test", object, (), wide, "source")
    made = plan(source, node("agg", ("source", Hash(("k",), ("k", "v")))))
    assert made.edges[0].schema.names == ["k", "v"]
