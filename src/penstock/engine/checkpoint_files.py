"""The job manager's side of storage: claims, restore points, metadata and clean-up. Every call blocks; all of them run
in the background, one after the other.

How a completed checkpoint comes to exist: its metadata is created exclusively, *then* the owner is read again, and
only then is anybody told. A write whose outcome is unknown is settled by exclusive creation, too: either the metadata
is there, or a tombstone takes its place and it never will be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.engine.history_files import HistoryFiles
from penstock.errors import CheckpointCorrupt, JobFenced, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol import recovery
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.recovery import IDS_RESERVED, Claim, Damaged, Facts, Found, Origin
from penstock.redaction import HIDDEN, redacted
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest


def tombstone(checkpoint: CheckpointId) -> bytes:
    """What lies in the place of metadata that will never be. It says whose: one in another's place is damage."""
    return f"checkpoint {checkpoint} was given up\n".encode("ascii")


def is_tombstone(name: str, data: bytes) -> bool:
    checkpoint = paths.metadata_of(name)
    return checkpoint is not None and data == tombstone(checkpoint)


FIRST_CHECKPOINT = CheckpointId(1)


@dataclass(frozen=True)
class RestorePoint:
    """What an attempt goes on from. `manifest` is None on a fresh start."""

    attempt: AttemptId
    restored: CheckpointId
    """In this job's own numbering; 0 when it starts fresh or from another job's checkpoint."""
    first_id: CheckpointId
    kept: tuple[CheckpointId, ...]
    """Own completed checkpoints up to the restored one."""
    manifest: Manifest | None
    origin: str = ""
    warnings: tuple[str, ...] = ()
    ids_reserved: int = IDS_RESERVED
    older: tuple[Manifest, ...] = ()
    """Of the kept ones below the restored one, oldest first."""

    @property
    def ids_until(self) -> CheckpointId:
        """The attempt may use the ids below this one."""
        return CheckpointId(self.first_id + self.ids_reserved)

    @property
    def kind(self) -> SnapshotKind | None:
        return self.manifest.kind if self.manifest is not None and not self.origin else None


@dataclass(frozen=True)
class RestoreWish:
    """What the user asked for. An explicit manifest wins over what storage has, once."""

    fresh: bool = False
    manifest: Manifest | None = None
    origin: str = ""
    """Empty when the manifest is one of this job's own."""


