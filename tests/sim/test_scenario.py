"""The pipelines that seeds draw: which shapes there are, and that what must come out of them is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pytest

from penstock.plan.graph import Broadcast, LogicalGraph, Node
from penstock.shells.sim import scenario
from penstock.shells.sim.inflight import copies_to
from penstock.shells.sim.runner import run_seed
from penstock.shells.sim.scenario import FlakyMap, Scenario
from penstock.shells.sim.world import World

SEEDS = range(120)


def drawn(seed: int) -> Scenario:
    return World(seed).scenario


def ancestors(graph: LogicalGraph, name: str) -> set[str]:
    inputs = [entry.operator for entry in graph.node(name).inputs]
    return {name}.union(*(ancestors(graph, each) for each in inputs))


def shape(graph: LogicalGraph, node: Node) -> str:
    """How the inputs of a node belong together."""
    if len(node.inputs) != 2:
        return "no union"
    one, two = (entry.operator for entry in node.inputs)
    if one == two:
        return "self-union"
    return "diamond" if ancestors(graph, one) & ancestors(graph, two) else "union"


def shapes(graph: LogicalGraph) -> set[str]:
    return {shape(graph, node) for node in graph.nodes}


def test_streams_are_united_with_others_and_with_themselves() -> None:
    """B12: an operator may align over several edges from one and the same operator."""
    seen = Counter(each for seed in SEEDS for each in shapes(drawn(seed).graph))
    assert seen["union"] > 0
    assert seen["self-union"] >= 3
    assert seen["diamond"] >= 8
    assert seen["self-union"] + seen["diamond"] < len(SEEDS) / 2, "most pipelines are plain"


def ids(found: Scenario, name: str) -> Counter[int]:
    """How often each id passes an operator, from the graph alone."""
    if name in found.sources:
        return Counter(found.sources[name].everything())
    total: Counter[int] = Counter()
    for entry in found.graph.node(name).inputs:
        copies = found.parallelism if isinstance(entry.partitioning, Broadcast) else 1
        for number, times in ids(found, entry.operator).items():
            total[number] += times * copies
    return total


@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_come_out_is_what_the_graph_says(seed: int) -> None:
    """I1: a row that goes two ways comes out twice."""
    found = drawn(seed)
    assert found.expected or found.aggregates
    for sink, expected in found.expected.items():
        assert expected == ids(found, sink)
    for sink, (_, reaching) in found.aggregates.items():
        assert reaching == ids(found, sink)


def test_a_way_that_loses_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: both ways of a split stream count."""
    seeds = [s for s in SEEDS if shapes(drawn(s).graph) & {"self-union", "diamond"}][:4]
    assert [run_seed(seed)[0].problem for seed in seeds] == [""] * 4
    process = FlakyMap.process

    def forgets(self: FlakyMap, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        return () if port == 1 else process(self, batch, port)

    monkeypatch.setattr(FlakyMap, "process", forgets)
    assert all(run_seed(seed)[0].problem for seed in seeds)


def test_the_shape_has_dice_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """I28: a seed whose pipeline is plain draws the same with and without such shapes."""
    plain = [seed for seed in range(30) if shapes(drawn(seed).graph) <= {"no union", "union"}]
    before = [drawn(seed).describe() for seed in plain]
    monkeypatch.setattr(scenario, "DIAMONDS", 0.0)
    assert [drawn(seed).describe() for seed in plain] == before


def test_rows_that_are_copied_dozens_of_times_have_time_to_let_a_barrier_through() -> None:
    """I25: with a timeout of 150 ms no checkpoint of this one ever completed."""
    copied = World(602210)
    graph = copied.scenario.graph
    assert copies_to(graph, "sink-6", copied.scenario.parallelism, "source-0") == 36
    assert copied.settings.coordinator.timeout_ms == scenario.LONG_TIMEOUT_MS
    timeouts = {World(seed).settings.coordinator.timeout_ms for seed in SEEDS}
    assert timeouts == {150, scenario.LONG_TIMEOUT_MS}, "others stay quick"
