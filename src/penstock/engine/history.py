"""The past of a job, for people: its checkpoints and its failures, newest first, within limits."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from penstock.engine.records import CheckpointInfo, ExceptionInfo, SubtaskInfo
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.coordinator import Aborted, Acks, Completed
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.redaction import redacted

CHECKPOINTS_KEPT = 1_000
EXCEPTIONS_KEPT = 100


class History:
    """Replaces whole tuples, so that other threads can read them at any time."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._operators = {
            task.number: tuple(link.node.name for link in task.links) for task in plan.tasks
        }
        self._pending: dict[CheckpointId, CheckpointInfo] = {}
        self._ended: deque[CheckpointInfo] = deque(maxlen=CHECKPOINTS_KEPT)
        self.checkpoints: tuple[CheckpointInfo, ...] = ()
        self.exceptions: tuple[ExceptionInfo, ...] = ()
        self.completed_total = 0
        self.aborted_total = 0

    def triggered(self, checkpoint: CheckpointId, kind: SnapshotKind, wall_ms: float) -> None:
        self._pending[checkpoint] = CheckpointInfo(checkpoint, str(kind), "pending", wall_ms, None)
        self._publish()

    def completed(self, event: Completed, path: str | None) -> None:
        subtasks = self._subtasks(event.acks)
        written = sum(entry.bytes_written for entry in subtasks)
        self.completed_total += 1
        self._end(
            event.permit.checkpoint,
            status="completed",
            duration_ms=event.ended_ms - event.triggered_ms,
            bytes_full=written,
            bytes_incremental=written,
            path=path,
            subtasks=subtasks,
        )

    def aborted(self, event: Aborted) -> None:
        detail = f": {event.detail}" if event.detail else ""
        self.aborted_total += 1
        self._end(
            event.checkpoint,
            status="aborted",
            duration_ms=event.ended_ms - event.triggered_ms,
            failure=f"{event.reason}{detail}",
        )

    def failed(self, failure: ExceptionInfo) -> None:
        shown = replace(
            failure, message=redacted(failure.message), traceback=redacted(failure.traceback)
        )
        self.exceptions = (shown, *self.exceptions)[:EXCEPTIONS_KEPT]

    def find(self, checkpoint: int) -> CheckpointInfo | None:
        return next((info for info in self.checkpoints if info.id == checkpoint), None)

    def _end(self, checkpoint: CheckpointId, **changes: object) -> None:
        info = self._pending.pop(checkpoint, None)
        if info is not None:
            self._ended.append(replace(info, **changes))  # type: ignore[arg-type]
            self._publish()

    def _publish(self) -> None:
        pending = [info for _, info in sorted(self._pending.items(), reverse=True)]
        self.checkpoints = (*pending, *reversed(self._ended))

    def _subtasks(self, acks: Acks) -> tuple[SubtaskInfo, ...]:
        return tuple(
            SubtaskInfo(
                self._operators[subtask.task],
                subtask.index,
                snapshot.timings.alignment_ms,
                snapshot.timings.sync_ms,
                snapshot.timings.async_ms,
                snapshot.timings.bytes_written,
            )
            for subtask, snapshot in sorted(acks.items())
        )