class ClaimRefused(StorageError):
    """Trying again cannot help."""


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
        self._job = job
        self._driver = driver
        self._wall_ms = wall_ms
        self._open_origin = open_origin
        self._own: AttemptId | None = None
        self._mine: set[AttemptId] = set()
        """All attempts of this driver: it knows itself which ids they have used."""

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
        attempt = self._claim_next()
        names = self._store.list()
        facts, found = self._facts(names, damaged, going)
        decision = recovery.decide(facts, may_fall_back=may_fall_back)
        first_id = max(next_id, recovery.first_free_id(facts))
        if wish.fresh or wish.manifest is not None:
            self._check_wish(wish, names)
            point = _wished(attempt, wish, found, first_id)
        else:
            point = self._decided(attempt, decision, facts, found, first_id)
        if point.origin and NO_CHECKPOINT in damaged:
            raise ClaimRefused(_origin_damaged(point, damaged[NO_CHECKPOINT]))
        if point.manifest is not None and (reason := misfit(point.manifest)):
            raise ClaimRefused(reason)
        older = tuple(found[n] for n in point.kept if n in found and n < point.restored)
        point = replace(point, ids_reserved=ids_reserved, older=older)
        self._record(point)
        # Whoever claimed after us has either seen what we recorded, or is seen now: no id is ever used by both.
        self._check_owner(self._claimed_attempts())
        return point

    def _check_wish(self, wish: RestoreWish, names: list[str]) -> None:
        """Before anything is recorded: it would make newer checkpoints void."""
        if wish.manifest is None:
            return
        try:
            if not wish.origin:
                self._check_files(wish.manifest, names)
            elif self._open_origin is not None:
                self._check_files(wish.manifest, self._open_origin(wish.origin).list())
        except CheckpointCorrupt as error:
            raise ClaimRefused(
                f"the checkpoint that job {self._job!r} is to begin with cannot be used: {error}. Put the file "
                "back, or start with restore=<path of another checkpoint>"
            ) from error

    def _claim_next(self) -> AttemptId:
        while True:
            claimed = self._claimed_attempts()
            self._check_owner(claimed)
            attempt = AttemptId(max(claimed, default=0) + 1)
            record = records.OwnerRecord(attempt, self._driver, self._wall_ms())
            if self._store.create(paths.owner(attempt), records.encode_owner(record)):
                self._own = attempt
                self._mine.add(attempt)
                return attempt

    def _claimed_attempts(self) -> list[AttemptId]:
        names = self._store.list(paths.OWNER_FOLDER)
        return [attempt for name in names if (attempt := paths.owner_of(name)) is not None]

    def _check_owner(self, claimed: Collection[AttemptId], *, thoroughly: bool = False) -> None:
        """Raises when a driver other than this one has claimed a newer attempt than ours, or has deleted ours. It may
        even have counted up to ours again since: `thoroughly` looks at that, too."""
        own = self._own
        if own is None:
            return
        if own not in claimed:
            raise JobFenced(
                f"job {self._job!r}: its directory was deleted, or emptied by another driver; this one stops. "
                "Run each job name from one driver only."
            )
        for attempt in claimed:
            if attempt < own or (attempt == own and not thoroughly):
                continue
            name = paths.owner(attempt)
            record = records.decode_owner(self._store.read(name), name)
            if record.driver != self._driver:
                raise JobFenced(
                    f"job {self._job!r} was taken over by another driver ({record.driver}) with "
                    f"attempt {attempt}; this one stops. Run each job name from one driver only."
                )

    def _facts(
        self,
        names: list[str],
        damaged: Mapping[CheckpointId, str],
        going: frozenset[CheckpointId],
    ) -> tuple[Facts, dict[CheckpointId, Manifest]]:
        readable: dict[CheckpointId, Manifest] = {}
        broken = [Damaged(n, reason) for n, reason in sorted(damaged.items()) if n != NO_CHECKPOINT]
        claims = self._claims(names)
        for name in names:
            checkpoint = paths.metadata_of(name)
            if checkpoint is None or checkpoint in damaged or checkpoint in going:
                continue
            try:
                data = self._store.read(name)
                if not is_tombstone(name, data):
                    readable[checkpoint] = manifest = manifests.decode(data, name)
                    if not recovery.is_void(self._found(manifest), claims):
                        self._check_files(manifest, names)
            except CheckpointCorrupt as error:
                readable.pop(checkpoint, None)
                broken.append(Damaged(checkpoint, str(error)))
        found = tuple(self._found(manifest) for manifest in readable.values())
        seen = (n for name in names if (n := paths.checkpoint_of(name)) is not None)
        newest = CheckpointId(max(seen, default=NO_CHECKPOINT))
        return Facts(claims, found, tuple(broken), newest), readable

    def _check_files(self, manifest: Manifest, names: list[str]) -> None:
        missing = sorted(set(manifest.files) - set(names))
        if missing:
            raise CheckpointCorrupt(f"{paths.metadata(manifest.checkpoint)}: {missing[0]} is gone")

    def _claims(self, names: list[str]) -> tuple[Claim, ...]:
        recorded: dict[AttemptId, records.RestoredRecord] = {}
        for name in names:
            attempt = paths.restored_of(name)
            if attempt is not None:
                recorded[attempt] = self._read_restored(name)
        attempts = (attempt for name in names if (attempt := paths.owner_of(name)) is not None)
        return tuple(self._claim_of(attempt, recorded.get(attempt)) for attempt in attempts)

    def _read_restored(self, name: str) -> records.RestoredRecord:
        try:
            return records.decode_restored(self._store.read(name), name)
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(
                f"{error}. Without it nobody can tell which checkpoints of job {self._job!r} still count: put "
                "the file back, or go on under another name with restore=<path of a checkpoint>"
            ) from error

    def _claim_of(self, attempt: AttemptId, record: records.RestoredRecord | None) -> Claim:
        if record is None:
            return Claim(attempt, None)
        until = NO_CHECKPOINT if attempt in self._mine else record.ids_until
        origin = Origin(record.origin, record.origin_checkpoint) if record.origin else None
        return Claim(attempt, record.checkpoint, until, record.first_id, origin)

    def _decided(
        self,
        attempt: AttemptId,
        decision: recovery.Decision,
        facts: Facts,
        found: Mapping[CheckpointId, Manifest],
        first_id: CheckpointId,
    ) -> RestorePoint:
        match decision:
            case recovery.Refuse(reason):
                raise CheckpointCorrupt(f"job {self._job!r}: {reason}")
            case recovery.StartFresh(_, skipped):
                told = _warnings(skipped, "starting from the beginning")
                return RestorePoint(attempt, NO_CHECKPOINT, first_id, (), None, "", told)
            case recovery.BeginFrom(origin, _, skipped):
                manifest = self._read_origin(origin)
                told = _warnings(skipped, f"beginning again with checkpoint {origin.checkpoint}")
                none = NO_CHECKPOINT
                return RestorePoint(attempt, none, first_id, (), manifest, origin.root, told)
            case recovery.RestoreFrom(chosen, _, _, skipped):
                usable = [f for f in facts.found if not recovery.is_void(f, facts.claims)]
                kept = tuple(sorted(f.checkpoint for f in usable if f.checkpoint <= chosen))
                told = _warnings(skipped, f"going on from {chosen}")
                return RestorePoint(attempt, chosen, first_id, kept, found[chosen], "", told)

    def _read_origin(self, origin: Origin) -> Manifest:
        name = paths.metadata(origin.checkpoint)
        try:
            if self._open_origin is None or HIDDEN in origin.root:
                raise CheckpointCorrupt("where it is was recorded without its password")
            store = self._open_origin(origin.root)
            manifest = manifests.decode(store.read(name), name)
            self._check_files(manifest, store.list())
        except CheckpointCorrupt as error:
            where = f"{origin.root}/{paths.checkpoint_folder(origin.checkpoint)}"
            raise ClaimRefused(
                f"job {self._job!r} was begun with another job's checkpoint, {where}, and has none of its "
                f"own yet; that one cannot be read: {error}. Put it back, or start with restore=<path of a "
                'checkpoint>, or with restore="fresh" to begin with nothing'
            ) from error
        return manifest

    def _found(self, manifest: Manifest) -> Found:
        until = NO_CHECKPOINT if manifest.attempt in self._mine else manifest.ids_until
        return Found(manifest.checkpoint, manifest.attempt, manifest.kind, until)

    def _record(self, point: RestorePoint) -> None:
        begun_with = point.manifest if point.origin else None
        record = records.RestoredRecord(
            point.attempt,
            point.restored,
            point.ids_until,
            point.first_id,
            redacted(point.origin),
            begun_with.checkpoint if begun_with is not None else NO_CHECKPOINT,
        )
        self._store.create(paths.restored(point.attempt), records.encode_restored(record))

    # ---- completing

    def persist(self, manifest: Manifest, *, again: bool = False) -> bool:
        """Makes the checkpoint exist. False: it does not, and never will. Raises when that is not known yet. `again`:
        it was tried before, and in the meantime another driver may have taken the job over and deleted it."""
        name = paths.metadata(manifest.checkpoint)
        if again:
            self._check_owner(self._claimed_attempts())
        data = manifests.encode(manifest)
        try:
            created = self._store.create(name, data)
        except StorageError:
            created = False
            self._check_owner(self._claimed_attempts())
            if self._store.create(name, tombstone(manifest.checkpoint)):
                return False
        if not created:
            there = self._store.read(name)
            if is_tombstone(name, there):
                return False
            if there != data:
                self._check_owner(self._claimed_attempts())
                raise CheckpointCorrupt(f"{name} is not what was written: the storage is not sound")
        self._check_owner(self._claimed_attempts())
        return True

    # ---- clean-up

    def delete_checkpoint(self, checkpoint: CheckpointId) -> None:
        """Deletes a checkpoint that is no longer kept, its metadata first: it must not exist by halves. A driver that
        is no longer the owner deletes none: another one may be going on from it."""
        names = self._store.list(paths.checkpoint_folder(checkpoint))
        self._check_owner(self._claimed_attempts(), thoroughly=True)
        self._delete(names)

    def _delete(self, names: Iterable[str]) -> None:
        for name in sorted(names, key=_one_by_one):
            self._store.delete(name)

    def discard(self, checkpoint: CheckpointId) -> None:
        """Deletes the state files of a snapshot that was given up. A tombstone stays where it is. So does a checkpoint
        that exists: a late answer for one whose own deletion has failed must not leave it by halves."""
        names = self._store.list(paths.checkpoint_folder(checkpoint))
        if any(self._is_complete(name) for name in names):
            return
        for name in names:
            if paths.worker_file_of(name) is not None:
                self._store.delete(name)

    def _is_complete(self, name: str) -> bool:
        return paths.metadata_of(name) is not None and not is_tombstone(
            name, self._store.read(name)
        )

    def sweep(
        self,
        kept: Collection[CheckpointId],
        before: CheckpointId,
        unsettled: Iterable[CheckpointId] = (),
        *,
        spare_newer: bool = False,
    ) -> None:
        """Deletes everything of snapshots below `before` that are not kept: what late writers left behind, and what is
        left of one whose metadata is gone already; one that cannot be deleted does not keep the others. Of `unsettled`
        ones nobody knows yet whether they exist.
        `spare_newer` keeps all that have metadata and are newer than what is kept. A driver that is no longer the owner
        deletes nothing: another one may be going on from those files."""
        names = self._store.list()
        there = {n for name in names if (n := paths.metadata_of(name)) is not None}
        keep = there.intersection(kept).union(unsettled)
        if spare_newer:
            newest = max(kept, default=NO_CHECKPOINT)
            keep.update(n for n in there if n > newest)
        self._check_owner(self._claimed_attempts(), thoroughly=True)
        stale = {n for name in names if (n := paths.checkpoint_of(name)) is not None and n < before}
        failures = []
        for checkpoint in sorted(stale - keep):
            try:
                self._delete([name for name in names if paths.checkpoint_of(name) == checkpoint])
            except StorageError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def delete_everything(self) -> None:
        """For retention policies that keep nothing: every file that this job can have written, if it is still ours.
        What says that it is goes last, and after all checkpoints: if this ends half way, none exists by halves."""
        names = [name for name in self._store.list() if paths.is_known(name)]
        self._check_owner(self._claimed_attempts(), thoroughly=True)
        own = paths.owner(self._own) if self._own is not None else ""
        last = [name for name in (own, paths.JOB) if name in names]
        checkpoints = [name for name in names if paths.checkpoint_of(name) is not None]
        rest = [name for name in names if name not in {*last, *checkpoints}]
        self._delete(checkpoints)
        for name in [*rest, *last]:
            self._store.delete(name)


