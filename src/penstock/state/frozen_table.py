"""A table as it was at a freeze, and how a writer gets it while the table goes on changing.

The view holds the arrays the table had and an undo log that the table appends to (`save`) before it first
changes a row. The writer, on its own thread, takes one run of cells after the other:

1. it copies the rows of the run as they are, changes and half-written changes included;
2. then it reads the log and puts the saved values over the copy, the oldest entry last, so the first save wins;
3. then it notes that the run is done, and the table stops saving for it.

Why that is exact: an entry is appended before its rows change, and the log is read after the copy. If the copy
saw a change, its entry was appended before. CPython makes the same true for memory: both threads append and read
the list holding the interpreter lock, so what came before a lock release is seen after the next acquire. Cells
made after the freeze lie beyond `end`; those given back are not used again before the copy is done. An array that the
table replaced, or made longer, has these rows as they were or as they are now. Where a value gets another place in its
pile, the row is saved as if it changed: what is read has the places of the freeze. Keys, key groups and the places of
keys do not change while a view is copied.

A run becomes one block, and its rows stay as they lie: to put them in any order costs more than to write them. Who
wants the rows of some key groups only reads all blocks, and leaves out the others.
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
from penstock.state.flat import Values, rows_of, to_arrow
from penstock.state.frozen import Out
from penstock.state.keyspace import KeysOf
from penstock.state.segments import BLOCK_ROWS_MAX
from penstock.state.tracking import Lookup, Plan


class Saved(NamedTuple):
    """Rows as they were before they changed."""

    cells: I64
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
        """The first cell that is still to be copied."""

    def save(self, saved: Saved) -> None:
        """Called by the table, on its own thread, before these rows change."""
        if self._done:
            needed = np.flatnonzero(saved.cells >= self._done)
            if len(needed) < len(saved.cells):
                kept = tuple(array.take(needed) for array in saved.raw)
                saved = Saved(saved.cells.take(needed), kept)
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
        """One batch per block; of these cells only, if they are given. Where all rows are written those that are over
        are left out; a delta has them, because an older row may lie below."""
        for cells in self._runs(among):
            first, last, raw = self._copy(cells)
            self._done = last + 1
            if among is None and self._over_ms is not None:
                raw[0] &= raw[-1] > self._over_ms
            if not raw[0].all():
                there = np.flatnonzero(raw[0])
                cells = there + first if isinstance(cells, slice) else cells.take(there)
                raw = [array.take(there) for array in raw]
            if len(raw[0]):
                yield self._block(cells, raw[1:])

    def _runs(self, among: I64 | None) -> Iterator[I64 | slice]:
        end = self.end if among is None else len(among)
        for start in range(0, end, BLOCK_ROWS_MAX):
            stop = min(start + BLOCK_ROWS_MAX, end)
            yield slice(start, stop) if among is None else among[start:stop]

    def _copy(self, cells: I64 | slice) -> tuple[int, int, list[Values]]:
        """The first of these cells, the last, and their rows. Cells ascend."""
        if isinstance(cells, slice):
            first, last = cells.start, cells.stop - 1
        else:
            first, last = int(cells[0]), int(cells[-1])
        raw = [rows_of(array, cells) for array in self._raw]
        for saved in reversed(self._undo):
            mine = np.flatnonzero((saved.cells >= first) & (saved.cells <= last))
            places = saved.cells.take(mine)
            if isinstance(cells, slice):
                places -= first
            else:
                asked, places = places, np.searchsorted(cells, places)
                known = np.flatnonzero(cells.take(places) == asked)
                places, mine = places.take(known), mine.take(known)
            for copy, old in zip(raw, saved.raw, strict=True):
                copy[places] = old.take(mine)
        return first, last, raw

    def _block(self, cells: I64 | slice, raw: Sequence[Values]) -> pa.RecordBatch:
        columns = [to_arrow(rows_of(self._groups, cells), pa.uint16())]
        columns += self._keys(cells)
        columns += self._values(raw)
        cast = [c.cast(field.type) for c, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)

    def _values(self, raw: Sequence[Values]) -> list[pa.Array]:
        columns, at = [], 0
        for read, width in self._readers:
            columns.append(read(raw[at : at + width]))
            at += width
        return columns
