"""Cells: the numbers by which all that belongs to one key is found, in as many columns as there are.

Numbers are given out in order, so the arrays of columns stay dense. One that is given back is used again, the lowest
first, but not while a frozen view is being copied: the view still reads what stood there. When few are in use, those
at the end are moved to lower ones (`moving.py`), and the arrays become shorter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.plan.keyhash import I64, Flags
from penstock.state.flat import FIRST_ROWS
from penstock.state.free_cells import FreeCells
from penstock.state.stretch import Stretch

Groups = npt.NDArray[np.uint16]

GROW_CELLS_MAX = 1 << 18
"""So many cells more than needed are there at most."""
_NONE: I64 = np.empty(0, np.int64)


class Tenant(Protocol):
    """Something with a row for every cell."""

    @property
    def copying(self) -> bool:
        """A frozen view of it is being copied."""
        ...

    @property
    def nbytes(self) -> int:
        """What it takes, whether it is used or not."""
        ...

    def grow(self, count: int, capacity: int) -> None: ...

    def shrink(self, capacity: int) -> None:
        """No cell from there on is in use, and no frozen view is being copied."""
        ...

    def reset(self, cells: I64) -> None:
        """These cells are nobody's any more: they are as new."""
        ...

    def movable(self, cells: I64, to: I64) -> Flags:
        """Which of these can be moved, each to that free cell."""
        ...

    def move(self, cells: I64, to: I64) -> None:
        """What was in each of these cells is in that one from now on. All are distinct. No view is being copied."""
        ...

    def tidy(self) -> None:
        """A batch is over: a little of what has become free is given back."""
        ...


class Cells:
    def __init__(self) -> None:
        self.end = 0
        """Cells from here on are not in use."""
        self.tenants: list[Tenant] = []
        self.stuck_at = sys.maxsize
        """How many were in use when those at the end could not be moved."""
        self._groups = Stretch(np.uint16, FIRST_ROWS)
        self._back: list[I64] = []
        """Given back, and not free yet."""
        self._free = FreeCells()

    @property
    def groups(self) -> Groups:
        """The key group of every cell."""
        return self._groups.array

    @property
    def copying(self) -> bool:
        """A frozen view of something in these cells is being copied."""
        return any(tenant.copying for tenant in self.tenants)

    @property
    def count(self) -> int:
        """How many are in use."""
        return self.end - self._free.count - sum(map(len, self._back))

    @property
    def nbytes(self) -> int:
        return self._groups.nbytes + self._free.nbytes + sum(each.nbytes for each in self.tenants)

    def admit(self, tenant: Tenant) -> None:
        """It has no rows yet."""
        tenant.grow(0, len(self.groups))
        self.tenants.append(tenant)

    def allot(self, count: int) -> I64:
        """So many cells; the caller sets their key groups."""
        self.collect()
        reused = self._free.lowest(count)
        if len(reused):
            self._free.take(reused)
        first, self.end = self.end, self.end + count - len(reused)
        if self.end > len(self.groups):
            self._grow(first, self.end)
        fresh = np.arange(first, self.end)
        return np.concatenate([reused, fresh]) if len(reused) else fresh

    def give_back(self, cells: I64) -> None:
        if len(cells):
            self._back.append(cells)

    def collect(self) -> None:
        """What was given back is free from now on, if nobody reads it any more."""
        if not self._back or self.copying:
            return
        back, self._back = np.concatenate(self._back), []
        for tenant in self.tenants:
            tenant.reset(back)
        self._free.add(back)

    # ---- for `moving.py`; nothing is given back and not free, and no view is being copied

    def moves(self, most: int) -> tuple[I64, I64]:
        """Up to so many cells at the end, and the lowest free ones, to which they can be moved."""
        cells = self._free.highest_used(most, self.end)
        to = self._free.lowest(len(cells))
        cells = cells[: len(to)]
        lower = to < cells
        return cells[lower], to[lower]

    def move(self, cells: I64, to: I64) -> None:
        for tenant in self.tenants:
            tenant.move(cells, to)
        self.groups[to] = self.groups.take(cells)
        self._free.take(to)
        self._free.add(cells)

    def cut(self) -> None:
        """Free cells at the end are none any more."""
        last = self._free.highest_used(1, self.end)
        end = int(last[0]) + 1 if len(last) else 0
        if end < self.end:
            self._free.cut(end, self.end)
            self.end = end

    def shrink(self, capacity: int) -> None:
        """Arrays only for so many cells, which is at least as many as there are."""
        self._groups.shrink(capacity)
        self._free.shrink(capacity)
        for tenant in self.tenants:
            tenant.shrink(capacity)

    def _grow(self, count: int, needed: int) -> None:
        before = len(self.groups)
        more = min(before // 2, GROW_CELLS_MAX)
        self._groups.grow(count, max(needed, before + more))
        capacity = len(self.groups)
        self._free.grow(count, capacity)
        for tenant in self.tenants:
            tenant.grow(count, capacity)


Allot = Callable[[int], I64]
