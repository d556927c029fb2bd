"""Taking the next attempt number, with what it goes on from: asks storage, remembers what was asked for and found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.connectors.base import Sink
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.manifests import operators_mismatch
from penstock.engine.checkpoints.restore_points import RestorePoint, RestoreWish
from penstock.engine.serial import Serial
from penstock.engine.spec import JobSpec
from penstock.errors import InvariantBroken, StorageError
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Deploy, SnapshotKind
from penstock.protocol.recovery import IDS_RESERVED

log = logging.getLogger("penstock")


class Claims:
    """The restore points of this driver's attempts. Without `files` nothing is durable: all of them start fresh."""

    def __init__(
        self,
        spec: JobSpec,
        wish: RestoreWish,
        files: CheckpointFiles | None,
        storage: Serial,
        sinks: Iterable[Sink],
        ids_reserved: int = IDS_RESERVED,
    ) -> None:
        self.wanted = False
        """An attempt number is to be taken as soon as storage has settled."""
        self.point: RestorePoint | None = None
        """What the newest claimed attempt goes on from."""
        self._spec = spec
        self._wish = wish
        self._files = files
        self._storage = storage
        self._sinks = tuple(sinks)
        self._ids_reserved = ids_reserved
        self._damaged: dict[CheckpointId, str] = {}

    def take(
        self,
        next_id: CheckpointId,
        going: frozenset[CheckpointId],
        claimed: Callable[[RestorePoint], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Takes the next attempt number, in the background. `next_id` is the first checkpoint id not used yet;
        `going` are checkpoints that are being deleted: what is left of them is nothing to go on from."""
        self.wanted = False
        files = self._files
        if files is None:
            attempt = AttemptId(1 if self.point is None else self.point.attempt + 1)
            claimed(RestorePoint(attempt, NO_CHECKPOINT, next_id, (), None))
            return
        wish, damaged = self._wish, dict(self._damaged)
        may_fall_back = all(sink.idempotent for sink in self._sinks)
        self._storage.submit(
            lambda: files.claim(
                wish,
                may_fall_back=may_fall_back,
                damaged=damaged,
                going=going,
                next_id=next_id,
                misfit=lambda manifest: operators_mismatch(manifest, self._spec),
                ids_reserved=self._ids_reserved,
            ),
            claimed,
            failed,
        )

    def accept(self, point: RestorePoint) -> None:
        if point.kind is SnapshotKind.FINAL and self.point is None:
            log.warning(
                "job %s: its input had ended, and checkpoint %s committed all of it: there is nothing left to "
                'do. To run it again start it with restore="fresh" or under another name.',
                self._spec.job,
                point.restored,
            )
        self.point = point
        if not point.origin:
            self.forget_wish()

    def forget_wish(self) -> None:
        """What the user asked to start from counts until the job has something of its own to go on from."""
        self._wish = RestoreWish()

    def point_is_damaged(self, why: str) -> None:
        """A worker could not read the state of the newest claim's checkpoint."""
        if self.point is not None:
            self._damaged[self.point.restored] = why

    def deployment(self, slot: SlotId, attempt: AttemptId) -> Deploy:
        point = self.point
        if point is None or point.attempt != attempt:
            raise InvariantBroken(f"attempt {attempt} is deployed but was not claimed")
        parts = point.manifest.snapshots if point.manifest is not None else ()
        return Deploy(attempt, slot, point.restored, parts, point.origin)


def may_pass(error: BaseException) -> bool:
    """True for trouble with storage as such; its subclasses say that trying again cannot help."""
    return type(error) is StorageError
