"""The checkpoint coordinator: when snapshots are triggered, what becomes of each, and what it means.

Theory of operation. A snapshot is *collecting* while subtasks owe their acknowledgement, *persisting* while its
metadata is being written, and then over: completed or aborted, once and for ever. It completes when nobody owes any
more and the metadata is durable; only that makes a `CommitPermit`. Completing n subsumes every older snapshot. A
snapshot that is persisting when its attempt fails stays: whether it is complete is for storage to say.

The machine is told what happened and answers with what to do; it reads no clock and touches no storage. A refused or
late event changes nothing and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from penstock.protocol.commit import CommitPermit
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId, SubtaskId
from penstock.protocol.messages import Live, SnapshotKind
from penstock.protocol.recovery import IDS_RESERVED
from penstock.protocol.snapshot import SubtaskSnapshot

Acks: TypeAlias = Mapping[SubtaskId, SubtaskSnapshot]


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    every_ms: int | None = 1_000
    """None: only on request."""
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    keep: int = 2
    unaligned: bool = False
    aligned_timeout_ms: float | None = None
    """A checkpoint that is not complete after so long becomes unaligned; 0: it is so from the start."""

    @property
    def ids_reserved(self) -> int:
        """How many ids are reserved ahead: enough for all the checkpoints in a row that may fail."""
        return IDS_RESERVED + self.tolerable_failures


class Reason(StrEnum):
    """Why a snapshot was aborted. A closed list."""

    TIMEOUT = "did not complete within the timeout"
    DECLINED = "a subtask declined it"
    SUBSUMED = "a newer one completed first"
    ATTEMPT_ENDED = "the attempt it belonged to ended"
    OVERFLOW = "more rows were in flight than it may hold"
    NOT_DURABLE = "its metadata could not be written"
    STOPPED = "the job is being stopped"

    @property
    def counts_as_failure(self) -> bool:
        return self in (Reason.TIMEOUT, Reason.DECLINED, Reason.NOT_DURABLE)


@dataclass(frozen=True, slots=True)
class Collecting:
    checkpoint: CheckpointId
    kind: SnapshotKind
    triggered_ms: float
    owed: frozenset[SubtaskId]
    acks: Acks
    urgent: bool = False
    expedite_ms: float | None = None
    """When it becomes urgent by itself."""


@dataclass(frozen=True, slots=True)
class Persisting:
    checkpoint: CheckpointId
    kind: SnapshotKind
    triggered_ms: float
    acks: Acks


Unfinished: TypeAlias = Collecting | Persisting

# ---- what the coordinator asks for


@dataclass(frozen=True, slots=True)
class SendTrigger:
    """To every worker: the announcement goes to everyone, not to sources alone."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Expedite:
    """To every worker: this snapshot takes too long to align, and is urgent from now on."""

    checkpoint: CheckpointId
    kind: SnapshotKind


@dataclass(frozen=True, slots=True)
class SendAbort:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the metadata exclusively, then read the owner again; then say persisted or persist_failed."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    triggered_ms: float
    acks: Acks


@dataclass(frozen=True, slots=True)
class Completed:
    """Tell every worker, which may then commit."""

    permit: CommitPermit
    kind: SnapshotKind
    triggered_ms: float
    ended_ms: float
    acks: Acks


@dataclass(frozen=True, slots=True)
class Aborted:
    """For the history. `owed` says who had not answered."""

    checkpoint: CheckpointId
    kind: SnapshotKind
    triggered_ms: float
    ended_ms: float
    reason: Reason
    detail: str
    owed: frozenset[SubtaskId]


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete the files of this snapshot alone."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Subsume:
    """These completed checkpoints are no longer kept: delete them, oldest first, metadata first."""

    checkpoints: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """Too many snapshots failed in a row."""

    reason: str


class Late(StrEnum):
    DUPLICATE = "this subtask has acknowledged already"
    COMPLETED = "the snapshot is complete"
    OTHER_ATTEMPT = "it belongs to another attempt"
    UNKNOWN = "the snapshot is not pending"
    NOT_RUNNING = "no attempt is running"
    STOPPING = "a last snapshot is under way"


@dataclass(frozen=True, slots=True)
class Ignored:
    why: Late


