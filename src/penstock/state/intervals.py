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
    _packed: _Packed | None = None
    below: list[bytes] = field(default_factory=list)
    """Keys, as a floor knows them, of rows that changed and left memory."""

    def pack(self) -> _Packed:
        """It is over, and needs a fraction of the memory. Whoever reads looks at `dirty` before he looks whether it is
        packed, because another thread may be doing that."""
        dirty, packed = self.dirty, self._packed
        if packed is None:
            packed = self._packed = _Packed.of(dirty)
        self.dirty = np.empty(0, np.bool_)
        return packed

    @property
    def gone(self) -> int:
        """How many rows went."""
        return sum(len(groups) for _, groups in self.removed)

    @property
    def rows(self) -> int:
        """How many a delta has of it, at most."""
        return self.pack().count + self.gone + len(self.below)

    def joined(self, other: Interval) -> Interval:
        """One of both; `other` follows this one."""
        mine, theirs = self.pack(), other.pack()
        end = max(mine.end, theirs.end)
        dirty = np.zeros(end, np.bool_)
        for each in (mine, theirs):
            each.mark(dirty)
        removed, below = [*self.removed, *other.removed], [*self.below, *other.below]
        packed = _Packed.of(dirty)
        return Interval(self.since, other.until, np.empty(0, np.bool_), removed, packed, below)


@dataclass(frozen=True)
class _Packed:
    """Cells that changed: a list of them where they are few, a bit for each cell where they are many."""

    end: int
    count: int
    cells: I64 | None = None
    bits: npt.NDArray[np.uint8] | None = None

    @classmethod
    def of(cls, dirty: Flags) -> _Packed:
        count = int(np.count_nonzero(dirty))
        if count * FEW < len(dirty):
            return cls(len(dirty), count, cells=_few(dirty))
        return cls(len(dirty), count, bits=np.packbits(dirty))

    def mark(self, dirty: Flags) -> None:
        """Sets the flags of those that `dirty` has."""
        if self.cells is not None:
            dirty[self.cells[: np.searchsorted(self.cells, len(dirty))]] = True
        elif self.bits is not None:
            flags = np.unpackbits(self.bits, count=min(len(dirty), self.end)).view(np.bool_)
            dirty[: len(flags)] |= flags


FEW = 64
"""A cell has as many bytes as so many have bits."""


def _few(dirty: Flags) -> I64:
    """The cells whose flags are set, which are few: eight are looked at at a time."""
    whole = len(dirty) // 8 * 8
    words = np.flatnonzero(dirty[:whole].view(np.uint64) != 0)
    cells = (words[:, np.newaxis] * 8 + np.arange(8)).ravel()
    rest = whole + np.flatnonzero(dirty[whole:])
    return np.concatenate([cells[dirty[cells]], rest])


def changed_cells(intervals: Iterable[Interval], end: int) -> I64:
    """Those before `end` that changed in any of them. They ascend."""
    packed = [interval.pack() for interval in intervals]
    few = [each.cells for each in packed if each.cells is not None]
    if len(few) == len(packed):
        cells = np.unique(np.concatenate(few)) if len(few) > 1 else few[0] if few else _NONE
        return cells[: np.searchsorted(cells, end)]
    dirty = np.zeros(end, np.bool_)
    for each in packed:
        each.mark(dirty)
    return np.flatnonzero(dirty)


_NONE: I64 = np.empty(0, np.int64)


class Noted:
    """What a tracker is told, and keeps for as long as somebody may ask what changed since."""

    def __init__(self) -> None:
        self.dirty: Flags = np.zeros(FIRST_ROWS, np.bool_)
        """Cells whose rows changed since the last mark. Set by the table."""
        self._removed: list[tuple[list[pa.Array], Groups]] = []
        self._below: list[bytes] = []
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
        noted = Interval(since, self._mark, self.dirty, self._removed, below=self._below)
        self._intervals.append(noted)
        self.dirty, self._removed = np.zeros(len(self.dirty), np.bool_), []
        self._below = []
        return self._mark

    def _begin_anew(self) -> int:
        """The table is as something stored has it: nothing that was noted so far counts. The mark."""
        self.dirty[:] = False
        self._removed, self._below = [], []
        self._intervals = []
        self._mark += 1
        return self._mark


def since(intervals: Iterable[Interval], mark: int, upto: int) -> tuple[Interval, ...] | None:
    """Those that tell what changed between two marks, and perhaps a little before; None: nobody knows any more. They
    follow one another, and none goes beyond `upto`."""
    found = tuple(each for each in intervals if mark < each.until <= upto)
    first = found[0].since if found else upto
    return found if first <= mark else None
