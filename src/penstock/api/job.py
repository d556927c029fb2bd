"""A handle on a running job: what `Pipeline.start` returns.

The job itself is a loop in a thread of the driver. `JobControl` is the way in: its implementation makes every
call safe from any thread, and this file makes it pleasant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, get_args

from penstock.api import hints
from penstock.api.records import CheckpointInfo, CheckpointSummary, ExceptionInfo, WorkerInfo
from penstock.errors import ConfigError, JobFailed
from penstock.plan.duration import parse_duration_ms

Status: TypeAlias = Literal[
    "created", "starting", "running", "restarting", "finished", "failed", "cancelled", "stopped"
]
ENDED = ("finished", "failed", "cancelled", "stopped")
NOT_BEGUN = ("created", "starting")
STATES = get_args(Status)


class JobControl(Protocol):
    """What a shell implements. All calls may come from any thread and none waits, except where it says so."""

    @property
    def job_id(self) -> str: ...

    @property
    def job_name(self) -> str: ...

    def status(self) -> str:
        """One of STATES."""
        ...

    def details(self) -> str:
        """What it is busy with, where the status does not say it; else empty."""
        ...

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until the job has ended and everything of it is gone; False when the time is over."""
        ...

    def failure(self) -> JobFailed | None:
        """Why the job failed for good; None unless the status is `failed`."""
        ...

    def checkpoints(self) -> Sequence[CheckpointInfo]:
        """Newest first."""
        ...

    def checkpoint_summary(self) -> CheckpointSummary: ...

    def exceptions(self) -> Sequence[ExceptionInfo]:
        """Newest first."""
        ...

    def workers(self) -> Sequence[WorkerInfo]:
        """The processes that work for the job now, those with a slot first, in its order."""
        ...

    def metrics(self) -> Mapping[str, float]: ...

    def trigger_checkpoint(self, timeout_s: float | None) -> CheckpointInfo:
        """Asks for a checkpoint and waits for its end, completed or aborted, or the job's.

        Raises `TimeoutError` when the time is over, and `PlanError` where there are no checkpoints.
        """
        ...

    def request_stop(self) -> None:
        """A last checkpoint, everything committed, then the end. Does nothing once the job has ended."""
        ...

    def request_cancel(self) -> None:
        """The end, now. Does nothing once the job has ended."""
        ...


class Job:
    """A running job."""

    def __init__(self, control: JobControl) -> None:
        self._control = control

    @property
    def id(self) -> str:
        """The job's name made safe for paths: where its checkpoints are found."""
        return self._control.job_id

    @property
    def name(self) -> str:
        return self._control.job_name

    @property
    def status(self) -> Status:
        """One of created, starting, running, restarting, finished, failed, cancelled, stopped."""
        return cast("Status", self._control.status())

    @property
    def details(self) -> str:
        """What a job that does not run yet is busy with, in a line: how much of its state it has read back, when that
        takes longer than a second. Empty when there is nothing to tell."""
        return self._control.details()

    @property
    def exceptions(self) -> list[ExceptionInfo]:
        """The failures so far, newest first, also those that the job recovered from."""
        return list(self._control.exceptions())

    @property
    def workers(self) -> list[WorkerInfo]:
        """The processes that work for the job now: slot, process id, host."""
        return list(self._control.workers())

    def await_termination(self, timeout: float | str | timedelta | None = None) -> bool:
        """Waits for the end. False when `timeout` (seconds, or "1 minute") is over first.

        Raises JobFailed when the job failed for good.
        """
        if not self._control.wait(_seconds(timeout)):
            return False
        failure = self._control.failure()
        if failure is not None:
            raise failure
        return True

    def checkpoints(self) -> list[CheckpointInfo]:
        """The last thousand, newest first, with those that earlier drivers of this job took."""
        return list(self._control.checkpoints())

    def checkpoint_summary(self) -> CheckpointSummary:
        """How many checkpoints completed and failed in the life of the job; how long they took, how large they were."""
        return self._control.checkpoint_summary()

    def metrics(self) -> dict[str, float]:
        """Numbers by name."""
        return dict(self._control.metrics())

    def trigger_checkpoint(self, timeout: float | str | timedelta | None = None) -> CheckpointInfo:
        """Takes a checkpoint now and waits for it. Look at `.status`: it may have been aborted."""
        return self._control.trigger_checkpoint(_seconds(timeout))

    def stop(
        self,
        savepoint: str | None = None,
        drain: bool = False,
        timeout: float | str | timedelta | None = None,
    ) -> bool:
        """Takes a last checkpoint, commits everything and ends the job. False when `timeout` is over first."""
        if savepoint is not None or drain:
            raise ConfigError(
                "job.stop: savepoint= and drain= are not supported yet; leave them out"
            )
        self._control.request_stop()
        return self.await_termination(timeout)

    def cancel(self, timeout: float | str | timedelta | None = None) -> bool:
        """Ends the job now, without a last checkpoint. False when `timeout` is over first."""
        self._control.request_cancel()
        return self._control.wait(_seconds(timeout))

    if not TYPE_CHECKING:  # type checkers are to know the methods above and no others

        def __getattr__(self, name: str) -> Any:
            """Only for names that there are not: what somebody who knows Spark may have meant."""
            raise hints.missing("a job", name, hints.JOB)

    def __repr__(self) -> str:
        status, newest = status_text(self), newest_checkpoint(self)
        latest = f", last checkpoint {newest}" if newest is not None else ""
        return f"<Job {self.name!r}: {status}{latest}>"


def status_text(job: Job) -> str:
    """The status with its details."""
    details = job.details
    return f"{job.status} ({details})" if details else job.status


def newest_checkpoint(job: Job) -> int | None:
    """The id of the newest completed one; None where there is none, and before the job has begun: until then nobody
    knows what it goes on from."""
    if job.status in NOT_BEGUN:
        return None
    return next((info.id for info in job.checkpoints() if info.status == "completed"), None)


def _seconds(timeout: float | str | timedelta | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, (int, float)):
        if not timeout >= 0:
            raise ConfigError(f"timeout: {timeout!r} is negative")
        return float(timeout)
    return parse_duration_ms(timeout, "timeout") / 1_000
