"""Statistics over the checkpoints of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.engine.history.records import (
    CheckpointInfo,
    CheckpointSummary,
    Spread,
    SubtaskInfo,
    Totals,
)


def summarize(checkpoints: Sequence[CheckpointInfo], totals: Totals) -> CheckpointSummary:
    """`totals` are over the whole life of the job, `checkpoints` those that are still remembered."""
    taken = [info for info in checkpoints if info.status == "completed"]
    return CheckpointSummary(
        totals.completed,
        totals.aborted,
        sum(info.status == "pending" for info in checkpoints),
        totals.restored,
        totals.restored_from,
        duration_ms=spread([info.duration_ms or 0.0 for info in taken]),
        bytes_full=spread([info.bytes_full for info in taken]),
        bytes_incremental=spread([info.bytes_incremental for info in taken]),
        inflight_bytes=spread([info.inflight_bytes for info in taken]),
        alignment_ms=_slowest(taken, lambda subtask: subtask.alignment_ms),
        sync_ms=_slowest(taken, lambda subtask: subtask.sync_ms),
        async_ms=_slowest(taken, lambda subtask: subtask.async_ms),
        start_delay_ms=_slowest(taken, lambda subtask: subtask.start_delay_ms),
    )


def spread(numbers: Sequence[float]) -> Spread | None:
    """None where there is nothing to tell about."""
    if not numbers:
        return None
    ordered = sorted(float(number) for number in numbers)

    def percentile(percent: int) -> float:
        """The smallest number that so many of a hundred do not exceed."""
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]

    average = sum(ordered) / len(ordered)
    parts = (percentile(percent) for percent in (50, 90, 99))
    return Spread(ordered[0], average, ordered[-1], *parts)


def _slowest(
    taken: Sequence[CheckpointInfo], time_ms: Callable[[SubtaskInfo], float | None]
) -> Spread | None:
    """Of the slowest subtask in each; what is not known does not count."""
    known = [
        [time for each in info.subtasks if (time := time_ms(each)) is not None] for info in taken
    ]
    return spread([max(times) for times in known if times])
