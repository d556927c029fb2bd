"""From what lies in storage to what to do: a pure function.

A checkpoint exists if its metadata does. It is *void* when a later attempt recorded that it went on without it: that
attempt aborted what the checkpoint had pre-committed. It is *damaged* when its metadata, or a file it names,
cannot be read. Falling back below a completed checkpoint would show the rows that its sinks have committed a second
time, so that is allowed only where no sink minds. A damaged one that a later attempt has already left behind counts no
more: that attempt went on from an older one because somebody asked for it, or because no sink minded.

A job that was begun with another job's checkpoint and has none of its own yet begins with that one again.

A claim records which checkpoints of earlier attempts it found good, so it says all that the claims before it said, and
those are deleted. Whether some of them are still there makes no difference to any decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind

IDS_RESERVED = 100
"""How many ids an attempt, and every completed checkpoint, reserves ahead, besides one per tolerated failure."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint of another job. `root` is where that job's directory is."""

    root: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt in the job's directory. `restored` is None when it never came to record one, and 0 when it began
    afresh or with `origin`."""

    attempt: AttemptId
    restored: CheckpointId | None
    ids_until: CheckpointId = NO_CHECKPOINT
    first_id: CheckpointId = NO_CHECKPOINT
    """Checkpoints below this one are of earlier attempts."""
    origin: Origin | None = None
    """What the job was begun with."""
    kept: frozenset[CheckpointId] = frozenset()
    """The checkpoints of earlier attempts that count, the restored one among them."""

    def went_on_without(self, checkpoint: CheckpointId) -> bool:
        return self.restored is not None and checkpoint not in self.kept


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint whose metadata can be read."""

    checkpoint: CheckpointId
    attempt: AttemptId
    kind: SnapshotKind
    ids_until: CheckpointId = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class Damaged:
    """A checkpoint that was completed and cannot be read."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    claims: tuple[Claim, ...]
    """The newest that was recorded, and those after it."""
    found: tuple[Found, ...]
    damaged: tuple[Damaged, ...]
    newest_seen: CheckpointId
    """The highest id that any file name mentions."""


@dataclass(frozen=True, slots=True)
class StartFresh:
    first_id: CheckpointId
    skipped: tuple[Damaged, ...] = ()


@dataclass(frozen=True, slots=True)
class BeginFrom:
    """With another job's checkpoint, as the job was begun."""

    origin: Origin
    first_id: CheckpointId
    skipped: tuple[Damaged, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreFrom:
    checkpoint: CheckpointId
    kind: SnapshotKind
    first_id: CheckpointId
    skipped: tuple[Damaged, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: str


Decision: TypeAlias = StartFresh | BeginFrom | RestoreFrom | Refuse


def decide(facts: Facts, *, may_fall_back: bool) -> Decision:
    """`may_fall_back`: no sink of the job would show rows twice."""
    first_id = first_free_id(facts)
    usable = sorted((f for f in facts.found if not is_void(f, facts.claims)), key=_by_id)
    newest = usable[-1].checkpoint if usable else NO_CHECKPOINT
    skipped = tuple(
        d
        for d in (*facts.damaged, *gone(facts))
        if d.checkpoint > newest and not is_left_behind(d.checkpoint, facts.claims)
    )
    if skipped and not may_fall_back:
        return Refuse(_refusal(skipped, newest))
    if usable:
        return RestoreFrom(usable[-1].checkpoint, usable[-1].kind, first_id, skipped)
    origin = beginning(facts.claims)
    if origin is not None:
        return BeginFrom(origin, first_id, skipped)
    return StartFresh(first_id, skipped)


def gone(facts: Facts) -> tuple[Damaged, ...]:
    """The checkpoint that the newest attempt went on from stays until a newer one is complete."""
    known = {f.checkpoint for f in facts.found} | {d.checkpoint for d in facts.damaged}
    return tuple(
        Damaged(claim.restored, "its metadata is gone")
        for claim in facts.claims
        if claim.restored and claim.restored not in known
    )


def beginning(claims: Sequence[Claim]) -> Origin | None:
    """What the job was begun with the last time it was begun; None: with nothing."""
    return next((claim.origin for claim in claims if claim.restored is not None), None)


def is_left_behind(checkpoint: CheckpointId, claims: Sequence[Claim]) -> bool:
    """Like `is_void`, for one whose metadata cannot be read: a later attempt, with ids above it, went on without
    it."""
    return any(
        claim.went_on_without(checkpoint) and checkpoint < claim.first_id for claim in claims
    )


def is_void(found: Found, claims: Sequence[Claim]) -> bool:
    """A later attempt went on without it, and none after that went on from it again."""
    return any(
        claim.attempt > found.attempt and claim.went_on_without(found.checkpoint)
        for claim in claims
    )


def first_free_id(facts: Facts) -> CheckpointId:
    reserved = [claim.ids_until for claim in facts.claims]
    reserved += [found.ids_until for found in facts.found]
    return CheckpointId(max([facts.newest_seen + 1, *reserved]))


def _by_id(found: Found) -> CheckpointId:
    return found.checkpoint


def _refusal(skipped: Sequence[Damaged], newest: CheckpointId) -> str:
    broken = "; ".join(f"checkpoint {d.checkpoint}: {d.reason}" for d in skipped)
    older = f"checkpoint {newest} is readable, but" if newest else "no older one is readable, and"
    return (
        f"The newest checkpoint cannot be used ({broken}). {older} going back would write rows again that "
        "the sinks have already committed. Repair or put back the damaged files, or start with "
        'restore="<path of a checkpoint>" or restore="fresh" if repeated rows are acceptable.'
    )
