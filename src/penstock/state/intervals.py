"""Which rows of a table changed between two *marks*.

A mark is a moment between two batches at which a table was frozen: for a checkpoint, or for whatever else is written
of it. Each table numbers its marks from 1 on; 0 is before anything was in it. Changes are noted per interval
between two marks, so one can say what changed since any of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.state.cells import Groups
from penstock.state.flat import FIRST_ROWS, grown


@dataclass
class Interval:
    """Behind the mark `since`, up to the mark `until`. Several threads may read one."""

    since: int
    until: int
    dirty: Flags
    removed: list[tuple[list[pa.Array], Groups]] = field(default_factory=list)
    _bits: npt.NDArray[np.uint8] | None = None
    _rows: int | None = None

    def pack(self) -> None:
        """It is over: an eighth of the memory. Whoever reads looks at `dirty` before he looks whether there are bits,
        because another thread may be packing it."""
        dirty = self.dirty
        if self._bits is None:
            self._bits = np.packbits(dirty)
        self.dirty = np.empty(0, np.bool_)

    def flags(self, end: int) -> Flags:
        dirty = self.dirty
        if self._bits is None:
            return dirty[:end]
        return np.unpackbits(self._bits, count=min(end, 8 * len(self._bits))).view(np.bool_)

    @property
    def gone(self) -> int:
        """How many rows went."""
        return sum(len(groups) for _, groups in self.removed)

    @property
    def rows(self) -> int:
        """How many a delta has of it, at most."""
        if self._rows is None:
            dirty, bits = self.dirty, self._bits
            changed = np.count_nonzero(dirty) if bits is None else np.bitwise_count(bits).sum()
            self._rows = int(changed) + self.gone
        return self._rows

    def joined(self, other: Interval) -> Interval:
        """One of both; `other` follows this one."""
        self.pack()
        other.pack()
        if self._bits is None or other._bits is None:
            raise ValueError("an interval that was packed has bits")
        longer, shorter = sorted((self._bits, other._bits), key=len, reverse=True)
        bits = longer.copy()
        bits[: len(shorter)] |= shorter
        removed = [*self.removed, *other.removed]
        return Interval(self.since, other.until, np.empty(0, np.bool_), removed, bits)


def changed_cells(intervals: Iterable[Interval], end: int) -> I64:
    """Those before `end` that changed in any of them. They ascend."""
    dirty = np.zeros(end, np.bool_)
    for interval in intervals:
        flags = interval.flags(end)
        dirty[: len(flags)] |= flags
        interval.pack()
    return np.flatnonzero(dirty)


class Noted:
    """What a tracker is told, and keeps for as long as somebody may ask what changed since."""

    def __init__(self) -> None:
        self.dirty: Flags = np.zeros(FIRST_ROWS, np.bool_)
        """Cells whose rows changed since the last mark. Set by the table."""
        self._removed: list[tuple[list[pa.Array], Groups]] = []
        self._mark = 0
        self._intervals: list[Interval] = []

    def removed(self, keys: list[pa.Array], groups: Groups) -> None:
        """Rows of these keys go."""
        self._removed.append((keys, groups))

    def grow(self, count: int, capacity: int) -> None:
        self.dirty = grown(self.dirty, count, capacity)

    def _end_interval(self) -> int:
        """The new mark."""
        since, self._mark = self._mark, self._mark + 1
        self._intervals.append(Interval(since, self._mark, self.dirty, self._removed))
        self.dirty, self._removed = np.zeros(len(self.dirty), np.bool_), []
        return self._mark

    def _begin_anew(self) -> int:
        """The table is as something stored has it: nothing that was noted so far counts. The mark."""
        self.dirty[:] = False
        self._removed = []
        self._intervals = []
        self._mark += 1
        return self._mark


def since(intervals: Iterable[Interval], mark: int, upto: int) -> tuple[Interval, ...] | None:
    """Those that tell what changed between two marks, and perhaps a little before; None: nobody knows any more. They
    follow one another, and none goes beyond `upto`."""
    found = tuple(each for each in intervals if mark < each.until <= upto)
    first = found[0].since if found else upto
    return found if first <= mark else None
