"""What a running job tells about itself, as plain records."""

from __future__ import annotations

from dataclasses import dataclass, fields

MESSAGE_CHARS_SHOWN = 120


@dataclass(frozen=True, slots=True, repr=False)
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
    start_delay_ms: float | None = None
    """How long the checkpoint took to reach it: from the trigger to its acknowledgement, without the three times above.
    None where that is not known any more."""

    def __repr__(self) -> str:
        delay = "" if self.start_delay_ms is None else f"start delay {_ms(self.start_delay_ms)}, "
        return (
            f"<SubtaskInfo {' > '.join(self.operators)} [{self.index}]: {delay}"
            f"alignment {_ms(self.alignment_ms)}, sync {_ms(self.sync_ms)}, async {_ms(self.async_ms)}, "
            f"{self.bytes_written:,} bytes>"
        )


@dataclass(frozen=True, slots=True, repr=False)
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
    """Those that have acknowledged it."""
    mode: str = ""
    """How it is taken: `aligned`, `unaligned`, `expedited` (it took too long to align, and became unaligned) or
    `at least once`. Empty where that is not known any more."""
    owed: int = 0
    """How many subtasks have not acknowledged it, or had not when it was given up."""
    owing: tuple[str, ...] = ()
    """The operators of those."""
    restored_bytes: int = 0
    """What workers read back from files the last time that the job went on from it; 0 where it never did."""
    restored_local_bytes: int = 0
    """So much of that came from copies on the workers' own disks (`local_recovery`)."""

    @property
    def acknowledged(self) -> int:
        """How many subtasks have acknowledged it."""
        return len(self.subtasks)

    def waiting_text(self) -> str:
        """Who has acknowledged it and who owes that; empty when nobody owes."""
        if not self.owed:
            return ""
        count = self.acknowledged + self.owed
        return f"{self.acknowledged} of {count} acknowledged, owed by {', '.join(self.owing)}"

    def restored_text(self) -> str:
        """How much was read back from it, and from where; empty when nothing was."""
        if not self.restored_bytes:
            return ""
        local, size = self.restored_local_bytes, self.restored_bytes
        return f"restored {size:,} bytes, {local:,} of them from local copies"

    def __repr__(self) -> str:
        took = "" if self.duration_ms is None else _ms(self.duration_ms)
        size = f"{self.bytes_full:,} bytes" if self.status == "completed" else ""
        told = (self.waiting_text(), self.restored_text(), self.failure)
        known = (self.status, self.mode, took, size, *told)
        kind = "" if self.kind == "checkpoint" else f" ({self.kind})"
        return f"<CheckpointInfo {self.id}{kind}: {', '.join(text for text in known if text)}>"


@dataclass(frozen=True, slots=True)
class Totals:
    """How often what happened, over the whole life of a job and all its drivers."""

    completed: int = 0
    aborted: int = 0
    restored: int = 0
    restored_from: str | None = None
    """The path of the checkpoint that the job went on from the last time."""


@dataclass(frozen=True, slots=True, repr=False)
class Spread:
    """How a number is spread over the completed checkpoints of the history."""

    min: float
    avg: float
    max: float
    p50: float
    p90: float
    p99: float

    def __repr__(self) -> str:
        shown = (f"{each.name}={getattr(self, each.name):,.1f}" for each in fields(self))
        return f"<Spread {' '.join(shown)}>"


@dataclass(frozen=True, slots=True, repr=False)
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
    start_delay_ms: Spread | None = None

    def __repr__(self) -> str:
        parts = [
            f"{self.completed} completed",
            f"{self.aborted} aborted",
            f"{self.pending} pending",
        ]
        if self.restored:
            parts.append(f"went on from one {self.restored} times")
        if self.duration_ms is not None:
            parts.append(f"took {_ms(self.duration_ms.avg)} on average")
            parts.append(f"{_ms(self.duration_ms.max)} at most")
        return f"<CheckpointSummary {', '.join(parts)}>"


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process that works for the job, as `job.workers` lists it."""

    slot: int | None
    """Which part of the plan it runs; None for one that is spare or has not been given a part yet."""
    pid: int
    host: str


@dataclass(frozen=True, slots=True, repr=False)
class ExceptionInfo:
    """A failure that the job met, whether it went on afterwards or not."""

    time_ms: float
    attempt: int
    error: str
    """The name of the exception's class."""
    message: str
    operator: str = ""
    traceback: str = ""
    journal: tuple[str, ...] = ()
    """The last things that happened in the worker."""

    def __repr__(self) -> str:
        """Its first line: all of it is in `message` and `traceback`."""
        where = f" in {self.operator!r}" if self.operator else ""
        line = self.message.strip().partition("\n")[0]
        shown = line if len(line) <= MESSAGE_CHARS_SHOWN else f"{line[:MESSAGE_CHARS_SHOWN]}..."
        return f"<ExceptionInfo attempt {self.attempt}: {self.error}{where}: {shown}>"


def _ms(time_ms: float) -> str:
    return f"{time_ms:,.1f} ms"
