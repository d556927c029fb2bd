"""The pipelines that seeds draw: which shapes there are, and that what must come out of them is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pytest

from penstock.plan.graph import Broadcast, LogicalGraph, Node
from penstock.shells.sim import keeping, scenario
from penstock.shells.sim.functions import LONG_MS, Memory
from penstock.shells.sim.inflight import copies_to
from penstock.shells.sim.keeping import Keeping
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
    assert found.expected or found.aggregates or found.functions
    for sink, expected in found.expected.items():
        assert expected == ids(found, sink)
    for sink, (_, reaching) in found.aggregates.items():
        assert reaching == ids(found, sink)
    for sink, function in found.functions.items():
        assert function.ids == ids(found, sink)


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


def test_functions_have_dice_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """I28: a seed whose pipeline has no function draws the same with and without them."""
    without = [seed for seed in SEEDS if not drawn(seed).functions]
    before = [drawn(seed).describe() for seed in without]
    assert len(SEEDS) / 5 < len(without) < len(SEEDS)
    monkeypatch.setattr(scenario, "FUNCTIONS", 0.0)
    assert [drawn(seed).describe() for seed in without] == before


def test_functions_come_in_all_forms_and_with_all_states() -> None:
    """S1, S8: key by key and by batch; a list, a map, a value; lives that end, and lives that do not."""
    found = [fn for seed in range(300) for fn in drawn(seed).functions.values()]
    memories = [fn.memory for fn in found]
    assert {state for memory in memories for state in memory.states} == set(Memory.states)
    assert {memory.ttl_ms for memory in memories} == {None, 15, 120, 3_600_000, LONG_MS}
    assert {memory.on_read for memory in memories} == {True, False}


def test_state_is_kept_in_all_ways_that_a_user_may_choose() -> None:
    """T1, T4, R4: in a directory and in the driver's memory, with increments and without, with copies and without; and
    a job that is started again may keep it otherwise."""
    worlds = [World(seed) for seed in SEEDS]
    ways = {(w.keeping.in_driver, w.keeping.incremental, w.keeping.copies) for w in worlds}
    assert len(ways) == 6, "copies are of what is in a directory"
    assert any(w.keeping != w.keeping_later for w in worlds)
    assert all(w.keeping.in_driver == w.keeping_later.in_driver for w in worlds)


def test_how_state_is_kept_has_dice_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """I28."""
    before = [(drawn(seed).describe(), World(seed).faults) for seed in range(30)]
    monkeypatch.setattr(keeping, "draw", lambda rng: Keeping())
    assert [(drawn(seed).describe(), World(seed).faults) for seed in range(30)] == before


def test_rows_that_are_copied_dozens_of_times_have_time_to_let_a_barrier_through() -> None:
    """I25: with a timeout of 150 ms no checkpoint of this one ever completed."""
    copied = World(602210)
    graph = copied.scenario.graph
    assert copies_to(graph, "sink-6", copied.scenario.parallelism, "source-0") == 36
    assert copied.settings.coordinator.timeout_ms == scenario.LONG_TIMEOUT_MS
    timeouts = {World(seed).settings.coordinator.timeout_ms for seed in SEEDS}
    assert timeouts == {150, scenario.LONG_TIMEOUT_MS}, "others stay quick"
