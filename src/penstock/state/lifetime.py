"""Rows that live for a while: when each was touched last, and which are over.

The moment lies in a column of its own beside the values, in memory and in snapshots; only the engine sees it. A row is
over when its time to live has passed since. Then it counts as absent: whoever looks for rows drops those that are over
first, so nothing else in a state has to know of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, Flags
from penstock.state.changes import GONE_FIELD
from penstock.state.columns import FlatColumn
from penstock.state.flat import values_of

TOUCHED = pa.field("__touched_ms", pa.int64(), nullable=False)
"""In stored rows, behind the values."""
SWEEP_CELLS = 4_096
"""So many cells are looked at after a batch, and a few more for every row that was written: a round of the hand then
takes less time than it takes to write as many rows as there are."""
SWEEP_PER_ROW = 2
READ_SHARE = 10
"""A read counts once this part of the time to live has passed, so that reading does not change every row."""


@dataclass(frozen=True)
class Ttl:
    """`on_read`: reading a row prolongs its life, as writing it does."""

    ms: int
    on_read: bool = False


class Now:
    """Wall-clock time in milliseconds since 1970, which other hosts know, too. It stands still while a batch is
    processed, so nothing is over that was not at the first look, and it never goes back."""

    def __init__(self, wall_ms: Callable[[], float]) -> None:
        self._wall_ms = wall_ms
        self.ms = int(wall_ms())

    def tick(self) -> None:
        self.ms = max(self.ms, int(self._wall_ms()))


class Lifetimes:
    """Of the rows of one table, by cell."""

    def __init__(self, ttl: Ttl, now: Now) -> None:
        self.ttl = ttl
        self.touched = FlatColumn(TOUCHED.type, nullable=False)
        self.latest_ms = 0
        """No row of a snapshot was touched later."""
        self._now = now
        self._hand = 0
        self._written = 0

    @property
    def now_ms(self) -> int:
        return self._now.ms

    @property
    def over_ms(self) -> int:
        """What was touched at this moment or before is over."""
        return max(self._now.ms - self.ttl.ms, -1)

    def touch(self, cells: I64) -> None:
        """These rows are written, or read."""
        self.touched.values[cells] = self._now.ms
        self._written += len(cells)

    def ahead(self, cells: I64) -> Flags:
        """Rows of a snapshot that were touched at a moment which is still to come: another clock went before."""
        flags: Flags = self.touched.values.take(cells) > self._now.ms
        return flags

    def over(self, cells: I64 | slice) -> Flags:
        flags: Flags = self.touched.values[cells] <= self.over_ms
        return flags

    def fading(self, cells: I64) -> Flags:
        """For which a read counts."""
        flags: Flags = self.touched.values[cells] <= self._now.ms - self.ttl.ms // READ_SHARE
        return flags

    def next_sweep(self, end: int) -> slice:
        """The cells to look at now. There are so many, and over the batches each gets its turn."""
        limit, self._written = SWEEP_CELLS + SWEEP_PER_ROW * self._written, 0
        first, until = self._hand, min(self._hand + limit, end)
        self._hand = until if until < end else 0
        return slice(first, until)

    def whole_sweep(self, end: int) -> slice:
        """All cells: after a restore, when there are no batches yet that could wait."""
        self._written = 0
        return slice(0, end)

    def restored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a snapshot, each with a moment: that of now, where it has none."""
        if TOUCHED.name in batch.schema.names:
            moments = batch.column(TOUCHED.name)
            self.latest_ms = max(self.latest_ms, pc.max(moments).as_py() or 0)
        else:
            moments = pa.repeat(pa.scalar(self._now.ms, TOUCHED.type), batch.num_rows)
        field = TOUCHED.with_nullable(GONE_FIELD.name in batch.schema.names)
        return without_moments(batch).append_column(field, moments)

    def living(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those rows of a snapshot that are not over."""
        return batch.filter(pa.array(values_of(batch.column(TOUCHED.name)) > self.over_ms))


def without_moments(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Stored rows as a state without a time to live has them."""
    return batch.drop_columns([TOUCHED.name]) if TOUCHED.name in batch.schema.names else batch
