"""Commits on the worker: everything up to a completed checkpoint, off the loop, again and again until it is done.

A commit that fails is tried again with growing pauses; one that fails for good fails the attempt, so that the next
attempt repeats it from the checkpoint. It is never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.engine.operators.connect import SinkOperator
from penstock.errors import CommitError
from penstock.ports.background import Background
from penstock.ports.clock import Clock
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId

TRIES_MAX = 5
FIRST_PAUSE_MS = 100.0


@dataclass
class _Sink:
    name: str
    operator: SinkOperator
    busy: bool = False
    tries: int = 0
    not_before_ms: float = float("-inf")


class Commits:
    """All sinks of one worker. `done` is told whenever every sink has committed up to a checkpoint."""

    def __init__(
        self,
        sinks: Sequence[tuple[str, SinkOperator]],
        background: Background,
        clock: Clock,
        done: Callable[[CheckpointId], None],
    ) -> None:
        self._sinks = [_Sink(name, operator) for name, operator in sinks]
        self._background = background
        self._clock = clock
        self._done = done
        self._wanted = NO_CHECKPOINT
        self.last = NO_CHECKPOINT
        """The checkpoint that the job is to end with, once one was asked for."""
        self.committed = NO_CHECKPOINT
        self.failure: CommitError | None = None
        self.failed_operator = ""

    def wanted(self, checkpoint: CheckpointId) -> None:
        """This checkpoint is complete. Telling it twice, or an older one later, changes nothing."""
        if checkpoint > self._wanted:
            self._wanted = checkpoint
            self.step()

    def step(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for sink in self._sinks:
            if not sink.busy and now_ms >= sink.not_before_ms:
                self._begin(sink)
        oldest = min((sink.operator.committed for sink in self._sinks), default=self._wanted)
        if oldest > self.committed:
            self.committed = oldest
            self._done(oldest)

    def wake_ms(self) -> float | None:
        times = [s.not_before_ms for s in self._sinks if s.tries and not s.busy]
        return min(times, default=None)

    def _begin(self, sink: _Sink) -> None:
        work = sink.operator.commit_work(self._wanted, self._wanted == self.last)
        if work is None:
            return
        if not (work.transactions or work.last):
            sink.operator.commit_done(work.upto)
            return
        sink.busy = True

        def done(upto: CheckpointId) -> None:
            sink.busy, sink.tries, sink.not_before_ms = False, 0, float("-inf")
            sink.operator.commit_done(upto)
            self.step()

        def failed(error: BaseException) -> None:
            sink.busy = False
            self._try_again(sink, error)

        self._background.submit(work, done, failed)

    def _try_again(self, sink: _Sink, error: BaseException) -> None:
        sink.tries += 1
        pause_ms = FIRST_PAUSE_MS * 2 ** (sink.tries - 1)
        sink.not_before_ms = self._clock.monotonic_ms() + pause_ms
        if sink.tries >= TRIES_MAX:
            self.failed_operator = sink.name
            self.failure = CommitError(
                f"sink {sink.name!r} could not commit up to checkpoint {self._wanted}, "
                f"{sink.tries} times: {type(error).__name__}: {error}"
            )
            self.failure.__cause__ = error
