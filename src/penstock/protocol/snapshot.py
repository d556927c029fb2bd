"""What a snapshot consists of, as plain data.

A subtask's snapshot is a list of operator snapshots. Each has keyed state, as references to blocks in a
file (or, where small, the bytes themselves), and `plain` data: source positions by lane, pre-committed
transactions. An unaligned snapshot also has the rows that were in flight. Plain data is what JSON can say; nothing
here is code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.protocol.ids import SubtaskId

Plain: TypeAlias = "None | bool | int | float | str | list[Plain] | dict[str, Plain]"


@dataclass(frozen=True, slots=True)
class Block:
    """Rows with key groups from `first_group` to `last_group`, one Arrow IPC record batch message."""

    first_group: int
    last_group: int
    rows: int
    offset: int
    length: int
    checksum: str


ALL_GROUPS = (0, 1 << 16)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one keyed state of one operator, as blocks in `file` (a name relative to the job's
    directory) or, where `inline` is set, in those bytes. Block offsets count from the start of either.

    The segments of a state are applied in their order: what a later one says of a key counts."""

    state: str
    schema: bytes
    blocks: tuple[Block, ...]
    file: str = ""
    inline: bytes | None = None
    groups: tuple[int, int] = ALL_GROUPS
    """The first of the key groups whose rows count, and the first behind them. A later checkpoint may refer to a file
    of which only a part still counts."""
    delta: bool = False
    """Only what changed since the segments before it; of a key that was removed there is a row that says so."""
    rows_after: int = 0
    """Of a delta: how many rows the state has then. Of the first of a floor's files: how many all of them hold."""
    latest_ms: int = 0
    """Of the first of a floor's files, where rows end after a while: none was touched later."""
    member: str = ""
    """These are no rows, but a file of this name, of a floor on a worker's disk. The files of one floor follow each
    other; all of them together hold rows with this schema."""

    @property
    def bytes_total(self) -> int:
        return sum(block.length for block in self.blocks)


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """All that one operator of one subtask keeps in a snapshot."""

    segments: tuple[Segment, ...] = ()
    lanes: Mapping[int, Plain] = field(default_factory=dict)
    """Source positions by lane: a lane is to a source what a key group is to keyed state."""
    transactions: tuple[Plain, ...] = ()
    """All pre-committed transactions not yet known to be committed, oldest first."""

    @property
    def rows(self) -> dict[str, int]:
        """How many each state has."""
        rows: dict[str, int] = {}
        for each in self.segments:
            before = 0 if each.delta else rows.get(each.state, 0)
            counted = each.delta or each.member
            stored = each.rows_after if counted else sum(block.rows for block in each.blocks)
            rows[each.state] = before + stored
        return rows


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rows that were on their way to this subtask when an unaligned snapshot was taken, in order: those that came
    from subtask `source` for input `port` of `operator`, the first of its chain. They are processed first after a
    restore. Key groups mean nothing in these blocks."""

    operator: str
    port: int
    source: int
    """`NO_SOURCE` where the rows go before those of every channel."""
    segment: Segment


NO_SOURCE = -1
"""Rows in flight that a restore brought to another parallelism: the channel that they came by is not there any more."""


@dataclass(frozen=True, slots=True)
class Timings:
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    bytes_written: int = 0
    inflight_bytes: int = 0
    alignment_rows: int = 0
    """Rows processed between the first barrier and the snapshot."""


@dataclass(frozen=True, slots=True)
class SubtaskSnapshot:
    """What a subtask acknowledges."""

    subtask: SubtaskId
    operators: Mapping[str, OperatorSnapshot]
    finished: bool = False
    timings: Timings = Timings()
    inflight: tuple[InFlight, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All of them: of its operators, and of the rows in flight."""
        own = (segment for operator in self.operators.values() for segment in operator.segments)
        return (*own, *(entry.segment for entry in self.inflight))
