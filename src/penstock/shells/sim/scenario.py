"""What a seed draws before anything happens: a pipeline, a parallelism, limits, and what must come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from penstock.connectors.base import Sink
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.connect import SinkOperator, SourceOperator
from penstock.engine.operators.process import Process
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
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import SnapshotOrder
from penstock.shells.sim import faults, keeping, settings
from penstock.shells.sim.dice import dice_for
from penstock.shells.sim.faults import Faults
from penstock.shells.sim.functions import OUT, ByBatch, ByKey, Memory, draw_memory
from penstock.shells.sim.inflight import copies_to
from penstock.shells.sim.keeping import Keeping
from penstock.shells.sim.outside import SCHEMA, SimSink, SimSource
from penstock.shells.sim.settings import Settings
from penstock.state import aggregates as folds

if TYPE_CHECKING:
    from penstock.shells.sim.world import World

LANES = 6
DIAMONDS = 0.2
"""How many pipelines have a stream that is split and united again."""
ORDERED = 0.06
"""How many schedules are about the order of rows: many rows, one way for each key, and a job that goes on with another
parallelism while rows are in flight."""
FUNCTIONS = 0.35
"""How many of the aggregates are functions with state instead."""
COPIES_QUICK = 9
LONG_TIMEOUT_MS = 2_000
AGGREGATES = {"n": folds.count(), "total": folds.sum("value")}


class FlakyMap(Operator):
    """Hands rows on, and raises when the dice say so: in user code, in a snapshot, in a restore."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, context: OperatorContext) -> None:
        if self._world.happens("restore_error"):
            raise RuntimeError("simulated failure in a restore")

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        if self._world.happens("user_error"):
            raise ValueError("simulated failure in user code")
        if self._world.happens("slow_user"):
            self._world.clock.now_ms += self._world.rng.random() * 200
        return (batch,)

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        self._world.checkers.orders.on_met(order)
        if self._world.happens("snapshot_error"):
            raise RuntimeError("simulated failure in a snapshot")
        return FrozenOperator()


def _as_it_is(plan: PhysicalPlan) -> PhysicalPlan:
    return plan


def _nothing_more(finished: bool, once: bool) -> None:
    """What was drawn here is judged by its ids alone."""


@dataclass(frozen=True)
class Function:
    """An operator that is a `Journal`, and the ids that reach it."""

    name: str
    ids: Counter[int]
    memory: Memory


@dataclass
class Scenario:
    graph: LogicalGraph
    parallelism: int
    max_parallelism: int
    sources: dict[str, SimSource]
    expected: dict[str, Counter[int]]
    """Per sink of plain rows: how often each id must be visible in the end."""
    aggregates: dict[str, tuple[str, Counter[int]]] = field(default_factory=dict)
    """Per sink of a running aggregate: the aggregate's name, and the ids that reach it."""
    functions: dict[str, Function] = field(default_factory=dict)
    """Per sink of a function with state."""
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    """The driver's own copies."""
    parallelisms: tuple[int, ...] = (1, 2, 3)
    """What a job that is started again may be started with."""
    ship: Callable[[PhysicalPlan], PhysicalPlan] = _as_it_is
    """The plan as a new process gets it: a copy, where user code could leave something behind in it."""
    judge: Callable[[bool, bool], None] = _nothing_more
    """Asked at the end, with whether the job finished and whether no row may come twice."""

    @property
    def idempotent(self) -> bool:
        """No sink minds rows that come again."""
        return all(sink.idempotent for sink in self.sinks.values())

    @property
    def can_rescale(self) -> bool:
        """How often a broadcast row arrives depends on the parallelism, so those have no single right answer."""
        edges = [entry.partitioning for node in self.graph.nodes for entry in node.inputs]
        return len(self.parallelisms) > 1 and not any(isinstance(e, Broadcast) for e in edges)

    def describe(self) -> str:
        nodes = [f"{node.name}({', '.join(map(_arrow, node.inputs))})" for node in self.graph.nodes]
        return f"{' '.join(nodes)}, parallelism {self.parallelism}"


def _arrow(entry: Input) -> str:
    return f"{entry.operator} by {type(entry.partitioning).__name__.lower()}"


