"""How far workers are that read state back, for people: a line that stands beside the job's status, and in the log."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from penstock.ports.clock import Clock
from penstock.protocol.ids import AttemptId, SlotId, WorkerId
from penstock.protocol.messages import Restoring

LOG_EVERY_MS = 5_000.0

log = logging.getLogger("penstock")


class Restores:
    """Only workers for which it takes long say anything."""

    def __init__(self, job: str, clock: Clock) -> None:
        self.attempt = AttemptId(0)
        """The one that `text` is about."""
        self.text = ""
        self._job = job
        self._clock = clock
        self._slots: dict[SlotId, Restoring] = {}
        self._log_ms = 0.0
        self._read: dict[WorkerId, tuple[int, int]] = {}
        self._read_in = AttemptId(0)

    def heard(self, message: Restoring) -> None:
        if message.attempt != self.attempt:
            self.attempt, self._slots, self._log_ms = message.attempt, {}, 0.0
        self._slots[message.slot] = message
        self.text = _text(self._slots.values())
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._log_ms:
            self._log_ms = now_ms + LOG_EVERY_MS
            log.info("job %s: attempt %s: %s", self._job, self.attempt, self.text)

    def ready(self, attempt: AttemptId, slot: SlotId) -> None:
        """This worker has read all of it."""
        last = self._slots.get(slot)
        if last is not None and attempt == self.attempt:
            done = replace(last, rows=last.rows_total, bytes=last.bytes_total)
            self._slots[slot] = done
            self.text = _text(self._slots.values())

    def read_back(
        self, worker: WorkerId, attempt: AttemptId, restored_bytes: int, local_bytes: int
    ) -> None:
        """A worker runs, and has read so much from files, so much of that from its own disk."""
        if attempt > self._read_in:
            self._read_in, self._read = attempt, {}
        if attempt == self._read_in:
            self._read[worker] = (restored_bytes, local_bytes)

    @property
    def sizes(self) -> tuple[int, int]:
        """What all workers of the newest attempt have read, and how much of it from their own disks."""
        known = self._read.values()
        return sum(restored for restored, _ in known), sum(local for _, local in known)


def _text(told: Collection[Restoring]) -> str:
    rows, rows_total = sum(m.rows for m in told), sum(m.rows_total for m in told)
    size, size_total = sum(m.bytes for m in told), sum(m.bytes_total for m in told)
    return (
        f"restoring state: {rows:,} of {rows_total:,} rows, {_mib(size)} of {_mib(size_total)} MiB"
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f}"
