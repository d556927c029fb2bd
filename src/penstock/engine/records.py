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
