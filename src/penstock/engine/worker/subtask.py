"""One parallel instance of a task: takes frames from its channels, runs its chain, takes part in snapshots.

`step` does one bounded piece of work and never waits. The decisions about barriers are the protocol's
(`protocol.alignment`, `protocol.counting`); here they are carried out. Reading aside, for a snapshot that holds the
rows in flight, never depends on whether an output is full: two subtasks could wait for each other for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import pyarrow as pa

from penstock.connectors.base import EndOfInput, Wait
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.worker.chain import Chain
from penstock.engine.worker.inputs import ChannelRows, Input, Recorder, Rescued
from penstock.engine.worker.outputs import Outputs
from penstock.engine.worker.pressure import Pressure
from penstock.engine.worker.slicing import Slicing
from penstock.errors import InvariantBroken
from penstock.ports.channel import Barrier, Batch, End, Frame
from penstock.ports.clock import Clock
from penstock.protocol import alignment, counting
from penstock.protocol.alignment import Aligning, Alignment, Recording
from penstock.protocol.counting import Counting
from penstock.protocol.ids import ChannelId, CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder

ROWS_WORTH_SENDING = 8_192
FRAMES_ASIDE = 64
"""How many frames of a channel are read aside before the loop looks at something else."""


@dataclass(frozen=True)
class Taken:
    """A subtask's snapshot, frozen: what is left is to write it."""

    subtask: SubtaskId
    checkpoint: CheckpointId
    operators: Mapping[str, FrozenOperator]
    finished: bool
    alignment_ms: float
    sync_ms: float
    alignment_rows: int = 0
    inflight: tuple[ChannelRows, ...] = ()

    def release(self) -> None:
        """It will never be written: what it holds on to may go."""
        for frozen in self.operators.values():
            for table in frozen.tables:
                table.release()


