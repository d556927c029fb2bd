"""The two ends of a channel. A frame is a batch, a barrier or the end of the stream; order is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder


@dataclass(slots=True)
class Batch:
    """Rows: a `pa.RecordBatch`. Not frozen: made once per batch on the hot path."""

    data: Any
    _bytes: int = -1

    @property
    def bytes(self) -> int:
        """Looked up once, and only where somebody asks: it takes microseconds."""
        if self._bytes < 0:
            self._bytes = self.data.nbytes
        return self._bytes


@dataclass(frozen=True, slots=True)
class Barrier:
    """What comes before it belongs to the snapshot that is ordered, what comes behind it does not."""

    order: SnapshotOrder


@dataclass(frozen=True, slots=True)
class End:
    """No more frames will come. Idempotent: a restored subtask that had finished sends it again."""


Frame: TypeAlias = Batch | Barrier | End


class ChannelLost(Exception):
    """The other end is gone or a frame is missing: the attempt cannot go on."""


class OutputChannel(Protocol):
    def try_send(self, frame: Frame) -> bool:
        """Hands a frame over; False, and nothing happened, when the channel is full."""
        ...

    def confirmed(self) -> CheckpointId:
        """The newest barrier that the reader is known to have processed."""
        ...

    def close(self) -> None: ...


class InputChannel(Protocol):
    def try_receive(self) -> Frame | None:
        """The next frame, or None when there is none yet."""
        ...

    def confirm(self, checkpoint: CheckpointId) -> None:
        """Lets the writer know that this barrier was processed, and so all that stood before it."""
        ...

    def close(self) -> None: ...
