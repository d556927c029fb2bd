"""The keys themselves, by slot: appended, compared, never changed.

Because rows are only appended, a frozen view is just the arrays as they are now and a count: rows beyond it are
not looked at, and a store that outgrows its arrays takes new ones and leaves the old to the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import (
    I64,
    Flags,
    decimal_words,
    is_one_word,
    is_text,
    text_offsets,
    word_of,
)
from penstock.state.columns import Values, dtype_of, int64_array, to_arrow, valid_of

FIRST_ROWS = 32

View = Callable[[], pa.Array]


class KeyColumn(Protocol):
    """One column of the keys."""

    def append(self, column: pa.Array) -> None: ...

    def equal(self, column: pa.Array, slots: I64) -> Flags:
        """Row by row: is this key the one of that slot? Null equals null."""
        ...

    def view(self, count: int) -> View:
        """Notes the first `count` keys in constant time; the call makes an array of them, on any thread.
        Text comes as its large type."""
        ...


def grown(array: Values, count: int, needed: int) -> Values:
    """The array, or a longer one with its first `count` rows. What is behind them is zero."""
    if needed <= len(array):
        return array
    shape = (max(needed, len(array) * 3 // 2, FIRST_ROWS), *array.shape[1:])
    longer = np.zeros(shape, array.dtype)
    longer[:count] = array[:count]
    return longer


class _Validity:
    """Which keys are null. Costs nothing until the first one is."""

    def __init__(self) -> None:
        self._valid: Flags | None = None

    def append(self, column: pa.Array, count: int) -> None:
        valid = valid_of(column)
        if valid is None and self._valid is None:
            return
        if self._valid is None:
            self._valid = np.ones(count, np.bool_)
        end = count + len(column)
        self._valid = grown(self._valid, count, end)
        self._valid[count:end] = True if valid is None else valid

    def view(self, count: int) -> Flags | None:
        return None if self._valid is None else self._valid[:count]

    def merge(self, same: Flags, column: pa.Array, slots: I64) -> Flags:
        """Equal when both are null, or neither is and the values are the same."""
        valid = valid_of(column)
        if valid is None and self._valid is None:
            return same
        mine = np.ones(len(slots), np.bool_) if self._valid is None else self._valid.take(slots)
        theirs = np.ones(len(slots), np.bool_) if valid is None else valid
        return (mine & theirs & same) | ~(mine | theirs)


class WordKeys:
    """Keys of one word: integers, booleans, dates, timestamps."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._count = 0
        self._words: I64 = np.zeros(FIRST_ROWS, np.int64)
        self._valid = _Validity()

    def append(self, column: pa.Array) -> None:
        end = self._count + len(column)
        self._words = grown(self._words, self._count, end)
        self._words[self._count : end] = word_of(column)
        self._valid.append(column, self._count)
        self._count = end

    def equal(self, column: pa.Array, slots: I64) -> Flags:
        return self._valid.merge(self._words.take(slots) == word_of(column), column, slots)

    def view(self, count: int) -> View:
        kind, words, valid = self._kind, self._words[:count], self._valid.view(count)
        return lambda: to_arrow(words.astype(dtype_of(kind), copy=False), kind, valid)


class DecimalKeys:
    """Keys of two words."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._count = 0
        self._words: npt.NDArray[np.uint64] = np.zeros((FIRST_ROWS, 2), np.uint64)
        self._valid = _Validity()

    def append(self, column: pa.Array) -> None:
        end = self._count + len(column)
        self._words = grown(self._words, self._count, end)
        self._words[self._count : end] = decimal_words(column)
        self._valid.append(column, self._count)
        self._count = end

    def equal(self, column: pa.Array, slots: I64) -> Flags:
        same: Flags = (self._words[slots] == decimal_words(column)).all(axis=1)
        return self._valid.merge(same, column, slots)

    def view(self, count: int) -> View:
        kind, words, valid = self._kind, self._words, self._valid.view(count)
        return lambda: pa.Array.from_buffers(kind, count, [_bitmap(valid), pa.py_buffer(words)])


class TextKeys:
    """Keys of any length: their bytes one after the other, and where each begins."""

    def __init__(self, kind: pa.DataType) -> None:
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        self._kind = pa.large_string() if text else pa.large_binary()
        self._count = 0
        self._starts: I64 = np.zeros(FIRST_ROWS, np.int64)
        self._bytes: npt.NDArray[np.uint8] = np.zeros(FIRST_ROWS * 8, np.uint8)
        self._valid = _Validity()

    def append(self, column: pa.Array) -> None:
        self._valid.append(column, self._count)
        offsets = text_offsets(column)
        begin, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        used, end = int(self._starts[self._count]), self._count + len(column)
        self._starts = grown(self._starts, self._count + 1, end + 1)
        self._starts[self._count + 1 : end + 1] = offsets[1:] - (begin - used)
        if size:
            self._bytes = grown(self._bytes, used, used + size)
            data = np.frombuffer(column.buffers()[2], np.uint8, size, begin)
            self._bytes[used : used + size] = data
        self._count = end

    def equal(self, column: pa.Array, slots: I64) -> Flags:
        stored = _text_array(self._kind, self._count, None, self._starts, self._bytes)
        stored = stored.take(int64_array(slots))
        given = _without_nulls(column).cast(self._kind)
        same: Flags = pc.equal(stored, given).to_numpy(zero_copy_only=False)
        return self._valid.merge(same, column, slots)

    def view(self, count: int) -> View:
        kind, valid, starts, data = self._kind, self._valid.view(count), self._starts, self._bytes
        return lambda: _text_array(kind, count, valid, starts, data)


def _text_array(
    kind: pa.DataType, count: int, valid: Flags | None, starts: I64, data: npt.NDArray[np.uint8]
) -> pa.Array:
    buffers = [_bitmap(valid), pa.py_buffer(starts), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _bitmap(valid: Flags | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _without_nulls(column: pa.Array) -> pa.Array:
    """The same values with nulls taken for what stands below them: comparing them is the validity's part."""
    if not column.null_count:
        return column
    buffers = [None, *column.buffers()[1:]]
    return pa.Array.from_buffers(column.type, len(column), buffers, 0, column.offset)


def key_column(kind: pa.DataType) -> KeyColumn:
    """An empty store for keys of this type."""
    if is_one_word(kind):
        return WordKeys(kind)
    return TextKeys(kind) if is_text(kind) else DecimalKeys(kind)
