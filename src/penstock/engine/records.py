"""What a running job tells about itself, as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SubtaskInfo:
    """One subtask's part of a checkpoint. `operators` are the names in its chain."""

    operators: tuple[str, ...]
    index: int
    alignment_ms: float
    sync_ms: float
    async_ms: float
    bytes_written: int
    inflight_bytes: int = 0
    """Rows that were on their way to it and are part of an unaligned checkpoint."""
    alignment_rows: int = 0
    """Rows that it processed between the first barrier and its snapshot."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint, as `job.checkpoints()` lists it."""

    id: int
    kind: str
    """`checkpoint`, `final` (all input ended) or `stop`."""
    status: str
    """`pending`, `completed` or `aborted`."""
    trigger_ms: float
    """When it was started: milliseconds since 1970."""
    duration_ms: float | None
    """From the trigger to the end; None while it is pending."""
    bytes_full: int = 0
    bytes_incremental: int = 0
    inflight_bytes: int = 0
    path: str | None = None
    failure: str | None = None
    """Why it was aborted."""
    subtasks: tuple[SubtaskInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """How often what happened, over the whole life of a job and all its drivers."""

    completed: int = 0
    aborted: int = 0
    restored: int = 0
    restored_from: str | None = None
    """The path of the checkpoint that the job went on from the last time."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a number is spread over the completed checkpoints of the history."""

    min: float
    avg: float
    max: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """All checkpoints of a job together, as `job.checkpoint_summary()` gives them. A spread is None as long as no
    checkpoint has completed. Times of subtasks are those of the slowest in each checkpoint."""

    completed: int
    aborted: int
    pending: int
    restored: int
    """How often the job went on from a checkpoint."""
    restored_from: str | None
    """The path of the one that it went on from the last time."""
    duration_ms: Spread | None = None
    bytes_full: Spread | None = None
    bytes_incremental: Spread | None = None
    inflight_bytes: Spread | None = None
    alignment_ms: Spread | None = None
    sync_ms: Spread | None = None
    async_ms: Spread | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process that works for the job, as `job.workers` lists it."""

    slot: int | None
    """Which part of the plan it runs; None for one that is spare or has not been given a part yet."""
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class ExceptionInfo:
    """A failure that the job met, whether it went on afterwards or not."""

    time_ms: float
    attempt: int
    error: str
    """The name of the exception's class."""
    message: str
    operator: str = ""
    traceback: str = field(default="", repr=False)
    journal: tuple[str, ...] = field(default=(), repr=False)
    """The last things that happened in the worker."""
