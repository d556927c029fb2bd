"""What the demo sees of its job: rows, checkpoints, kills and how long healing took.

`Watch.look` is called a few times a second. It kills a worker when it is time to, notices when the job works again,
and tells all news to a view.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.api.job import Job
from penstock.api.records import CheckpointInfo

RATE_OVER_S = 2.0
_ROWS = 'penstock_records_in_total{operator="entries"}'


class View(Protocol):
    """Who is told."""

    def checkpoint(self, info: CheckpointInfo) -> None: ...

    def killed(self, pid: int, slot: int) -> None: ...

    def healed(self, seconds: float, checkpoint: int) -> None: ...

    def progress(self, watch: Watch) -> None: ...


@dataclass
class Watch:
    """`every_s`: so long an attempt runs before a worker of it is killed."""

    job: Job
    view: View
    kills_wanted: int
    every_s: float
    now_s: Callable[[], float] = time.monotonic
    kill: Callable[[int, int], None] = os.kill
    kills: int = 0
    recovery_s: list[float] = field(default_factory=list)
    rows_seen: float = 0.0
    """Transfers processed, those included that were processed again after a failure."""
    first_row_s: float | None = None
    last_row_s: float | None = None
    _killed_s: float | None = None
    _restarts_before: float = 0.0
    _running_since_s: float | None = None
    _rows_at_restart: float | None = None
    """What had been processed when the next attempt was first seen."""
    _seen: int = 0
    _newest_seen: int = 0
    _seen_in_attempt: int = 0
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def look(self) -> None:
        now_s, numbers = self.now_s(), self.job.metrics()
        self._count_rows(numbers.get(_ROWS, 0.0), now_s)
        self._notice_checkpoints()
        if self._killed_s is not None:
            self._notice_healing(numbers, now_s)
        elif self._is_time_to_kill(now_s):
            self._kill_one(numbers["penstock_restarts_total"])
        self.view.progress(self)

    def finish(self) -> None:
        """The job is over: what is left to tell."""
        self._notice_checkpoints()

    @property
    def rows_per_second(self) -> float:
        """Over the last moments."""
        if len(self._samples) < 2:
            return 0.0
        (began_s, before), (ended_s, after) = self._samples[0], self._samples[-1]
        return (after - before) / (ended_s - began_s) if ended_s > began_s else 0.0

    @property
    def checkpoints_seen(self) -> int:
        return self._seen

    # ---- inside

    def _count_rows(self, rows: float, now_s: float) -> None:
        grown = rows > self.rows_seen
        self.rows_seen = rows
        if grown:
            if self.first_row_s is None:
                self.first_row_s = self._running_since_s = now_s
            self.last_row_s = now_s
        self._samples.append((now_s, self.rows_seen))
        while self._samples[0][0] < now_s - RATE_OVER_S:
            self._samples.popleft()

    def _notice_checkpoints(self) -> None:
        completed = [info for info in self.job.checkpoints() if info.status == "completed"]
        for info in reversed(completed):
            if info.id > self._newest_seen:
                self._newest_seen = info.id
                self._seen += 1
                self._seen_in_attempt += 1
                self.view.checkpoint(info)

    def _is_time_to_kill(self, now_s: float) -> bool:
        return (
            self.kills < self.kills_wanted
            and self._running_since_s is not None
            and now_s - self._running_since_s >= self.every_s
            and self._seen_in_attempt > 0
            and self.job.status == "running"
        )

    def _kill_one(self, restarts: float) -> None:
        workers = [worker for worker in self.job.workers if worker.slot is not None]
        if not workers:
            return
        chosen = workers[self.kills % len(workers)]
        self._killed_s = self.now_s()
        try:
            self.kill(chosen.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._killed_s = None
            return
        self._restarts_before = restarts
        self.kills += 1
        self.view.killed(chosen.pid, chosen.slot or 0)

    def _notice_healing(self, numbers: dict[str, float], now_s: float) -> None:
        """Healed is when the next attempt has processed its first rows."""
        if self._killed_s is None or numbers["penstock_restarts_total"] <= self._restarts_before:
            return
        if self._rows_at_restart is None:
            self._rows_at_restart = self.rows_seen
        if self.rows_seen <= self._rows_at_restart:
            return
        took_s = now_s - self._killed_s
        self.recovery_s.append(took_s)
        self._killed_s = self._rows_at_restart = None
        self._running_since_s = now_s
        self._seen_in_attempt = 0
        self.view.healed(took_s, self._newest_seen)
