"""The job manager's side of storage: an attempt is claimed, a checkpoint comes to exist, one is deleted. Every call
blocks; all of them run in the background, one after the other.

How a completed checkpoint comes to exist: its metadata is created exclusively, *then* the owner is read again, and
only then is anybody told. A write whose outcome is unknown is settled by exclusive creation, too: either the metadata
is there, or a tombstone takes its place and it never will be.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from penstock.engine.checkpoints import leases
from penstock.engine.checkpoints.ownership import Ownership
from penstock.engine.checkpoints.restore_points import (
    ClaimRefused,
    RestorePoint,
    RestorePoints,
    RestoreWish,
    origin_damaged,
    wished,
)
from penstock.engine.checkpoints.shared import SharedFiles, left_to_readers, references
from penstock.engine.history.files import HistoryFiles
from penstock.errors import StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol import recovery
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.recovery import IDS_RESERVED, Facts, Origin
from penstock.protocol.retention import Strays
from penstock.redaction import redacted
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest
from penstock.wire.tombstones import is_tombstone, tombstone

log = logging.getLogger("penstock")

FIRST_CHECKPOINT = CheckpointId(1)
LOOKED_AGAIN_MAX = 2
"""Of the checkpoints that were still read when they were to go, so many are looked at again with each deletion: more
than it can add."""


class CheckpointFiles:
    """`open_origin` opens another job's directory, to begin with a checkpoint of it."""

    def __init__(
        self,
        store: CheckpointStore,
        job: str,
        driver: str,
        wall_ms: Callable[[], float],
        open_origin: Callable[[str], CheckpointStore] | None = None,
    ) -> None:
        self._store = store
        self._wall_ms = wall_ms
        self._owner = Ownership(store, job, driver, wall_ms)
        self._points = RestorePoints(store, job, self._owner, open_origin)
        self.shared = SharedFiles(store, self._owner)
        self.not_written = ""
        """What the store said the last time it did not write metadata."""
        self._still_read: deque[CheckpointId] = deque()
        """Their metadata is gone and their other files are to go, too, when nobody reads them any more. A claim, on
        another thread, replaces all of it at once."""

    def history(self) -> HistoryFiles:
        """The past of the job, in the same directory."""
        return HistoryFiles(self._store)

    # ---- claiming

    def claim(
        self,
        wish: RestoreWish,
        *,
        may_fall_back: bool,
        damaged: Mapping[CheckpointId, str],
        going: frozenset[CheckpointId] = frozenset(),
        next_id: CheckpointId = FIRST_CHECKPOINT,
        misfit: Callable[[Manifest], str] = lambda _: "",
        ids_reserved: int = IDS_RESERVED,
    ) -> RestorePoint:
        """Takes the next attempt number, looks, decides, records the decision, and looks who owns the job now.

        `going` are checkpoints that are being deleted. `next_id` is the first id that this driver has not used
        itself. `misfit` says why the job cannot go on from a checkpoint: then nothing is recorded, so that what was
        there before stays good."""
        attempt = self._owner.take_next()
        names = self._store.list()
        self._still_read = deque(left_to_readers(names))
        facts, found = self._points.facts(names, damaged, going)
        first_id = max(next_id, recovery.first_free_id(facts))
        if wish.fresh or wish.manifest is not None:
            self._points.check_wish(wish, names)
            point = wished(attempt, wish, facts, first_id)
        else:
            decision = recovery.decide(facts, may_fall_back=may_fall_back)
            point = self._points.decided(attempt, decision, facts, found, first_id)
        if point.origin and NO_CHECKPOINT in damaged:
            raise ClaimRefused(origin_damaged(point, damaged[NO_CHECKPOINT]))
        if point.manifest is not None and (reason := misfit(point.manifest)):
            raise ClaimRefused(reason)
        older = tuple(found[n] for n in point.kept if n in found and n < point.restored)
        point = replace(
            point,
            ids_reserved=ids_reserved,
            older=older,
            references=references(self._store, names, found, self._wall_ms()),
            unreadable=_newest_unreadable(facts, names),
        )
        self._record(point, facts)
        # Whoever claimed after us has either seen what we recorded, or is seen now: no id is ever used by both.
        self._owner.check()
        return point

    def _record(self, point: RestorePoint, facts: Facts) -> None:
        """All that later claims need to know: see `recovery`."""
        origin = _begun_with(point, facts)
        record = records.RestoredRecord(
            point.attempt,
            point.restored,
            point.ids_until,
            point.first_id,
            origin.root if origin is not None else "",
            origin.checkpoint if origin is not None else NO_CHECKPOINT,
            point.kept,
        )
        self._store.create(paths.restored(point.attempt), records.encode_restored(record))

    def forget_claims(self, before: AttemptId) -> None:
        """Deletes the records of claims before this one, which was recorded and says what they said. The number itself
        stays taken as long as it is the newest."""
        for name in reversed(self._store.list(paths.OWNER_FOLDER)):
            attempt = paths.owner_of(name) or paths.restored_of(name)
            if attempt is not None and attempt < before:
                self._store.delete(name)

    # ---- completing

    def persist(self, manifest: Manifest, *, again: bool = False) -> bool:
        """Makes the checkpoint exist. False: it does not, and never will. Raises when that is not known yet. `again`:
        it was tried before, and in the meantime another driver may have taken the job over and deleted it."""
        name = paths.metadata(manifest.checkpoint)
        if again:
            self._owner.check()
        data = manifests.encode(manifest)
        try:
            created = self._store.create(name, data)
        except StorageError as error:
            created, self.not_written = False, str(error)
            self._owner.check()
            if self._store.create(name, tombstone(manifest.checkpoint)):
                return False
        if not created:
            there = self._store.read(name)
            if is_tombstone(name, there):
                return False
            if there != data:
                self._take_away(name)
        self._owner.check()
        return True

    def _take_away(self, name: str) -> None:
        """Metadata that was damaged before anybody was told of it: asked again, this driver writes it again."""
        self._owner.check(thoroughly=True)
        self._store.delete(name)
        raise StorageError(f"{name} was not what had been written, and was deleted")

    # ---- clean-up

    def delete_checkpoint(self, checkpoint: CheckpointId) -> dict[CheckpointId, Strays]:
        """Deletes a checkpoint that is no longer kept, its metadata first: it must not exist by halves. A driver that
        is no longer the owner deletes none: another one may be going on from it. While somebody reads it, its other
        files stay, and are looked at again with later ones. Hands back those of which nothing is left, with the shared
        files that went with each: they go last, when nobody can go back to it any more."""
        self._owner.check(thoroughly=True)
        waiting = self._still_read
        earlier = min(LOOKED_AGAIN_MAX, len(waiting))
        gone = []
        if self._delete(checkpoint, [paths.metadata(checkpoint)]):
            gone.append(checkpoint)
        else:
            log.info("checkpoint %s is being read: its files stay for now", checkpoint)
            waiting.append(checkpoint)
        for _ in range(earlier):
            gone += self._look_again(waiting)
        return {n: self.shared.delete_only_of(n) for n in gone}

    def _look_again(self, waiting: deque[CheckpointId]) -> list[CheckpointId]:
        """At the one that has waited longest for that; where it stays it is the last in turn."""
        waiting.rotate(-1)
        return [waiting.pop()] if self._delete_rest(self._files_of(waiting[-1])) else []

    def _delete(self, checkpoint: CheckpointId, names: Collection[str]) -> bool:
        """`names` are files of it. Where its metadata is among them the others are looked for when that is gone:
        whoever takes a lease after that sees that there is no such checkpoint any more. False: somebody reads it."""
        metadata = paths.metadata(checkpoint)
        if metadata in names:
            self._store.delete(metadata)
            names = self._files_of(checkpoint)
        return self._delete_rest(names)

    def _delete_rest(self, names: Iterable[str]) -> bool:
        """The files of a checkpoint without metadata. False: they stay, because somebody reads it."""
        if leases.is_read(self._store, names, self._wall_ms()):
            return False
        for name in sorted(names):
            self._store.delete(name)
        return True

    def _files_of(self, checkpoint: CheckpointId) -> list[str]:
        names = self._store.list(paths.checkpoint_folder(checkpoint))
        return [name for name in names if _folder_of(name) == checkpoint]

    def discard(self, checkpoint: CheckpointId) -> None:
        """Deletes the state files of a snapshot that was given up, also those that nobody was told of. A tombstone
        stays where it is. So does a checkpoint that exists: a late answer for one whose own deletion has failed must
        not leave it by halves."""
        names = self._store.list(paths.checkpoint_folder(checkpoint))
        if any(self._is_complete(name) for name in names):
            return
        for name in names:
            if paths.worker_file_of(name) is not None:
                self._store.delete(name)
        self.shared.sweep()

    def _is_complete(self, name: str) -> bool:
        return paths.metadata_of(name) is not None and not is_tombstone(
            name, self._store.read(name)
        )

    def sweep(
        self,
        kept: Collection[CheckpointId],
        before: CheckpointId,
        unsettled: Collection[CheckpointId] = (),
        *,
        spare_newer: bool = False,
    ) -> None:
        """Deletes everything of snapshots below `before` that are not kept: what late writers left behind, and what is
        left of one whose metadata is gone already; one that cannot be deleted does not keep the others. Of `unsettled`
        ones nobody knows yet whether they exist.
        `spare_newer` keeps all that have metadata and are newer than what is kept. A driver that is no longer the owner
        deletes nothing: another one may be going on from those files. What somebody reads stays for the next sweep.
        Last come shared files that nothing refers to which is left; while nobody knows what is, all of them stay."""
        names = self._store.list()
        there = {n for name in names if (n := paths.metadata_of(name)) is not None}
        keep = there.intersection(kept).union(unsettled)
        if spare_newer:
            newest = max(kept, default=NO_CHECKPOINT)
            keep.update(n for n in there if n > newest)
        self._owner.check(thoroughly=True)
        stale = {n for name in names if (n := _folder_of(name)) is not None and n < before} - keep
        failures = []
        left = {name for name in names if _folder_of(name) is not None}
        for checkpoint in sorted(stale):
            try:
                left -= self._swept(checkpoint, names)
            except StorageError as error:
                failures.append(error)
        if not unsettled:
            self.shared.sweep_last(left, self._wall_ms())
        if failures:
            raise failures[0]

    def _swept(self, checkpoint: CheckpointId, names: Iterable[str]) -> set[str]:
        """Those of its files that are gone now: while somebody reads it, the metadata alone."""
        files = {name for name in names if _folder_of(name) == checkpoint}
        return files if self._delete(checkpoint, files) else {paths.metadata(checkpoint)}

    def delete_everything(self) -> None:
        """For retention policies that keep nothing: every file that this job can have written, if it is still ours,
        also what somebody reads. What says whose it is goes last, and after all checkpoints: if this ends half way,
        none exists by halves."""
        names = [name for name in self._store.list() if paths.is_known(name)]
        self._owner.check(thoroughly=True)
        own = self._owner.attempt
        own_name = paths.owner(own) if own is not None else ""
        last = [name for name in (own_name, paths.JOB) if name in names]
        checkpoints = [name for name in names if paths.checkpoint_of(name) is not None]
        rest = [name for name in names if name not in {*last, *checkpoints}]
        for name in [*sorted(checkpoints, key=_one_by_one), *rest, *last]:
            self._store.delete(name)


def _begun_with(point: RestorePoint, facts: Facts) -> Origin | None:
    """What the job was begun with, by this claim or by an earlier one that it goes on from."""
    if point.restored != NO_CHECKPOINT:
        return recovery.beginning(facts.claims)
    if not point.origin or point.manifest is None:
        return None
    return Origin(redacted(point.origin), point.manifest.checkpoint)


def _newest_unreadable(facts: Facts, names: Collection[str]) -> CheckpointId:
    """Of the damaged checkpoints that are still there: nobody knows which files they refer to."""
    there = (d.checkpoint for d in facts.damaged if paths.metadata(d.checkpoint) in names)
    return max(there, default=NO_CHECKPOINT)


def _folder_of(name: str) -> CheckpointId | None:
    """The checkpoint that a file of ours lies beside."""
    checkpoint = paths.checkpoint_of(name)
    return paths.lease_of(name) if checkpoint is None else checkpoint


def _one_by_one(name: str) -> tuple[CheckpointId, bool]:
    """The order of deletions: no checkpoint is begun before the last has gone, and of each the metadata goes first."""
    return paths.checkpoint_of(name) or NO_CHECKPOINT, paths.metadata_of(name) is None
