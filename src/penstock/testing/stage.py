"""Puts a user's pipeline on the stage: its source, operators and sinks are the user's own, all else is simulated."""

from __future__ import annotations

import inspect
import operator
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.api.config import CheckpointConfig
from penstock.api.pipeline import Pipeline
from penstock.api.steps import make_sink_operator, make_source_operator
from penstock.api.stream import Stream
from penstock.connectors.base import Sink
from penstock.connectors.sinks.blackhole import BlackholeSink
from penstock.connectors.sinks.collect import CollectSink
from penstock.connectors.sinks.files import FileSink
from penstock.connectors.tables.sink import UpsertFileSink
from penstock.errors import ConfigError
from penstock.plan.graph import Broadcast, LogicalGraph, Node
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.coordinator import CoordinatorConfig
from penstock.protocol.restart import Never
from penstock.shells.sim import settings
from penstock.shells.sim.faults import Faults
from penstock.shells.sim.scenario import Drawn, Scenario
from penstock.shells.sim.settings import Settings
from penstock.testing.compare import Comparison, LastPer, View, view_for
from penstock.testing.copies import Template, check_can_be_sent
from penstock.testing.finding import short
from penstock.testing.sink_watch import Read, SinkWatch, hands_to_driver
from penstock.testing.swarm import Choose
from penstock.testing.watched_sink import StandIn, WatchedSink
from penstock.testing.watched_source import FlakyOperator, WatchedSource

if TYPE_CHECKING:
    from penstock.testing.world import UserWorld

__tracebackhide__ = True
"""pytest shows the report, and not how it came about."""
GROUPS = 8
PARALLELISMS = (1, 2, 3)
ALIGNED_TIMEOUTS_MS = (0.0, 3.0, 20.0)
SHIPPED = (CollectSink, FileSink, UpsertFileSink, BlackholeSink)
Given: TypeAlias = Pipeline | Stream | Callable[..., Pipeline | Stream]
PerSink: TypeAlias = Mapping[str, Any] | Any


@dataclass(frozen=True)
class Stage:
    """What is simulated, and how: the same for all schedules of one `simulate`."""

    given: Given
    choose_faults: Choose
    parallelism: int | None
    checkpoint: CheckpointConfig | None
    read: PerSink
    staged: PerSink
    compare: PerSink
    batch_rows_max: int = 16

    def check(self) -> None:
        """Refuses what Spark would refuse."""
        with tempfile.TemporaryDirectory(prefix="penstock-sim-") as folder:
            check_can_be_sent(self._built(Path(folder)))

    def graph(self, folder: Path) -> LogicalGraph:
        """What to run, as a copy with a world of its own."""
        if isinstance(self.given, Pipeline | Stream):
            return self._template.copy()
        return Template(self._built(folder)).copy()

    @cached_property
    def _template(self) -> Template[LogicalGraph]:
        return Template(_with_sink(self.given).graph(), new_world=True)

    def _built(self, folder: Path) -> LogicalGraph:
        if isinstance(self.given, Pipeline | Stream):
            return _with_sink(self.given).graph()
        made = self.given(folder) if _takes_folder(self.given) else self.given()
        return _with_sink(made).graph()

    @property
    def exactly_once(self) -> bool:
        return self.checkpoint is None or self.checkpoint.mode == "exactly_once"


