"""A channel between two subtasks of one worker: a short queue, the same interface as one between processes."""

from __future__ import annotations

from collections import deque

from penstock.ports.channel import Frame
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId

FRAMES_MAX = 4


class LocalChannel:
    """Both ends at once: `try_send` on one side, `try_receive` on the other."""

    __slots__ = ("_confirmed", "_frames")

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._confirmed = NO_CHECKPOINT

    def try_send(self, frame: Frame) -> bool:
        if len(self._frames) >= FRAMES_MAX:
            return False
        self._frames.append(frame)
        return True

    def try_receive(self) -> Frame | None:
        return self._frames.popleft() if self._frames else None

    def confirm(self, checkpoint: CheckpointId) -> None:
        self._confirmed = max(self._confirmed, checkpoint)

    def confirmed(self) -> CheckpointId:
        return self._confirmed

    def close(self) -> None:
        self._frames.clear()
