"""The changes of a table that has a floor below: what must be written down there, and when.

Rows that changed go down when they are evicted from memory, and with every snapshot. A snapshot writes down what the
table was at its freeze, and then keeps the floor's files: from the freeze to that moment nothing may be written down
that changed since. Of the files only those go into the checkpoint that its base does not have yet.

Snapshots are written down in the order of their freezes, whoever comes first: one that finds an earlier one still to be
done does that, too. One that was given up is written down with the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.ports.floor import Floor, Kept
from penstock.protocol.snapshot import Segment
from penstock.state.cells import Groups
from penstock.state.flat import FIRST_ROWS, grown
from penstock.state.frozen import Out
from penstock.state.row_bytes import RowBytes
from penstock.state.tracking import View
from penstock.wire import paths

if TYPE_CHECKING:
    from penstock.state.table import Table

GONE_MAX = 10_000
"""With more keys noted that the floor has and should not, they are removed there when rows are written down."""
ENCODED_ROWS = 1_024
"""Become bytes in one go: the interpreter is not free for others meanwhile."""
BASES_MAX = 32
"""So many checkpoints are known whose files a later one may refer to."""


@dataclass(eq=False)
class Interval:
    """Between two freezes: what changed, and is not written down yet."""

    dirty: Flags
    gone: set[bytes]
    written: bool = False


class WriteBack:
    """Meets the contract `Tracker`. `groups`: the first of the subtask's key groups, and the first behind them."""

    table: Table

    def __init__(self, floor: Floor, rows: RowBytes, groups: range) -> None:
        self.floor = floor
        self.rows = rows
        self.groups = (groups.start, groups.stop)
        self.dirty: Flags = np.zeros(FIRST_ROWS, np.bool_)
        self._gone: set[bytes] = set()
        """Keys that lost their rows, which the floor may still have."""
        self._frozen: list[Interval] = []
        self.bases: dict[int, Mapping[str, Segment]] = {}
        """The lasting files of checkpoints, by their names in the floor."""

    # ---- what the table tells

    def restored(self, checkpoint: int, segments: Sequence[Segment], groups: range) -> None:
        """What the floor began with is known already; what came beside it has to be written down."""

    def removed(self, keys: list[pa.Array], groups: Groups) -> None:
        self._gone.update(self.rows.keys(groups, keys))

    def grow(self, count: int, capacity: int) -> None:
        self.dirty = grown(self.dirty, count, capacity)

    def plan(self, base: int, checkpoint: int) -> WriteDown:
        self._frozen = [each for each in self._frozen if not each.written]
        self._frozen.append(Interval(self.dirty, self._gone))
        self.dirty, self._gone = np.zeros(len(self.dirty), np.bool_), set()
        for older in list(self.bases)[:-BASES_MAX] + [n for n in list(self.bases) if n < base]:
            self.bases.pop(older, None)
        known = self.bases.get(base, {})
        return WriteDown(self, checkpoint, known, tuple(self._frozen))

    # ---- between snapshots

    def gone(self) -> tuple[set[bytes], ...]:
        """Keys of which nothing counts that the floor has. Ask before the floor is read: a snapshot that is written
        down meanwhile removes them there, and then they are not told here any more."""
        sets = [self._gone, *(each.gone for each in self._frozen if not each.written)]
        return tuple(each for each in sets if each)

    def all_gone(self) -> frozenset[bytes]:
        """Keys of which what the floor has does not count any more."""
        return frozenset().union(*self.gone())

    @property
    def busy(self) -> bool:
        """A snapshot is still to be written down."""
        return bool(self._plans)

    @property
    def _plans(self) -> list[tuple[View, WriteDown]]:
        return [(v, v.plan) for v in self.table.views() if isinstance(v.plan, WriteDown)]

    def settle(self) -> None:
        """Writes down what snapshots there are, now."""
        for view, plan in self._plans:
            plan.settle(view)

    def can_go_down(self, cells: I64) -> Flags:
        """Which of these rows are as the next snapshot wants them, however that one gets on. It must have taken away
        first what is to go: among that may be what their keys had before."""
        can: Flags = np.ones(len(cells), np.bool_)
        for _, plan in self._plans[:1]:
            due = [each for each in plan.intervals if not each.written]
            later = [each for each in self._frozen if each not in plan.intervals]
            wrong = [*later, *(due if any(each.gone for each in due) else ())]
            can &= ~_set_in([self.dirty, *(each.dirty for each in wrong)], cells)
        return can

    def write_down(self, cells: I64) -> None:
        """The rows of those of these cells that have changed. While it is busy only such as can go."""
        if self.busy:
            self._write_ahead(cells)
            return
        self._take_back()
        if len(self._gone) > GONE_MAX:
            self.floor.remove(sorted(self._gone))
            self._gone = set()
        changed = cells[self.dirty.take(cells)]
        if len(changed):
            keys, values = self.rows.of(self.table.stored(changed))
            self.floor.write(keys, values)
            self._gone.difference_update(keys)
            self.dirty[changed] = False

    def _write_ahead(self, cells: I64) -> None:
        """A snapshot would have written these down, too."""
        due = [each for each in self._frozen if not each.written]
        changed = cells[_set_in([each.dirty for each in due], cells)]
        if len(changed):
            self.floor.write(*self.rows.of(self.table.stored(changed)))
            for each in due:
                each.dirty[changed[changed < len(each.dirty)]] = False

    def _take_back(self) -> None:
        """What snapshots that were given up have not written down is still to be."""
        for interval in self._frozen:
            if not interval.written:
                count = min(len(self.dirty), len(interval.dirty))
                self.dirty[:count] |= interval.dirty[:count]
                self._gone |= interval.gone
        self._frozen = []


