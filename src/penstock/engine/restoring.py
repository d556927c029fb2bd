"""Rows that were in flight when an unaligned checkpoint was taken find their way back, before anything new.

With the same parallelism every channel gets its own rows back. With another one rows go to whom their key belongs to
now, and rows without a key to anyone, once. Whatever is put into a queue here is processed before a channel is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.engine.inputs import Input
from penstock.engine.partition import make_partitioner
from penstock.engine.snapshots import read_inflight
from penstock.errors import PlanError
from penstock.plan.graph import Hash, Partitioning
from penstock.plan.physical import PhysicalPlan
from penstock.ports.channel import Batch
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import SlotId
from penstock.protocol.snapshot import InFlight, SubtaskSnapshot


def restore_inflight(
    operator: str,
    snapshots: Iterable[SubtaskSnapshot],
    inputs: Sequence[Input],
    plan: PhysicalPlan,
    slot: SlotId,
    store: CheckpointStore | None,
) -> None:
    """Fills the queues of a subtask's inputs; `operator` is the first of its chain."""
    old = [snapshot for snapshot in snapshots if operator in snapshot.operators]
    rescaled = len(old) != plan.parallelism
    for snapshot in old:
        target = snapshot.subtask.index
        if not rescaled and target != slot:
            continue
        for inflight in snapshot.inflight:
            entry = _input_of(operator, inflight, inputs, plan.parallelism)
            edge = plan.edges[entry.id.edge]
            for batch in read_inflight(store, inflight, edge.schema):
                if rescaled:
                    batch = _ours(batch, edge.partitioning, target, plan, slot)
                if batch.num_rows:
                    entry.put(Batch(batch))


def _input_of(head: str, inflight: InFlight, inputs: Sequence[Input], parallelism: int) -> Input:
    source = inflight.source % parallelism
    for entry in inputs if inflight.operator == head else ():
        if (entry.port, entry.id.source) == (inflight.port, source):
            return entry
    raise PlanError(
        f"The checkpoint has rows in flight for input {inflight.port} of operator {inflight.operator!r}, which "
        "has no such input any more. Start the job as it was, end it with job.stop() (its checkpoint has nothing "
        "in flight), and change it then."
    )


def _ours(
    batch: pa.RecordBatch, how: Partitioning, target: int, plan: PhysicalPlan, slot: SlotId
) -> pa.RecordBatch:
    """The rows of a channel to the old subtask `target` that are this slot's now."""
    nothing = batch.slice(0, 0)
    if not isinstance(how, Hash):
        return batch if target % plan.parallelism == slot else nothing
    to_owners = make_partitioner(Hash(how.keys), plan.parallelism, plan.max_parallelism)
    return next((rows for owner, rows in to_owners(batch) if owner == slot), nothing)
