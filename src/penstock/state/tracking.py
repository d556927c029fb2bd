"""What a table tells of its changes, and how a frozen view of it is written: two contracts.

A table with a tracker tells it which rows change. At a freeze the tracker makes a plan, and the plan writes the view:
what changed since an earlier checkpoint, rows for a floor below the table, or whatever else a way of keeping state
needs. A table without one writes all its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.protocol.snapshot import Segment
from penstock.state.cells import Groups
from penstock.state.frozen import Out


class View(Protocol):
    """A table as it was at a freeze: see `frozen_table.py`."""

    state: str
    schema: pa.Schema
    rows: int
    """How many the state has."""
    end: int
    """Cells from here on were made later."""

    def batches(self, among: I64 | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, or those of these cells, which ascend: one batch per block."""
        ...

    def below(self, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Of rows that left memory, those with these keys that were there: as in `batches`."""
        ...

    def release(self) -> None:
        """The table may forget how it was."""
        ...


Lookup: TypeAlias = Callable[[Sequence[bytes]], Iterator[pa.RecordBatch]]
"""Rows that lie in a floor, as they were at a freeze: see `View.below`."""


class Plan(Protocol):
    """What to write for one snapshot, and where."""

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        """On another thread. The view is released afterwards, if it was not before."""
        ...

    def release(self) -> None:
        """It is written, or given up: what was held for it can go."""
        ...


class HoldsNothing:
    """For plans that need nothing but the view."""

    def release(self) -> None: ...


class Tracker(Protocol):
    """Of one table. All calls but those of its plans come from the table's own thread."""

    dirty: Flags
    """Cells whose rows changed since the last freeze. Set by the table."""

    def restored(self, checkpoint: int, segments: Sequence[Segment], groups: range) -> None:
        """The table was filled from the rows of these segments that are in these key groups, and is as that checkpoint
        has it."""
        ...

    def removed(self, keys: list[pa.Array], groups: Groups) -> None:
        """Rows of these keys go."""
        ...

    def grow(self, count: int, capacity: int) -> None: ...

    def plan(self, base: int, checkpoint: int) -> Plan:
        """The table is frozen for this checkpoint, which may build on the `base`; 0: on none."""
        ...
