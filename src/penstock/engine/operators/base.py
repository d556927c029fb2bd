"""The contract between a subtask and the operators in its chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.connectors.answer import Answer, answered
from penstock.connectors.deferred import Deferred
from penstock.engine.operators.floors import StateFloors, in_slices
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import OperatorSnapshot, Plain, Segment
from penstock.state.frozen import Frozen
from penstock.state.keyed import Log


@dataclass(frozen=True)
class FrozenOperator:
    """The synchronous part of an operator's snapshot."""

    tables: tuple[Frozen, ...] = ()
    lanes: Mapping[int, Plain] = field(default_factory=dict)
    transactions: tuple[Deferred[Plain], ...] = ()
    """Made durable, where that is still to be done, by the asynchronous part."""


@dataclass(frozen=True)
class OperatorContext:
    """What an operator is told when it is opened."""

    job: str
    operator: str
    index: int
    parallelism: int
    max_parallelism: int
    attempt: int
    input_schemas: tuple[pa.Schema, ...]
    now_ms: Callable[[], float]
    """Milliseconds from an arbitrary start; never goes back."""
    wall_ms: Callable[[], float]
    """Milliseconds since 1970, which mean the same on every host; may jump."""
    restored: tuple[OperatorSnapshot, ...]
    """This operator's snapshots from every old subtask, in the order of their indices: there are as many as the old
    parallelism was. Empty on a fresh start."""
    read_segments: Callable[[Sequence[Segment], range], Iterable[pa.RecordBatch]]
    """The verified rows of segments, in order, whose key groups are in the range. What comes next is fetched while the
    operator is busy with what it got: segments of one state are best read together."""
    to_driver: Callable[[Plain], None]
    restored_id: int = 0
    """The checkpoint of this job that it goes on from; 0: none, or another job's."""
    incremental: bool = False
    """Checkpoints may build on earlier ones."""
    log: Log | None = None
    """Writes state ahead of checkpoints."""
    allow_non_restored_state: bool = False
    """State that nobody declares any more may go."""
    floors: StateFloors | None = None
    """For state that is larger than memory."""
    ask: Callable[[Callable[[], Any]], Answer[Any]] = answered
    """Runs a function off the loop's thread."""

    def rows_of(self, state: str) -> Iterable[pa.RecordBatch]:
        """What was restored of a state, from every old subtask, as far as it is this subtask's now."""
        found = [segment for part in self.parts_of(state) for segment in part]
        if self.floors is not None:
            left = self.floors.left_of(self.operator, state, found)
            return in_slices(self.read_segments(left, self.key_groups))
        return self.read_segments(found, self.key_groups)

    def parts_of(self, state: str) -> list[list[Segment]]:
        """The segments of a state, by the old subtask that wrote them."""
        return [[each for each in part.segments if each.state == state] for part in self.restored]

    @property
    def key_groups(self) -> range:
        """The key groups that this subtask owns."""
        first = -(-self.index * self.max_parallelism // self.parallelism)
        last = -(-(self.index + 1) * self.max_parallelism // self.parallelism)
        return range(first, last)


class Operator(ABC):
    """One step of a chain. Made fresh for every attempt; called from one thread."""

    function: Any = None
    """The user's own code in it, if there is some: messages say where it is written."""

    def open(self, context: OperatorContext) -> None:  # noqa: B027 (optional)
        """Takes its state back from `context.restored`."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Rows in, from the input number `port`; rows out."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """All input has ended; last rows out. A subtask that had finished finishes again after a restore, so an
        operator lets go of what it has given: the state that is frozen afterwards must not give it again."""
        return ()

    def hold_nothing_back(self) -> None:  # noqa: B027 (optional)
        """The snapshot that comes now may be the last: what only waits for more is to go on with it."""

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        """The state right now. Takes microseconds: what takes longer belongs into `Frozen.write`."""
        return FrozenOperator()

    def close(self) -> None:  # noqa: B027 (optional)
        """Releases everything. Called once, also after a failure or a half-done `open`."""
