"""What an attempt goes on from: which checkpoints storage has, which of them are sound, and what a person asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.engine.checkpoints.ownership import Ownership
from penstock.errors import CheckpointCorrupt, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol import recovery
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.recovery import IDS_RESERVED, Claim, Damaged, Facts, Found, Origin
from penstock.protocol.retention import Files
from penstock.redaction import HIDDEN, redacted
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest
from penstock.wire.tombstones import is_tombstone


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
    references: Mapping[CheckpointId, Files] = field(default_factory=dict)
    """The shared files that each checkpoint in the job's directory refers to, also those that do not count."""
    unreadable: CheckpointId = NO_CHECKPOINT
    """The newest there of which nobody can tell."""

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


class RestorePoints:
    """Looks at storage and changes nothing. `open_origin` opens another job's directory, to begin with a checkpoint of
    it."""

    def __init__(
        self,
        store: CheckpointStore,
        job: str,
        owner: Ownership,
        open_origin: Callable[[str], CheckpointStore] | None = None,
    ) -> None:
        self._store = store
        self._job = job
        self._owner = owner
        self._open_origin = open_origin

    def check_wish(self, wish: RestoreWish, names: list[str]) -> None:
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

    def facts(
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
        """The newest recorded one and what came after it; it says what those before it said."""
        attempts = sorted(a for name in names if (a := paths.owner_of(name)) is not None)
        recorded = {a for name in names if (a := paths.restored_of(name)) is not None}
        claims: list[Claim] = []
        while attempts and not (claims and claims[-1].restored is not None):
            newest = attempts.pop()
            record = self._read_restored(newest) if newest in recorded else None
            claims.append(self._claim_of(newest, record))
        return tuple(reversed(claims))

    def _read_restored(self, attempt: AttemptId) -> records.RestoredRecord:
        name = paths.restored(attempt)
        try:
            return records.decode_restored(self._store.read(name), name)
        except CheckpointCorrupt as error:
            self._owner.check()  # a newer owner may have deleted it
            raise CheckpointCorrupt(
                f"{error}. Without it nobody can tell which checkpoints of job {self._job!r} still count: put "
                "the file back, or go on under another name with restore=<path of a checkpoint>"
            ) from error

    def _claim_of(self, attempt: AttemptId, record: records.RestoredRecord | None) -> Claim:
        if record is None:
            return Claim(attempt, None)
        until = record.first_id if attempt in self._owner.mine else record.ids_until
        origin = Origin(record.origin, record.origin_checkpoint) if record.origin else None
        return Claim(
            attempt, record.checkpoint, until, record.first_id, origin, frozenset(record.kept)
        )

    def decided(
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
                kept = good_until(chosen, facts)
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
        until = NO_CHECKPOINT if manifest.attempt in self._owner.mine else manifest.ids_until
        return Found(manifest.checkpoint, manifest.attempt, manifest.kind, until)


def good_until(newest: CheckpointId, facts: Facts) -> tuple[CheckpointId, ...]:
    usable = (f for f in facts.found if not recovery.is_void(f, facts.claims))
    return tuple(sorted(f.checkpoint for f in usable if f.checkpoint <= newest))


def wished(
    attempt: AttemptId, wish: RestoreWish, facts: Facts, first_id: CheckpointId
) -> RestorePoint:
    """What the user asked for wins over what lies in storage."""
    if wish.manifest is None:
        return RestorePoint(attempt, NO_CHECKPOINT, first_id, (), None)
    own = NO_CHECKPOINT if wish.origin else wish.manifest.checkpoint
    kept = {*good_until(own, facts), own} - {NO_CHECKPOINT}
    return RestorePoint(attempt, own, first_id, tuple(sorted(kept)), wish.manifest, wish.origin)


def _warnings(skipped: Iterable[Damaged], instead: str) -> tuple[str, ...]:
    return tuple(
        f"checkpoint {damaged.checkpoint} cannot be used ({damaged.reason}); {instead}"
        for damaged in skipped
    )


def origin_damaged(point: RestorePoint, reason: str) -> str:
    which = f" {point.manifest.checkpoint}" if point.manifest is not None else ""
    return (
        f"checkpoint{which} of {redacted(point.origin)}, which the job is to begin with, cannot be used: "
        f"{reason}. Repair it, or start with restore=<path of another checkpoint>"
    )
