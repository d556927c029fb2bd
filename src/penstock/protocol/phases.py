"""The words of a job's life: the phases that it goes through, and what `lifecycle.JobMachine` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, WorkerId
from penstock.protocol.messages import SnapshotKind


class Outcome(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


# ---- phases


@dataclass(frozen=True, slots=True)
class Gathering:
    since_ms: float
    not_before_ms: float
    drop_until_ms: float
    told: int = 0
    """How often it was said that workers are missing."""


@dataclass(frozen=True, slots=True)
class Claiming:
    pass


@dataclass(frozen=True, slots=True)
class Deploying:
    attempt: AttemptId
    restored: CheckpointId
    kind: SnapshotKind | None
    owed: frozenset[WorkerId]
    endpoints: Mapping[int, Mapping[str, str]]
    until_ms: float


@dataclass(frozen=True, slots=True)
class Connecting:
    """Everybody is ready, and connects to everybody else. `owed` have not said Connected."""

    attempt: AttemptId
    restored: CheckpointId
    owed: frozenset[WorkerId]
    endpoints: Mapping[int, Mapping[str, str]]
    since_ms: float
    unreached: Mapping[WorkerId, tuple[str, ...]]
    """Whom they could not reach so far."""


@dataclass(frozen=True, slots=True)
class Running:
    attempt: AttemptId
    endpoints: Mapping[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Ending:
    outcome: Outcome
    reason: str
    until_ms: float
    ran: bool
    """An attempt ran when the end began."""


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome
    reason: str


Phase: TypeAlias = Gathering | Claiming | Deploying | Connecting | Running | Ending | Ended

# ---- what the machine asks for


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    launch: int


@dataclass(frozen=True, slots=True)
class CancelLaunch:
    launch: int


@dataclass(frozen=True, slots=True)
class ClaimAttempt:
    """Take the next attempt number, find and record the restore point; then say claimed or claim_failed."""


@dataclass(frozen=True, slots=True)
class SendDeploy:
    worker: WorkerId
    slot: SlotId
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class SendStart:
    worker: WorkerId
    attempt: AttemptId
    endpoints: Mapping[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class SendDrop:
    worker: WorkerId
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class SendLeave:
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class AttemptRuns:
    """Every subtask runs."""

    attempt: AttemptId
    restored: CheckpointId


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """Fenced: nothing of this attempt counts any more. `counts`: its end is a failure for the restart strategy."""

    attempt: AttemptId
    counts: bool = True


@dataclass(frozen=True, slots=True)
class NotReady:
    """For the history: the attempt fails because these workers kept it waiting."""

    attempt: AttemptId
    workers: tuple[WorkerId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CannotConnect:
    """For the history: this worker waits for others that do not answer it."""

    attempt: AttemptId
    worker: WorkerId
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotsMissing:
    """For people: not every slot got a worker in time. The job waits on, or it fails for that."""

    reason: str
    waits: bool


@dataclass(frozen=True, slots=True)
class RequestStop:
    """Ask the coordinator for the last snapshot of a job that a person stops."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    outcome: Outcome
    reason: str


Action: TypeAlias = (
    LaunchWorker
    | CancelLaunch
    | ClaimAttempt
    | SendDeploy
    | SendStart
    | SendDrop
    | SendLeave
    | AttemptRuns
    | AttemptOver
    | NotReady
    | CannotConnect
    | SlotsMissing
    | RequestStop
    | JobEnded
)
