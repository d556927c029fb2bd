"""What leaves a subtask: rows are partitioned, frames wait for room in their channel, order is kept.

An urgent barrier makes its reader empty the channel at once, so there would be room for more at once, and with every
snapshot more rows would be in flight. So behind such a barrier nothing new is made for the channel until the reader
has processed it: the output is *held*. A held output takes frames that are there; it only asks for no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.engine.worker.partition import Partitioner
from penstock.ports.channel import Barrier, Batch, End, Frame, OutputChannel
from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder


@dataclass
class Output:
    """One channel and the frames that wait for room in it."""

    id: ChannelId
    channel: OutputChannel
    waiting: deque[Frame] = field(default_factory=deque)
    newest: CheckpointId = NO_CHECKPOINT
    """The last barrier that was put into it."""
    awaited: CheckpointId = NO_CHECKPOINT
    """The barrier that its reader must process first."""

    @property
    def held(self) -> bool:
        if self.awaited and self.channel.confirmed() >= self.awaited:
            self.awaited = NO_CHECKPOINT
        return bool(self.awaited)

    def forget(self, checkpoint: CheckpointId) -> None:
        """This barrier is not in it any more: there is nothing to wait for."""
        if self.newest == checkpoint:
            self.newest = NO_CHECKPOINT
        if self.awaited == checkpoint:
            self.awaited = NO_CHECKPOINT

    def put(self, frame: Frame) -> None:
        if self.waiting or not self.channel.try_send(frame):
            self.waiting.append(frame)

    def flush(self) -> None:
        while self.waiting and self.channel.try_send(self.waiting[0]):
            self.waiting.popleft()


class Outputs:
    """All outputs of a subtask. A subtask with waiting frames takes no more input: that is back pressure."""

    def __init__(self, edges: Mapping[int, tuple[Partitioner, Sequence[Output]]]) -> None:
        self._edges = dict(edges)
        self._all = [output for _, outputs in self._edges.values() for output in outputs]

    def emit(self, edge: int, batch: pa.RecordBatch) -> None:
        partition, outputs = self._edges[edge]
        for target, rows in partition(batch):
            outputs[target].put(Batch(rows))

    def barrier(self, order: SnapshotOrder) -> None:
        """Behind everything that was emitted, also behind what still waits."""
        for output in self._all:
            output.put(Barrier(order))
            output.newest = order.id
            if order.urgent:
                output.awaited = order.id

    def hold(self, checkpoint: CheckpointId) -> None:
        """The snapshot has become urgent after its barrier was sent."""
        for output in self._all:
            if output.newest == checkpoint:
                output.awaited = checkpoint

    def end(self) -> None:
        for output in self._all:
            output.put(End())

    def forget_barrier(self, checkpoint: CheckpointId) -> None:
        """The barrier of an aborted snapshot that still waits is taken out."""
        for output in self._all:
            for frame in [f for f in output.waiting if isinstance(f, Barrier)]:
                if frame.order.id == checkpoint:
                    output.waiting.remove(frame)
                    output.forget(checkpoint)

    def flush(self) -> bool:
        """Sends what there is room for; True when nothing waits any more."""
        for output in self._all:
            if output.waiting:
                output.flush()
        return not self.blocked

    @property
    def blocked(self) -> bool:
        for output in self._all:  # noqa: SIM110 (a plain loop: asked at every step)
            if output.waiting:
                return True
        return False

    @property
    def held(self) -> bool:
        for output in self._all:  # noqa: SIM110 (so is this)
            if output.awaited and output.held:
                return True
        return False

    def awaiting(self) -> list[ChannelId]:
        """Channels whose readers have something to confirm."""
        return [output.id for output in self._all if output.awaited]

    @property
    def frames_waiting(self) -> int:
        return sum(len(output.waiting) for output in self._all)

    def wanting_room(self) -> list[ChannelId]:
        return [output.id for output in self._all if output.waiting]

    def close(self) -> None:
        for output in self._all:
            output.waiting.clear()
            output.channel.close()
