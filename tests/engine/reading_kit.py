"""Checkpoints for the tests of readers: made by real operators, written by the real writer, without a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.engine.checkpoints.leases import Borrower
from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.reading.borrowing import borrow
from penstock.engine.reading.request import Request, make_request
from penstock.engine.worker.inputs import ChannelRows
from penstock.engine.worker.snapshots import WriteWork
from penstock.engine.worker.subtask import Taken
from penstock.plan.keyhash import key_groups, key_hashes, owner_of
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import OperatorSnapshot
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest, ManifestOperator
from tests.engine.kit import ManualClock, segments_of

NOW_MS = 1_000_000.0


def borrower(now_ms: float = NOW_MS) -> Borrower:
    made = iter(range(1_000))
    return Borrower("host/1", lambda: now_ms, lambda: f"{next(made):032x}")


def context(
    schema: pa.Schema,
    index: int = 0,
    parallelism: int = 1,
    max_parallelism: int = 128,
    restored: Sequence[OperatorSnapshot] = (),
    store: CheckpointStore | None = None,
) -> OperatorContext:
    return OperatorContext(
        job="job",
        operator="op",
        index=index,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        attempt=1,
        input_schemas=(schema,),
        now_ms=lambda: 0.0,
        wall_ms=lambda: 0.0,
        restored=tuple(restored),
        read_segments=segments_of(store),
        to_driver=lambda item: None,
    )


def fed(
    make: Any, rows: pa.RecordBatch, keys: Sequence[str], parallelism: int, max_parallelism: int
) -> list[Operator]:
    """The subtasks of a keyed operator, each with its rows."""
    groups = key_groups(key_hashes([rows.column(key) for key in keys])[0], max_parallelism)
    owners = owner_of(groups, parallelism, max_parallelism)
    made = []
    for index in range(parallelism):
        operator = make()
        operator.open(context(rows.schema, index, parallelism, max_parallelism))
        list(operator.process(rows.filter(pa.array(owners == index)), 0))
        made.append(operator)
    return made


def checkpoint(
    store: CheckpointStore,
    operators: Mapping[str, Sequence[FrozenOperator]],
    *,
    number: int = 1,
    max_parallelism: int = 128,
    inline_bytes_max: int = 0,
    inflight: Mapping[str, Sequence[Sequence[ChannelRows]]] | None = None,
) -> Manifest:
    """Each operator is a task of its own, with what its subtasks have frozen. Complete when this returns."""
    parallelism = max(len(each) for each in operators.values())
    snapshots = []
    for slot in range(parallelism):
        taken = [
            Taken(
                SubtaskId(task, slot),
                CheckpointId(number),
                {name: frozen[slot]},
                finished=False,
                alignment_ms=0.0,
                sync_ms=0.0,
                inflight=tuple((inflight or {}).get(name, ((),) * parallelism)[slot]),
            )
            for task, (name, frozen) in enumerate(operators.items())
        ]
        work = WriteWork(
            store,
            SlotId(slot),
            AttemptId(1),
            CheckpointId(number),
            taken,
            ManualClock(),
            inline_bytes_max,
        )
        snapshots += work()
    manifest = Manifest(
        job="job",
        checkpoint=CheckpointId(number),
        attempt=AttemptId(1),
        kind=SnapshotKind.CHECKPOINT,
        trigger_ms=0.0,
        completed_ms=1.0,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        operators=tuple(ManifestOperator(name, "op", task) for task, name in enumerate(operators)),
        snapshots=tuple(sorted(snapshots, key=lambda each: each.subtask)),
    )
    store.create(paths.JOB, records.encode_job(records.JobRecord("job")))
    store.create(paths.metadata(CheckpointId(number)), manifests.encode(manifest))
    return manifest


def request(**wanted: str) -> Request:
    return make_request("job", **wanted)


def rows_of(store: CheckpointStore, **wanted: str) -> list[dict[str, Any]]:
    """All rows of a table, as somebody who asks for it gets them."""
    batches = borrow(store, request(**wanted), borrower()).read(store, borrower())
    return [row for batch in batches for row in batch.to_pylist()]


def numbered(count: int) -> pa.RecordBatch:
    """Rows with a key each that is all its own, and a value of it."""
    number = np.arange(count, dtype=np.int64)
    return pa.RecordBatch.from_arrays([pa.array(number), pa.array(number * 3)], ["k", "v"])
