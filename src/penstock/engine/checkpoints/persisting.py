"""Making a checkpoint exist: its metadata is written in the background until it is known whether it is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.engine.checkpoints.claiming import may_pass
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.later import Later
from penstock.engine.serial import Serial
from penstock.ports.clock import Clock
from penstock.protocol.coordinator import Coordinator, Persisting
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.wire.manifest import Manifest

PERSIST_PAUSE_MS = 200.0
TRIES_UNTOLD = 1
"""Storage that fails for a moment is nothing to talk about; after that it is told again and again, ever less often."""


class Persister:
    """`is_over` says whether the job has ended: then nobody asks again. `tell` hears of trouble that lasts."""

    def __init__(
        self,
        files: CheckpointFiles,
        storage: Serial,
        later: Later,
        clock: Clock,
        is_over: Callable[[], bool],
        tell: Callable[[str, AttemptId], None],
    ) -> None:
        self._files = files
        self._storage = storage
        self._later = later
        self._clock = clock
        self._is_over = is_over
        self._tell = tell

    def persist(
        self,
        manifest: Manifest,
        settled: Callable[[bool], None],
        refused: Callable[[BaseException], None],
    ) -> None:
        """`settled` hears whether the checkpoint exists, `refused` why this driver may not write at all. While storage
        leaves it open, it is asked again."""
        tries = 0

        def failed(error: BaseException) -> None:
            if not may_pass(error):
                refused(error)
            elif not self._is_over():
                if tries > TRIES_UNTOLD and tries.bit_count() == 1:
                    self._tell(_still_open(manifest.checkpoint, tries, error), manifest.attempt)
                self._later.at(self._clock.monotonic_ms() + PERSIST_PAUSE_MS, submit)

        def submit() -> None:
            nonlocal tries
            tries += 1
            work = partial(self._files.persist, manifest, again=tries > 1)
            self._storage.submit(work, settled, failed)

        submit()


def _still_open(checkpoint: CheckpointId, tries: int, error: BaseException) -> str:
    """The cause goes first: it is what somebody has to do something about."""
    return (
        f"StorageError: {error}. The metadata of checkpoint {checkpoint} could not be written in {tries} tries, and "
        "until it is known whether it exists no other checkpoint can be taken and no attempt started; trying on"
    )


def unsettled(coordinator: Coordinator) -> list[CheckpointId]:
    """Snapshots of which nobody knows yet whether they exist."""
    return [n for n, p in coordinator.unfinished.items() if isinstance(p, Persisting)]
