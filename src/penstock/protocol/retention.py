"""Which shared files may go: a pure decision.

A shared file is written for one checkpoint, and later ones may refer to it again. It stays as long as a checkpoint
that exists refers to it, whichever attempt took that one, or a snapshot that is pending. A snapshot may refer to any
file of its *base*, a completed checkpoint, until it has ended: so long the base is pinned, and is not deleted even if
it is no longer kept. Whatever nobody refers to is a *stray*, as soon as nobody can come to refer to it: it is an older
attempt's, or was written for a snapshot of this one that is over. So whoever knows what lies in storage, and nothing
else, can tell strays from files that are needed.

A checkpoint refers to its files until its metadata has gone: a deletion may fail, or be taken back before it begins.

A `Retention` never changes: an event makes another one, with the files that are to go. So a piece of work on another
thread may look at one at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId


@dataclass(frozen=True, order=True, slots=True)
class SharedFile:
    """A file that several checkpoints may refer to, and what its name says: for which it was written, and by whom."""

    checkpoint: CheckpointId
    attempt: AttemptId
    name: str


Files: TypeAlias = frozenset[SharedFile]
Strays: TypeAlias = tuple[SharedFile, ...]
"""Files to delete, sorted."""


@dataclass(frozen=True, slots=True)
class PendingFiles:
    """What a snapshot needs that is not complete yet: all of its base, and what it has acknowledged."""

    base: CheckpointId
    files: Files = frozenset()


@dataclass(frozen=True, slots=True)
class Retention:
    attempt: AttemptId = AttemptId(0)
    """The newest that this driver has claimed."""
    existing: Mapping[CheckpointId, Files] = field(default_factory=dict)
    """Completed checkpoints, of all attempts, whose metadata may be there or whose files somebody reads."""
    pending: Mapping[CheckpointId, PendingFiles] = field(default_factory=dict)
    newest: CheckpointId = NO_CHECKPOINT
    """The newest snapshot that this attempt has triggered."""
    unreadable: CheckpointId = NO_CHECKPOINT
    """The newest checkpoint that is there and cannot be read: it may refer to any file up to its own."""

    # ---- what happens

    def claimed(
        self,
        attempt: AttemptId,
        existing: Mapping[CheckpointId, Files],
        unreadable: CheckpointId = NO_CHECKPOINT,
        going: Collection[CheckpointId] = (),
    ) -> Retention:
        """A new attempt found these checkpoints. It did not look at those that are `going`: their deletion may fail."""
        kept = {n: files for n, files in self.existing.items() if n in going}
        return Retention(attempt, {**kept, **existing}, unreadable=unreadable)

    def triggered(self, checkpoint: CheckpointId, base: CheckpointId = NO_CHECKPOINT) -> Retention:
        pending = {**self.pending, checkpoint: PendingFiles(base)}
        return replace(self, pending=pending, newest=max(self.newest, checkpoint))

    def acknowledged(self, checkpoint: CheckpointId, files: Files) -> tuple[Retention, Strays]:
        """Where the snapshot is over the answer came too late: its files go."""
        entry = self.pending.get(checkpoint)
        if entry is None:
            return self, self.strays(files)
        pending = {**self.pending, checkpoint: replace(entry, files=entry.files | files)}
        return replace(self, pending=pending), ()

    def completed(self, checkpoint: CheckpointId, files: Files) -> tuple[Retention, Strays]:
        """`files` are all that it refers to."""
        after = replace(self, existing={**self.existing, checkpoint: files})
        return after.given_up(checkpoint)

    def given_up(self, checkpoint: CheckpointId) -> tuple[Retention, Strays]:
        """Aborted, declined or subsumed before it was complete: nothing is held for it any more."""
        entry = self.pending.get(checkpoint)
        if entry is None:
            return self, ()
        pending = {n: other for n, other in self.pending.items() if n != checkpoint}
        after = replace(self, pending=pending)
        return after, after.strays(entry.files)

    def deleted(
        self, checkpoint: CheckpointId, with_it: Collection[SharedFile] = ()
    ) -> tuple[Retention, Strays]:
        """Its metadata has gone, and so have these files."""
        after = self._without(checkpoint)
        files = self.existing.get(checkpoint, frozenset())
        return after, after.strays(files.difference(with_it))

    # ---- what may go

    def is_pinned(self, checkpoint: CheckpointId) -> bool:
        """Something pending builds on it: it must not be deleted yet."""
        return any(entry.base == checkpoint for entry in self.pending.values())

    def only_of(self, checkpoint: CheckpointId) -> Strays:
        """The files that go with a checkpoint, when its metadata has gone."""
        return self._without(checkpoint).strays(self.existing.get(checkpoint, ()))

    def strays(self, files: Iterable[SharedFile]) -> Strays:
        """Those of them that nobody refers to, and that nobody can come to refer to."""
        needed = frozenset[SharedFile]().union(
            *self.existing.values(), *(entry.files for entry in self.pending.values())
        )
        return tuple(sorted(f for f in files if f not in needed and self._is_settled(f)))

    def _is_settled(self, file: SharedFile) -> bool:
        if file.checkpoint <= self.unreadable:
            return False
        if file.attempt != self.attempt:
            return file.attempt < self.attempt
        return file.checkpoint <= self.newest and file.checkpoint not in self.pending

    def _without(self, checkpoint: CheckpointId) -> Retention:
        return replace(self, existing={n: f for n, f in self.existing.items() if n != checkpoint})