class Play:
    """One schedule's own pipeline, with everything in it watched."""

    def __init__(self, stage: Stage, folder: Path, parallelism: int | None = None) -> None:
        self._stage = stage
        self._parallelism = parallelism or stage.parallelism
        self.graph = stage.graph(folder)
        self.watches: dict[str, SinkWatch] = {}
        self.sinks: dict[str, Sink] = {}
        self._own: dict[str, Sink] = {}
        for node in self.graph.nodes:
            _refuse_endless(node)

    def views(self) -> dict[str, View]:
        nodes = [node for node in self.graph.nodes if node.role == "sink"]
        wanted: dict[str, Comparison | None] = {
            node.name: of_sink(self._stage.compare, node.name) for node in nodes
        }
        return {node.name: view_for(node, self.graph, wanted[node.name]) for node in nodes}

    def disturbed(self, world: UserWorld, rng: Random) -> Drawn:
        faults = self._stage.choose_faults(rng, self._is_bound_to_driver())
        return self._drawn(world, rng, faults, _settings(rng, self._stage.checkpoint))

    def undisturbed(self, world: UserWorld, rng: Random) -> Drawn:
        drawn = replace(_settings(rng, self._stage.checkpoint), strategy=Never())
        return self._drawn(world, rng, Faults(), drawn)

    def leftovers(self, name: str) -> int:
        """How much a sink of the user still has staged, where somebody can count it."""
        count = of_sink(self._stage.staged, name)
        if count is None or name not in self._own:
            return 0
        left = count(self._own[name])
        try:
            return operator.index(left)
        except TypeError:
            raise ConfigError(
                f"simulate: staged, for sink {name!r}, returned {short(left)} ({type(left).__name__}); return how many"
                " things are staged, a whole number such as len(...)"
            ) from None

    # ---- how it is made

    def _drawn(self, world: UserWorld, rng: Random, faults: Faults, how: Settings) -> Drawn:
        parallelism = self._parallelism or (
            2 if self._has_broadcast() else rng.choice((1, 2, 2, 3))
        )
        nodes = tuple(self._on_stage(world, node) for node in self.graph.nodes)
        scenario = Scenario(
            LogicalGraph(nodes),
            parallelism,
            max(GROUPS, parallelism),
            {},
            {},
            sinks=self.sinks,
            parallelisms=(parallelism,) if self._parallelism else PARALLELISMS,
            ship=Shipper().ship,
        )
        return Drawn(faults, scenario, self._stage.exactly_once, True, how)

    def _has_broadcast(self) -> bool:
        edges = [entry.partitioning for node in self.graph.nodes for entry in node.inputs]
        return any(isinstance(edge, Broadcast) for edge in edges)

    def _is_bound_to_driver(self) -> bool:
        """Whether a sink of the user hands its rows to the driver: they live only as long as that does."""
        sinks = [node.connector for node in self.graph.nodes if node.role == "sink"]
        return any(hands_to_driver(sink) for sink in sinks if not is_shipped(sink))

    def _on_stage(self, world: UserWorld, node: Node) -> Node:
        if node.role == "source":
            watched = WatchedSource(world, node.connector, self._stage.batch_rows_max)
            return replace(node, create=partial(make_source_operator, watched), connector=watched)
        if node.role == "sink":
            sink = self._watched(world, node)
            return replace(node, create=partial(make_sink_operator, sink), connector=sink)
        return replace(node, create=partial(_flaky, world, node.create))

    def _watched(self, world: UserWorld, node: Node) -> Sink:
        shipped = is_shipped(node.connector)
        own = None if shipped else node.connector
        read = None if shipped else self._read(node)
        wanted = of_sink(self._stage.compare, node.name)
        upserts = wanted if isinstance(wanted, LastPer) else None
        watch = SinkWatch(world, node.name, node.schema, own, read, upserts)
        inner = stand_in(node.connector) if shipped else node.connector
        if own is not None:
            self._own[node.name] = own
        self.watches[node.name] = watch
        self.sinks[node.name] = WatchedSink(watch, inner)
        return self.sinks[node.name]

    def _read(self, node: Node) -> Read:
        read: Read | None = of_sink(self._stage.read, node.name)
        if read is not None:
            return read
        for name in ("to_table", "to_pylist"):
            if callable(getattr(node.connector, name, None)):
                return lambda sink: getattr(sink, name)()
        raise ConfigError(
            f"simulate: nobody can see what the sink {node.name!r} shows. Give read=..., a function that takes the"
            " sink and returns the rows that a reader would find, as a pa.Table or a list of dicts or tuples."
        )


def is_shipped(sink: Sink) -> bool:
    """A class that derives from a shipped sink is the user's own: its code is to be tested."""
    inside = getattr(sink, "inside", None)
    return type(sink) in SHIPPED if inside is None else is_shipped(inside)


def stand_in(sink: Any) -> Sink:
    """The same sink with a stand-in where rows would go to disk or to the driver."""
    around = getattr(sink, "around", None)
    return StandIn(hold=sink.hold) if around is None else around(stand_in(sink.inside))


def of_sink(given: PerSink, name: str) -> Any:
    """An option that is for all sinks, or a dict by the names of the sinks."""
    return given.get(name) if isinstance(given, Mapping) else given


def _takes_folder(function: Callable[..., object]) -> bool:
    """Whether it has to be given something. What may be left out is the function's own, and no folder."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(each.kind in positional and each.default is each.empty for each in parameters)


def _with_sink(made: object) -> Pipeline:
    """A stream without a sink is simulated, too: its rows are collected."""
    if isinstance(made, Stream):
        return made.to(CollectSink())
    if isinstance(made, Pipeline):
        return made
    raise ConfigError(
        f"simulate: {made!r} ({type(made).__name__}) is no pipeline; give a pen.Pipeline, a stream, or a function that"
        " returns one"
    )


def _refuse_endless(node: Node) -> None:
    if node.role == "source" and not node.connector.bounded:
        raise ConfigError(
            f"simulate: the source {node.name!r} never ends, so no schedule would; give it an end, such as"
            " GeneratorSource(..., rows=200) or FileSource(..., watch=False)"
        )


def _flaky(world: UserWorld, create: Callable[[], Any]) -> FlakyOperator:
    return FlakyOperator(world, create())


class Shipper:
    """Gives every process its own copy of the plan. A plan is packed once, as a driver on Spark does."""

    def __init__(self) -> None:
        self._packed: dict[int, tuple[PhysicalPlan, Template[PhysicalPlan]]] = {}

    def ship(self, plan: PhysicalPlan) -> PhysicalPlan:
        if id(plan) not in self._packed:
            self._packed[id(plan)] = plan, Template(plan)
        return self._packed[id(plan)][1].copy()


def _settings(rng: Random, checkpoint: CheckpointConfig | None) -> Settings:
    """Times and sizes are drawn; what the user has said about checkpoints holds."""
    if checkpoint is None:
        return settings.draw(rng, durable=True, exactly_once=True)
    drawn = settings.draw(rng, durable=True, exactly_once=checkpoint.mode == "exactly_once")
    timeout_ms = None if checkpoint.aligned_timeout is None else rng.choice(ALIGNED_TIMEOUTS_MS)
    limits: CoordinatorConfig = replace(
        drawn.coordinator,
        max_concurrent=checkpoint.max_concurrent,
        tolerable_failures=checkpoint.tolerable_failures,
        keep=checkpoint.keep,
        unaligned=checkpoint.unaligned,
        aligned_timeout_ms=timeout_ms,
    )
    return replace(drawn, coordinator=limits)
