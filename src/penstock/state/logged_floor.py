"""A changelog of a table that has a floor below: what is written ahead of checkpoints, and what leaves memory.

The chain of a checkpoint begins with the files of the floor, as some moment had them, and goes on with deltas, as ever
(`changelog.py`). A row that changed and left memory is not in a cell any more when the next delta is written: its key
is noted, and the delta has the row as the floor had it at the freeze. All rows are never written from memory: that is
done by writing down what has changed and keeping the floor's files (`write_back.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.ports.floor import Floor, Kept
from penstock.protocol.snapshot import Segment
from penstock.state.cells import Groups
from penstock.state.changelog import NOTHING, Changelog, Tail, begun
from penstock.state.changes import Chain, Link, put_delta
from penstock.state.flat import FIRST_ROWS, grown
from penstock.state.frozen import Out
from penstock.state.intervals import changed_cells, since
from penstock.state.row_bytes import RowBytes
from penstock.state.segments import BLOCK_ROWS_MAX
from penstock.state.tracking import Lookup, View
from penstock.state.write_back import WriteBack, WriteDown

if TYPE_CHECKING:
    from penstock.state.table import Table


class LoggedFloor(Changelog):
    """Meets the contracts `Tracker` and `floored.Down`."""

    def __init__(self, floor: Floor, rows: RowBytes, groups: range, *, begun: bool) -> None:
        """`begun`: the floor has rows already."""
        super().__init__()
        self.floor = floor
        self.rows = rows
        self._down = WriteBack(floor, rows, groups)
        """What the floor does not have yet."""
        self._begun = begun
        self._changed_at: npt.NDArray[np.int64] = np.zeros(FIRST_ROWS, np.int64)
        """The mark behind which the row of each cell changed last."""

    @property
    def table(self) -> Table:
        return self._down.table

    @table.setter
    def table(self, table: Table) -> None:
        self._down.table = table
        table.lookup = self._lookup

    # ---- as a tracker

    def restored(self, checkpoint: int, segments: Sequence[Segment], groups: range) -> None:
        """What came beside the floor's files has to be written down, but is in the checkpoint."""
        self._fold()
        super().restored(checkpoint, segments, groups)

    def removed(self, keys: list[pa.Array], groups: Groups) -> None:
        super().removed(keys, groups)
        self._down.removed(keys, groups)

    def grow(self, count: int, capacity: int) -> None:
        super().grow(count, capacity)
        self._down.grow(count, capacity)
        self._changed_at = grown(self._changed_at, count, capacity)

    def plan(self, base: int, checkpoint: int) -> Tail | WholeFloor:  # type: ignore[override]
        """Where nobody knows what changed since the base, or there is none, the floor's files are taken."""
        tail = super().plan(base, checkpoint)
        unknown = tail.base is NOTHING and self._begun
        if not unknown and since(tail.intervals, tail.base.mark, tail.mark) is not None:
            return FloorTail(tail.log, tail.checkpoint, tail.mark, tail.base, tail.intervals)
        return self._whole(checkpoint, tail.mark, self)

    def materialize(self) -> WholeFloor:  # type: ignore[override]
        mark = self._end_interval()
        self._join_oldest()
        return self._whole(0, mark, None)

    def _whole(self, checkpoint: int, mark: int, log: Changelog | None) -> WholeFloor:
        made = self._down.plan(0, checkpoint)
        return WholeFloor(made.changes, checkpoint, {}, made.intervals, mark=mark, log=log)

    def _end_interval(self) -> int:
        self._fold()
        return super()._end_interval()

    def _fold(self) -> None:
        """What changed since the last mark is not in the floor."""
        dirty = self._fit(self.dirty)
        self._down.dirty[: len(dirty)] |= dirty
        self._changed_at[: len(dirty)][dirty] = self._mark + 1

    def _fit(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The arrays of a table that has become shorter are cut one after the other."""
        return flags[: min(len(flags), len(self._down.dirty), len(self._changed_at))]

    # ---- between snapshots

    def gone(self) -> tuple[set[bytes], ...]:
        return self._down.gone()

    @property
    def busy(self) -> bool:
        return self._down.busy

    def settle(self) -> None:
        self._down.settle()

    def can_go_down(self, cells: I64) -> Flags:
        can: Flags = self._down.can_go_down(cells)
        return can & ~self.dirty.take(cells) if self.busy else can

    def write_down(self, cells: I64) -> None:
        """These rows are about to leave memory: those that a later delta may need are noted."""
        oldest = min((each.since for each in self._intervals), default=self._mark)
        dirty = self.dirty.take(cells)
        noted = cells[dirty | (self._changed_at.take(cells) > oldest)]
        if len(noted):
            self._below += self.rows.of(self.table.stored(noted))[0]
        self._down.dirty[cells[dirty]] = True
        self._down.write_down(cells)
        self.dirty[cells] = False
        self._changed_at[cells] = 0

    def _lookup(self) -> Lookup:
        """Of the rows below, as they are now."""
        gone, moment, codec = self._down.all_gone(), self.floor.moment(), self.rows

        def below(keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
            asked = sorted(set(keys) - gone)
            for start in range(0, len(asked), BLOCK_ROWS_MAX):
                some = asked[start : start + BLOCK_ROWS_MAX]
                values = moment.get(some)
                found = [(k, v) for k, v in zip(some, values, strict=True) if v is not None]
                if found:
                    yield codec.batch([k for k, _ in found], [v for _, v in found])

        return below


@dataclass(frozen=True)
class FloorTail(Tail):
    """All rows are in the floor's files, never in a delta."""

    def _written(self, view: View, out: Out, chain: Chain, *, small: bool) -> Chain:
        intervals = since(self.intervals, chain.mark, self.mark)
        if intervals is None:
            chain, intervals = self.base, since(self.intervals, self.base.mark, self.mark) or ()
        cells = changed_cells(intervals, view.end)
        rows = len(cells) + sum(each.gone + len(each.below) for each in intervals)
        if chain.links and not rows:
            return Chain(self.mark, begun(chain.links, view))
        made = Link(put_delta(view, out, cells, intervals), chain.mark, self.mark, small)
        return Chain(self.mark, (*begun(chain.links, view), made))


@dataclass(eq=False)
class WholeFloor(WriteDown):
    """All rows at a mark: the floor's files, all of which later checkpoints may refer to."""

    mark: int = 0
    log: Changelog | None = None
    """Of a checkpoint, for which it is written."""

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        segments = super().write(view, out)
        if self.log is not None:
            self.log.written(self.checkpoint, Chain(self.mark, self.links(segments)))
        return segments

    def links(self, segments: Sequence[Segment]) -> tuple[Link, ...]:
        return tuple(Link(segment, 0, self.mark) for segment in segments)

    def _is_shared(self, member: str, kept: Kept) -> bool:
        return True
