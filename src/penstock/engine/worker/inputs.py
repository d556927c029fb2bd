"""What comes into a subtask: channels, what was taken off them ahead of its turn, and the rows in flight.

An unaligned snapshot holds the rows that are still on their way. A channel that owes the barrier is read aside, into
its queue, and what it brings is recorded; the queue is processed in order, before the channel is read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from penstock.ports.channel import Barrier, Batch, Frame, InputChannel
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.snapshot import NO_SOURCE


@dataclass
class Input:
    """A channel with its port; `queue` has what was taken off it and not processed yet."""

    id: ChannelId
    port: int
    channel: InputChannel
    queue: deque[Frame] = field(default_factory=deque)
    bytes_queued: int = 0

    def take(self) -> Frame | None:
        """The next frame to process."""
        return self.take_queued() if self.queue else self.channel.try_receive()

    def take_queued(self) -> Frame | None:
        if not self.queue:
            return None
        frame = self.queue.popleft()
        self.bytes_queued -= _bytes(frame)
        return frame

    def take_mark(self) -> Frame | None:
        """The next frame if it has no rows: a barrier, or the end. Rows stay, at the head of the queue."""
        if not self.queue:
            frame = self.channel.try_receive()
            if frame is None:
                return None
            self.put(frame)
        return None if isinstance(self.queue[0], Batch) else self.take_queued()

    def put(self, frame: Frame) -> None:
        """Sets a frame aside that was read ahead of its turn."""
        self.queue.append(frame)
        self.bytes_queued += _bytes(frame)

    def put_back(self, rest: pa.RecordBatch) -> None:
        """What a slice left of a batch is next."""
        frame = Batch(rest)
        self.queue.appendleft(frame)
        self.bytes_queued += _bytes(frame)

    def queued_before(self, checkpoint: CheckpointId) -> Iterable[Batch]:
        """The rows in the queue that belong to a snapshot: all that stand before its barrier."""
        for frame in self.queue:
            if isinstance(frame, Barrier) and frame.order.id == checkpoint:
                return
            if isinstance(frame, Batch):
                yield frame

    def close(self) -> None:
        self.queue.clear()
        self.channel.close()


@dataclass(frozen=True)
class Rescued:
    """Rows for a port that a restore brought to another parallelism. They go before all that comes by a channel: the
    one that they came by is not there any more, and what follows them may come by any other."""

    port: int
    rows: Batch


@dataclass(frozen=True)
class ChannelRows:
    """Rows in flight on one channel, or of those before all channels, in order."""

    port: int
    source: int
    batches: Sequence[pa.RecordBatch]


class Recorder:
    """Collects the rows in flight of one snapshot."""

    def __init__(
        self, inputs: Iterable[Input], checkpoint: CheckpointId, rescued: Iterable[Rescued] = ()
    ) -> None:
        """Begins with what goes before all channels, and with what these inputs have queued."""
        self._rescued = tuple(rescued)
        self.bytes = sum(entry.rows.bytes for entry in self._rescued)
        self._inputs: dict[ChannelId, Input] = {}
        self._rows: dict[ChannelId, list[pa.RecordBatch]] = {}
        for entry in inputs:
            self._inputs[entry.id] = entry
            self._rows[entry.id] = []
            for batch in entry.queued_before(checkpoint):
                self.add(entry.id, batch)

    def add(self, channel: ChannelId, batch: Batch) -> None:
        self._rows[channel].append(batch.data)
        self.bytes += batch.bytes

    def rows(self) -> tuple[ChannelRows, ...]:
        runs = groupby(self._rescued, key=lambda entry: entry.port)
        first = [ChannelRows(p, NO_SOURCE, [entry.rows.data for entry in run]) for p, run in runs]
        return (*first, *self._by_channel())

    def _by_channel(self) -> Iterator[ChannelRows]:
        return (
            ChannelRows(self._inputs[channel].port, channel.source, batches)
            for channel, batches in sorted(self._rows.items())
            if batches
        )


def _bytes(frame: Frame) -> int:
    return frame.bytes if isinstance(frame, Batch) else 0
