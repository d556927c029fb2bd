"""Makes the records that people see: of what subtasks acknowledge, and of a checkpoint that lies in storage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.engine.history.records import CheckpointInfo, SubtaskInfo, Totals
from penstock.engine.spec import Mode
from penstock.protocol.snapshot import SubtaskSnapshot
from penstock.wire.manifest import Manifest


def subtask_info(
    operators: tuple[str, ...], snapshot: SubtaskSnapshot, arrived_ms: float | None = None
) -> SubtaskInfo:
    """`arrived_ms`: how long after the trigger the acknowledgement came. The clocks of two hosts differ, so what the
    subtask did not spend itself counts as the time until it was reached; None where nobody saw it come."""
    timings = snapshot.timings
    spent_ms = timings.alignment_ms + timings.sync_ms + timings.async_ms
    return SubtaskInfo(
        operators,
        snapshot.subtask.index,
        timings.alignment_ms,
        timings.sync_ms,
        timings.async_ms,
        timings.bytes_written,
        timings.inflight_bytes,
        timings.alignment_rows,
        None if arrived_ms is None else max(0.0, arrived_ms - spent_ms),
    )


def with_subtasks(info: CheckpointInfo, subtasks: Iterable[SubtaskInfo]) -> CheckpointInfo:
    """The checkpoint with these parts, and the sizes that they add up to."""
    subtasks = tuple(subtasks)
    written = sum(entry.bytes_written for entry in subtasks)
    return replace(
        info,
        bytes_full=written,
        bytes_incremental=written,
        inflight_bytes=sum(entry.inflight_bytes for entry in subtasks),
        subtasks=subtasks,
    )


def rebuilt(manifest: Manifest, path: str | None) -> CheckpointInfo:
    """What its manifest alone says: nothing about when acknowledgements came, nor how it was taken where no row was in
    flight."""
    chains: dict[int, tuple[str, ...]] = {}
    for operator in manifest.operators:
        chains[operator.task] = (*chains.get(operator.task, ()), operator.name)
    info = CheckpointInfo(
        manifest.checkpoint,
        str(manifest.kind),
        "completed",
        manifest.trigger_ms,
        manifest.completed_ms - manifest.trigger_ms,
        path=path,
        mode="unaligned" if any(each.inflight for each in manifest.snapshots) else "",
    )
    in_order = sorted(manifest.snapshots, key=lambda snapshot: snapshot.subtask)
    parts = (subtask_info(chains.get(each.subtask.task, ()), each) for each in in_order)
    return with_subtasks(info, parts)


def mode_of(mode: Mode, urgent: bool) -> str:
    """How a snapshot begins: one that is aligned may still be expedited."""
    if mode is Mode.AT_LEAST_ONCE:
        return "at least once"
    return "unaligned" if urgent else "aligned"


# ---- counting


def at_least(totals: Totals, known: Iterable[CheckpointInfo]) -> Totals:
    """The totals, corrected where more is known than was counted: a page with newer ones may be lost."""
    statuses = [info.status for info in known]
    return replace(
        totals,
        completed=max(totals.completed, statuses.count("completed")),
        aborted=max(totals.aborted, statuses.count("aborted")),
    )


def was_lost(checkpoint: int, oldest_known: int | None) -> bool:
    """Of one that is not in the history: nobody wrote it down, so that it is not counted. One that is older than all of
    the history was written down, and its page is gone by now."""
    return oldest_known is None or checkpoint > oldest_known
