"""Shared files in storage: which checkpoint refers to which, and deleting those that nobody does.

What may go is for `protocol.retention` to say; here it is told what lies in storage. Every call but those that replace
`retention` blocks, and runs in the background.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.engine.checkpoints import leases
from penstock.engine.checkpoints.ownership import Ownership
from penstock.errors import CheckpointCorrupt
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.retention import Files, Retention, SharedFile, Strays
from penstock.wire import manifest as manifests
from penstock.wire import paths
from penstock.wire.manifest import Manifest
from penstock.wire.tombstones import is_tombstone


class SharedFiles:
    def __init__(self, store: CheckpointStore, owner: Ownership) -> None:
        self.retention = Retention()
        """The loop replaces it whole, at any time: whoever deletes looks at it when it has listed what there is."""
        self._store = store
        self._owner = owner

    def delete_only_of(self, checkpoint: CheckpointId) -> Strays:
        """For a checkpoint that has just gone: the owner was looked at, its metadata deleted."""
        strays = self.retention.only_of(checkpoint)
        self._delete(strays)
        return strays

    def delete_strays(self, files: Iterable[SharedFile]) -> None:
        """Those of them that are strays. A driver that is no longer the owner deletes none."""
        strays = self.retention.strays(files)
        if strays:
            self._owner.check(thoroughly=True)
            self._delete(strays)

    def sweep(self) -> None:
        """Everything that writers of this attempt and of older ones left behind."""
        self.delete_strays(self._listed())

    def sweep_last(self, names: Collection[str], now_ms: float) -> None:
        """At the end of a job: what nothing that is left refers to. `names` are the files of the checkpoints that are
        left; nothing is pending any more."""
        listed, own = self._listed(), self._owner.attempt
        if not listed or own is None:
            return
        existing, unreadable = read_references(self._store, names, now_ms)
        left = Retention().claimed(AttemptId(own + 1), existing, unreadable)
        self._delete(left.strays(listed))

    def _listed(self) -> Files:
        return paths.shared_among(self._store.list(paths.SHARED_FOLDER))

    def _delete(self, strays: Strays) -> None:
        for file in strays:
            self._store.delete(file.name)


def references(
    store: CheckpointStore,
    names: Collection[str],
    readable: Mapping[CheckpointId, Manifest],
    now_ms: float,
) -> dict[CheckpointId, Files]:
    """What each checkpoint refers to, and what others that have gone are still read for."""
    read = leases.files_read(store, left_to_readers(names), names, now_ms)
    return {n: paths.shared_among(files) for n, files in read.items()} | {
        n: paths.shared_among(manifest.files) for n, manifest in readable.items()
    }


def read_references(
    store: CheckpointStore, names: Collection[str], now_ms: float
) -> tuple[dict[CheckpointId, Files], CheckpointId]:
    """The same for whoever has not read the manifests, and the newest of them that cannot be read."""
    readable: dict[CheckpointId, Manifest] = {}
    unreadable = NO_CHECKPOINT
    for name in sorted(names):
        checkpoint = paths.metadata_of(name)
        if checkpoint is None:
            continue
        try:
            data = store.read(name)
            if not is_tombstone(name, data):
                readable[checkpoint] = manifests.decode(data, name)
        except CheckpointCorrupt:
            unreadable = max(unreadable, checkpoint)
    return references(store, names, readable, now_ms), unreadable


def left_to_readers(names: Collection[str]) -> list[CheckpointId]:
    """Checkpoints of which all is deleted but the files that somebody reads."""
    leased = {n for name in names if (n := paths.lease_of(name)) is not None}
    return sorted(n for n in leased if paths.metadata(n) not in names)
