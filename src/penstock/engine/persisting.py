"""Making a checkpoint exist: its metadata is written in the background until it is known whether it is there."""

from __future__ import annotations

from collections.abc import Callable

from penstock.engine.checkpoint_files import CheckpointFiles
from penstock.engine.claiming import may_pass
from penstock.engine.later import Later
from penstock.engine.serial import Serial
from penstock.ports.clock import Clock
from penstock.protocol.coordinator import Coordinator, Persisting
from penstock.protocol.ids import CheckpointId
from penstock.wire.manifest import Manifest

PERSIST_PAUSE_MS = 200.0


class Persister:
    """`is_over` says whether the job has ended: then nobody asks again."""

    def __init__(
        self,
        files: CheckpointFiles,
        storage: Serial,
        later: Later,
        clock: Clock,
        is_over: Callable[[], bool],
    ) -> None:
        self._files = files
        self._storage = storage
        self._later = later
        self._clock = clock
        self._is_over = is_over

    def persist(
        self,
        manifest: Manifest,
        settled: Callable[[bool], None],
        refused: Callable[[BaseException], None],
    ) -> None:
        """`settled` hears whether the checkpoint exists, `refused` why this driver may not write at all. While storage
        leaves it open, it is asked again."""

        def failed(error: BaseException) -> None:
            if not may_pass(error):
                refused(error)
            elif not self._is_over():
                self._later.at(self._clock.monotonic_ms() + PERSIST_PAUSE_MS, submit)

        def submit() -> None:
            self._storage.submit(lambda: self._files.persist(manifest), settled, failed)

        submit()


def unsettled(coordinator: Coordinator) -> list[CheckpointId]:
    """Snapshots of which nobody knows yet whether they exist."""
    return [n for n, p in coordinator.unfinished.items() if isinstance(p, Persisting)]
