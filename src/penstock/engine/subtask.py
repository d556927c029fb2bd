"""One parallel instance of a task: takes frames from its channels, runs its chain, takes part in snapshots.

`step` does one bounded piece of work and never waits. The decisions about barriers are the protocol's
(`protocol.alignment`, `protocol.counting`); here they are carried out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import pyarrow as pa

from penstock.connectors.base import EndOfInput, Wait
from penstock.engine.chain import Chain
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.outputs import Outputs
from penstock.errors import InvariantBroken
from penstock.ports.channel import Barrier, Batch, End, Frame, InputChannel
from penstock.ports.clock import Clock
from penstock.protocol import alignment, counting
from penstock.protocol.alignment import Alignment
from penstock.protocol.counting import Counting
from penstock.protocol.ids import ChannelId, CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind

ROWS_MAX = 65_536
ROWS_WORTH_SENDING = 8_192
SLICE_MS = 50.0


@dataclass
class Input:
    """A channel with its port; `queue` has what was taken off it and not processed yet."""

    id: ChannelId
    port: int
    channel: InputChannel
    queue: deque[Frame] = field(default_factory=deque)

    def take(self) -> Frame | None:
        return self.queue.popleft() if self.queue else self.channel.try_receive()


@dataclass(frozen=True)
class Taken:
    """A subtask's snapshot, frozen: what is left is to write it."""

    subtask: SubtaskId
    checkpoint: CheckpointId
    operators: Mapping[str, FrozenOperator]
    finished: bool
    alignment_ms: float
    sync_ms: float


@dataclass(frozen=True)
class GivenUp:
    checkpoint: CheckpointId
    reason: str


