"""The names of things that take part in the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

CheckpointId = NewType("CheckpointId", int)
"""Numbers a snapshot. Increases over the whole life of a job, across drivers."""

AttemptId = NewType("AttemptId", int)
"""Numbers a deployment of the job. Claimed durably, so it fences drivers as well as workers."""

SlotId = NewType("SlotId", int)
"""The place of a worker in the plan: slot i runs subtask i of every task."""

WorkerId = NewType("WorkerId", str)
"""One worker process; a replacement has another id."""

RequestId = NewType("RequestId", int)
"""Numbers what people ask of a running job, so that each gets the answer to their own request."""

NO_CHECKPOINT = CheckpointId(0)


@dataclass(frozen=True, order=True, slots=True)
class SubtaskId:
    """One parallel instance of a task (a chain of operators)."""

    task: int
    index: int

    def __str__(self) -> str:
        return f"{self.task}.{self.index}"


@dataclass(frozen=True, order=True, slots=True)
class ChannelId:
    """The FIFO stream of frames from one subtask to another along one edge of the plan."""

    edge: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.edge}:{self.source}>{self.target}"
