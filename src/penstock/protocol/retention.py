"""Which shared files may go: a pure decision.

A shared file is written for one checkpoint, and later ones may refer to it again. It stays as long as a checkpoint
that exists refers to it, whichever attempt took that one, or a snapshot that is pending. A snapshot may refer to any
file of its *base*, a completed checkpoint, until it has ended: so long the base is pinned, and is not deleted even if
it is no longer kept. Whatever nobody refers to is a *stray*, as soon as nobody can come to refer to it: it is an older
attempt's, or was written for a snapshot of this one that is over. So whoever knows what lies in storage, and nothing
else, can tell strays from files that are needed.

Some shared files are written for no snapshot, but ahead of those that may need them, and outlive any that is given up.
Which ones may come to refer to one depends on their bases alone, and bases never go back:

- `LOG`, changes of a table: a snapshot whose base is newer than the checkpoint in the file's name has them in its base,
  or never will.
- `BASE`, all rows of a table: any snapshot may begin with it, until a base begins with later ones of the same table, or
  is newer than a snapshot that has begun with it and does not do so itself.

A checkpoint refers to its files until its metadata has gone: a deletion may fail, or be taken back before it begins.

A `Retention` never changes: an event makes another one, with the files that are to go. So a piece of work on another
thread may look at one at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId


class Role(StrEnum):
    OWN = "own"
    """Written for a snapshot. Others refer to it when that has become their base."""
    LOG = "log"
    BASE = "base"


@dataclass(frozen=True, order=True, slots=True)
class SharedFile:
    """A file that several checkpoints may refer to, and what its name says: for which it was written, and by whom."""

    checkpoint: CheckpointId
    """Of one that was written ahead: the newest that its writer had heard of."""
    attempt: AttemptId
    name: str
    role: Role = Role.OWN
    table: str = ""
    """Of a `BASE`: whose rows it has. All of one attempt that are of the same table are numbered."""
    number: int = 0

    def follows(self, other: SharedFile) -> bool:
        """All rows of the same table, at a later time."""
        same = (self.role, self.attempt, self.table) == (Role.BASE, other.attempt, other.table)
        return same and self.number > other.number


NOBODY_KNOWS = CheckpointId(1 << 62)
"""Newer than all."""
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
    base: CheckpointId = NO_CHECKPOINT
    """The newest that this attempt has completed, or built on: no later snapshot has an older one."""
    begins: Files = frozenset()
    """All rows that the newest snapshot's base begins with, where they were written in the background."""
    left: Mapping[SharedFile, CheckpointId] = field(default_factory=dict)
    """Files that nobody refers to, but somebody still may, and the newest snapshot that did."""
    let_go: Files = frozenset()
    """Files of the role `BASE` that no snapshot comes back to, as long as none with later rows shows it."""

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
        newest, base = max(self.newest, checkpoint), max(self.base, base)
        begins = self._begun_with(base)
        return replace(self, pending=pending, newest=newest, base=base, begins=begins)

    def acknowledged(self, checkpoint: CheckpointId, files: Files) -> tuple[Retention, Strays]:
        """Where the snapshot is over the answer came too late: its files go."""
        entry = self.pending.get(checkpoint)
        if entry is None:
            return self._without_strays(files, NOBODY_KNOWS)
        pending = {**self.pending, checkpoint: replace(entry, files=entry.files | files)}
        return replace(self, pending=pending), ()

    def completed(self, checkpoint: CheckpointId, files: Files) -> tuple[Retention, Strays]:
        """`files` are all that it refers to."""
        after = replace(self, existing={**self.existing, checkpoint: files})
        if checkpoint in self.pending:
            after = replace(after, base=max(self.base, checkpoint))
        return after.given_up(checkpoint)

    def given_up(self, checkpoint: CheckpointId) -> tuple[Retention, Strays]:
        """Aborted, declined or subsumed before it was complete: nothing is held for it any more."""
        entry = self.pending.get(checkpoint)
        if entry is None:
            return self, ()
        pending = {n: other for n, other in self.pending.items() if n != checkpoint}
        return replace(self, pending=pending)._without_strays(entry.files, checkpoint)

    def deleted(
        self, checkpoint: CheckpointId, with_it: Collection[SharedFile] = ()
    ) -> tuple[Retention, Strays]:
        """Its metadata has gone, and so have these files."""
        files = self.existing.get(checkpoint, frozenset()).difference(with_it)
        return self._without(checkpoint)._without_strays(files, checkpoint)

    # ---- what may go

    def is_pinned(self, checkpoint: CheckpointId) -> bool:
        """Something pending builds on it: it must not be deleted yet."""
        return any(entry.base == checkpoint for entry in self.pending.values())

    def only_of(self, checkpoint: CheckpointId) -> Strays:
        """The files that go with a checkpoint, when its metadata has gone."""
        return self._without(checkpoint).strays(self.existing.get(checkpoint, ()))

    def strays(self, files: Iterable[SharedFile]) -> Strays:
        """Those of them that nobody refers to, and that nobody can come to refer to."""
        needed = self._needed
        return tuple(sorted(f for f in files if f not in needed and self._is_settled(f)))

    @property
    def _needed(self) -> Files:
        pending = (entry.files for entry in self.pending.values())
        return frozenset[SharedFile]().union(*self.existing.values(), *pending)

    def _without_strays(self, files: Files, last: CheckpointId) -> tuple[Retention, Strays]:
        """The snapshot `last` does not refer to these any more. Those that others may still come to refer to are looked
        at again with the next."""
        needed = self._needed
        referred = {**self.left, **{f: max(last, self.left.get(f, last)) for f in files}}
        left = {f: n for f, n in referred.items() if f not in needed}
        over = {f for f, n in left.items() if f.role is Role.BASE and n < self.oldest_base}
        let_go = frozenset(f for f in self.let_go | over if not self._is_followed(f))
        after = replace(self, let_go=let_go)
        strays = after.strays(left)
        return replace(after, left={f: n for f, n in left.items() if f not in strays}), strays

    def _is_settled(self, file: SharedFile) -> bool:
        if file.checkpoint <= self.unreadable:
            return False
        if file.attempt != self.attempt:
            return file.attempt < self.attempt
        match file.role:
            case Role.OWN:
                return file.checkpoint <= self.newest and file.checkpoint not in self.pending
            case Role.LOG:
                return file.checkpoint < self.oldest_base
            case Role.BASE:
                return file in self.let_go or self._is_followed(file)

    def _is_followed(self, file: SharedFile) -> bool:
        """Whatever is pending or comes later begins with later rows of the same table."""
        return any(other.follows(file) for other in self.existing.get(self.oldest_base, ()))

    @property
    def oldest_base(self) -> CheckpointId:
        """No snapshot that is pending, or comes later, has an older one."""
        return min((entry.base for entry in self.pending.values()), default=self.base)

    def is_rebased(self, base: CheckpointId) -> bool:
        """Whoever builds on this checkpoint is the first to begin with rows that it has: what was written ahead before
        them, and nobody was told of, may be strays from now on."""
        return not self._begun_with(base) <= self.begins

    def _begun_with(self, checkpoint: CheckpointId) -> Files:
        files = self.existing.get(checkpoint, frozenset())
        return frozenset(file for file in files if file.role is Role.BASE)

    def _without(self, checkpoint: CheckpointId) -> Retention:
        return replace(self, existing={n: f for n, f in self.existing.items() if n != checkpoint})