class Builder:
    """Puts nodes together; keeps the ids that flow past each of them."""

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self.nodes: list[Node] = []
        self.ids: dict[str, Counter[int]] = {}
        self.sources: dict[str, SimSource] = {}
        self.sinks: dict[str, SimSink] = {}
        self.idempotent = rng.random() < 0.2
        self.deferred = rng.random() < 0.5
        self.parallelism = rng.choice((1, 2, 2, 3))

    def source(self, base: int, rows: Sequence[int] = (0, 1, 4, 8)) -> str:
        rng = self._rng
        source = SimSource(base, tuple(rng.choice(rows) for _ in range(LANES)))
        name = f"source-{len(self.nodes)}"
        self._add(name, "source", lambda: SourceOperator(source), (), SCHEMA, "source")
        self.sources[name] = source
        self.ids[name] = Counter(source.everything())
        return name

    def through(self, inputs: list[tuple[str, Partitioning]]) -> str:
        name = f"map-{len(self.nodes)}"
        world = self._world
        edges = tuple(Input(upstream, how) for upstream, how in inputs)
        self._add(name, "map", lambda: FlakyMap(world), edges, SCHEMA)
        self.ids[name] = Counter()
        for upstream, how in inputs:
            copies = self.parallelism if isinstance(how, Broadcast) else 1
            for number, times in self.ids[upstream].items():
                self.ids[name][number] += times * copies
        return name

    def aggregate(self, upstream: str) -> str:
        name = f"agg-{len(self.nodes)}"
        fields = [SCHEMA.field("key")]
        fields += [folds.result_field(out, spec, SCHEMA) for out, spec in AGGREGATES.items()]
        create: Callable[[], Operator] = lambda: RunningAggregate(("key",), AGGREGATES)  # noqa: E731
        self._add(name, "agg", create, (Input(upstream, Hash(("key",))),), pa.schema(fields))
        self.ids[name] = self.ids[upstream]
        return name

    def function(self, upstream: str, rng: Random) -> Function:
        name = f"fn-{len(self.nodes)}"
        form, memory = rng.choice((ByKey, ByBatch)), draw_memory(rng)
        wall_ms = self._world.clock.wall_ms
        create: Callable[[], Operator] = lambda: Process(form(wall_ms, memory), ("key",), OUT)  # noqa: E731
        self._add(name, "fn", create, (Input(upstream, Hash(("key",))),), OUT)
        self.ids[name] = self.ids[upstream]
        return Function(name, self.ids[name], memory)

    def sink(self, upstream: str) -> str:
        name = f"sink-{len(self.nodes)}"
        sink = self.sinks[name] = SimSink(self._world, self.idempotent, self.deferred)
        schema = next(node.schema for node in self.nodes if node.name == upstream)
        edges = (Input(upstream, Forward()),)
        self._add(name, "sink", lambda: SinkOperator(sink), edges, schema, "sink")
        return name

    def _add(
        self,
        name: str,
        kind: str,
        create: Callable[[], Operator],
        inputs: tuple[Input, ...],
        schema: pa.Schema,
        role: str = "operator",
    ) -> None:
        self.nodes.append(Node(name, kind, create, inputs, schema, role))


def draw(world: World, rng: Random) -> Scenario:
    """A random pipeline: one or two sources, some stages over any kind of edge, sinks of rows and of aggregates."""
    of_functions = dice_for(rng, "functions")
    builder = Builder(world, rng)
    streams = [builder.source(1_000 * i) for i in range(rng.choice((1, 1, 2)))]
    for _ in range(rng.choice((0, 1, 1, 2))):
        chosen = streams if len(streams) > 1 and rng.random() < 0.6 else [rng.choice(streams)]
        edges = [(name, _edge(rng)) for name in chosen]
        streams = [s for s in streams if s not in chosen] + [builder.through(edges)]
    streams = _split_and_united(builder, streams, dice_for(rng))
    expected: dict[str, Counter[int]] = {}
    aggregates: dict[str, tuple[str, Counter[int]]] = {}
    functions: dict[str, Function] = {}
    for stream in streams:
        with_aggregate = rng.random() < 0.7
        if not with_aggregate or rng.random() < 0.5:
            expected[builder.sink(stream)] = builder.ids[stream]
        if with_aggregate and of_functions.random() < FUNCTIONS:
            function = builder.function(stream, of_functions)
            functions[builder.sink(function.name)] = function
        elif with_aggregate:
            name = builder.aggregate(stream)
            aggregates[builder.sink(name)] = (name, builder.ids[name])
    graph = LogicalGraph(tuple(builder.nodes))
    return Scenario(
        graph,
        builder.parallelism,
        LANES,
        builder.sources,
        expected,
        aggregates,
        functions,
        builder.sinks,
    )


