"""Which copies on the worker's own disk stay: those that a restart would read.

That is the newest completed checkpoint, and those under way. A worker throws away what its own slot has written and no
longer refers to. What others left on this disk, slots that are elsewhere now or are no more, goes at the next
deployment, which says all that the whole job refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from penstock.ports.background import Background
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId, SlotId
from penstock.protocol.snapshot import SubtaskSnapshot
from penstock.storage.local_copies import LocalCopies
from penstock.wire import paths
from penstock.wire.paths import WorkerFile


class KeptCopies:
    """Of one attempt, on the loop's thread; the disk is touched in the background."""

    def __init__(
        self, copies: LocalCopies, slot: SlotId, attempt: AttemptId, background: Background
    ) -> None:
        self._copies = copies
        self._slot = slot
        self._attempt = attempt
        self._background = background
        self._acked: dict[CheckpointId, frozenset[str]] = {}
        """The files that they refer to."""
        self._completed = NO_CHECKPOINT

    def deployed(self, snapshots: Sequence[SubtaskSnapshot]) -> None:
        """The attempt goes on from these, of all slots: no other file of earlier attempts is read again."""
        self._clean(files_of(snapshots), lambda file: file.attempt < self._attempt)

    def acked(self, checkpoint: CheckpointId, snapshots: Sequence[SubtaskSnapshot]) -> None:
        self._acked[checkpoint] = files_of(snapshots)

    def completed(self, checkpoint: CheckpointId, held: Collection[str] = ()) -> None:
        """Said again and again. `held`: what later checkpoints may refer to, although none does yet."""
        if checkpoint <= self._completed or checkpoint not in self._acked:
            return
        self._completed = checkpoint
        self._acked = {n: files for n, files in self._acked.items() if n >= checkpoint}
        wanted = frozenset(held).union(*self._acked.values())
        self._clean(wanted, lambda file: file.slot == self._slot and file.checkpoint <= checkpoint)

    def _clean(self, wanted: frozenset[str], is_ours: Callable[[WorkerFile], bool]) -> None:
        copies = self._copies

        def clean() -> None:
            for name in copies.list():
                file = paths.worker_file_of(name) or paths.shared_of(name)
                if file is not None and name not in wanted and is_ours(file):
                    copies.delete(name)

        self._background.submit(clean, lambda _: None, lambda _: None)


def files_of(snapshots: Sequence[SubtaskSnapshot]) -> frozenset[str]:
    """All that these refer to."""
    found = [
        segment for each in snapshots for op in each.operators.values() for segment in op.segments
    ]
    found += [entry.segment for each in snapshots for entry in each.inflight]
    return frozenset(segment.file for segment in found if segment.inline is None)
