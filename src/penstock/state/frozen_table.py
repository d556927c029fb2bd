"""A table as it was at a freeze, and how a writer gets it while the table goes on changing.

The view holds the arrays the table had and an undo log that the table appends to (`save`) before it first
changes a row. The writer, on its own thread, takes one range of key groups after the other:

1. it copies the rows of the range as they are, changes and half-written changes included;
2. then it reads the log and puts the saved values over the copy, the oldest entry last, so the first save wins;
3. then it notes that the range is done, and the table stops saving for it.

Why that is exact: an entry is appended before its rows change, and the log is read after the copy. If the copy
saw a change, its entry was appended before. CPython makes the same true for memory: both threads append and read
the list holding the interpreter lock, so what came before a lock release is seen after the next acquire. Cells
made after the freeze lie beyond `end`; those given back are not used again before the copy is done. An array that the
table replaced, or made longer, has these rows as they were or as they are now. Where a value gets another place in its
pile, the row is saved as if it changed: what is read has the places of the freeze. Keys, key groups and the places of
keys do not change while a view is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64
from penstock.protocol.snapshot import Segment
from penstock.state.cells import Groups
from penstock.state.columns import Reader
from penstock.state.flat import Values, to_arrow
from penstock.state.frozen import Out
from penstock.state.keyspace import KeysOf
from penstock.state.segments import block_bounds
from penstock.state.tracking import Lookup, Plan

RANGE_BYTES = 8 << 20
"""So much is copied at a time."""
GROUPS = 1 << 16


class Saved(NamedTuple):
    """Rows as they were before they changed."""

    cells: I64
    groups: Groups
    raw: tuple[Values, ...]


class FrozenTable:
    """Made by `Table.freeze`; meets the contract `Frozen`."""

    def __init__(
        self,
        state: str,
        schema: pa.Schema,
        *,
        rows: int,
        end: int,
        groups: Groups,
        keys: KeysOf,
        raw: tuple[Values, ...],
        readers: tuple[tuple[Reader, int], ...],
        plan: Plan | None = None,
        over_ms: int | None = None,
        below: Lookup = lambda _: iter(()),
    ) -> None:
        """`over_ms`: rows whose last value is a moment up to this one are over."""
        self.copying = True
        self.state = state
        self.schema = schema
        self.rows = rows
        self.end = end
        self._groups = groups
        self._keys = keys
        self._raw = raw
        self._readers = readers
        """Of each column, and how many raw arrays it has."""
        self.plan = plan
        self._over_ms = over_ms
        self.below = below
        self._undo: list[Saved] = []
        self._done = 0
        """The first key group that is still to be copied."""

    def save(self, saved: Saved) -> None:
        """Called by the table, on its own thread, before these rows change."""
        if self._done:
            needed = saved.groups >= self._done
            if not needed.all():
                saved = Saved(
                    saved.cells[needed],
                    saved.groups[needed],
                    tuple(array[needed] for array in saved.raw),
                )
        self._undo.append(saved)

    def release(self) -> None:
        """The view is not needed any more: the table stops saving for it and its memory is given back."""
        self.copying = False
        if self.plan is not None:
            self.plan.release()
        self._undo = []
        self._raw, self._readers = (), ()
        self._keys = lambda _: []
        self.below = lambda _: iter(())

    def write(self, out: Out) -> tuple[Segment, ...]:
        try:
            if self.plan is None:
                return (out.put(self.state, self.schema, self.batches()),)
            return self.plan.write(self, out)
        finally:
            self.release()

    def batches(self, among: I64 | None = None) -> Iterator[pa.RecordBatch]:
        """One batch per block, in order of the key groups; of these cells only, if they are given. Where all rows are
        written those that are over are left out; a delta has them, because an older row may lie below."""
        groups = self._groups[: self.end] if among is None else self._groups.take(among)
        for low, high in self._ranges(groups):
            inside = np.flatnonzero((groups >= low) & (groups < high))
            cells = inside if among is None else among.take(inside)
            raw = self._copy(cells, low, high)
            self._done = high
            if among is None and self._over_ms is not None:
                raw[0] &= raw[-1] > self._over_ms
            there = np.flatnonzero(raw[0])
            order = there.take(np.argsort(groups.take(inside.take(there)), kind="stable"))
            yield from self._blocks(cells, groups.take(inside), raw[1:], order)

    def _ranges(self, groups: Groups) -> Iterator[tuple[int, int]]:
        """Ranges of key groups with about as many rows each as may be copied at a time."""
        width = sum(array.dtype.itemsize for array in self._raw) + 24
        rows_max = max(1, RANGE_BYTES // width)
        counts = np.bincount(groups, minlength=1)
        low, rows = 0, 0
        for group, count in enumerate(counts.tolist()):
            if rows and rows + count > rows_max:
                yield low, group
                low, rows = group, 0
            rows += count
        yield low, GROUPS

    def _copy(self, cells: I64, low: int, high: int) -> list[Values]:
        """`cells` ascend."""
        raw = [array.take(cells) for array in self._raw]
        for saved in reversed(self._undo):
            mine = np.flatnonzero(
                (saved.groups >= low) & (saved.groups < high) & (saved.cells < self.end)
            )
            if not len(mine) or not len(cells):
                continue
            places = np.searchsorted(cells, saved.cells.take(mine))
            places[places == len(cells)] = 0
            known = np.flatnonzero(cells.take(places) == saved.cells.take(mine))
            places, mine = places.take(known), mine.take(known)
            for i, old in enumerate(saved.raw):
                raw[i][places] = old.take(mine)
        return raw

    def _blocks(
        self, cells: I64, groups: Groups, raw: Sequence[Values], order: I64
    ) -> Iterator[pa.RecordBatch]:
        sorted_groups = groups.take(order)
        for start, end in block_bounds(sorted_groups):
            rows = order[start:end]
            columns = [to_arrow(sorted_groups[start:end], pa.uint16())]
            columns += self._keys(cells.take(rows))
            columns += self._values([array.take(rows) for array in raw])
            cast = [c.cast(field.type) for c, field in zip(columns, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(cast, schema=self.schema)

    def _values(self, raw: Sequence[Values]) -> list[pa.Array]:
        columns, at = [], 0
        for read, width in self._readers:
            columns.append(read(raw[at : at + width]))
            at += width
        return columns
