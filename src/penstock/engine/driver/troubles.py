"""Telling people what went wrong: in the log, and in the job's list of exceptions."""

from __future__ import annotations

import logging

from penstock.engine.history.history import History
from penstock.engine.history.records import ExceptionInfo
from penstock.ports.clock import Clock
from penstock.protocol.ids import AttemptId
from penstock.protocol.messages import Failed

log = logging.getLogger("penstock")


class Troubles:
    def __init__(self, job: str, history: History, clock: Clock) -> None:
        self._job = job
        self._history = history
        self._clock = clock

    def note(self, reason: str, attempt: AttemptId, traceback: str = "") -> None:
        """`reason` begins with the name of an error and a colon."""
        log.warning("job %s: attempt %s: %s", self._job, attempt, reason)
        error, _, message = reason.partition(": ")
        now_ms = self._clock.wall_ms()
        self._history.failed(ExceptionInfo(now_ms, attempt, error, message, traceback=traceback))

    def in_worker(self, message: Failed) -> str:
        """A worker's attempt failed; the reason in one line."""
        self._history.failed(
            ExceptionInfo(
                self._clock.wall_ms(),
                message.attempt,
                message.error,
                message.message,
                message.operator,
                message.traceback,
                message.journal,
            )
        )
        where = f" in operator {message.operator!r}" if message.operator else ""
        return f"{message.error}{where}: {message.message}"

    def at_claim(self, error: BaseException) -> str:
        """No attempt could be claimed; the reason in one line."""
        kind, text = type(error).__name__, str(error)
        self._history.failed(ExceptionInfo(self._clock.wall_ms(), 0, kind, text))
        return f"{kind}: {text}"
