"""All that a job keeps in its directory, written and deleted in the background.

There are three queues, and each has one piece of work under way at most. `storage` has what must be in order: claims,
metadata, the last clean-up. Clean-up and history have one each, so that neither can hold up a checkpoint, however slow
or broken the store is for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.engine.checkpoints.cleaning import CleanUp, retains
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.persisting import Persister
from penstock.engine.checkpoints.restore_points import RestorePoint
from penstock.engine.history.history import History
from penstock.engine.history.log import HistoryLog
from penstock.engine.later import Later
from penstock.engine.serial import Serial
from penstock.engine.spec import JobSpec
from penstock.ports.background import Background
from penstock.ports.clock import Clock
from penstock.protocol.coordinator import Coordinator
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.phases import Outcome
from penstock.protocol.snapshot import SubtaskSnapshot
from penstock.wire.manifest import Manifest

QUEUES = 3
"""So many pieces of work may be under way: the background needs a thread for each."""


class Durable:
    def __init__(
        self,
        spec: JobSpec,
        retain: str,
        files: CheckpointFiles,
        history: History,
        storage: Serial,
        background: Background,
        later: Later,
        clock: Clock,
        tell: Callable[[str, AttemptId], None],
    ) -> None:
        self._retain = retain
        self._files = files
        self._cleaning = Serial(background)
        self._over = False
        self._persister = Persister(files, storage, later, clock, lambda: self._over, tell)
        self._clean_up = CleanUp(spec.job, files, storage, self._cleaning, later, clock)
        pages, queue = files.history(), Serial(background)
        self._log = HistoryLog(spec.job, spec.location, history, pages, queue)

    def begin(self) -> None:
        self._log.begin()

    def tick(self, now_ms: float) -> None:
        self._log.tick(now_ms)

    def claimed(self, point: RestorePoint) -> None:
        self._log.restored(point)
        self._clean_up.claimed(point)

    def triggered(self, checkpoint: CheckpointId, base: CheckpointId) -> None:
        """A snapshot that may refer to files of its base: see `CleanUp.triggered`."""
        self._clean_up.triggered(checkpoint, base)

    def acknowledged(self, checkpoint: CheckpointId, parts: Iterable[SubtaskSnapshot]) -> None:
        self._clean_up.acknowledged(checkpoint, parts)

    def persist(
        self,
        manifest: Manifest,
        settled: Callable[[bool], None],
        refused: Callable[[BaseException], None],
    ) -> None:
        """Makes a checkpoint exist: see `Persister`."""
        self._persister.persist(manifest, settled, refused)

    def completed(self, checkpoint: CheckpointId, parts: Iterable[SubtaskSnapshot]) -> None:
        """It exists; `parts` are all of it."""
        self._clean_up.completed(checkpoint, parts)

    @property
    def not_written(self) -> str:
        """Why a checkpoint does not exist."""
        return self._files.not_written

    def discard(self, checkpoint: CheckpointId) -> None:
        """A snapshot was given up."""
        self._clean_up.discard(checkpoint)

    def delete(
        self, checkpoints: Iterable[CheckpointId], gone: Callable[[CheckpointId], None]
    ) -> None:
        """Completed checkpoints are no longer kept: see `CleanUp.delete`."""
        self._clean_up.delete(checkpoints, gone)

    def spare(self) -> frozenset[CheckpointId]:
        """Keeps what has not gone yet: see `CleanUp.spare`."""
        return self._clean_up.spare()

    def job_ended(
        self, outcome: Outcome, coordinator: Coordinator, restored: CheckpointId | None
    ) -> None:
        """`restored` is what the last attempt went on from; None: none was ever claimed, there is nothing to do."""
        self._over = True
        if restored is None:
            return
        if retains(self._retain, outcome):
            self._log.finish()
            self._clean_up.at_end(outcome, coordinator, restored)
        else:
            self._log.abandon(self._clean_up.delete_everything)

    @property
    def idle(self) -> bool:
        return self._cleaning.idle and self._log.idle
