"""The checkpoint coordinator: when snapshots are triggered, what becomes of each, and what it means.

Theory of operation. A snapshot is *collecting* while subtasks owe their acknowledgement, *persisting* while its
metadata is being written, and then over: completed or aborted, once and for ever. It completes when nobody owes any
more and the metadata is durable; only that makes a `CommitPermit`. Completing n subsumes every older snapshot. A
snapshot that is persisting when its attempt fails stays: whether it is complete is for storage to say.

Every snapshot is taken by an order, which names the *base* that it may build on: the newest checkpoint that the running
attempt has completed, or the one that it was restored from. Its subtasks have the state of exactly these. The base of
an order never changes, and while the snapshot is unfinished it is pinned: nothing that it needs may be deleted.

The machine is told what happened and answers with what to do; it reads no clock and touches no storage. A refused or
late event changes nothing and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from penstock.protocol.commit import CommitPermit
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId, RequestId, SubtaskId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
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
    incremental: bool = False
    """Orders name a base."""

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
    order: SnapshotOrder
    triggered_ms: float
    owed: frozenset[SubtaskId]
    acks: Acks
    expedite_ms: float | None = None
    """When it becomes urgent by itself."""


@dataclass(frozen=True, slots=True)
class Persisting:
    order: SnapshotOrder
    triggered_ms: float
    acks: Acks


Unfinished: TypeAlias = Collecting | Persisting

# ---- what the coordinator asks for


@dataclass(frozen=True, slots=True)
class SendTrigger:
    """To every worker: the announcement goes to everyone, not to sources alone."""

    order: SnapshotOrder


@dataclass(frozen=True, slots=True)
class Expedite:
    """To every worker: this snapshot takes too long to align, and is urgent from now on."""

    order: SnapshotOrder


@dataclass(frozen=True, slots=True)
class Answer:
    """Who asked for a checkpoint gets this one, whatever becomes of it."""

    request: RequestId
    checkpoint: CheckpointId


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
    | Answer
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
    base: CheckpointId
    """What its subtasks were restored from, or the newest that they completed since; 0: neither."""


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
        self._requests: tuple[RequestId, ...] = ()
        """Those that no checkpoint was triggered for yet. They outlive attempts."""
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
        """Every subtask runs, from `restored` on (0: it is none of this job's): snapshots may be triggered now."""
        self.attempt = Attempt(attempt, frozenset(subtasks), restored)
        self.completed = [n for n in self.completed if n <= restored]
        self.failures_in_a_row = 0
        self._gave_up = False
        self.last_kind = self._done_kind = None
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

    def request(self, request: RequestId, now_ms: float) -> list[Action]:
        """A person asks for a checkpoint now: it goes before the next periodic one, within the limits. Where no attempt
        runs it is taken as soon as one does; where the last one is under way that is the answer."""
        for pending in self.unfinished.values():
            if pending.order.kind is not SnapshotKind.CHECKPOINT:
                return [Answer(request, pending.order.id)]
        if self.attempt is not None and self._done_kind is not None:
            return [Ignored(Late.STOPPING)]
        self._requests = (*self._requests, request)
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
                order = replace(pending.order, urgent=True)
                self.unfinished[order.id] = replace(pending, order=order, expedite_ms=None)
                actions.append(Expedite(order))
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
        return bool(self._requests) or (periodic is not None and now_ms >= periodic)

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
        base = self.attempt.base if self.config.incremental else NO_CHECKPOINT
        order = SnapshotOrder(checkpoint, kind, urgent, base)
        self.unfinished[checkpoint] = Collecting(
            order, now_ms, self.attempt.subtasks, {}, expedite_ms
        )
        if self.config.every_ms is not None:
            self._next_periodic_ms = now_ms + self.config.every_ms
        return [SendTrigger(order), *self._answers(order)]

    def _answers(self, order: SnapshotOrder) -> list[Action]:
        """Each request gets a checkpoint of its own; all that are left get the last one."""
        taken = 1 if order.kind is SnapshotKind.CHECKPOINT else len(self._requests)
        asked, self._requests = self._requests[:taken], self._requests[taken:]
        return [Answer(request, order.id) for request in asked]

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
        self.unfinished[checkpoint] = Persisting(pending.order, pending.triggered_ms, acks)
        return [Persist(checkpoint, pending.order.kind, pending.triggered_ms, acks)]

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
        if self.attempt is not None and self.attempt.id == attempt:
            self.attempt.base = max(self.attempt.base, checkpoint)
        self.failures_in_a_row = 0
        if self.ids_until is not None:
            reserved = CheckpointId(checkpoint + self.config.ids_reserved)
            self.ids_until = max(self.ids_until, reserved)
        self._last_end_ms = now_ms
        kind = pending.order.kind
        if kind is not SnapshotKind.CHECKPOINT:
            self._done_kind = kind
        permit = CommitPermit(attempt, checkpoint)
        actions: list[Action] = [
            Completed(permit, kind, pending.triggered_ms, now_ms, pending.acks)
        ]
        for older in self._collecting():
            if older.order.id < checkpoint:
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
        checkpoint = pending.order.id
        del self.unfinished[checkpoint]
        self._last_end_ms = now_ms
        owed = pending.owed if isinstance(pending, Collecting) else frozenset()
        actions: list[Action] = [
            SendAbort(checkpoint),
            Aborted(
                checkpoint,
                pending.order.kind,
                pending.triggered_ms,
                now_ms,
                reason,
                detail,
                owed,
            ),
            Discard(checkpoint),
        ]
        if reason.counts_as_failure:
            self.failures_in_a_row += 1
            if self.failures_in_a_row > self.config.tolerable_failures:
                self._gave_up = True
                actions.append(FailAttempt(self._too_many(checkpoint, reason, detail)))
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

    def live(self) -> tuple[SnapshotOrder, ...]:
        """Snapshots that subtasks may still have to take."""
        return tuple(pending.order for pending in self._collecting())

    @property
    def pinned(self) -> frozenset[CheckpointId]:
        """Checkpoints that unfinished ones may refer to: none of their files may go."""
        bases = (pending.order.base for pending in self.unfinished.values())
        return frozenset(base for base in bases if base)
