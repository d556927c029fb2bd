"""What a checkpoint holds of rows that were in flight, and how often each will reach an operator further down."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from penstock.plan.graph import Broadcast, LogicalGraph
from penstock.protocol.snapshot import Segment
from penstock.state.segments import Fetch, read_batch, read_schema
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from penstock.wire.manifest import Manifest


def fetch_from(disk: MemoryStore, segment: Segment) -> Fetch:
    data = segment.inline
    if data is None:
        data = disk.read(paths.segment_file(segment.file))
    whole = data
    return lambda block: whole[block.offset : block.offset + block.length]


def rows_in_flight(manifest: Manifest, disk: MemoryStore) -> Iterator[tuple[str, int, int]]:
    """Of every row the operator it is on its way to, its key and its value."""
    for snapshot in manifest.snapshots:
        for entry in snapshot.inflight:
            schema = read_schema(entry.segment)
            fetch = fetch_from(disk, entry.segment)
            for block in entry.segment.blocks:
                batch = read_batch(entry.segment, block, schema, fetch)
                keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
                for key, value in zip(keys, values, strict=True):
                    yield entry.operator, key, value


def copies_to(graph: LogicalGraph, target: str, parallelism: int, start: str) -> int:
    """How often a row that arrives at `start` arrives at `target`."""

    @cache
    def copies(name: str) -> int:
        if name == target:
            return 1
        return sum(
            (parallelism if isinstance(entry.partitioning, Broadcast) else 1) * copies(node.name)
            for node in graph.nodes
            for entry in node.inputs
            if entry.operator == name
        )

    return copies(start)