@dataclass(eq=False)
class WriteDown:
    """Meets the contract `Plan`."""

    changes: WriteBack
    checkpoint: int
    known: Mapping[str, Segment]
    intervals: tuple[Interval, ...]
    kept: Kept | None = field(default=None)

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        kept = self.settle(view)
        try:
            segments = tuple(self._put(member, kept, view, out) for member in kept.members)
        finally:
            kept.release()
        self.changes.bases[self.checkpoint] = {
            each.member: each for each in segments if kept.is_lasting(each.member) and lasts(each)
        }
        lifetimes = self.changes.table.lifetimes
        latest_ms = lifetimes.now_ms if lifetimes is not None else 0
        return (replace(segments[0], rows_after=view.rows, latest_ms=latest_ms), *segments[1:])

    def release(self) -> None:
        """Its files are not wanted any more."""
        if self.kept is not None:
            self.kept.release()

    def settle(self, view: View) -> Kept:
        """The floor's files as they are once all that had changed at the freeze is written down."""
        with self.changes.floor.alone:
            if self.kept is None:
                for earlier in self.changes.table.views():
                    plan = earlier.plan
                    if plan is self:
                        break
                    if isinstance(plan, WriteDown):
                        plan.settle(earlier)
                self._write_down(view)
                kept = self.changes.floor.keep()
                view.release()
                self.kept = kept
        return self.kept

    def _write_down(self, view: View) -> None:
        floor, due = self.changes.floor, [each for each in self.intervals if not each.written]
        floor.remove(sorted(set[bytes]().union(*(each.gone for each in due))))
        for interval in due:
            interval.gone = set()
        dirty = np.zeros(view.end, np.bool_)
        for interval in due:
            flags = interval.dirty[: view.end]
            dirty[: len(flags)] |= flags
        for batch in view.batches(np.flatnonzero(dirty)):
            for start in range(0, batch.num_rows, ENCODED_ROWS):
                floor.write(*self.changes.rows.of(batch.slice(start, ENCODED_ROWS)))
        for interval in due:
            interval.written = True

    def _put(self, member: str, kept: Kept, view: View, out: Out) -> Segment:
        lasting = kept.is_lasting(member)
        if lasting and member in self.known:
            return self.known[member]
        pieces, groups = kept.read(member), self.changes.groups
        shared = self._is_shared(member, kept)
        return out.put_file(view.state, view.schema, member, pieces, groups=groups, shared=shared)

    def _is_shared(self, member: str, kept: Kept) -> bool:
        return kept.is_lasting(member)


def _set_in(flags: Sequence[Flags], cells: I64) -> Flags:
    """Those of the cells that any of these arrays has set."""
    found: Flags = np.zeros(len(cells), np.bool_)
    for each in flags:
        there = cells < len(each)
        found[there] |= each.take(cells[there])
    return found


def lasts(segment: Segment) -> bool:
    """Later checkpoints may refer to it."""
    return segment.inline is not None or paths.shared_of(segment.file) is not None
