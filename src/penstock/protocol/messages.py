"""What the job manager and its workers say to each other. Plain frozen data: `wire.control` spells them.

Everything about an attempt carries its id; whoever is in another attempt drops the message. Nothing relies on
one message arriving: `Sync` repeats the table of live snapshots and the newest completed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.snapshot import Plain, SubtaskSnapshot


class SnapshotKind(StrEnum):
    CHECKPOINT = "checkpoint"
    FINAL = "final"
    """Taken when every subtask has finished."""
    STOP = "stop"
    """Sources pause behind its barrier; the job ends when it is committed."""


@dataclass(frozen=True, slots=True)
class SnapshotOrder:
    """All that there is to know about a snapshot that is to be taken. It travels with the trigger and with every
    barrier, so that whoever meets one of them first knows as much as everyone else. Said again, it is the same, but for
    `urgent`: an order may become so."""

    id: CheckpointId
    kind: SnapshotKind = SnapshotKind.CHECKPOINT
    urgent: bool = False
    """Unaligned: it is taken at once, with what is in flight."""
    base: CheckpointId = NO_CHECKPOINT
    """A completed checkpoint, of which nothing is deleted meanwhile: the new one may refer to its files. 0: none."""

    def __str__(self) -> str:
        how = " at once" if self.urgent else ""
        return f"{self.id} {self.kind}{how}" + (f" on {self.base}" if self.base else "")


# ---- from the job manager to a worker


@dataclass(frozen=True, slots=True)
class Deploy:
    """Make the subtasks of this slot, restore them, open the input channels; then say Ready."""

    attempt: AttemptId
    slot: SlotId
    restored: CheckpointId
    snapshots: tuple[SubtaskSnapshot, ...]
    """All subtasks' snapshots of the restored checkpoint: each takes the key groups and lanes it owns."""
    origin: str = ""
    """The job directory that the snapshots' files are in, where it is not this job's own."""


@dataclass(frozen=True, slots=True)
class Start:
    """Connect the output channels, run, and say Connected. `endpoints` has every slot's answer to Deploy."""

    attempt: AttemptId
    endpoints: Mapping[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Drop:
    """Throw everything of this and older attempts away; then say Dropped."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Trigger:
    """Said again, as urgent, of a snapshot that takes too long to align."""

    attempt: AttemptId
    order: SnapshotOrder


@dataclass(frozen=True, slots=True)
class Abort:
    attempt: AttemptId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Notify:
    """Checkpoint is complete: commit every transaction up to it, then say Committed."""

    attempt: AttemptId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Sync:
    """Level-triggered repetition of Trigger, Abort and Notify."""

    attempt: AttemptId
    live: tuple[SnapshotOrder, ...]
    """Snapshots that subtasks may still have to take."""
    newest: CheckpointId
    """The newest id ever triggered: what is older and not live is dead, what is newer is not known here yet."""
    completed: CheckpointId


@dataclass(frozen=True, slots=True)
class Leave:
    """End this process's work."""


ToWorker: TypeAlias = Deploy | Start | Drop | Trigger | Abort | Notify | Sync | Leave


# ---- from a worker to the job manager


@dataclass(frozen=True, slots=True)
class Ready:
    attempt: AttemptId
    slot: SlotId
    endpoints: Mapping[str, str]
    """Where this slot's input channels listen: channel id as text -> endpoint."""


@dataclass(frozen=True, slots=True)
class Restoring:
    """Between Deploy and Ready, while it takes long: how much of its state this slot has read back. For people."""

    attempt: AttemptId
    slot: SlotId
    rows: int
    bytes: int
    rows_total: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class Connected:
    """The answer to Start: every channel to other slots is open, and this worker runs."""

    attempt: AttemptId
    restored_bytes: int = 0
    """So much of its state it has read from files."""
    local_bytes: int = 0
    """So much of that from copies on its own disk. For people, both."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """The answer to a Start that was said again: these have not answered yet. For people."""

    attempt: AttemptId
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """The subtasks of one worker have taken their snapshots and written them."""

    attempt: AttemptId
    checkpoint: CheckpointId
    snapshots: tuple[SubtaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Decline:
    attempt: AttemptId
    checkpoint: CheckpointId
    reason: str
    traceback: str = ""
    """Where code of the job raised, if that was it."""
    overflow: bool = False
    """More was in flight than a snapshot may hold: the next one should be aligned."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt cannot go on. `fatal`: a restart would not help (a bug in the plan, a version mismatch). `about_rows`
    identifies an error that lies in the rows, as far as one can tell; empty for all others."""

    attempt: AttemptId
    error: str
    message: str
    operator: str = ""
    traceback: str = ""
    journal: tuple[str, ...] = ()
    fatal: bool = False
    about_rows: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """These subtasks have processed all their input."""

    attempt: AttemptId
    subtasks: tuple[SubtaskId, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Every transaction of this worker up to `checkpoint` is committed."""

    attempt: AttemptId
    slot: SlotId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Dropped:
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Collected:
    """Plain data from a sink's committer to the driver's copy of the sink."""

    attempt: AttemptId
    operator: str
    item: Plain


@dataclass(frozen=True, slots=True)
class Status:
    """The answer to Sync: repeats Finished and Committed, and brings numbers for people (metric name -> value)."""

    attempt: AttemptId
    slot: SlotId
    finished: tuple[SubtaskId, ...] = ()
    committed: CheckpointId = CheckpointId(0)
    metrics: Mapping[str, float] = field(default_factory=dict)


FromWorker: TypeAlias = (
    Ready
    | Restoring
    | Connected
    | Unreached
    | Ack
    | Decline
    | Failed
    | Finished
    | Committed
    | Dropped
    | Collected
    | Status
)
