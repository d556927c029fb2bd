"""State with many rows per key: each row has a key of its own below the operator's key.

The rows are a table like any other, over cells that are found by (cell of the key, key below it). Rows of one key are
linked, in the order in which they came, so that all of them are found, and any of them goes, without looking at others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.state.flat import FIRST_ROWS, Values, int64_array
from penstock.state.keyspace import NOBODY, KeysOf, KeySpace
from penstock.state.lifetime import Lifetimes
from penstock.state.stretch import Stretch
from penstock.state.table import Table, row_schema
from penstock.state.tracking import Tracker

OWNER = pa.field("__owner", pa.int64(), nullable=False)
WALK_MOST = 1_024
"""A key with more rows than this stays in its cell."""
ROWS_MOST = 16_384
"""About so many rows are taken along at a time."""


class Walked(NamedTuple):
    """The rows of some keys: where each key was in what was asked for, and the row's cell."""

    positions: I64
    cells: I64


class Child:
    """`schema` is that of the keys below the operator's key."""

    def __init__(
        self,
        kind: str,
        state: str,
        space: KeySpace,
        schema: pa.Schema,
        values: pa.Schema,
        max_parallelism: int,
        changes: Tracker | None = None,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self.schema = schema
        self._parent = space
        self.space = KeySpace(pa.schema([OWNER, *schema]), max_parallelism)
        rows = row_schema(kind, space.schema, schema, values)
        self.table = Table(state, self.space.cells, self._keys, rows, values, changes, lifetimes)
        self._firsts = Stretch(np.int64, FIRST_ROWS, NOBODY)
        self._lasts = Stretch(np.int64, FIRST_ROWS, NOBODY)
        self._links = _Links(self.moved)
        space.cells.admit(self)
        self.space.cells.admit(self._links)

    @property
    def _first(self) -> I64:
        """The first row of every key, by its cell."""
        return self._firsts.array

    @property
    def _last(self) -> I64:
        return self._lasts.array

    # ---- rows

    def find(self, owners: I64, keys: Sequence[pa.Array]) -> I64:
        """The cell of every row, `NOBODY` where there is none. `owners` may be `NOBODY`."""
        return self.space.find([int64_array(owners), *keys])

    def put(self, owners: I64, keys: Sequence[pa.Array], values: pa.RecordBatch) -> None:
        """Sets rows; where a key comes several times its last value counts."""
        cells, new = self.space.upsert([int64_array(owners), *keys])
        last = self.space.last_rows(cells)
        made = np.arange(new.start, new.stop) if isinstance(new, slice) else new
        if len(made):
            first = self.space.first_rows(cells, made)
            order = np.argsort(first)
            made, mine = made.take(order), owners.take(first.take(order))
            self.space.cells.groups[made] = self._parent.cells.groups.take(mine)
            self._link(mine, made)
        self.table.put(cells.take(last), values.take(pa.array(last)))

    def bring(self, owners: I64, keys: Sequence[pa.Array], values: Sequence[pa.Array]) -> I64:
        """Rows come back from a floor, in the order that they had; their cells."""
        cells, _ = self.space.upsert([int64_array(owners), *keys])
        self.space.cells.groups[cells] = self._parent.cells.groups.take(owners)
        self._link(owners, cells)
        self.table.bring(cells, values)
        return cells

    def forget(self, owners: I64, cells: I64) -> None:
        """All rows of these keys, which are in these cells, lie elsewhere from now on."""
        self.table.forget(cells)
        self._first[owners] = self._last[owners] = NOBODY
        self.space.remove(cells)

    def drop(self, cells: I64) -> None:
        """Removes the rows of distinct cells that have one. No other row is looked at but their neighbours."""
        if not len(cells):
            return
        self.table.drop(cells)
        self._unlink(self.owners(cells), cells)
        self.space.remove(cells)

    def walk(self, owners: I64) -> Walked:
        """All rows of these keys, in the order in which they came. An owner may be `NOBODY`."""
        return self._walk(owners)[0]

    def _walk(
        self, owners: I64, steps_most: int = sys.maxsize, rows_most: int = sys.maxsize
    ) -> tuple[Walked, I64]:
        """The first rows of each key, and where the keys were that have more: no more than so many for each, and about
        so many in all."""
        at = np.where(owners >= 0, self._first.take(np.maximum(owners, 0)), NOBODY)
        positions, following = np.flatnonzero(at >= 0), self._links.following
        at = at.take(positions)
        found: list[tuple[I64, I64]] = []
        rows = 0
        while len(at) and len(found) < steps_most and rows < rows_most:
            found.append((positions, at))
            rows += len(at)
            at = following.take(at)
            more = np.flatnonzero(at >= 0)
            positions, at = positions.take(more), at.take(more)
        if not found:
            return Walked(_NONE, _NONE), positions
        places, cells = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(places, kind="stable")
        return Walked(places.take(order), cells.take(order)), positions

    def owners(self, cells: I64) -> I64:
        """The cells of the keys that these rows belong to."""
        owners: I64 = self.space.keys()(cells)[0].to_numpy(zero_copy_only=False)
        return owners

    def keys_of(self, cells: I64) -> list[pa.Array]:
        """The keys below the operator's key."""
        return self.space.keys()(cells)[1:]

    def holds(self, cells: I64) -> Flags:
        """Whether these keys have any row."""
        held: Flags = self._first.take(cells) >= 0
        return held

    def put_in_order(self, ranks: I64) -> None:
        """Links all rows anew by a rank that each cell has: after a restore rows have come in any order."""
        cells = np.flatnonzero(self.table.present[: self.space.cells.end])
        owners = self.owners(cells)
        order = np.lexsort((ranks.take(cells), owners))
        self._first[owners] = self._last[owners] = NOBODY
        self._link(owners.take(order), cells.take(order))

    # ---- chains

    def _link(self, owners: I64, cells: I64) -> None:
        """Puts rows behind those that their owners have."""
        if not len(cells):
            return
        order = np.argsort(owners, kind="stable")
        owners, cells = owners.take(order), cells.take(order)
        follows = np.append(False, owners[1:] == owners[:-1])
        starts = np.flatnonzero(~follows)
        ends = np.append(starts[1:], len(cells)) - 1
        following, preceding = self._links.following, self._links.preceding
        following[cells[:-1]] = np.where(follows[1:], cells[1:], NOBODY)
        following[cells[-1]] = NOBODY
        heads, tails, who = cells.take(starts), cells.take(ends), owners.take(starts)
        before = self._last.take(who)
        preceding[cells[1:]] = cells[:-1]
        preceding[heads] = before
        behind = before >= 0
        following[before[behind]] = heads[behind]
        self._first[who[~behind]] = heads[~behind]
        self._last[who] = tails

    def _unlink(self, owners: I64, cells: I64) -> None:
        """Joins what is before and behind each of these rows, which are absent by now."""
        following, preceding = self._links.following, self._links.preceding
        heads = np.flatnonzero(self._is_end(preceding.take(cells)))
        tails = np.flatnonzero(self._is_end(following.take(cells)))
        self._skip(following, cells)
        self._skip(preceding, cells)
        before, behind = preceding.take(cells[heads]), following.take(cells[heads])
        inner = before >= 0
        following[before[inner]] = behind[inner]
        self._first[owners[heads][~inner]] = behind[~inner]
        before, behind = preceding.take(cells[tails]), following.take(cells[tails])
        inner = behind >= 0
        preceding[behind[inner]] = before[inner]
        self._last[owners[tails][~inner]] = before[~inner]

    def _skip(self, links: I64, cells: I64) -> None:
        """Lets the links of rows that go point at one that stays, or at nobody. Every step doubles how far they
        reach."""
        while True:
            onto = links.take(cells)
            more = np.flatnonzero(~self._is_end(onto))
            if not len(more):
                return
            cells = cells.take(more)
            links[cells] = links.take(onto.take(more))

    def _is_end(self, cells: I64) -> Flags:
        """Nobody, or a row that stays."""
        ends: Flags = (cells < 0) | self.table.present.take(np.maximum(cells, 0))
        return ends

    def _keys(self) -> KeysOf:
        mine, theirs = self.space.keys(), self._parent.keys()

        def keys_of(cells: I64 | slice) -> list[pa.Array]:
            owners, *keys = mine(cells)
            return [*theirs(owners.to_numpy(zero_copy_only=False)), *keys]

        return keys_of

    # ---- as a tenant of the parent's cells

    @property
    def copying(self) -> bool:
        return self.table.copying

    @property
    def nbytes(self) -> int:
        return self._firsts.nbytes + self._lasts.nbytes

    def grow(self, count: int, capacity: int) -> None:
        self._firsts.grow(count, capacity)
        self._lasts.grow(count, capacity)

    def shrink(self, capacity: int) -> None:
        self._firsts.shrink(capacity)
        self._lasts.shrink(capacity)

    def reset(self, cells: I64) -> None:
        self._first[cells] = self._last[cells] = NOBODY

    def movable(self, cells: I64, to: I64) -> Flags:
        """A key takes its rows along, which are found by its cell: not where they are too many."""
        if not self.space.can_rekey:
            return np.zeros(len(cells), np.bool_)
        some = len(cells)
        rows, unfinished = self._walk(cells, WALK_MOST, ROWS_MOST)
        while len(unfinished) == some > 1:
            some //= 4
            rows, unfinished = self._walk(cells[:some], WALK_MOST, ROWS_MOST)
        movable = np.arange(len(cells)) < some
        movable[unfinished] = False
        movable[rows.positions[~self.space.fits(rows.cells, to.take(rows.positions))]] = False
        return movable

    def move(self, cells: I64, to: I64) -> None:
        rows = self.walk(cells)
        if len(rows.cells):
            self.space.rekey(rows.cells, to.take(rows.positions))
        for ends in (self._first, self._last):
            ends[to] = ends.take(cells)
            ends[cells] = NOBODY

    def tidy(self) -> None:
        """The rows have cells of their own, and are tidied with those."""

    # ---- rows that get other cells

    def moved(self, cells: I64, to: I64) -> None:
        """Rows have other cells; their keys are there already. Whoever led to them leads there now."""
        following, preceding = self._links.following, self._links.preceding
        behind = _renamed(following.take(cells), cells, to)
        before = _renamed(preceding.take(cells), cells, to)
        following[to], preceding[to] = behind, before
        inner = before >= 0
        following[before[inner]] = to[inner]
        owners = self.owners(to)
        self._first[owners[~inner]] = to[~inner]
        inner = behind >= 0
        preceding[behind[inner]] = to[inner]
        self._last[owners[~inner]] = to[~inner]


class _Links:
    """The rows behind and before each row of the same key."""

    copying = False

    def __init__(self, moved: Callable[[I64, I64], None]) -> None:
        self._moved = moved
        self._following = Stretch(np.int64, FIRST_ROWS, NOBODY)
        self._preceding = Stretch(np.int64, FIRST_ROWS, NOBODY)

    @property
    def following(self) -> I64:
        return self._following.array

    @property
    def preceding(self) -> I64:
        return self._preceding.array

    def grow(self, count: int, capacity: int) -> None:
        self._following.grow(count, capacity)
        self._preceding.grow(count, capacity)

    def shrink(self, capacity: int) -> None:
        self._following.shrink(capacity)
        self._preceding.shrink(capacity)

    def reset(self, cells: I64) -> None:
        """Whoever gets a cell is linked anew."""

    @property
    def nbytes(self) -> int:
        return self._following.nbytes + self._preceding.nbytes

    def movable(self, cells: I64, to: I64) -> Flags:
        return np.ones(len(cells), np.bool_)

    def move(self, cells: I64, to: I64) -> None:
        self._moved(cells, to)

    def tidy(self) -> None:
        """There is never anything to be given back."""


def _renamed(links: I64, cells: I64, to: I64) -> I64:
    """Where these led to one of those cells, they lead to the one that has its row now."""
    order = np.argsort(cells)
    places = np.minimum(np.searchsorted(cells, links, sorter=order), len(cells) - 1)
    at = order.take(places)
    return np.where(cells.take(at) == links, to.take(at), links)


_NONE: Values = np.empty(0, np.int64)
