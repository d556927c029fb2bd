"""What the metadata of a checkpoint alone says, as tables: which state there is, and how far sources have been read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.reading.keyed import state_tables
from penstock.plan.schema import to_ddl
from penstock.ports.store import CheckpointStore
from penstock.wire.manifest import Manifest

POSITIONS = pa.schema([("operator", pa.string()), ("lane", pa.int32()), ("position", pa.string())])
OPERATORS = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("schema", pa.string()),
    ]
)


@dataclass(frozen=True)
class Listing:
    """A few rows that are at hand already, each about one operator."""

    batch: pa.RecordBatch
    operator: str = ""
    state: str = ""

    @property
    def schema(self) -> pa.Schema:
        return self.batch.schema

    @property
    def rows(self) -> int:
        return len(self.batch)

    @property
    def files(self) -> frozenset[str]:
        return frozenset()

    @property
    def operators(self) -> list[str]:
        """Those that there are rows about."""
        return list(dict.fromkeys(self.batch.column("operator").to_pylist()))

    def about(self, operator: str) -> Listing:
        return Listing(self.batch.filter(pc.equal(self.batch.column("operator"), operator)))

    def pieces(self, most: int) -> Sequence[Listing]:
        return [self]

    def read(self, store: CheckpointStore) -> Iterator[pa.RecordBatch]:
        yield self.batch


def positions(manifest: Manifest) -> Listing:
    """How far each lane of each source has been read, as the source itself puts it."""
    rows: list[dict[str, Any]] = []
    for operator in manifest.operators:
        parts = (snapshot.operators.get(operator.name) for snapshot in manifest.snapshots)
        lanes = {lane: at for part in parts if part is not None for lane, at in part.lanes.items()}
        for lane in sorted(lanes):
            position = json.dumps(lanes[lane], ensure_ascii=False)
            rows.append({"operator": operator.name, "lane": lane, "position": position})
    return Listing(pa.RecordBatch.from_pylist(rows, POSITIONS))


def operators(manifest: Manifest) -> Listing:
    """The state of each operator: how many rows are stored, and the columns that they are shown with."""
    rows = [
        {
            "operator": table.operator,
            "state": table.state,
            "rows": table.rows,
            "bytes": table.bytes_total,
            "schema": to_ddl(table.schema),
        }
        for table in state_tables(manifest)
    ]
    return Listing(pa.RecordBatch.from_pylist(rows, OPERATORS))