class Subtask:
    def __init__(
        self,
        id: SubtaskId,
        chain: Chain,
        inputs: Sequence[Input],
        outputs: Outputs,
        barriers: Alignment | Counting,
        clock: Clock,
        buffer_timeout_ms: float,
    ) -> None:
        self.id = id
        self.chain = chain
        self.outputs = outputs
        chain.emit = outputs.emit
        self.barriers = barriers
        self.finished = False
        self.news: list[Taken | GivenUp] = []
        """What the attempt has to carry on, in order."""
        self._rules: ModuleType = alignment if isinstance(barriers, Alignment) else counting
        self._inputs = list(inputs)
        self._by_id = {entry.id: entry for entry in inputs}
        self._turn = 0
        self._clock = clock
        self._buffer_timeout_ms = buffer_timeout_ms
        self._slice_rows = ROWS_MAX
        self._next_poll_ms = float("-inf")
        self._paused_by: CheckpointId | None = None
        self._kinds: dict[CheckpointId, SnapshotKind] = {}
        self._aligning_since_ms: float | None = None

    # ---- the loop

    def step(self) -> bool:
        """One piece of work; False when there is nothing to do now."""
        if self.outputs.blocked and not self.outputs.flush():
            return False
        if self.finished:
            return False
        if self.chain.source is not None:
            return self._step_source()
        return self._step_inputs()

    def _step_source(self) -> bool:
        source = self.chain.source
        now_ms = self._clock.monotonic_ms()
        if source is None or self._paused_by is not None or now_ms < self._next_poll_ms:
            return False
        self.chain.current = self.chain.head_name
        rows = source.poll(self._slice_rows)
        if isinstance(rows, Wait):
            self._next_poll_ms = max(rows.until_ms, now_ms)
            return False
        if isinstance(rows, EndOfInput):
            self._finish()
            return True
        self._process_timed(rows, 0, now_ms)
        if rows.num_rows < ROWS_WORTH_SENDING:
            self._next_poll_ms = now_ms + self._buffer_timeout_ms
        return True

    def _step_inputs(self) -> bool:
        blocked = self.barriers.blocked
        count = len(self._inputs)
        for offset in range(count):
            entry = self._inputs[(self._turn + offset) % count]
            if entry.id in blocked:
                continue
            frame = entry.take()
            if frame is not None:
                self._turn = (self._turn + offset + 1) % count
                self._handle(entry, frame)
                return True
        return False

    def _handle(self, entry: Input, frame: Frame) -> None:
        if isinstance(frame, Batch):
            rows = frame.data
            if rows.num_rows > self._slice_rows:
                entry.queue.appendleft(Batch(rows.slice(self._slice_rows)))
                rows = rows.slice(0, self._slice_rows)
            self._process_timed(rows, entry.port, self._clock.monotonic_ms())
        elif isinstance(frame, Barrier):
            self._apply(self._rules.on_barrier(self.barriers, entry.id, frame.checkpoint))
        elif isinstance(frame, End):
            self._apply(self._rules.on_end(self.barriers, entry.id))
            if not self.barriers.open:
                self._finish()

    def _process_timed(self, rows: pa.RecordBatch, port: int, began_ms: float) -> None:
        """Runs the chain, and learns how many rows fit into a slice."""
        self.chain.process(rows, port)
        took_ms = self._clock.monotonic_ms() - began_ms
        if took_ms > SLICE_MS:
            fitting = int(rows.num_rows * SLICE_MS / 2 / took_ms)
            self._slice_rows = max(1, min(self._slice_rows, fitting))
        elif took_ms < SLICE_MS / 2 and self._slice_rows <= rows.num_rows:
            self._slice_rows = min(ROWS_MAX, self._slice_rows * 2)

    def _finish(self) -> None:
        self.chain.finish()
        self.outputs.end()
        self.finished = True

    # ---- snapshots

    def trigger(self, checkpoint: CheckpointId, kind: SnapshotKind) -> None:
        if not self.barriers.is_over(checkpoint):
            self._kinds[checkpoint] = kind
        self._apply(self._rules.on_trigger(self.barriers, checkpoint))

    def abort(self, checkpoint: CheckpointId) -> None:
        self._kinds.pop(checkpoint, None)
        self._apply(self._rules.on_abort(self.barriers, checkpoint))
        self.outputs.forget_barrier(checkpoint)
        if self._paused_by == checkpoint:
            self._paused_by = None

    def _apply(self, step: tuple[Alignment | Counting, tuple[alignment.Action, ...]]) -> None:
        self.barriers, actions = step
        for action in actions:
            if isinstance(action, alignment.Take):
                self._take(action.checkpoint)
            elif isinstance(action, alignment.GiveUp):
                self.news.append(GivenUp(action.checkpoint, action.reason))
        self._note_alignment()

    def _note_alignment(self) -> None:
        if not self.barriers.blocked:
            self._aligning_since_ms = None
        elif self._aligning_since_ms is None:
            self._aligning_since_ms = self._clock.monotonic_ms()

    def _take(self, checkpoint: CheckpointId) -> None:
        began_ms = self._clock.monotonic_ms()
        operators = self.chain.freeze(checkpoint)
        if not self.finished:
            self.outputs.barrier(checkpoint)
        since = began_ms if self._aligning_since_ms is None else self._aligning_since_ms
        sync_ms = self._clock.monotonic_ms() - began_ms
        self.news.append(
            Taken(self.id, checkpoint, operators, self.finished, began_ms - since, sync_ms)
        )
        self._aligning_since_ms = None
        if self._kinds.get(checkpoint) is SnapshotKind.STOP and self.chain.source is not None:
            self._paused_by = checkpoint
        self._kinds = {n: kind for n, kind in self._kinds.items() if n > checkpoint}

    # ---- what the host waits for

    def reading(self) -> list[ChannelId]:
        """Channels whose next frame this subtask would take."""
        if self.finished or self.outputs.blocked:
            return []
        blocked = self.barriers.blocked
        return [entry.id for entry in self._inputs if entry.id not in blocked]

    def wake_ms(self) -> float | None:
        """When a source wants to be asked again."""
        if self.finished or self.chain.source is None or self._paused_by is not None:
            return None
        return None if self.outputs.blocked else self._next_poll_ms

    def close(self) -> None:
        """Gives up the channels; the chain belongs to the attempt."""
        for entry in self._inputs:
            entry.queue.clear()
            entry.channel.close()
        self.outputs.close()

    def check(self) -> None:
        """Rules that must hold between any two steps."""
        if self.finished and self.barriers.open:
            raise InvariantBroken(f"subtask {self.id} finished with open inputs")
        if self.barriers.blocked - self.barriers.open:
            raise InvariantBroken(f"subtask {self.id} blocks channels that have ended")
