"""What lies in a job's folder and no checkpoint needs, for somebody who owns nothing there.

The job may run meanwhile. So only what is over counts: files of attempts before the newest that has recorded what it
goes on from, and files of snapshots before the newest checkpoint of that attempt, which ended all older ones. A job
cleans up by itself; what is found here was written by workers and drivers that died.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from penstock.engine.checkpoints import leases
from penstock.engine.checkpoints.shared import read_references
from penstock.errors import CheckpointCorrupt
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.retention import Retention
from penstock.wire import manifest as manifests
from penstock.wire import paths
from penstock.wire.tombstones import is_tombstone


@dataclass(frozen=True)
class Garbage:
    name: str
    why: str


def find_garbage(store: CheckpointStore, now_ms: float) -> list[Garbage]:
    """Sorted. Nothing where no attempt has recorded anything yet."""
    names = store.list()
    newest = max((a for name in names if (a := paths.restored_of(name)) is not None), default=None)
    if newest is None:
        return []
    over = _Over(newest, _newest_complete(store, names, newest))
    found = [*_unshared(store, names, over, now_ms), *_snapshots(store, names, over, now_ms)]
    return sorted(found, key=lambda each: each.name)


@dataclass(frozen=True)
class _Over:
    """The newest attempt, and its newest checkpoint: what comes before either has ended."""

    attempt: AttemptId
    checkpoint: CheckpointId

    def why(self, checkpoint: CheckpointId, attempt: AttemptId) -> str:
        """Empty while it may go on."""
        if attempt < self.attempt:
            return f"attempt {attempt} is over"
        if attempt == self.attempt and checkpoint <= self.checkpoint:
            return f"checkpoint {self.checkpoint} came after it"
        return ""


def _newest_complete(
    store: CheckpointStore, names: Collection[str], attempt: AttemptId
) -> CheckpointId:
    """Of this attempt. One that has gone meanwhile, or cannot be read, is passed over."""
    there = sorted(
        (n for name in names if (n := paths.metadata_of(name)) is not None), reverse=True
    )
    for checkpoint in there:
        name = paths.metadata(checkpoint)
        try:
            data = store.read(name)
            if not is_tombstone(name, data) and manifests.decode(data, name).attempt == attempt:
                return checkpoint
        except CheckpointCorrupt:
            continue
    return NO_CHECKPOINT


def _unshared(
    store: CheckpointStore, names: Collection[str], over: _Over, now_ms: float
) -> Iterator[Garbage]:
    """Shared files that nothing refers to."""
    existing, unreadable = read_references(store, names, now_ms)
    retention = Retention(
        over.attempt,
        existing,
        newest=over.checkpoint,
        unreadable=unreadable,
        base=min(existing, default=NO_CHECKPOINT),
    )
    for file in retention.strays(paths.shared_among(names)):
        why = over.why(file.checkpoint, file.attempt)
        yield Garbage(file.name, f"no checkpoint refers to it, and {why}")


def _snapshots(
    store: CheckpointStore, names: Collection[str], over: _Over, now_ms: float
) -> Iterator[Garbage]:
    """State and leases of snapshots that never were complete, or are not there any more."""
    folders: dict[CheckpointId, list[str]] = {}
    for name in names:
        checkpoint = paths.checkpoint_of(name) or paths.lease_of(name)
        if checkpoint is not None:
            folders.setdefault(checkpoint, []).append(name)
    for checkpoint, files in folders.items():
        if _exists(store, checkpoint, files) or leases.is_read(store, files, now_ms):
            continue
        for name in files:
            why = _why_left(name, checkpoint, over)
            if why:
                yield Garbage(name, why)


def _exists(store: CheckpointStore, checkpoint: CheckpointId, files: Collection[str]) -> bool:
    """Also if its metadata is damaged: somebody may repair it; or has gone meanwhile: the job deletes the rest."""
    name = paths.metadata(checkpoint)
    try:
        return name in files and not is_tombstone(name, store.read(name))
    except CheckpointCorrupt:
        return True


def _why_left(name: str, checkpoint: CheckpointId, over: _Over) -> str:
    file = paths.worker_file_of(name)
    if file is not None:
        why = over.why(checkpoint, file.attempt)
        return why and f"checkpoint {checkpoint} does not exist, and {why}"
    if paths.lease_of(name) is not None:
        return f"a lease that has expired, for checkpoint {checkpoint}, which does not exist"
    return ""
