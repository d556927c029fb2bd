"""The past of a job, for people: its checkpoints and its failures, newest first, within limits.

`History` knows what this driver sees and what earlier ones wrote down; `history_log` keeps it in the job's directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from penstock.engine.history.infos import at_least, rebuilt, subtask_info, was_lost, with_subtasks
from penstock.engine.history.records import (
    CheckpointInfo,
    CheckpointSummary,
    ExceptionInfo,
    SubtaskInfo,
    Totals,
)
from penstock.engine.history.summary import summarize
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.coordinator import Aborted, Acks, Completed
from penstock.protocol.ids import CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.redaction import redacted
from penstock.wire.manifest import Manifest

CHECKPOINTS_KEPT = 1_000
EXCEPTIONS_KEPT = 100


class History:
    """Replaces whole tuples, so that other threads can read them at any time."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._operators = {
            task.number: tuple(link.node.name for link in task.links) for task in plan.tasks
        }
        self._subtasks = frozenset(plan.subtasks)
        self._pending: dict[CheckpointId, CheckpointInfo] = {}
        self._acks: dict[CheckpointId, dict[SubtaskId, SubtaskInfo]] = {}
        """Of those that are pending."""
        self._ended: tuple[CheckpointInfo, ...] = ()
        self._past = Totals()
        self._past_oldest: int | None = None
        self._own = Totals()
        self._unsaved: list[CheckpointInfo] = []
        self.checkpoints: tuple[CheckpointInfo, ...] = ()
        self.exceptions: tuple[ExceptionInfo, ...] = ()

    # ---- what happens

    def triggered(
        self, checkpoint: CheckpointId, kind: SnapshotKind, wall_ms: float, mode: str = ""
    ) -> None:
        info = CheckpointInfo(checkpoint, str(kind), "pending", wall_ms, None, mode=mode)
        self._acks[checkpoint] = {}
        self._pending[checkpoint] = replace(info, **self._owed(self._subtasks))
        self._publish()

    def expedited(self, checkpoint: CheckpointId) -> None:
        """It was aligned so far."""
        if (info := self._pending.get(checkpoint)) is not None:
            self._pending[checkpoint] = replace(info, mode="expedited")
            self._publish()

    def acked(self, checkpoint: CheckpointId, acks: Acks, arrived_ms: float) -> None:
        """`acks` are all so far; those that are new came `arrived_ms` after the trigger."""
        info = self._pending.get(checkpoint)
        known = self._acks.get(checkpoint, {})
        news = acks.keys() - known.keys()
        if info is None or not news:
            return
        for subtask in news:
            operators = self._operators.get(subtask.task, ())
            known[subtask] = subtask_info(operators, acks[subtask], arrived_ms)
        told = with_subtasks(info, (each for _, each in sorted(known.items())))
        self._pending[checkpoint] = replace(told, **self._owed(self._subtasks - known.keys()))
        self._publish()

    def completed(self, event: Completed, path: str | None) -> None:
        took_ms = event.ended_ms - event.triggered_ms
        self.acked(event.permit.checkpoint, event.acks, took_ms)
        self._own = replace(self._own, completed=self._own.completed + 1)
        self._end(event.permit.checkpoint, status="completed", duration_ms=took_ms, path=path)

    def aborted(self, event: Aborted) -> None:
        detail = f": {redacted(event.detail)}" if event.detail else ""
        self._own = replace(self._own, aborted=self._own.aborted + 1)
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

    def restored(self, path: str | None) -> None:
        """An attempt goes on from this checkpoint."""
        count = self._own.restored + 1
        self._own = replace(self._own, restored=count, restored_from=path)

    def read_back(self, checkpoint: CheckpointId, restored_bytes: int, local_bytes: int) -> None:
        """An attempt runs that went on from this checkpoint."""
        found = next((info for info in self._ended if info.id == checkpoint), None)
        if found is None or not restored_bytes:
            return
        told = replace(found, restored_bytes=restored_bytes, restored_local_bytes=local_bytes)
        self._ended = tuple(told if info is found else info for info in self._ended)
        self._unsaved = [*self._unsaved, told][-CHECKPOINTS_KEPT:]
        self._publish()

    # ---- what earlier drivers wrote down

    def remember(self, past: Iterable[CheckpointInfo], totals: Totals) -> None:
        """Puts what earlier drivers saw below what this one has seen."""
        own = {info.id for info in self._ended}
        older = {info.id: info for info in past if info.id not in own}
        self._past_oldest = min(older, default=None)
        self._past = at_least(totals, older.values())
        self._ended = _newest((*older.values(), *self._ended))
        self._publish()

    def add_missing(self, manifest: Manifest, path: str | None) -> None:
        """A checkpoint that exists and that its driver had no time to write down."""
        known = self.find(manifest.checkpoint) is not None
        if known or not was_lost(manifest.checkpoint, self._past_oldest):
            return
        info = rebuilt(manifest, path)
        self._past = replace(self._past, completed=self._past.completed + 1)
        self._ended = _newest((info, *self._ended))
        self._unsaved.append(info)
        self._publish()

    def take_unsaved(self) -> tuple[CheckpointInfo, ...]:
        """What ended since this was asked the last time."""
        taken, self._unsaved = tuple(self._unsaved), []
        return taken

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    # ---- what people ask

    @property
    def totals(self) -> Totals:
        """Over all drivers."""
        past, own = self._past, self._own
        return Totals(
            past.completed + own.completed,
            past.aborted + own.aborted,
            past.restored + own.restored,
            own.restored_from if own.restored else past.restored_from,
        )

    @property
    def completed_total(self) -> int:
        """Of this driver alone."""
        return self._own.completed

    @property
    def aborted_total(self) -> int:
        """Of this driver alone."""
        return self._own.aborted

    def summary(self) -> CheckpointSummary:
        return summarize(self.checkpoints, self.totals)

    def find(self, checkpoint: int) -> CheckpointInfo | None:
        return next((info for info in self.checkpoints if info.id == checkpoint), None)

    # ---- small things

    def _end(self, checkpoint: CheckpointId, **changes: object) -> None:
        info = self._pending.pop(checkpoint, None)
        self._acks.pop(checkpoint, None)
        if info is not None:
            ended = replace(info, **changes)  # type: ignore[arg-type]
            self._ended = (*self._ended, ended)[-CHECKPOINTS_KEPT:]
            self._unsaved = [*self._unsaved, ended][-CHECKPOINTS_KEPT:]
            self._publish()

    def _publish(self) -> None:
        pending = [info for _, info in sorted(self._pending.items(), reverse=True)]
        self.checkpoints = (*pending, *reversed(self._ended))

    def _owed(self, owed: Iterable[SubtaskId]) -> dict[str, Any]:
        owed = frozenset(owed)
        tasks = sorted({subtask.task for subtask in owed})
        names = [name for task in tasks for name in self._operators.get(task, ())]
        return {"owed": len(owed), "owing": tuple(names)}


def _newest(infos: Iterable[CheckpointInfo]) -> tuple[CheckpointInfo, ...]:
    """Each once, in order, as many as are kept."""
    by_id = {info.id: info for info in infos}
    return tuple(info for _, info in sorted(by_id.items()))[-CHECKPOINTS_KEPT:]
