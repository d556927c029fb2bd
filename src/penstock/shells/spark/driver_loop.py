"""The job manager's thread in the driver, and the safe ways into it.

Everything about the job happens in one thread. Other threads leave requests in a queue and read what the loop has
published; nothing is locked.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from penstock.api.job import ENDED
from penstock.engine.driver.manager import JobManager
from penstock.engine.history.records import (
    CheckpointInfo,
    CheckpointSummary,
    ExceptionInfo,
    WorkerInfo,
)
from penstock.errors import JobFailed, PlanError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.phases import Outcome
from penstock.shells.spark.background import ThreadBackground
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.signals import SIGNALS
from penstock.shells.spark.workers import SparkWorkers

log = logging.getLogger("penstock")


class DriverLoop:
    """Runs a job to its end. `on_end` frees what the shell holds for it."""

    def __init__(
        self,
        job_id: str,
        job_name: str,
        manager: JobManager,
        workers: SparkWorkers,
        background: ThreadBackground,
        clock: RealClock,
        on_end: Callable[[], None],
        durable: bool,
    ) -> None:
        self.job_id = job_id
        self.job_name = job_name
        self._manager = manager
        self._workers = workers
        self._background = background
        self._clock = clock
        self._on_end = on_end
        self._durable = durable
        self._requests: deque[Callable[[], None]] = deque()
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._status = "created"
        self._alive = self._status
        """The newest status that was not an end."""
        self._crash: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-job-{job_id}", daemon=True
        )

    def begin(self) -> None:
        self._thread.start()

    # ---- the loop's thread

    def _run(self) -> None:
        try:
            self._manager.begin()
            while not self._manager.ended:
                while self._requests:
                    self._requests.popleft()()
                progressed = self._manager.step()
                self._publish(self._manager.status)
                if not progressed and not self._requests and not self._manager.ended:
                    pause_ms = self._manager.wake_ms() - self._clock.monotonic_ms()
                    self._workers.wait(max(0.0, min(pause_ms, 200.0)))
        except BaseException as error:  # a bug of ours must not leave the user waiting for ever
            self._crash = error
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._workers.close()
            self._background.close()
            self._on_end()
        finally:
            self._publish("failed" if self._crash is not None else self._manager.status)
            self._over.set()
            with self._changed:
                self._changed.notify_all()
            SIGNALS.job_ended()

    def _publish(self, status: str) -> None:
        known = self._manager.history.checkpoints
        with self._changed:
            if status != self._status or known is not self._seen:
                self._status, self._seen = status, known
                self._alive = self._alive if status in ENDED else status
                self._changed.notify_all()

    _seen: object = None

    # ---- from any thread

    def status(self) -> str:
        """A job has ended when everything of it is gone; until then it says what it did before."""
        if self._status in ENDED and not self._over.is_set():
            return self._alive
        return self._status

    def details(self) -> str:
        return self._manager.details

    def wait(self, timeout_s: float | None) -> bool:
        """Short waits, so that Ctrl-C reaches the caller."""
        with SIGNALS.waiting():
            if timeout_s is not None:
                return self._over.wait(timeout_s)
            while not self._over.wait(1.0):
                pass
            return True

    def failure(self) -> JobFailed | None:
        if self._crash is not None:
            failed = JobFailed(
                f"job {self.job_name!r} ended by an error in Penstock itself: {self._crash!r}",
                repr(self._crash),
            )
            failed.__cause__ = self._crash
            return failed
        if self._manager.outcome is not Outcome.FAILED:
            return None
        cause = self._manager.reason
        newest = next(iter(self._manager.history.exceptions), None)
        is_it = newest is not None and newest.traceback and newest.message in cause
        shown = f"\n\n{newest.traceback.rstrip()}" if newest is not None and is_it else ""
        return JobFailed(f"job {self.job_name!r} failed: {cause}{shown}", cause)

    def checkpoints(self) -> Sequence[CheckpointInfo]:
        return self._manager.history.checkpoints

    def checkpoint_summary(self) -> CheckpointSummary:
        return self._manager.history.summary()

    def exceptions(self) -> Sequence[ExceptionInfo]:
        return self._manager.history.exceptions

    def workers(self) -> Sequence[WorkerInfo]:
        return self._manager.workers

    def metrics(self) -> Mapping[str, float]:
        history, machine = self._manager.history, self._manager.machine
        completed = (info for info in history.checkpoints if info.status == "completed")
        return {
            **self._manager.metrics,
            **_last_checkpoint(next(completed, None)),
            "penstock_restarts_total": float(max(0, machine.attempts - 1)),
            "penstock_checkpoints_completed_total": float(history.completed_total),
            "penstock_checkpoints_aborted_total": float(history.aborted_total),
            "penstock_workers": float(len(machine.members)),
        }

    def trigger_checkpoint(self, timeout_s: float | None) -> CheckpointInfo:
        if not self._durable:
            raise PlanError(
                "this job takes no checkpoints: start it with checkpoint=pen.CheckpointConfig(...)"
            )
        mine: list[CheckpointId] = []
        self._ask(lambda: self._manager.request_checkpoint(mine.append))

        def found() -> CheckpointInfo | None:
            ended = (info for info in self.checkpoints() if info.status != "pending")
            return next((info for info in ended if info.id in mine), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._over.is_set(), timeout_s)
        info = found()
        if info is not None:
            return info
        if self._over.is_set():
            raise self.failure() or PlanError(f"job {self.job_name!r} has ended: {self.status()}")
        raise TimeoutError(f"no checkpoint of job {self.job_name!r} ended within {timeout_s} s")

    def request_stop(self) -> None:
        self._ask(self._manager.request_stop)

    def request_cancel(self) -> None:
        self._ask(self._manager.request_cancel)

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def stop_for_signal(self, again: str) -> None:
        def stop() -> None:
            how = "stopping with a last checkpoint" if self._durable else "ending"
            log.warning("job %s: %s (%s)", self.job_id, how, again)
            (self._manager.request_stop if self._durable else self._manager.request_cancel)()

        self._ask(stop)

    def _ask(self, request: Callable[[], None]) -> None:
        self._requests.append(request)
        if not self._over.is_set():
            self._workers.wake()


def _last_checkpoint(info: CheckpointInfo | None) -> dict[str, float]:
    if info is None:
        return {}
    return {
        "penstock_last_checkpoint_seconds": (info.duration_ms or 0.0) / 1_000,
        "penstock_last_checkpoint_bytes": float(info.bytes_full),
    }
