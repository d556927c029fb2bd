"""The rows in flight of an unaligned checkpoint as tables, one for each input of an operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.engine.reading.layouts import distinct
from penstock.engine.reading.tables import shares
from penstock.engine.worker.snapshots import fetch_from, read_inflight
from penstock.ports.store import CheckpointStore
from penstock.protocol.snapshot import NO_SOURCE, InFlight
from penstock.state.segments import read_schema
from penstock.wire.manifest import Manifest

_ENDS = (pa.field("subtask", pa.int32()), pa.field("source", pa.int32()))


@dataclass(frozen=True)
class InFlightTable:
    """Each row with the subtask that it was to reach and the one that had sent it; the latter is null where a restore
    with another parallelism had brought the row there. The rows of a channel are in order."""

    operator: str
    port: int
    channels: tuple[tuple[int, InFlight], ...]
    """With the subtask that each leads to."""

    @property
    def state(self) -> str:
        return f"input {self.port}"

    @property
    def schema(self) -> pa.Schema:
        fields = [*self._carried, *_ENDS]
        names = distinct(field.name for field in fields)
        return pa.schema([pa.field(n, f.type) for n, f in zip(names, fields, strict=True)])

    @property
    def _carried(self) -> pa.Schema:
        return read_schema(self.channels[0][1].segment)

    @property
    def rows(self) -> int:
        return sum(_rows_of(inflight) for _, inflight in self.channels)

    @property
    def files(self) -> frozenset[str]:
        files = (inflight.segment.file for _, inflight in self.channels)
        return frozenset(file for file in files if file)

    def pieces(self, most: int) -> Sequence[InFlightTable]:
        cuts = shares([_rows_of(inflight) for _, inflight in self.channels], most)
        return [replace(self, channels=self.channels[start:end]) for start, end in cuts]

    def read(self, store: CheckpointStore) -> Iterator[pa.RecordBatch]:
        schema, carried = self.schema, self._carried
        for subtask, inflight in self.channels:
            source = None if inflight.source == NO_SOURCE else inflight.source
            for batch in read_inflight(fetch_from(store), inflight, carried):
                ends = [pa.repeat(pa.scalar(n, pa.int32()), len(batch)) for n in (subtask, source)]
                yield pa.RecordBatch.from_arrays([*batch.columns, *ends], schema=schema)


def inflight_tables(manifest: Manifest) -> list[InFlightTable]:
    """In the order of the plan."""
    found: dict[tuple[str, int], list[tuple[int, InFlight]]] = {}
    for snapshot in manifest.snapshots:
        for inflight in snapshot.inflight:
            channel = (snapshot.subtask.index, inflight)
            found.setdefault((inflight.operator, inflight.port), []).append(channel)
    order = [operator.name for operator in manifest.operators]
    inputs = sorted(found, key=lambda each: (order.index(each[0]), each[1]))
    return [InFlightTable(*each, tuple(found[each])) for each in inputs]


def _rows_of(inflight: InFlight) -> int:
    return sum(block.rows for block in inflight.segment.blocks)
