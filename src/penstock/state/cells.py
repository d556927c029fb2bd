"""Cells: the numbers by which all that belongs to one key is found, in as many columns as there are.

Numbers are given out in order, so the arrays of columns stay dense. One that is given back is used again, but not while
a frozen view is being copied: the view still reads what stood there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.plan.keyhash import I64
from penstock.state.flat import FIRST_ROWS
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

    def grow(self, count: int, capacity: int) -> None: ...

    def reset(self, cells: I64) -> None:
        """These cells are somebody else's now."""
        ...


class Cells:
    def __init__(self) -> None:
        self.end = 0
        """Cells from here on were never given out."""
        self._groups = Stretch(np.uint16, FIRST_ROWS)
        self._tenants: list[Tenant] = []
        self._back: list[I64] = []
        """Given back, and not used again yet."""
        self._free: I64 = _NONE

    @property
    def groups(self) -> Groups:
        """The key group of every cell."""
        return self._groups.array

    @property
    def copying(self) -> bool:
        """A frozen view of something in these cells is being copied."""
        return any(tenant.copying for tenant in self._tenants)

    @property
    def count(self) -> int:
        """How many are in use."""
        return self.end - len(self._free) - sum(map(len, self._back))

    def admit(self, tenant: Tenant) -> None:
        """It has no rows yet."""
        tenant.grow(0, len(self.groups))
        self._tenants.append(tenant)

    def allot(self, count: int) -> I64:
        """So many cells; the caller sets their key groups."""
        reused = self._reused(count) if self._back or len(self._free) else _NONE
        first, self.end = self.end, self.end + count - len(reused)
        if self.end > len(self.groups):
            self._grow(first, self.end)
        fresh = np.arange(first, self.end)
        if not len(reused):
            return fresh
        for tenant in self._tenants:
            tenant.reset(reused)
        return np.concatenate([reused, fresh])

    def give_back(self, cells: I64) -> None:
        if len(cells):
            self._back.append(cells)

    def _reused(self, most: int) -> I64:
        if self._back and not self.copying:
            self._free = np.concatenate([self._free, *self._back])
            self._back = []
        taken, self._free = self._free[:most], self._free[most:]
        return taken

    def _grow(self, count: int, needed: int) -> None:
        before = len(self.groups)
        more = min(before // 2, GROW_CELLS_MAX)
        self._groups.grow(count, max(needed, before + more))
        for tenant in self._tenants:
            tenant.grow(count, len(self.groups))


Allot = Callable[[int], I64]
