"""Deleting what a job no longer needs. It never holds a checkpoint up: it has a queue of its own, and what fails stays
until the job ends or starts again.

It hears what becomes of every snapshot, because shared files are needed by more than one (`protocol.retention`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from penstock.engine.checkpoints.claiming import may_pass
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.persisting import unsettled
from penstock.engine.checkpoints.restore_points import RestorePoint
from penstock.engine.later import Later
from penstock.engine.serial import Piece, Serial, State
from penstock.errors import StorageError
from penstock.ports.clock import Clock
from penstock.protocol.coordinator import Coordinator
from penstock.protocol.ids import CheckpointId
from penstock.protocol.phases import Outcome
from penstock.protocol.retention import Files, Retention, Strays
from penstock.protocol.snapshot import SubtaskSnapshot
from penstock.wire import paths

T = TypeVar("T")

TIDY_TRIES_MAX = 10
"""How often the last clean-up is tried; what it leaves goes when the job of this name ends the next time."""
TIDY_PAUSE_MS = 200.0

log = logging.getLogger("penstock")


class CleanUp:
    """`storage` is the queue of what must be in order with claims and metadata, `cleaning` that of all the rest."""

    def __init__(
        self,
        job: str,
        files: CheckpointFiles,
        storage: Serial,
        cleaning: Serial,
        later: Later,
        clock: Clock,
    ) -> None:
        self._job = job
        self._files = files
        self._shared = files.shared
        self._storage = storage
        self._cleaning = cleaning
        self._later = later
        self._clock = clock
        self._doomed: list[tuple[CheckpointId, Piece]] = []
        """Checkpoints that are to be deleted."""
        self._pinned: list[tuple[CheckpointId, Callable[[CheckpointId], None]]] = []
        """Those that are to be deleted when nothing pending builds on them any more."""
        self._going: frozenset[CheckpointId] = frozenset()
        """Those whose deletion was under way when it was last asked to `spare` them."""

    # ---- what happens

    def claimed(self, point: RestorePoint) -> None:
        """The records of earlier attempts go, and the shared files that they left behind and nobody refers to. Nothing
        is pinned any more: what was is deleted with the next checkpoint that completes."""
        self._pinned = []
        self._shared.retention = self._shared.retention.claimed(
            point.attempt, point.references, point.unreadable, self._going
        )
        self._clean(partial(self._files.forget_claims, point.attempt))
        self._clean(self._shared.sweep)

    def triggered(self, checkpoint: CheckpointId, base: CheckpointId) -> None:
        """`base`: the completed checkpoint whose files it may refer to; 0: none."""
        is_rebased = self._shared.retention.is_rebased(base)
        self._shared.retention = self._shared.retention.triggered(checkpoint, base)
        if is_rebased:
            self._clean(self._shared.sweep)

    def acknowledged(self, checkpoint: CheckpointId, parts: Iterable[SubtaskSnapshot]) -> None:
        """Perhaps too late."""
        self._turn(self._shared.retention.acknowledged(checkpoint, _shared_in(parts)))

    def completed(self, checkpoint: CheckpointId, parts: Iterable[SubtaskSnapshot]) -> None:
        self._turn(self._shared.retention.completed(checkpoint, _shared_in(parts)))

    def discard(self, checkpoint: CheckpointId) -> None:
        """A snapshot that was given up: its state files go."""
        self._turn(self._shared.retention.given_up(checkpoint))
        self._clean(partial(self._files.discard, checkpoint))

    def delete(
        self, checkpoints: Iterable[CheckpointId], gone: Callable[[CheckpointId], None]
    ) -> None:
        """Completed checkpoints that are no longer kept; `gone` hears of each when nobody can go back to it."""
        self._pinned += [(checkpoint, gone) for checkpoint in checkpoints]
        self._delete_unpinned()

    def _delete_unpinned(self) -> None:
        is_pinned = self._shared.retention.is_pinned
        free = [entry for entry in self._pinned if not is_pinned(entry[0])]
        self._pinned = [entry for entry in self._pinned if is_pinned(entry[0])]
        for checkpoint, gone in free:
            delete = partial(self._files.delete_checkpoint, checkpoint)
            piece = self._clean(delete, partial(self._deleted, checkpoint, gone))
            self._doomed.append((checkpoint, piece))
        self._doomed = [(n, piece) for n, piece in self._doomed if piece.state is not State.OVER]

    def _deleted(
        self,
        checkpoint: CheckpointId,
        gone: Callable[[CheckpointId], None],
        nothing_left: Mapping[CheckpointId, Strays],
    ) -> None:
        for n, with_it in nothing_left.items():
            self._turn(self._shared.retention.deleted(n, with_it))
        gone(checkpoint)

    def spare(self) -> frozenset[CheckpointId]:
        """Takes back the deletions that have not begun: the newest checkpoint may turn out to be damaged, and then the
        one before it is needed again. Hands back those that are under way."""
        for _, piece in self._doomed:
            piece.take_back()
        self._doomed = [(n, piece) for n, piece in self._doomed if piece.state is not State.OVER]
        self._going = frozenset(n for n, _ in self._doomed)
        return self._going

    def _turn(self, turned: tuple[Retention, Strays]) -> None:
        self._shared.retention, strays = turned
        if strays:
            self._clean(partial(self._shared.delete_strays, strays))
        if self._pinned:
            self._delete_unpinned()

    def _clean(self, work: Callable[[], T], done: Callable[[T], None] = lambda _: None) -> Piece:
        return self._cleaning.submit(work, done, lambda error: log.info("clean-up: %s", error))

    # ---- the end

    def at_end(self, outcome: Outcome, coordinator: Coordinator, restored: CheckpointId) -> None:
        """A checkpoint whose metadata may exist keeps its files. So do those that are newer than the `restored` one, if
        none came after it: somebody went back, it led nowhere, and he may want to go forward again. Deletions that were
        taken back (see `spare`) are due now, where the newest checkpoint is known to be whole: the job came to its end
        with it."""

        def work() -> None:
            unclear = unsettled(coordinator)
            fruitless = coordinator.newest_completed <= restored
            whole = outcome in (Outcome.FINISHED, Outcome.STOPPED)
            kept = coordinator.retained if whole else coordinator.completed
            self._files.sweep(kept, coordinator.next_id, unclear, spare_newer=fruitless)
            if unclear:
                raise StorageError(f"nobody knows yet whether checkpoints {unclear} exist")

        self._at_last(work)

    def delete_everything(self) -> None:
        self._at_last(self._files.delete_everything)

    def _at_last(self, work: Callable[[], None], tries: int = TIDY_TRIES_MAX) -> None:
        """Behind what is being persisted, and behind all other clean-up: what that leaves behind is found then."""

        def failed(error: BaseException) -> None:
            log.info("job %s: clean-up: %s", self._job, error)
            if may_pass(error) and tries > 1:
                again = partial(self._at_last, work, tries - 1)
                self._later.at(self._clock.monotonic_ms() + TIDY_PAUSE_MS, again)

        def sweep(_: object) -> None:
            self._storage.submit(work, lambda _: None, failed)

        self._cleaning.submit(lambda: None, sweep, sweep)


def _shared_in(parts: Iterable[SubtaskSnapshot]) -> Files:
    return paths.shared_among(segment.file for part in parts for segment in part.segments)


def retains(retain: str, outcome: Outcome) -> bool:
    """Whether the checkpoints of a job that ended like this stay."""
    if outcome is Outcome.CANCELLED:
        return retain == "retain_on_cancel"
    return outcome is not Outcome.FAILED or retain != "never_retain"
