"""Rows that were in flight when an unaligned checkpoint was taken find their way back, before anything new.

With the same parallelism every channel gets its own rows back, in its queue. With another one rows go to whom their key
belongs to now, and rows without a key to anyone, once; the channel that brought them is not there any more, and what
follows them may come by any other: so they go before all channels, and in the next snapshot, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.engine.worker.inputs import Input, Rescued
from penstock.engine.worker.partition import make_partitioner
from penstock.engine.worker.snapshots import FetchOf, read_inflight
from penstock.errors import PlanError
from penstock.plan.graph import Hash, Partitioning
from penstock.plan.physical import PhysicalPlan
from penstock.ports.channel import Batch
from penstock.protocol.ids import SlotId
from penstock.protocol.snapshot import NO_SOURCE, InFlight, SubtaskSnapshot

HOW_TO_CHANGE = (
    "Start the job as it was, end it with job.stop() (its checkpoint has nothing in flight), "
    "and change it then."
)


def restore_inflight(
    operator: str,
    snapshots: Iterable[SubtaskSnapshot],
    inputs: Sequence[Input],
    plan: PhysicalPlan,
    slot: SlotId,
    fetch: FetchOf,
) -> list[Rescued]:
    """Fills the queues of a subtask's inputs, and hands back what goes before them; `operator` is the first of its
    chain.

    All rows of a key were on their way to one old subtask, and of those the ones that went before its channels are
    recorded first: so one old subtask after the other keeps the order of every key."""
    old = [snapshot for snapshot in snapshots if operator in snapshot.operators]
    rescaled = len(old) != plan.parallelism
    rescued: list[Rescued] = []
    for snapshot in old:
        target = snapshot.subtask.index
        if not rescaled and target != slot:
            continue
        for inflight in snapshot.inflight:
            entry = _input_of(operator, inflight, inputs, rescaled)
            edge = plan.edges[entry.id.edge]
            for batch in read_inflight(fetch, inflight, edge.schema):
                ours = _ours(batch, edge.partitioning, target, plan, slot)
                if not rescaled and ours.num_rows != batch.num_rows:
                    raise PlanError(_other_key(inflight))
                if rescaled or inflight.source == NO_SOURCE:
                    rescued += [Rescued(entry.port, Batch(ours))] if ours.num_rows else []
                else:
                    entry.put(Batch(batch))
    return rescued


def _input_of(head: str, inflight: InFlight, inputs: Sequence[Input], rescaled: bool) -> Input:
    """The channel that the rows go back to; where they go before all channels, any one of that port."""
    any_source = rescaled or inflight.source == NO_SOURCE
    for entry in inputs if inflight.operator == head else ():
        if entry.port == inflight.port and (any_source or entry.id.source == inflight.source):
            return entry
    raise PlanError(
        f"The checkpoint has rows in flight for input {inflight.port} of operator {inflight.operator!r}, which "
        f"has no such input any more. {HOW_TO_CHANGE}"
    )


def _other_key(inflight: InFlight) -> str:
    return (
        f"The checkpoint has rows in flight for input {inflight.port} of operator {inflight.operator!r} that belong to "
        f"other subtasks now: the job's key there is another one. {HOW_TO_CHANGE}"
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
