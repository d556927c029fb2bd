"""A checkpoint with something in every field, for the golden file and the tests around it."""

from __future__ import annotations

from dataclasses import replace

from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import (
    Block,
    InFlight,
    OperatorSnapshot,
    Segment,
    SubtaskSnapshot,
    Timings,
)
from penstock.wire.manifest import Manifest, ManifestOperator

IN_FILE = Segment(
    state="totals",
    schema=b"\xff\xff\xff\xff\x00schema",
    blocks=(
        Block(0, 31, 7, 0, 640, "9ae16a3b2f90404f"),
        Block(32, 63, 5, 640, 512, "c949d7c7509e6557"),
    ),
    file="chk-7/0-3",
)
INLINE = Segment(
    "late", b"schema", (Block(64, 127, 1, 1, 3, "e7037ed1a0b428db"),), inline=b"\x00abc"
)
SHARED = Segment(
    "base",
    b"schema",
    (Block(0, 0, 1, 0, 9, "4cf5ad432745937f"),),
    "shared/5-0-3-state",
    groups=(0, 4),
    delta=True,
)

MANIFEST = Manifest(
    job="totals",
    checkpoint=CheckpointId(7),
    attempt=AttemptId(3),
    kind=SnapshotKind.CHECKPOINT,
    trigger_ms=1_700_000_000_000.0,
    completed_ms=1_700_000_000_250.5,
    parallelism=2,
    max_parallelism=128,
    operators=(
        ManifestOperator("orders", "generator", 0, "source"),
        ManifestOperator("totals", "aggregate", 1),
        ManifestOperator("out", "files", 1, "sink"),
    ),
    snapshots=(
        SubtaskSnapshot(
            SubtaskId(0, 0),
            {"orders": OperatorSnapshot(lanes={0: {"at": 41}, 2: None, 10: [1, "a", 2.5, True]})},
            finished=True,
            timings=Timings(1.5, 0.25, 12.0, 1152),
        ),
        SubtaskSnapshot(
            SubtaskId(1, 1),
            {
                "totals": OperatorSnapshot(segments=(IN_FILE, INLINE, SHARED)),
                "out": OperatorSnapshot(transactions=({"file": "part-1", "rows": 3}, None)),
            },
        ),
    ),
    ids_until=CheckpointId(107),
)

WAITING = Segment("in flight", b"schema", (Block(0, 0, 4, 8, 96, "52dce729"),), file="chk-7/1-3")
UNALIGNED = replace(
    MANIFEST,
    snapshots=(
        MANIFEST.snapshots[0],
        replace(
            MANIFEST.snapshots[1],
            timings=Timings(0.0, 0.25, 3.0, 96, inflight_bytes=96, alignment_rows=12),
            inflight=(InFlight("totals", 0, 1, WAITING),),
        ),
    ),
)
