"""I3 and I4, watched from outside: what channels carried, what was in flight, in which order rows came out.

A channel between two processes keeps a log of what was put into it. What a snapshot recorded of such a channel must be
the end of what was sent before its barrier, row by row, perhaps with rows in front that the attempt had itself
restored. That the rows before those are in the state is what I2 says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.plan.graph import Broadcast, Forward, Hash, LogicalGraph
from penstock.plan.physical import PhysicalEdge, make_plan
from penstock.ports.channel import Barrier, Batch, End, Frame
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import NO_SOURCE, InFlight, SubtaskSnapshot
from penstock.shells.sim.inflight import fetch_from
from penstock.shells.sim.outside import row
from penstock.state.segments import read_batch, read_schema
from penstock.storage.memory import MemoryStore
from penstock.wire.manifest import Manifest

if TYPE_CHECKING:
    from penstock.shells.sim.outside import SimSource, Transaction
    from penstock.shells.sim.world import World

Rows: TypeAlias = list[tuple[Any, ...]]


class Cuts:
    """The logs of all channels, and the check of every checkpoint against them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._logs: dict[tuple[int, ChannelId], list[Frame]] = {}

    def log(self, attempt: int, channel: ChannelId) -> list[Frame]:
        """Where a new channel writes down what is sent through it."""
        return self._logs.setdefault((attempt, channel), [])

    def check(self, manifest: Manifest, restored: Manifest | None) -> None:
        """A checkpoint has come to exist; its attempt began with `restored`."""
        for snapshot in manifest.snapshots:
            for entry in snapshot.inflight:
                problem = self._problem(manifest, snapshot, entry, restored)
                if problem:
                    where = f"checkpoint {manifest.checkpoint}, subtask {snapshot.subtask}"
                    self._world.violation("I3", f"{where}, from {entry.source}: {problem}")

    def _problem(
        self,
        manifest: Manifest,
        snapshot: SubtaskSnapshot,
        entry: InFlight,
        restored: Manifest | None,
    ) -> str:
        edge = self._edge(manifest, snapshot, entry)
        if isinstance(edge.partitioning, Broadcast | Forward):
            return "rows are in flight on an edge that always aligns"
        if not self._may_be_unaligned(manifest):
            return "rows are in flight in a snapshot that aligns"
        before = [] if restored is None else rows_in_flight(restored, self._world.disk)
        if entry.source == NO_SOURCE:
            return compare(rows_of(entry, self._world.disk), [], before)
        channel = ChannelId(edge.number, entry.source, snapshot.subtask.index)
        log = self._logs.get((manifest.attempt, channel))
        if log is None:
            return ""  # within one process: nothing to see from outside
        sent = sent_before(log, manifest.checkpoint)
        if sent is None:
            return "rows are in flight and there is neither barrier nor end on the channel"
        return compare(rows_of(entry, self._world.disk), sent, before)

    def _edge(self, manifest: Manifest, snapshot: SubtaskSnapshot, entry: InFlight) -> PhysicalEdge:
        plan = make_plan(self._world.scenario.graph, manifest.parallelism, manifest.max_parallelism)
        place = (snapshot.subtask.task, entry.port)
        return next(edge for edge in plan.edges if (edge.target, edge.port) == place)

    def _may_be_unaligned(self, manifest: Manifest) -> bool:
        config = self._world.settings.coordinator
        urgent = config.unaligned or config.aligned_timeout_ms is not None
        return urgent and manifest.kind == SnapshotKind.CHECKPOINT


def sent_before(log: Iterable[Frame], checkpoint: CheckpointId) -> Rows | None:
    """The rows before this barrier, or before the end; None where neither was sent."""
    rows: Rows = []
    for frame in log:
        if isinstance(frame, End) or (isinstance(frame, Barrier) and frame.order.id == checkpoint):
            return rows
        if isinstance(frame, Batch):
            rows += _rows(frame.data)
    return None


def compare(recorded: Rows, sent: Rows, restored: Rows) -> str:
    """What is wrong with the rows that a snapshot has of a channel; empty if nothing is."""
    count = min(len(recorded), len(sent))
    tail = sent[len(sent) - count :]
    if recorded[len(recorded) - count :] != tail:
        return f"recorded {recorded}, and what was sent before the barrier ends with {tail}"
    unknown = Counter(recorded[: len(recorded) - count]) - Counter(restored)
    return f"rows that nobody sent were recorded: {sorted(unknown)}" if unknown else ""


def rows_in_flight(manifest: Manifest, disk: MemoryStore) -> Rows:
    return [r for s in manifest.snapshots for entry in s.inflight for r in rows_of(entry, disk)]


def rows_of(entry: InFlight, disk: MemoryStore) -> Rows:
    segment = entry.segment
    schema, fetch = read_schema(segment), fetch_from(disk, segment)
    return [r for block in segment.blocks for r in _rows(read_batch(segment, block, schema, fetch))]


def _rows(batch: pa.RecordBatch) -> Rows:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


# ---- order


def check_order(world: World) -> None:
    """I4: rows of one lane and key come out in the order they went in, across every recovery, wherever there is one
    way only from the source to the sink."""
    for sink in world.scenario.expected:
        source = world.scenario.sources.get(only_source(world.scenario.graph, sink))
        if source is not None:
            visible = [t for t in world.table.visible.values() if t.operator == sink]
            for early, late in out_of_order(source, visible):
                world.violation("I4", f"{sink}: row {late} comes out after row {early}")


def only_source(graph: LogicalGraph, name: str) -> str:
    """The source whose rows reach this operator one way only and by key; empty where there is none."""
    nodes = {node.name: node for node in graph.nodes}
    node = nodes[name]
    while node.inputs:
        if len(node.inputs) > 1 or not _keeps_order(node.inputs[0].partitioning):
            return ""
        node = nodes[node.inputs[0].operator]
    return node.name


def _keeps_order(partitioning: object) -> bool:
    return isinstance(partitioning, Forward) or partitioning == Hash(("key",))


def out_of_order(source: SimSource, visible: Iterable[Transaction]) -> Iterator[tuple[int, int]]:
    """Pairs of ids that came out in the wrong order."""
    newest: dict[tuple[int, int], int] = {}
    for transaction in sorted(visible, key=lambda t: t.checkpoint):
        for number, *_ in transaction.rows:
            place = (number - source.base) % len(source.rows_per_lane), row(number)[1]
            if number < newest.get(place, number):
                yield newest[place], number
            newest[place] = number
