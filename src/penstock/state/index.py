"""Finds the cell of a key, exactly, for keys of any supported type.

`WordIndex`: one fixed-width column. The cell table is keyed on the value itself; null has a cell beside it.

`HashIndex`: everything else. The cell table is keyed on hash h1 and each cell remembers hash h2. Equal hashes
prove equal keys only where `hashes_of` says `exact` for every key so far; otherwise the stored key is compared.
Rows whose key is not the one they found are told apart in a dict by the key itself: slow, and only for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from penstock.plan import keyhash
from penstock.plan.keyhash import (
    I64,
    U64,
    Flags,
    decimal_words,
    is_one_word,
    is_text,
    mix,
    null_mask,
    word_of,
)
from penstock.state.cell_table import CellTable
from penstock.state.cells import Allot
from penstock.state.columns import Column
from penstock.state.flat import FIRST_ROWS, int64_array, take_rows
from penstock.state.near import NearCells
from penstock.state.stretch import Stretch

NOBODY = -1
PAID_KEYS = 8_192
"""So many keys of a snapshot come into the table after a batch."""


class Found(NamedTuple):
    cells: I64
    """The cell of every row."""
    new: I64
    """The cells that were allotted for new keys."""
    new_h1: U64
    """Hash h1 of each of those keys."""


class Index(Protocol):
    """`columns` keep the keys, by cell. They are those of the key space, which makes them grow."""

    def find(self, keys: Sequence[pa.Array]) -> I64:
        """The cell of every row, `NOBODY` where there is none."""
        ...

    def upsert(self, keys: Sequence[pa.Array]) -> Found: ...

    def expect(self, count: int) -> None:
        """So many keys will come, or less."""
        ...

    def append(self, keys: Sequence[pa.Array]) -> Found | None:
        """All of these keys are new, each is there once, and it is sure of that at a glance; None: `upsert` knows."""
        ...

    def remove(self, cells: I64) -> I64:
        """Forgets the keys of these cells; those that can be used again."""
        ...

    def removable(self, cells: I64) -> I64:
        """Those of these cells whose keys can be forgotten."""
        ...

    @property
    def nbytes(self) -> int: ...

    @property
    def movable(self) -> bool:
        """Whether keys can get other cells."""
        ...

    def grow(self, count: int, capacity: int) -> None: ...

    def shrink(self, capacity: int) -> None: ...

    def move(self, cells: I64, to: I64) -> None:
        """Keys get other cells; the columns have them there already."""
        ...

    def tidy(self) -> None: ...

    def fits(self, keys: Sequence[pa.Array]) -> Flags:
        """Which of these keys, that nobody has, could be told from all others by their hashes."""
        ...

    def forget(self, cells: I64) -> None:
        """The keys of these cells are going to be others."""
        ...

    def adopt(self, cells: I64) -> None:
        """These cells, which are forgotten, have the keys that are in the columns now, and they fit."""
        ...


class WordIndex:
    """Keys of one column of at most 8 bytes.

    Those of a snapshot that lie close together are remembered by position first, which is quick, and come into the
    table later, a few after every batch: `_owed` has their cells. Until then all of them are remembered."""

    def __init__(self, column: Column, allot: Allot) -> None:
        self._table = CellTable(mix, allot)
        self._near = NearCells()
        self._column = column
        self._allot = allot
        self._null = NOBODY
        self._owed = range(0)
        self._left: Flags = np.zeros(0, np.bool_)
        """By cell, those of them whose keys are gone: what is there now the table knows."""
        self._removed = False
        """Keys were, so cells are not given out one after the other any more."""
        self._expected = 0

    def __len__(self) -> int:
        """How many keys there are, without the null."""
        return len(self._table) + len(self._owed)

    def find(self, keys: Sequence[pa.Array]) -> I64:
        (column,) = keys
        words = word_of(column)
        near = self._near.find(words)
        cells = self._table.lookup(words, mix(words)) if near is None else near
        if near is not None:
            far = np.flatnonzero(cells < 0)
            if len(far):
                words = words.take(far)
                cells[far] = self._table.lookup(words, mix(words))
        if column.null_count:
            cells[null_mask(column)] = self._null
        return cells

    def upsert(self, keys: Sequence[pa.Array]) -> Found:
        (column,) = keys
        if column.null_count:
            return self._upsert_with_nulls(column)
        words = word_of(column)
        self._make_room()
        cells = self._near.find(words)
        if cells is None:
            cells, new_rows = self._table.upsert(words, h1 := mix(words))
            self._near.passed(words.take(new_rows), len(self))
            return self._found(column, cells, new_rows, h1)
        missing = np.flatnonzero(cells < 0)
        if not len(missing):
            return Found(cells, _NO_CELLS, _NO_HASHES)
        words = words.take(missing)
        found, new_rows = self._table.upsert(words, h1 := mix(words))
        cells[missing] = found
        self._remember(words, found)
        return self._found(_take(column, missing), found, new_rows, h1)._replace(cells=cells)

    def append(self, keys: Sequence[pa.Array]) -> Found | None:
        (column,) = keys
        others = len(self._table) or self._null != NOBODY or self._removed
        if others or column.null_count:
            return None
        words = word_of(column)
        near = self._near.find(words) if self._near.fits(words, len(self) + len(words)) else None
        if near is None or not len(near) or int(near.max()) >= 0:
            return None
        new = self._allot(len(words))
        self._column.put(new, column)
        self._owed = range(self._owed.start if self._owed else int(new[0]), int(new[-1]) + 1)
        self._near.remember(words, new, len(self))
        cells = self._near.find(words)
        assert cells is not None
        return Found(cells, new, mix(words))

    def _make_room(self) -> None:
        """For all keys that are expected; where they are remembered first, the table grows as they come into it."""
        if self._expected and not self._owed:
            self._table.expect(self._expected)
        self._expected = 0

    def _remember(self, words: I64, cells: I64) -> None:
        """Where these do not lie close to others that only positions are known of, they are in the table alone."""
        if not self._owed or self._near.fits(words, len(self)):
            self._near.remember(words, cells, len(self))

    def _pay(self, count: int) -> None:
        """Puts so many of the keys into the table that are still to be."""
        some = self._owed[:count]
        if some:
            cells = np.arange(some.start, some.stop)
            cells = cells[self._is_owed(cells)]
            words = word_of(self._column.get(cells))
            self._owed = self._owed[count:]
            self._table.adopt(words, mix(words), cells)

    def _is_owed(self, cells: I64) -> Flags:
        """Of these cells, those whose keys the table does not know yet."""
        owed: Flags = (cells >= self._owed.start) & (cells < self._owed.stop)
        if owed.any() and len(self._left):
            owed[owed] = ~self._left[cells[owed]]
        return owed

    def _leave(self, cells: I64) -> None:
        """The keys of these cells go, which are owed."""
        if len(cells):
            if len(self._left) < self._owed.stop:
                self._left = np.zeros(self._owed.stop, np.bool_)
            self._left[cells] = True

    def _found(self, column: pa.Array, cells: I64, new_rows: I64, h1: U64) -> Found:
        if not len(new_rows):
            return Found(cells, _NO_CELLS, _NO_HASHES)
        new = cells.take(new_rows)
        self._column.put(new, _take(column, new_rows))
        return Found(cells, new, h1.take(new_rows))

    def _upsert_with_nulls(self, column: pa.Array) -> Found:
        null = null_mask(column)
        present, absent = np.flatnonzero(~null), np.flatnonzero(null)
        cells = np.empty(len(column), np.int64)
        cells[present], new, new_h1 = self.upsert([_take(column, present)])
        if self._null < 0:
            key, mine = column.slice(int(absent[0]), 1), self._allot(1)
            self._null = int(mine[0])
            self._column.put(mine, key)
            new = np.concatenate([new, mine])
            new_h1 = np.concatenate([new_h1, keyhash.key_hashes([key])[0]])
        cells[absent] = self._null
        return Found(cells, new, new_h1)

    def expect(self, count: int) -> None:
        self._expected = count
        self._near.expect(count)

    def remove(self, cells: I64) -> I64:
        self._removed = True
        keys = self._column.get(cells)
        words, mine = word_of(keys), cells
        if keys.null_count:
            there = ~null_mask(keys)
            words, mine = words[there], cells[there]
            self._null = NOBODY
        self._near.forget(words)
        if self._owed:
            owed = self._is_owed(mine)
            self._leave(mine[owed])
            words = words[~owed]
        self._table.remove(words, mix(words))
        if not self._owed:
            self._near.thin_out(len(self))
        return cells

    def removable(self, cells: I64) -> I64:
        return cells

    @property
    def nbytes(self) -> int:
        return self._table.bytes_reserved + self._near.nbytes

    def grow(self, count: int, capacity: int) -> None:
        """The table knows how many keys there are."""

    def shrink(self, capacity: int) -> None:
        """So it does when there are less."""

    def move(self, cells: I64, to: I64) -> None:
        keys = self._column.get(to)
        words = word_of(keys)
        if keys.null_count:
            null = null_mask(keys)
            self._null = int(to[null][0])
            words, to = words[~null], to[~null]
        self._table.relabel(words, mix(words), to)
        self._near.remember(words, to, len(self))

    @property
    def movable(self) -> bool:
        return not self._owed

    def tidy(self) -> None:
        self._pay(PAID_KEYS)
        if not self._owed:
            self._left = np.zeros(0, np.bool_)
        self._table.tidy()

    def fits(self, keys: Sequence[pa.Array]) -> Flags:
        return np.ones(len(keys[0]), np.bool_)

    def forget(self, cells: I64) -> None:
        self.remove(cells)

    def adopt(self, cells: I64) -> None:
        while self._owed:
            self._pay(PAID_KEYS)
        words = word_of(self._column.get(cells))
        self._table.adopt(words, mix(words), cells)


class HashIndex:
    """Keys of any other shape."""

    def __init__(self, columns: Sequence[Column], allot: Allot) -> None:
        self._table = CellTable(_identity, allot)
        self._columns = columns
        self._allot = allot
        self._checks = Stretch(np.uint64, FIRST_ROWS)
        """Hash h2 by cell."""
        self._exact = True
        self._told_apart: dict[tuple[Any, ...], int] = {}
        self._met: set[int] = set()
        """Hash h1 of keys that others were told apart from: what the table has for it stays."""

    def find(self, keys: Sequence[pa.Array]) -> I64:
        hashes = keyhash.hashes_of(keys)
        cells = self._table.lookup(hashes.h1.view(np.int64), hashes.h1)
        there = np.flatnonzero(cells >= 0)
        exact, self._exact = self._exact, self._exact and hashes.exact
        some = [_take(key, there) for key in keys]
        wrong = there[self._differs(some, hashes.h2.take(there), cells.take(there))]
        self._exact = exact
        for row, key in zip(wrong.tolist(), _python_keys(keys, wrong), strict=True):
            cells[row] = self._told_apart.get(key, NOBODY)
        return cells

    def upsert(self, keys: Sequence[pa.Array]) -> Found:
        hashes = keyhash.hashes_of(keys)
        self._exact = self._exact and hashes.exact
        cells, new_rows = self._table.upsert(hashes.h1.view(np.int64), hashes.h1)
        new = cells.take(new_rows)
        if len(new_rows):
            self._keep(keys, hashes.h2, new_rows, new)
        wrong = np.flatnonzero(self._differs(keys, hashes.h2, cells))
        if len(wrong):
            more = self._tell_apart(keys, hashes, cells, wrong)
            new_rows = np.concatenate([new_rows, more])
            new = cells.take(new_rows)
        return Found(cells, new, hashes.h1.take(new_rows))

    def expect(self, count: int) -> None:
        self._table.expect(count)

    def append(self, keys: Sequence[pa.Array]) -> Found | None:
        return None

    def _keep(self, keys: Sequence[pa.Array], h2: U64, rows: I64, cells: I64) -> None:
        self._checks.array[cells] = h2.take(rows)
        for column, key in zip(self._columns, keys, strict=True):
            column.put(cells, _take(key, rows))

    def _differs(self, keys: Sequence[pa.Array], h2: U64, cells: I64) -> Flags:
        """True for rows whose key is not the one of the cell that their hash h1 led to."""
        differs: Flags = self._checks.array.take(cells) != h2
        if not self._exact:
            for column, key in zip(self._columns, keys, strict=True):
                differs |= ~column.equal(cells, key)
        return differs

    def _tell_apart(
        self, keys: Sequence[pa.Array], hashes: keyhash.Hashes, cells: I64, wrong: I64
    ) -> I64:
        """Gives rows that met another key on their hash a cell by the key itself; the rows of new ones."""
        new_rows = []
        for row, key in zip(wrong.tolist(), _python_keys(keys, wrong), strict=True):
            cell = self._told_apart.get(key)
            if cell is None:
                mine = self._allot(1)
                cell = self._told_apart[key] = int(mine[0])
                self._met.add(int(hashes.h1[row]))
                self._keep(keys, hashes.h2, np.array([row]), mine)
                new_rows.append(row)
            cells[row] = cell
        return np.array(new_rows, np.int64)

    def remove(self, cells: I64) -> I64:
        keys = [column.get(cells) for column in self._columns]
        h1 = keyhash.key_hashes(keys)[0]
        if self._told_apart:
            stays = self._remove_told_apart(keys, cells, h1)
            cells, h1 = cells[~stays], h1[~stays]
            apart = np.isin(cells, self._apart_cells)
            self._table.remove(h1[~apart].view(np.int64), h1[~apart])
            return cells
        self._table.remove(h1.view(np.int64), h1)
        return cells

    def removable(self, cells: I64) -> I64:
        """None of those that others were told apart from, nor of the others."""
        if not self._met:
            return cells
        h1 = keyhash.key_hashes([column.get(cells) for column in self._columns])[0]
        return cells[~np.isin(h1, np.array(sorted(self._met), np.uint64))]

    @property
    def nbytes(self) -> int:
        return self._table.bytes_reserved + self._checks.nbytes

    @property
    def movable(self) -> bool:
        """Keys that are told apart are found by more than their hashes. There are hardly ever any."""
        return not self._told_apart and not self._met

    def grow(self, count: int, capacity: int) -> None:
        self._checks.grow(count, capacity)

    def shrink(self, capacity: int) -> None:
        self._checks.shrink(capacity)

    def move(self, cells: I64, to: I64) -> None:
        h1 = keyhash.key_hashes([column.get(to) for column in self._columns])[0]
        self._table.relabel(h1.view(np.int64), h1, to)
        self._checks.array[to] = self._checks.array.take(cells)

    def tidy(self) -> None:
        self._table.tidy()

    def fits(self, keys: Sequence[pa.Array]) -> Flags:
        h1 = keyhash.hashes_of(keys).h1
        _, where, often = np.unique(h1, return_inverse=True, return_counts=True)
        alone: Flags = often.take(where) == 1
        return alone & (self._table.lookup(h1.view(np.int64), h1) < 0)

    def forget(self, cells: I64) -> None:
        self.remove(cells)

    def adopt(self, cells: I64) -> None:
        hashes = keyhash.hashes_of([column.get(cells) for column in self._columns])
        self._exact = self._exact and hashes.exact
        self._table.adopt(hashes.h1.view(np.int64), hashes.h1, cells)
        self._checks.array[cells] = hashes.h2

    _apart_cells: I64 = np.empty(0, np.int64)

    def _remove_told_apart(self, keys: Sequence[pa.Array], cells: I64, h1: U64) -> Flags:
        """Takes the keys out that are told apart. True for keys that must stay in the table, without a value: others
        were told apart from them."""
        apart = []
        stays = np.zeros(len(cells), np.bool_)
        for row, key in enumerate(_python_keys(keys, np.arange(len(cells)))):
            if self._told_apart.get(key) == int(cells[row]):
                del self._told_apart[key]
                apart.append(int(cells[row]))
            elif int(h1[row]) in self._met:
                stays[row] = True
        self._apart_cells = np.array(apart, np.int64)
        return stays


_NO_CELLS: I64 = np.empty(0, np.int64)
_NO_HASHES: U64 = np.empty(0, np.uint64)


def _identity(words: I64) -> U64:
    return words.view(np.uint64)


def _take(column: pa.Array, rows: I64) -> pa.Array:
    return take_rows(column, int64_array(rows))


def _python_keys(keys: Sequence[pa.Array], rows: I64) -> list[tuple[Any, ...]]:
    """These rows' keys as tuples that are equal when the keys are."""
    return list(zip(*(_python_column(_take(key, rows)) for key in keys), strict=True))


def _python_column(column: pa.Array) -> list[Any]:
    kind = column.type
    if is_one_word(kind):
        values = word_of(column).tolist()
    elif is_text(kind):
        return list(column.cast(pa.large_binary()).to_pylist())
    else:
        values = [tuple(pair) for pair in decimal_words(column).tolist()]
    null = null_mask(column).tolist()
    return [None if gone else value for gone, value in zip(null, values, strict=True)]


def make_index(columns: Sequence[Column], allot: Allot) -> Index:
    """An empty index for keys that are kept in these columns."""
    if len(columns) == 1 and is_one_word(columns[0].kind):
        return WordIndex(columns[0], allot)
    return HashIndex(columns, allot)