Action: TypeAlias = (
    SendTrigger
    | Expedite
    | SendAbort
    | Persist
    | Completed
    | Aborted
    | Discard
    | Subsume
    | FailAttempt
    | Ignored
)


@dataclass(slots=True)
class Attempt:
    """The attempt that snapshots are taken of."""

    id: AttemptId
    subtasks: frozenset[SubtaskId]


class Coordinator:
    def __init__(
        self,
        config: CoordinatorConfig,
        next_id: CheckpointId = CheckpointId(1),
        completed: Iterable[CheckpointId] = (),
    ) -> None:
        self.config = config
        self.next_id = next_id
        self.ids_until: CheckpointId | None = None
        """Ids from here on are not reserved: after a crash another driver might use them. None: nobody would."""
        self.attempt: Attempt | None = None
        self.unfinished: dict[CheckpointId, Unfinished] = {}
        self.completed: list[CheckpointId] = sorted(completed)
        self.failures_in_a_row = 0
        self.last_kind: SnapshotKind | None = None
        """The kind of a last snapshot, once one is wanted: nothing else is triggered from then on."""
        self._done_kind: SnapshotKind | None = None
        self._gave_up = False
        """The attempt was told to fail: it ends, and nothing is triggered any more."""
        self._requests = 0
        self._align_next = False
        self._next_periodic_ms: float | None = None
        self._last_end_ms: float | None = None

    # ---- attempts

    def attempt_started(
        self,
        attempt: AttemptId,
        subtasks: Iterable[SubtaskId],
        restored: CheckpointId,
        now_ms: float,
    ) -> list[Action]:
        """Every subtask runs, from `restored` on: snapshots may be triggered from now on."""
        self.attempt = Attempt(attempt, frozenset(subtasks))
        self.completed = [n for n in self.completed if n <= restored]
        self.failures_in_a_row = 0
        self._gave_up = False
        self.last_kind = self._done_kind = None
        self._requests = 0
        self._align_next = False
        if self.config.every_ms is not None:
            self._next_periodic_ms = now_ms + self.config.every_ms
        return self.tick(now_ms)

    def attempt_ended(self, now_ms: float) -> list[Action]:
        """Collecting snapshots end with their attempt; a persisting one is for storage to decide."""
        self.attempt = None
        self.last_kind = None
        actions: list[Action] = []
        for pending in self._collecting():
            actions += self._abort(pending, Reason.ATTEMPT_ENDED, "", now_ms)
        return actions

    # ---- triggering

    def request(self, now_ms: float) -> list[Action]:
        """A person asks for a checkpoint now: it goes before the next periodic one, within the limits."""
        if self.attempt is None:
            return [Ignored(Late.NOT_RUNNING)]
        if self.last_kind is not None:
            return [Ignored(Late.STOPPING)]
        self._requests += 1
        return self.tick(now_ms)

    def request_last(self, kind: SnapshotKind, now_ms: float) -> list[Action]:
        """From now on only this: FINAL when every subtask has finished, STOP when a person asks."""
        if self.attempt is None:
            return [Ignored(Late.NOT_RUNNING)]
        if self.last_kind is SnapshotKind.FINAL or self.last_kind is kind:
            return [Ignored(Late.STOPPING)]
        self.last_kind = kind
        return self.tick(now_ms)

    def tick(self, now_ms: float) -> list[Action]:
        """Time has passed: expire what is too old, trigger what is due."""
        actions: list[Action] = []
        for pending in self._collecting():
            if now_ms >= pending.triggered_ms + self.config.timeout_ms:
                detail = f"{self.config.timeout_ms} ms"
                actions += self._abort(pending, Reason.TIMEOUT, detail, now_ms)
            elif pending.expedite_ms is not None and now_ms >= pending.expedite_ms:
                hurried = replace(pending, urgent=True, expedite_ms=None)
                self.unfinished[pending.checkpoint] = hurried
                actions.append(Expedite(pending.checkpoint, pending.kind))
        while self._is_due(now_ms):
            if self.ids_until is not None and self.next_id >= self.ids_until:
                return [*actions, FailAttempt(self._out_of_ids())]
            actions += self._trigger(now_ms)
        return actions

    def _out_of_ids(self) -> str:
        return (
            f"every checkpoint since {self.newest_completed} was given up, and the ids that this attempt has "
            f"reserved (below {self.ids_until}) are used up"
        )

    def wake_ms(self, now_ms: float) -> float | None:
        """When `tick` has something to do next, if nothing else happens: always later than now."""
        collecting = self._collecting()
        times = [p.triggered_ms + self.config.timeout_ms for p in collecting]
        times += [p.expedite_ms for p in collecting if p.expedite_ms is not None]
        if self.attempt is not None and len(self.unfinished) < self.config.max_concurrent:
            times.append(self._pause_ends_ms())
            if self._next_periodic_ms is not None and self.last_kind is None:
                times.append(self._next_periodic_ms)
        return min((time for time in times if time > now_ms), default=None)

    def _is_due(self, now_ms: float) -> bool:
        if self.attempt is None or self._gave_up:
            return False
        if self.last_kind is not None:
            return not self.unfinished and self._done_kind is not self.last_kind
        if len(self.unfinished) >= self.config.max_concurrent:
            return False
        if now_ms < self._pause_ends_ms():
            return False
        periodic = self._next_periodic_ms
        return self._requests > 0 or (periodic is not None and now_ms >= periodic)

    def _pause_ends_ms(self) -> float:
        if self._last_end_ms is None:
            return float("-inf")
        return self._last_end_ms + self.config.min_pause_ms

    def _trigger(self, now_ms: float) -> list[Action]:
        if self.attempt is None:
            return [Ignored(Late.NOT_RUNNING)]
        checkpoint = self.next_id
        self.next_id = CheckpointId(checkpoint + 1)
        kind = self.last_kind or SnapshotKind.CHECKPOINT
        urgent, expedite_ms = self._hurry(kind, now_ms)
        self.unfinished[checkpoint] = Collecting(
            checkpoint, kind, now_ms, self.attempt.subtasks, {}, urgent, expedite_ms
        )
        self._requests = max(0, self._requests - 1)
        if self.config.every_ms is not None:
            self._next_periodic_ms = now_ms + self.config.every_ms
        return [SendTrigger(checkpoint, kind, urgent)]

    def _hurry(self, kind: SnapshotKind, now_ms: float) -> tuple[bool, float | None]:
        """Only plain checkpoints are ever unaligned, and none that follows one which held too much."""
        align, self._align_next = self._align_next, False
        if align or kind is not SnapshotKind.CHECKPOINT:
            return False, None
        patience_ms = self.config.aligned_timeout_ms
        if self.config.unaligned or patience_ms is None:
            return self.config.unaligned, None
        return (True, None) if patience_ms <= 0 else (False, now_ms + patience_ms)

    # ---- answers

    def acked(
        self,
        attempt: AttemptId,
        checkpoint: CheckpointId,
        snapshots: Iterable[SubtaskSnapshot],
        now_ms: float,
    ) -> list[Action]:
        pending = self.unfinished.get(checkpoint)
        if pending is None:
            if checkpoint in self.completed:
                return [Ignored(Late.COMPLETED)]
            return [Ignored(Late.UNKNOWN), Discard(checkpoint)]
        if self.attempt is None or attempt != self.attempt.id:
            return [Ignored(Late.OTHER_ATTEMPT)]
        if isinstance(pending, Persisting):
            return [Ignored(Late.DUPLICATE)]
        news = {s.subtask: s for s in snapshots if s.subtask in pending.owed}
        if not news:
            return [Ignored(Late.DUPLICATE)]
        owed = pending.owed - news.keys()
        acks = {**pending.acks, **news}
        if owed:
            self.unfinished[checkpoint] = replace(pending, owed=owed, acks=acks)
            return []
        self.unfinished[checkpoint] = Persisting(
            checkpoint, pending.kind, pending.triggered_ms, acks
        )
        return [Persist(checkpoint, pending.kind, pending.triggered_ms, acks)]

    def declined(
        self,
        attempt: AttemptId,
        checkpoint: CheckpointId,
        reason: str,
        now_ms: float,
        overflow: bool = False,
    ) -> list[Action]:
        pending = self.unfinished.get(checkpoint)
        if not isinstance(pending, Collecting):
            return [Ignored(Late.UNKNOWN)]
        if self.attempt is None or attempt != self.attempt.id:
            return [Ignored(Late.OTHER_ATTEMPT)]
        self._align_next |= overflow
        why = Reason.OVERFLOW if overflow else Reason.DECLINED
        actions = self._abort(pending, why, reason, now_ms)
        return actions + self.tick(now_ms)

    def persisted(
        self, attempt: AttemptId, checkpoint: CheckpointId, now_ms: float
    ) -> list[Action]:
        """The metadata is durable and the attempt owned the job after that."""
        pending = self.unfinished.get(checkpoint)
        if not isinstance(pending, Persisting):
            return [Ignored(Late.UNKNOWN)]
        del self.unfinished[checkpoint]
        self.completed = sorted([*self.completed, checkpoint])
        self.failures_in_a_row = 0
        if self.ids_until is not None:
            reserved = CheckpointId(checkpoint + self.config.ids_reserved)
            self.ids_until = max(self.ids_until, reserved)
        self._last_end_ms = now_ms
        if pending.kind is not SnapshotKind.CHECKPOINT:
            self._done_kind = pending.kind
        permit = CommitPermit(attempt, checkpoint)
        actions: list[Action] = [
            Completed(permit, pending.kind, pending.triggered_ms, now_ms, pending.acks)
        ]
        for older in self._collecting():
            if older.checkpoint < checkpoint:
                actions += self._abort(older, Reason.SUBSUMED, f"by {checkpoint}", now_ms)
        return actions + self._retire() + self.tick(now_ms)

    def persist_failed(self, checkpoint: CheckpointId, error: str, now_ms: float) -> list[Action]:
        """The metadata is not there, and never will be: it was looked for after the failed write."""
        pending = self.unfinished.get(checkpoint)
        if not isinstance(pending, Persisting):
            return [Ignored(Late.UNKNOWN)]
        return self._abort(pending, Reason.NOT_DURABLE, error, now_ms) + self.tick(now_ms)

    # ---- endings

    def _abort(
        self, pending: Unfinished, reason: Reason, detail: str, now_ms: float
    ) -> list[Action]:
        del self.unfinished[pending.checkpoint]
        self._last_end_ms = now_ms
        owed = pending.owed if isinstance(pending, Collecting) else frozenset()
        actions: list[Action] = [
            SendAbort(pending.checkpoint),
            Aborted(
                pending.checkpoint,
                pending.kind,
                pending.triggered_ms,
                now_ms,
                reason,
                detail,
                owed,
            ),
            Discard(pending.checkpoint),
        ]
        if reason.counts_as_failure:
            self.failures_in_a_row += 1
            if self.failures_in_a_row > self.config.tolerable_failures:
                self._gave_up = True
                actions.append(FailAttempt(self._too_many(pending.checkpoint, reason, detail)))
        return actions

    def _too_many(self, checkpoint: CheckpointId, reason: Reason, detail: str) -> str:
        return (
            f"checkpoint {checkpoint} failed: {reason} ({detail}); {self.failures_in_a_row} in a row, "
            f"{self.config.tolerable_failures} tolerated"
        )

    def _retire(self) -> list[Action]:
        """Completed checkpoints beyond `keep` go."""
        excess = self.completed[: -self.config.keep]
        if not excess:
            return []
        self.completed = self.retained
        return [Subsume(tuple(excess))]

    @property
    def retained(self) -> list[CheckpointId]:
        """What is left of the completed checkpoints when those beyond `keep` are gone."""
        return self.completed[-self.config.keep :]

    def _collecting(self) -> list[Collecting]:
        if not self.unfinished:
            return []
        return [p for _, p in sorted(self.unfinished.items()) if isinstance(p, Collecting)]

    # ---- for heartbeats

    @property
    def newest_completed(self) -> CheckpointId:
        return self.completed[-1] if self.completed else NO_CHECKPOINT

    def live(self) -> tuple[Live, ...]:
        """Snapshots that subtasks may still have to take."""
        return tuple(Live(p.checkpoint, p.kind, p.urgent) for p in self._collecting())