def _in_order(builder: Builder, rng: Random) -> Scenario:
    """One source and one or two stages by key."""
    stream = builder.source(0, (4, 12, 40))
    for _ in range(rng.choice((1, 2))):
        stream = builder.through([(stream, Hash(("key",)))])
    expected = {builder.sink(stream): builder.ids[stream]}
    graph = LogicalGraph(tuple(builder.nodes))
    return Scenario(
        graph, builder.parallelism, LANES, builder.sources, expected, sinks=builder.sinks
    )


def _split_and_united(builder: Builder, streams: list[str], rng: Random) -> list[str]:
    """Sometimes one stream goes two ways and comes together again: at once, or behind a stage, or both ways behind one.
    It has dice of its own, so that all else that a seed draws stays as it is."""
    if rng.random() >= DIAMONDS:
        return streams
    chosen = rng.choice(streams)
    ways = [
        builder.through([(chosen, _edge(rng))]) if rng.random() < 0.5 else chosen for _ in range(2)
    ]
    united = builder.through([(way, _edge(rng)) for way in ways])
    stays = [chosen] if rng.random() < 0.3 else []
    return [s for s in streams if s != chosen] + stays + [united]


def _edge(rng: Random) -> Partitioning:
    return rng.choice((Forward(), Hash(("key",)), Hash(("id",)), Rebalance(), Broadcast()))


@dataclass(frozen=True)
class Drawn:
    """Everything that a seed decides before the first step."""

    faults: Faults
    scenario: Scenario
    exactly_once: bool
    durable: bool
    settings: Settings
    keeping: Keeping = Keeping()
    keeping_later: Keeping | None = None
    """Of a job that is started again; None: the same."""


Draw: TypeAlias = Callable[["World", Random], Drawn]


def draw_everything(world: World, rng: Random) -> Drawn:
    """The simulator's own pipelines. The order of the draws is part of what a seed means: what is new has dice of its
    own."""
    of_keeping = dice_for(rng, "keeping")
    first = keeping.draw(of_keeping)
    later = keeping.draw_later(of_keeping, first)
    return replace(_draw_world(world, rng), keeping=first, keeping_later=later)


def _draw_world(world: World, rng: Random) -> Drawn:
    if dice_for(rng).random() < ORDERED:
        return _draw_in_order(world, rng)
    drawn_faults = faults.draw(rng)
    scenario = draw(world, rng)
    exactly_once = rng.random() < 0.85
    durable = rng.random() < 0.93
    drawn = _patient(settings.draw(rng, durable, exactly_once), scenario)
    return Drawn(drawn_faults, scenario, exactly_once, durable, drawn)


def _patient(drawn: Settings, scenario: Scenario) -> Settings:
    """Where every row is copied again and again, no barrier gets through them in the shortest timeout, not even in a
    healed world."""
    copies = [
        copies_to(scenario.graph, sink, scenario.parallelism, source)
        for sink in scenario.sinks
        for source in scenario.sources
    ]
    if max(copies) <= COPIES_QUICK:
        return drawn
    timeout_ms = max(LONG_TIMEOUT_MS, drawn.coordinator.timeout_ms)
    return replace(drawn, coordinator=replace(drawn.coordinator, timeout_ms=timeout_ms))


def _draw_in_order(world: World, rng: Random) -> Drawn:
    """Most pipelines have too few rows, and most faults are too rare, for rows of one key to meet again at another
    parallelism: this is all about that."""
    scenario = _in_order(Builder(world, rng), rng)
    drawn = settings.draw(rng, durable=True, exactly_once=True)
    unaligned = replace(
        drawn.coordinator,
        every_ms=5,
        max_concurrent=1,
        unaligned=True,
        aligned_timeout_ms=None,
        tolerable_failures=1_000,
    )
    quick = replace(
        drawn,
        pace_ms=0.0,
        slow=1.0,
        write_ms=1.0,
        inflight_bytes_max=1 << 20,
        coordinator=unaligned,
    )
    few = rng.choice((Faults(), Faults(crash=0.001), Faults(drop_message=0.02), faults.draw(rng)))
    return Drawn(replace(few, driver_crash=0.006, slow_user=0.2), scenario, True, True, quick)
