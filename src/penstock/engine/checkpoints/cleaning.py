"""Deleting what a job no longer needs. It never holds a checkpoint up: it has a queue of its own, and what fails stays
until the job ends or starts again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from penstock.engine.checkpoints.claiming import may_pass
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.persisting import unsettled
from penstock.engine.later import Later
from penstock.engine.serial import Piece, Serial, State
from penstock.errors import StorageError
from penstock.ports.clock import Clock
from penstock.protocol.coordinator import Coordinator
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.phases import Outcome

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
        self._storage = storage
        self._cleaning = cleaning
        self._later = later
        self._clock = clock
        self._doomed: list[tuple[CheckpointId, Piece]] = []
        """Checkpoints that are to be deleted."""

    def discard(self, checkpoint: CheckpointId) -> None:
        """A snapshot that was given up: its state files go."""
        self._clean(partial(self._files.discard, checkpoint))

    def delete(
        self, checkpoints: Iterable[CheckpointId], gone: Callable[[CheckpointId], None]
    ) -> None:
        """Completed checkpoints that are no longer kept; `gone` hears of each when nobody can go back to it."""
        for checkpoint in checkpoints:
            delete = partial(self._files.delete_checkpoint, checkpoint)
            piece = self._clean(delete, partial(gone, checkpoint))
            self._doomed.append((checkpoint, piece))
        self._doomed = [(n, piece) for n, piece in self._doomed if piece.state is not State.OVER]

    def forget_claims(self, before: AttemptId) -> None:
        """An attempt was claimed: the records of earlier ones go."""
        self._clean(partial(self._files.forget_claims, before))

    def spare(self) -> frozenset[CheckpointId]:
        """Takes back the deletions that have not begun: the newest checkpoint may turn out to be damaged, and then the
        one before it is needed again. Hands back those that are under way."""
        for _, piece in self._doomed:
            piece.take_back()
        self._doomed = [(n, piece) for n, piece in self._doomed if piece.state is not State.OVER]
        return frozenset(n for n, _ in self._doomed)

    def _clean(self, work: Callable[[], None], done: Callable[[], None] = lambda: None) -> Piece:
        return self._cleaning.submit(
            work, lambda _: done(), lambda error: log.info("clean-up: %s", error)
        )

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


def retains(retain: str, outcome: Outcome) -> bool:
    """Whether the checkpoints of a job that ended like this stay."""
    if outcome is Outcome.CANCELLED:
        return retain == "retain_on_cancel"
    return outcome is not Outcome.FAILED or retain != "never_retain"
