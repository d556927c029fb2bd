"""An operator that counts numbers, and a store that fails: for tests of what is written ahead of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.keyed import keep_chain, make_keyed
from penstock.engine.spec import Changelogs
from penstock.errors import StorageError
from penstock.ports.store import Writing
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import Segment
from penstock.state.merging import merged
from penstock.state.segments import read_blocks
from penstock.storage.memory import MemoryStore
from tests.engine.kit import SCHEMA, Bench, NumberSource, pipeline

VALUES = pa.schema([("times", pa.int64())])
KEYS = 50
NEVER_MS = 1e12


class Counts(Operator):
    """How often each key has come. A number is a key modulo `KEYS`; every eleventh makes its key forgotten."""

    def open(self, context: OperatorContext) -> None:
        self.keyed = make_keyed(SCHEMA, context)
        self.table = self.keyed.table("value", "counts", VALUES)
        for batch in context.rows_of("counts"):
            self.keyed.load(self.table, batch)
        self.keyed.settle()
        keep_chain(self.table, context)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        for number in batch.column(0).to_pylist():
            self._count(number)
        return (batch,)

    def _count(self, number: int) -> None:
        key = [pa.array([number % KEYS], pa.int64())]
        if number % 11 == 10:
            cells = self.keyed.space.find(key)
            cells = cells[cells >= 0]
            self.table.drop(cells)
            self.keyed.vacate(cells)
            return
        cells = self.keyed.space.upsert(key).cells
        (before,) = self.table.get(cells).column(0).to_pylist()
        rows = {"times": [(before or 0) + 1]}
        self.table.put(cells, pa.RecordBatch.from_pydict(rows, VALUES))

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        return FrozenOperator((self.table.freeze(order.base, order.id),))


def expected(numbers: int) -> dict[int, int]:
    """After so many."""
    found: dict[int, int] = {}
    for number in range(numbers):
        if number % 11 == 10:
            found.pop(number % KEYS, None)
        else:
            found[number % KEYS] = found.get(number % KEYS, 0) + 1
    return found


class Failing(MemoryStore):
    """Files whose names have one of these words are not written."""

    def __init__(self) -> None:
        super().__init__()
        self.words: set[str] = set()

    def begin(self, name: str) -> Writing:
        if any(word in name for word in self.words):
            raise StorageError(f"no room for {name}")
        return super().begin(name)


def bench(source: NumberSource, sink: Any, limits: Changelogs, **options: Any) -> Bench:
    """One attempt with a changelog. All state goes into files."""
    graph = pipeline(source, sink, Counts)
    given = {"inline_bytes_max": 0, "incremental": True, **options}
    return Bench(graph, changelog=limits, **given)


def counts(store: MemoryStore, segments: Iterable[Segment]) -> dict[int, int]:
    """What a chain of segments comes to."""
    chain = list(segments)
    batches = (
        batch
        for segment in chain
        for batch in read_blocks(segment, range(1 << 16), _reading(store, segment))
    )
    schema = pa.ipc.read_schema(pa.py_buffer(chain[0].schema))
    rows = [row for batch in merged(schema, batches) for row in batch.to_pylist()]
    return {row["key.n"]: row["value.times"] for row in rows}


def _reading(store: MemoryStore, segment: Segment) -> Any:
    return lambda block: store.read(segment.file, block.offset, block.length)