def _one_by_one(name: str) -> tuple[CheckpointId, bool]:
    """The order of deletions: no checkpoint is begun before the last has gone, and of each the metadata goes first."""
    return paths.checkpoint_of(name) or NO_CHECKPOINT, paths.metadata_of(name) is None


def _wished(
    attempt: AttemptId,
    wish: RestoreWish,
    found: Mapping[CheckpointId, Manifest],
    first_id: CheckpointId,
) -> RestorePoint:
    """What the user asked for wins over what lies in storage."""
    if wish.manifest is None:
        return RestorePoint(attempt, NO_CHECKPOINT, first_id, (), None)
    own = NO_CHECKPOINT if wish.origin else wish.manifest.checkpoint
    kept = tuple(n for n in sorted(found) if n <= own)
    return RestorePoint(attempt, own, first_id, kept, wish.manifest, wish.origin)


def _warnings(skipped: Iterable[Damaged], instead: str) -> tuple[str, ...]:
    return tuple(
        f"checkpoint {damaged.checkpoint} cannot be used ({damaged.reason}); {instead}"
        for damaged in skipped
    )


def _origin_damaged(point: RestorePoint, reason: str) -> str:
    which = f" {point.manifest.checkpoint}" if point.manifest is not None else ""
    return (
        f"checkpoint{which} of {redacted(point.origin)}, which the job is to begin with, cannot be used: "
        f"{reason}. Repair it, or start with restore=<path of another checkpoint>"
    )