@dataclass(frozen=True)
class GivenUp:
    checkpoint: CheckpointId
    reason: str
    overflow: bool = False


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
        inflight_bytes_max: int,
        rescued: Iterable[Rescued] = (),
    ) -> None:
        """`rescued` is processed before anything that comes by an input."""
        self.id = id
        self.chain = chain
        self.outputs = outputs
        chain.emit = outputs.emit
        self.barriers = barriers
        self.finished = False
        self.pressure = Pressure(clock)
        self.news: list[Taken | GivenUp] = []
        """What the attempt has to carry on, in order."""
        self._rules: ModuleType = alignment if isinstance(barriers, Alignment) else counting
        self._inputs = list(inputs)
        self._rescued = deque(rescued)
        self._turn = 0
        self._clock = clock
        self._buffer_timeout_ms = buffer_timeout_ms
        self.slicing = Slicing()
        self._next_poll_ms = float("-inf")
        self._paused_by: CheckpointId | None = None
        self._aligning_since: tuple[float, int] | None = None
        """When the first channel was blocked, and how many rows had come in by then."""
        self._inflight_bytes_max = inflight_bytes_max
        self._recorder: Recorder | None = None
        self._unrecorded: Taken | None = None
        """The snapshot whose rows in flight are still being recorded."""
        self._read_ahead = any(entry.queue for entry in self._inputs)
        """Something was set aside: it goes before what is still in the channels."""

    # ---- the loop

    def step(self) -> bool:
        """One piece of work; False when there is nothing to do now."""
        moved = bool(self.barriers.aside) and self._read_aside()
        full = self.outputs.blocked and not self.outputs.flush()
        held = not full and not self.finished and self._is_held()
        self.pressure.note(full or held)
        if full or self.finished:
            return moved
        if held:
            return self._step_marks() or moved
        if self.chain.source is not None:
            return self._step_source()
        return self._step_inputs() or moved

    def move(self) -> bool:
        """Moves frames without working on any: into the queues of inputs that are read aside, out of outputs."""
        moved = bool(self.barriers.aside) and self._read_aside()
        waiting = self.outputs.frames_waiting
        if waiting:
            self.outputs.flush()
        return moved or self.outputs.frames_waiting < waiting

    def _is_held(self) -> bool:
        """A snapshot that is being aligned goes first: what it waits for might be behind what would be held. So do rows
        that go before everything: there are only so many of them."""
        if self._rescued:
            return False
        aligning = isinstance(self.barriers, Alignment) and isinstance(
            self.barriers.phase, Aligning
        )
        return not aligning and self.outputs.held

    def _step_marks(self) -> bool:
        """Barriers go through a subtask that is held, or those who wait for word of them would wait for all who stand
        behind it, too: with frequent snapshots, for ever."""
        not_now = self.barriers.blocked | self.barriers.aside
        for entry in self._inputs:
            frame = entry.take_mark() if entry.id not in not_now else None
            if frame is not None:
                self._handle(entry, frame)
                return True
        self._read_ahead = True
        return False

    def _step_source(self) -> bool:
        source = self.chain.source
        now_ms = self._clock.monotonic_ms()
        if source is None or self._paused_by is not None or now_ms < self._next_poll_ms:
            return False
        self.chain.current = self.chain.head_name
        rows = source.poll(self.slicing.rows)
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
        if self._rescued:
            self._step_rescued()
            return True
        if self._read_ahead:
            if self._step_next(self.barriers.blocked, queued_only=True):
                return True
            self._read_ahead = any(entry.queue for entry in self._inputs)
        return self._step_next(self.barriers.blocked | self.barriers.aside, queued_only=False)

    def _step_rescued(self) -> None:
        entry = self._rescued.popleft()
        rows = entry.rows.data
        if rows.num_rows > self.slicing.rows:
            rest = Batch(rows.slice(self.slicing.rows))
            self._rescued.appendleft(Rescued(entry.port, rest))
            rows = rows.slice(0, self.slicing.rows)
        self._process_timed(rows, entry.port, self._clock.monotonic_ms())

    def _step_next(self, not_now: frozenset[ChannelId], queued_only: bool) -> bool:
        """Processes a frame of the next channel in turn that has one."""
        count = len(self._inputs)
        for offset in range(count):
            entry = self._inputs[(self._turn + offset) % count]
            if entry.id in not_now:
                continue
            frame = entry.take_queued() if queued_only else entry.take()
            if frame is not None:
                self._turn = (self._turn + offset + 1) % count
                self._handle(entry, frame)
                return True
        return False

    def _handle(self, entry: Input, frame: Frame) -> None:
        if isinstance(frame, Batch):
            rows = frame.data
            if rows.num_rows > self.slicing.rows:
                entry.put_back(rows.slice(self.slicing.rows))
                self._read_ahead = True
                rows = rows.slice(0, self.slicing.rows)
            self._process_timed(rows, entry.port, self._clock.monotonic_ms())
        elif isinstance(frame, Barrier):
            self._apply(self._rules.on_barrier(self.barriers, entry.id, frame.order))
            entry.channel.confirm(frame.order.id)
        elif isinstance(frame, End):
            self._apply(self._rules.on_end(self.barriers, entry.id))
            if not self.barriers.open:
                self._finish()

    def _process_timed(self, rows: pa.RecordBatch, port: int, began_ms: float) -> None:
        self.chain.process(rows, port)
        self.slicing.took(rows.num_rows, self._clock.monotonic_ms() - began_ms)

    def _finish(self) -> None:
        self.chain.finish()
        self.outputs.end()
        self.finished = True

    # ---- reading aside

    def _read_aside(self) -> bool:
        moved = False
        for entry in self._inputs:
            for _ in range(FRAMES_ASIDE):
                if entry.id not in self.barriers.aside:
                    break
                frame = entry.channel.try_receive()
                if frame is None:
                    break
                self._set_aside(entry, frame)
                moved = True
        return moved

    def _set_aside(self, entry: Input, frame: Frame) -> None:
        entry.put(frame)
        self._read_ahead = True
        if isinstance(frame, Batch):
            if self._recorder is not None:
                self._recorder.add(entry.id, frame)
            self._check_overflow()
        elif isinstance(frame, Barrier):
            self._apply(self._rules.on_barrier_read(self.barriers, entry.id, frame.order))
        elif isinstance(frame, End):
            self._apply(self._rules.on_end_read(self.barriers, entry.id))

    def _check_overflow(self) -> None:
        """Stopping to read could stop the whole job for ever: a snapshot that grows too large is given up."""
        queued = sum(entry.bytes_queued for entry in self._inputs)
        recorded = self._recorder.bytes if self._recorder is not None else 0
        if max(queued, recorded) > self._inflight_bytes_max:
            self._apply(self._rules.on_overflow(self.barriers, self._too_much()), overflow=True)

    def _too_much(self) -> str:
        return f"subtask {self.id} has more than {self._inflight_bytes_max} bytes in flight"

    # ---- snapshots

    def trigger(self, order: SnapshotOrder) -> None:
        self._apply(self._rules.on_trigger(self.barriers, order))
        if order.urgent:
            self.outputs.hold(order.id)

    def abort(self, checkpoint: CheckpointId) -> None:
        self._apply(self._rules.on_abort(self.barriers, checkpoint))
        self._forget_unrecorded(checkpoint)
        self.outputs.forget_barrier(checkpoint)
        if self._paused_by == checkpoint:
            self._paused_by = None

    def _apply(
        self,
        step: tuple[Alignment | Counting, tuple[alignment.Action, ...]],
        overflow: bool = False,
    ) -> None:
        self.barriers, actions = step
        for action in actions:
            if isinstance(action, alignment.Take):
                self._take(action)
            elif isinstance(action, alignment.Recorded):
                self._recorded(action.checkpoint)
            elif isinstance(action, alignment.GiveUp):
                self._forget_unrecorded(action.checkpoint)
                self.news.append(GivenUp(action.checkpoint, action.reason, overflow))
        self._note_alignment()

    def _note_alignment(self) -> None:
        if not self.barriers.blocked:
            self._aligning_since = None
        elif self._aligning_since is None:
            self._aligning_since = (self._clock.monotonic_ms(), self.chain.rows_in[0])

    def _take(self, action: alignment.Take) -> None:
        order = action.order
        began_ms, rows_in = self._clock.monotonic_ms(), self.chain.rows_in[0]
        if order.kind is SnapshotKind.STOP:
            self._stop_behind(order)
        operators = self.chain.freeze(order)
        if not self.finished:
            self.outputs.barrier(order)
        since_ms, rows_before = self._aligning_since or (began_ms, rows_in)
        sync_ms = self._clock.monotonic_ms() - began_ms
        waited = (began_ms - since_ms, sync_ms, rows_in - rows_before)
        taken = Taken(self.id, order.id, operators, self.finished, *waited)
        if action.record:
            self._unrecorded = taken
            behind = (entry for entry in self._inputs if entry.id in action.record)
            self._recorder = Recorder(behind, order.id, self._rescued)
        else:
            self.news.append(taken)
        self._aligning_since = None

    def _stop_behind(self, order: SnapshotOrder) -> None:
        """The job may end with it: nobody holds anything back, and sources pause."""
        self.chain.hold_nothing_back()
        if self.chain.source is not None:
            self._paused_by = order.id

    def _recorded(self, checkpoint: CheckpointId) -> None:
        taken, recorder = self._unrecorded, self._recorder
        if taken is None or recorder is None or taken.checkpoint != checkpoint:
            raise InvariantBroken(f"subtask {self.id} recorded {checkpoint} and did not take it")
        if recorder.bytes > self._inflight_bytes_max:
            # Rows that a recovery brought back, of several old subtasks perhaps: no frame was read that told of it.
            self._forget_unrecorded(checkpoint)
            self.news.append(GivenUp(checkpoint, self._too_much(), overflow=True))
            return
        self.news.append(replace(taken, inflight=recorder.rows()))
        self._unrecorded = self._recorder = None

    def _forget_unrecorded(self, checkpoint: CheckpointId) -> None:
        if self._unrecorded is not None and self._unrecorded.checkpoint == checkpoint:
            self._unrecorded.release()
            self._unrecorded = self._recorder = None

    # ---- what the host waits for

    def reading(self) -> list[ChannelId]:
        """Channels whose next frame this subtask would take."""
        aside = self.barriers.aside
        if self.finished or self.outputs.blocked:
            return sorted(aside)
        not_now = self.barriers.blocked - aside
        held = self._is_held()
        return [
            entry.id
            for entry in self._inputs
            if entry.id in aside or not (entry.id in not_now or (held and entry.queue))
        ]

    def wake_ms(self) -> float | None:
        """When a source wants to be asked again."""
        if self.finished or self.chain.source is None or self._paused_by is not None:
            return None
        return None if self.outputs.blocked or self._is_held() else self._next_poll_ms

    def close(self) -> None:
        """Gives up the channels; the chain belongs to the attempt."""
        if self._unrecorded is not None:
            self._forget_unrecorded(self._unrecorded.checkpoint)
        for entry in self._inputs:
            entry.close()
        self.outputs.close()

    def check(self) -> None:
        """Rules that must hold between any two steps."""
        if self.finished and self.barriers.open:
            raise InvariantBroken(f"subtask {self.id} finished with open inputs")
        if self.barriers.blocked - self.barriers.open:
            raise InvariantBroken(f"subtask {self.id} blocks channels that have ended")
        phase = self.barriers.phase if isinstance(self.barriers, Alignment) else None
        if self._rescued and len(self.barriers.open) < len(self._inputs):
            raise InvariantBroken(f"subtask {self.id} processed an end before what goes before it")
        if isinstance(phase, Recording) != (self._unrecorded is not None):
            raise InvariantBroken(f"subtask {self.id} records rows for no snapshot")
