"""Memory is given back when most keys are gone.

Columns are as long as the highest cell in use. Where few cells are, those at the end are moved to free ones further
down, a few thousand after each batch; then the arrays are cut, and that in steps, too. Nothing moves while a frozen
view is being copied: it reads rows, keys and key groups by their cells. To an increment a row that has moved is one
that has changed. It is in the interval of the move, and an increment with an earlier interval has all later ones.
"""

from __future__ import annotations

import sys

import numpy as np

from penstock.state.cells import Cells

CELLS_MIN = 65_536
"""Fewer are not worth it."""
USED_SHARE = 4
"""Cells move when less than this part of them is in use; arrays become shorter when they are so many times too long."""
MOVE_CELLS = 4_096
SHRINK_CELLS = 1 << 19
"""Arrays become shorter by so much at a time."""


def tidy(cells: Cells) -> None:
    """A batch is over, and nobody holds cells."""
    for tenant in cells.tenants:
        tenant.tidy()
    if len(cells.groups) <= CELLS_MIN or cells.copying:
        return
    cells.collect()
    if _is_sparse(cells):
        _move(cells)
        cells.cut()
    _shrink(cells)


def _is_sparse(cells: Cells) -> bool:
    """And not just found to be unmovable: then many keys have to go before it is tried again."""
    worth_it = cells.end > CELLS_MIN and USED_SHARE * cells.count < cells.end
    return worth_it and 2 * cells.count < cells.stuck_at


def _move(cells: Cells) -> None:
    from_, to = cells.moves(MOVE_CELLS)
    movable = np.ones(len(to), np.bool_)
    for tenant in cells.tenants:
        movable &= tenant.movable(from_, to)
    cells.stuck_at = sys.maxsize if movable.any() else cells.count
    if movable.any():
        cells.move(from_[movable], to[movable])


def _shrink(cells: Cells) -> None:
    before = len(cells.groups)
    if before < USED_SHARE * cells.end:
        return
    capacity = max(2 * cells.end, before - SHRINK_CELLS, CELLS_MIN // 2)
    if capacity < before:
        cells.shrink(capacity)
