"""Between a running plan and the manifest of a checkpoint: making one, and asking whether one fits."""

from __future__ import annotations

from difflib import get_close_matches

import pyarrow as pa

from penstock.engine.spec import JobSpec
from penstock.errors import CheckpointCorrupt
from penstock.plan.graph import Broadcast, Forward
from penstock.plan.physical import PhysicalEdge, PhysicalPlan
from penstock.ports.clock import Clock
from penstock.protocol.coordinator import Persist
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.recovery import IDS_RESERVED
from penstock.protocol.snapshot import InFlight, OperatorSnapshot
from penstock.state.segments import read_schema
from penstock.wire.manifest import Manifest, ManifestOperator


def make_manifest(
    spec: JobSpec,
    action: Persist,
    attempt: AttemptId,
    clock: Clock,
    ids_reserved: int = IDS_RESERVED,
) -> Manifest:
    now_ms = clock.wall_ms()
    return Manifest(
        job=spec.job,
        checkpoint=action.checkpoint,
        attempt=attempt,
        kind=action.kind,
        trigger_ms=now_ms - (clock.monotonic_ms() - action.triggered_ms),
        completed_ms=now_ms,
        parallelism=spec.plan.parallelism,
        max_parallelism=spec.plan.max_parallelism,
        operators=tuple(
            ManifestOperator(link.node.name, link.node.kind, task.number, link.node.role)
            for task in spec.plan.tasks
            for link in task.links
        ),
        snapshots=tuple(snapshot for _, snapshot in sorted(action.acks.items())),
        ids_until=CheckpointId(action.checkpoint + ids_reserved),
    )


def operators_mismatch(manifest: Manifest, spec: JobSpec) -> str:
    """Why a job cannot go on from this checkpoint; empty when it can."""
    plan = spec.plan
    if manifest.max_parallelism != plan.max_parallelism:
        return (
            f"Checkpoint {manifest.checkpoint} was taken with max_parallelism="
            f"{manifest.max_parallelism} and the job now has {plan.max_parallelism}. The number of key "
            f"groups of a job is fixed: start it with max_parallelism={manifest.max_parallelism}."
        )
    having = {
        name
        for snapshot in manifest.snapshots
        for name, part in snapshot.operators.items()
        if _has_state(part, spec.allow_non_restored_state)
    }
    running = [link.node.name for task in plan.tasks for link in task.links]
    lost = sorted(having - set(running))
    if not lost:
        return _inflight_mismatch(manifest, plan)
    hints = [
        f"{name!r} (did you mean {near[0]!r}?)"
        if (near := get_close_matches(name, running, 1))
        else repr(name)
        for name in lost
    ]
    return (
        f"Checkpoint {manifest.checkpoint} has state of operators that the job does not have: "
        f"{', '.join(hints)}. The job's operators are {', '.join(map(repr, running))}. State is found by "
        'name: give operators their old names with .named("..."), sinks with .to(sink, name="...") and sources with '
        f'pen.from_source(source, name="..."); {_ways_out(spec)}'
    )


def _ways_out(spec: JobSpec) -> str:
    if spec.allow_non_restored_state:
        return (
            "or start the job as it was and end it with job.stop(), which commits what the checkpoint promises: that"
            " is never let go."
        )
    return 'or let it go: start with allow_non_restored_state=True; or start with restore="fresh".'


def _inflight_mismatch(manifest: Manifest, plan: PhysicalPlan) -> str:
    """Rows in flight have no state that would be missed: without a place to go to they would be lost in silence."""
    heads = {task.number: task.head.name for task in plan.tasks}
    places = {(heads[edge.target], edge.port): edge for edge in plan.edges}
    for inflight in (entry for snapshot in manifest.snapshots for entry in snapshot.inflight):
        edge = places.get((inflight.operator, inflight.port))
        why = _no_place(inflight, edge)
        if why:
            return (
                f"Checkpoint {manifest.checkpoint} has rows in flight for input {inflight.port} of operator "
                f"{inflight.operator!r}, {why}. Start the job as it was, end it with job.stop() (its checkpoint has "
                'nothing in flight), and change it then; or start with restore="fresh".'
            )
    return ""


def _no_place(inflight: InFlight, edge: PhysicalEdge | None) -> str:
    if edge is None:
        return "which reads no such input from other subtasks any more"
    if isinstance(edge.partitioning, Broadcast | Forward):
        how = type(edge.partitioning).__name__.lower()
        return f"which is now reached by a {how} edge: nobody can tell whose they would be"
    try:
        found = read_schema(inflight.segment)
    except CheckpointCorrupt:
        return ""  # whoever reads the rows says so, and an older checkpoint may do
    if not found.equals(edge.schema):
        return f"with the columns {_columns(found)}, and the job now sends {_columns(edge.schema)} there"
    return ""


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _has_state(part: OperatorSnapshot, may_lose: bool) -> bool:
    """Whether it is missed where its operator is not there any more. What was promised to the outside always is."""
    return bool(part.transactions or (not may_lose and (part.segments or part.lanes)))
