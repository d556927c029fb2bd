"""The files of state of one attempt on one worker: where they are written, where they are read back from, what of them
has a copy on the worker's own disk."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from penstock.engine.metrics import COPIES_LOST, RESTORED_BYTES, series
from penstock.engine.worker.kept_copies import KeptCopies
from penstock.engine.worker.snapshots import fetch_with
from penstock.ports.background import Background
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import Deploy
from penstock.protocol.snapshot import Block, Segment, SubtaskSnapshot
from penstock.state.segments import Fetch, is_right
from penstock.storage.local_copies import CopiedStore, LocalCopies


class StateFiles:
    def __init__(
        self,
        deploy: Deploy,
        own: CheckpointStore | None,
        origin: CheckpointStore | None,
        copies: LocalCopies | None,
        background: Background,
    ) -> None:
        """`own` is the job's store, `origin` the one that the restored files are in. Only the job's own have copies."""
        self.store = CopiedStore(own, copies) if own is not None else None
        self._read = self.store
        if origin is not own:
            self._read = CopiedStore(origin) if origin is not None else None
        self._fetch = fetch_with(self._read_block if self._read is not None else None)
        self._kept: KeptCopies | None = None
        if copies is not None:
            self._kept = KeptCopies(copies, deploy.slot, deploy.attempt, background)
            self._kept.deployed(() if deploy.origin else deploy.snapshots)

    def fetch(self, segment: Segment) -> Fetch:
        """Of what is restored."""
        return self._fetch(segment)

    def acked(self, checkpoint: CheckpointId, snapshots: Sequence[SubtaskSnapshot]) -> None:
        if self._kept is not None:
            self._kept.acked(checkpoint, snapshots)

    def completed(self, checkpoint: CheckpointId, held: Collection[str] = ()) -> None:
        """`held`: files that later checkpoints may refer to, although none does yet."""
        if self._kept is not None:
            self._kept.completed(checkpoint, held)

    @property
    def restored_bytes(self) -> tuple[int, int]:
        """What was read back, and how much of it from copies."""
        read = self._read
        return (0, 0) if read is None else (read.local_bytes + read.primary_bytes, read.local_bytes)

    def metrics(self) -> dict[str, float]:
        """Since the attempt began."""
        if self.store is None:
            return {}
        total, local = self.restored_bytes
        numbers: dict[str, float] = {series(RESTORED_BYTES, copy="primary"): total - local}
        if self.store.copies_lost is not None:
            numbers[series(RESTORED_BYTES, copy="local")] = local
            numbers[COPIES_LOST] = self.store.copies_lost
        return numbers

    def _read_block(self, name: str, block: Block) -> bytes:
        """A copy that is not what was written is passed over."""
        if self._read is None:
            raise ValueError(f"no store to read {name} from")
        return self._read.read(name, block.offset, block.length, partial(is_right, block))
