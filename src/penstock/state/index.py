"""Finds the slot of a key, exactly, for keys of any supported type.

`WordIndex`: one fixed-width column. The slot table is keyed on the value itself; null has a slot beside it.

`HashIndex`: everything else. The slot table is keyed on lane h1 and each slot remembers lane h2. Equal lanes
prove equal keys only where `lanes_of` says `exact` for every key so far; otherwise the stored key is compared.
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
from penstock.state.columns import int64_array, take_rows
from penstock.state.keystore import FIRST_ROWS, View, WordKeys, grown, key_column
from penstock.state.near import NearSlots
from penstock.state.slots import SlotTable


class Found(NamedTuple):
    slots: I64
    """The slot of every row."""
    new_h1: U64
    """Lane h1 of every new key, in slot order."""


class Index(Protocol):
    def upsert(self, keys: Sequence[pa.Array]) -> Found: ...

    def views(self, count: int) -> tuple[View, ...]:
        """The first `count` keys, noted in constant time."""
        ...


class WordIndex:
    """Keys of one column of at most 8 bytes."""

    def __init__(self, kind: pa.DataType) -> None:
        self._table = SlotTable(mix)
        self._near = NearSlots()
        self._keys = WordKeys(kind)
        self._null_slot = -1

    def views(self, count: int) -> tuple[View, ...]:
        return (self._keys.view(count),)

    def upsert(self, keys: Sequence[pa.Array]) -> Found:
        (column,) = keys
        if column.null_count:
            return self._upsert_with_nulls(column)
        words = word_of(column)
        slots = self._near.find(words)
        if slots is None:
            slots, new_h1, new_rows = self._upsert_far(words)
        else:
            missing = np.flatnonzero(slots < 0)
            if not len(missing):
                return Found(slots, _NONE)
            words = words.take(missing)
            found, new_h1, new_rows = self._upsert_far(words)
            slots[missing] = found
            new_rows = missing.take(new_rows)
            self._near.remember(words, found, len(self._table))
        if len(new_rows):
            self._keys.append(_take(column, new_rows))
        return Found(slots, new_h1)

    def _upsert_far(self, words: I64) -> tuple[I64, U64, I64]:
        """Slots, the hashes of new keys, and a row of each of them."""
        h1 = mix(words)
        slots, new_rows = self._table.upsert(words, h1)
        return slots, h1.take(new_rows) if len(new_rows) else _NONE, new_rows

    def _upsert_with_nulls(self, column: pa.Array) -> Found:
        null = null_mask(column)
        present, absent = np.flatnonzero(~null), np.flatnonzero(null)
        slots = np.empty(len(column), np.int64)
        slots[present], new_h1 = self.upsert([_take(column, present)])
        if self._null_slot < 0:
            self._null_slot = self._table.take_slot()
            key = column.slice(int(absent[0]), 1)
            self._keys.append(key)
            new_h1 = np.concatenate([new_h1, keyhash.key_lanes([key])[0]])
        slots[absent] = self._null_slot
        return Found(slots, new_h1)


class HashIndex:
    """Keys of any other shape."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._table = SlotTable(_identity)
        self._columns = [key_column(kind) for kind in kinds]
        self._h2: U64 = np.zeros(FIRST_ROWS, np.uint64)
        self._exact = True
        self._told_apart: dict[tuple[Any, ...], int] = {}

    def views(self, count: int) -> tuple[View, ...]:
        return tuple(column.view(count) for column in self._columns)

    def upsert(self, keys: Sequence[pa.Array]) -> Found:
        lanes = keyhash.lanes_of(keys)
        self._exact = self._exact and lanes.exact
        slots, new_rows = self._table.upsert(lanes.h1.view(np.int64), lanes.h1)
        if len(new_rows):
            self._append(keys, lanes.h2, new_rows)
        wrong = np.flatnonzero(self._differs(keys, lanes.h2, slots))
        if len(wrong):
            more = self._tell_apart(keys, lanes.h2, slots, wrong)
            new_rows = np.concatenate([new_rows, more])
        return Found(slots, lanes.h1.take(new_rows))

    def _append(self, keys: Sequence[pa.Array], h2: U64, rows: I64) -> None:
        end = len(self._table)
        start = end - len(rows)
        self._h2 = grown(self._h2, start, end)
        self._h2[start:end] = h2.take(rows)
        for column, key in zip(self._columns, keys, strict=True):
            column.append(_take(key, rows))

    def _differs(self, keys: Sequence[pa.Array], h2: U64, slots: I64) -> Flags:
        """True for rows whose key is not the one of the slot that their lane h1 led to."""
        differs: Flags = self._h2.take(slots) != h2
        if not self._exact:
            for column, key in zip(self._columns, keys, strict=True):
                differs |= ~column.equal(key, slots)
        return differs

    def _tell_apart(self, keys: Sequence[pa.Array], h2: U64, slots: I64, wrong: I64) -> I64:
        """Gives rows that met another key on their lane a slot by the key itself; the rows of new ones."""
        new_rows = []
        for row, key in zip(wrong.tolist(), _python_keys(keys, wrong), strict=True):
            slot = self._told_apart.get(key)
            if slot is None:
                slot = self._told_apart[key] = self._table.take_slot()
                self._append(keys, h2, np.array([row]))
                new_rows.append(row)
            slots[row] = slot
        return np.array(new_rows, np.int64)


_NONE: U64 = np.empty(0, np.uint64)


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


def key_index(kinds: Sequence[pa.DataType]) -> Index:
    """An empty index for keys with columns of these types."""
    if len(kinds) == 1 and is_one_word(kinds[0]):
        return WordIndex(kinds[0])
    return HashIndex(kinds)
