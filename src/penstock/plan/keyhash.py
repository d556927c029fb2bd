"""The stable hash of a key: two 64-bit hashes per row, computed for a whole batch at once.

The hashes are the same in every process, Python version and machine; golden vectors in the tests fix them.
Hash h1 is well mixed: it chooses the key group and the place in a cell table. Hash h2 is a check.

How a key becomes hashes: every column is a row of 64-bit words w0, w1, ... (an integer, date or timestamp is one
word, a decimal two, text one per 8 bytes). A word is folded, t = w ^ (w >> 32), and the hashes of a column are
the sums of t[j] * A[j] and t[j] * B[j]; zero words add nothing, so the width of the batch does not matter. The
hashes of several columns are added with a multiplier per column, and a last mix spreads h1. All arithmetic is
modulo 2**64.

Where a key has at most two words the two sums can be solved for them (the determinant A0*B1 - A1*B0 is odd), so
equal hashes mean equal keys. `hashes_of` says so with `exact`. Beyond that, equal hashes only make equality
likely, and whoever needs certainty must compare the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.errors import SchemaError

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WORD_BYTES = 8
SHORT_BYTES = 15
"""Text up to this length fits two words together with its length."""
LONG_BYTES = 128
"""Longer text is hashed row by row: padding every row of a batch to the longest would cost too much memory."""
KEY_TYPES = "integers, bool, string, binary, date, time, timestamp, duration and decimal128"

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _constants(seed: int, count: int) -> list[int]:
    """A fixed, arbitrary-looking sequence of 64-bit numbers."""
    out = []
    for i in range(1, count + 1):
        z = (seed + i * _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        out.append(z ^ (z >> 31))
    return out


def _odd_then_even(numbers: Sequence[int]) -> list[int]:
    """Makes the first number odd and the second even: with odd ones beside them the determinant is odd."""
    return [numbers[0] | 1, numbers[1] & ~1 & _MASK, *numbers[2:]]


_WORDS = LONG_BYTES // WORD_BYTES
KEY_COLUMNS_MAX = 32
A = [np.uint64(c) for c in [_GOLDEN, *(c | 1 for c in _constants(11, _WORDS - 1))]]
B = [np.uint64(c) for c in _odd_then_even(_constants(12, _WORDS))]
COLUMN_A = [np.uint64(c | 1) for c in _constants(13, KEY_COLUMNS_MAX)]
COLUMN_B = [np.uint64(c) for c in _odd_then_even(_constants(14, KEY_COLUMNS_MAX))]
_LENGTH_A, _LENGTH_B, _NULL_A, _NULL_B = (np.uint64(c | 1) for c in _constants(15, 4))
_GOLDEN_64 = np.uint64(_GOLDEN)
_SCATTER_64 = np.uint64(_constants(16, 1)[0] | 1)
_S16, _S29, _S32, _S56 = (np.uint64(s) for s in (16, 29, 32, 56))
_LOW_32 = np.uint64(0xFFFFFFFF)


class Hashes(NamedTuple):
    """`exact`: among keys that were hashed with this flag set, equal hashes mean equal keys."""

    h1: U64
    h2: U64
    exact: bool


def is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def is_one_word(kind: pa.DataType) -> bool:
    """Fixed-width key types of at most 8 bytes."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_boolean(kind) or _is_time(kind))


def _is_time(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_time(kind)
        or types.is_duration(kind)
    )


def is_key_type(kind: pa.DataType) -> bool:
    return is_one_word(kind) or is_text(kind) or bool(pa.types.is_decimal128(kind))


def check_key_types(schema: pa.Schema, keys: Sequence[str]) -> None:
    """Raises SchemaError for a key column that does not exist or cannot be a key."""
    if not 1 <= len(keys) <= KEY_COLUMNS_MAX:
        raise SchemaError(f"a key has 1 to {KEY_COLUMNS_MAX} columns, this one has {len(keys)}")
    for name in keys:
        if schema.get_field_index(name) < 0:
            raise SchemaError(
                f"there is no key column {name!r}; columns are {', '.join(schema.names)}"
            )
        _check_key_type(name, schema.field(name).type)


def _check_key_type(name: str, kind: pa.DataType) -> None:
    if is_key_type(kind):
        return
    hint = ""
    if pa.types.is_floating(kind):
        hint = " (0.1 + 0.2 and 0.3 would be two keys: cast to decimal or to an integer)"
    raise SchemaError(
        f"column {name!r} of type {kind} cannot be a key{hint}; keys may be {KEY_TYPES}"
    )


def key_hashes(columns: Sequence[pa.Array]) -> tuple[U64, U64]:
    """The two hashes (h1, h2) of every row of these key columns."""
    hashes = hashes_of(columns)
    return hashes.h1, hashes.h2


def hashes_of(columns: Sequence[pa.Array]) -> Hashes:
    """The hashes, and whether they decide equality by themselves."""
    if len(columns) == 1:
        return _single(columns[0])
    a, b, _ = _column_sums(columns[0])
    sum_a, sum_b = a * COLUMN_A[0], b * COLUMN_B[0]
    for i, column in enumerate(columns[1:], 1):
        a, b, _ = _column_sums(column)
        sum_a += a * COLUMN_A[i]
        sum_b += b * COLUMN_B[i]
    exact = len(columns) == 2 and all(is_one_word(c.type) and not c.null_count for c in columns)
    return Hashes(_finish(sum_a), sum_b, exact)


def _single(column: pa.Array) -> Hashes:
    if not is_one_word(column.type):
        a, b, exact = _column_sums(column)
        return Hashes(_finish(a), b, exact)
    word = word_of(column)
    h1, h2 = mix(word), word.view(np.uint64)
    if not column.null_count:
        return Hashes(h1, h2, True)
    null = null_mask(column)
    h1[null] = _NULL_A
    return Hashes(h1, np.where(null, _NULL_B, h2), False)


def mix(word: I64) -> U64:
    """Lane h1 of a single one-word column: invertible, so different words never share it."""
    h: U64 = word.view(np.uint64) >> _S32
    h ^= word.view(np.uint64)
    h *= _GOLDEN_64
    return _scatter(h)


def _finish(h: U64) -> U64:
    h ^= h >> _S32
    h *= _GOLDEN_64
    return _scatter(h)


def _scatter(h: U64) -> U64:
    """One multiplication leaves ids like `time << 22` in few key groups; the second one spreads them."""
    h ^= h >> _S29
    h *= _SCATTER_64
    h ^= h >> _S32
    return h


def _column_sums(column: pa.Array) -> tuple[U64, U64, bool]:
    """The sums of one column before the last mix, and whether they can be solved for its words."""
    kind = column.type
    if is_one_word(kind):
        words = [word_of(column).view(np.uint64)]
        a, b, exact = *_sums(words), True
    elif is_text(kind):
        a, b, exact = _text_sums(column)
    elif pa.types.is_decimal128(kind):
        pair = decimal_words(column)
        a, b, exact = *_sums([pair[:, 0], pair[:, 1]]), True
    else:
        raise SchemaError(f"a column of type {kind} cannot be a key; keys may be {KEY_TYPES}")
    if column.null_count:
        null = null_mask(column)
        a[null], b[null], exact = _NULL_A, _NULL_B, False
    return a, b, exact


def _sums(words: Sequence[U64]) -> tuple[U64, U64]:
    t = words[0] ^ (words[0] >> _S32)
    a, b = t * A[0], t * B[0]
    for j in range(1, len(words)):
        t = words[j] ^ (words[j] >> _S32)
        a += t * A[j]
        b += t * B[j]
    return a, b


def word_of(column: pa.Array) -> I64:
    """A one-word column as int64, sign-extended: the same number in int32 and int64 is the same word.

    Rows that are null hold anything."""
    count = len(column)
    if not count:
        return np.empty(0, np.int64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    dtype = _WORD_DTYPES[column.type.id]
    width = dtype.itemsize
    raw: Any = np.frombuffer(column.buffers()[1], dtype, count, column.offset * width)
    word: I64 = raw.view(np.int64) if width == WORD_BYTES else raw.astype(np.int64)
    return word


_WORD_DTYPES: dict[int, np.dtype[Any]] = {
    kind.id: np.dtype(f"{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us")),
    )
}
"""How the values of a one-word column lie in memory, by the number that Arrow has for the type."""


def decimal_words(column: pa.Array) -> U64:
    """A decimal128 column as (rows, 2): the low and the high word of the unscaled value."""
    if len(column) == 0:
        return np.empty((0, 2), np.uint64)
    start = column.offset * 16
    return np.frombuffer(column.buffers()[1], np.uint64, len(column) * 2, start).reshape(-1, 2)


def null_mask(column: pa.Array) -> Flags:
    mask: Flags = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _text_sums(column: pa.Array) -> tuple[U64, U64, bool]:
    if column.null_count:
        column = pc.fill_null(column, b"" if "binary" in str(column.type) else "")
    length = text_lengths(column)
    longest = int(length.max()) if len(length) else 0
    if longest <= LONG_BYTES:
        a, b = _padded_sums(column, length, longest)
        return a, b, longest <= SHORT_BYTES
    return *_long_sums(column, length), False


def text_lengths(column: pa.Array) -> I64:
    lengths: I64 = np.diff(text_offsets(column))
    return lengths


def text_offsets(column: pa.Array) -> I64:
    """Where each value starts in the data buffer, and where the last one ends."""
    width = 8 if "large" in str(column.type) else 4
    if column.buffers()[1] is None or len(column) == 0:
        return np.zeros(len(column) + 1, np.int64)
    dtype = np.dtype(f"i{width}")
    raw = np.frombuffer(column.buffers()[1], dtype, len(column) + 1, column.offset * width)
    offsets: I64 = raw.astype(np.int64)
    return offsets


def _padded_sums(column: pa.Array, length: I64, longest: int) -> tuple[U64, U64]:
    """Sums over words of text padded with zeros. Up to 15 bytes the length goes into the second word's last
    byte, so that it is part of what can be solved for; beyond, it has terms of its own."""
    words = max(1, -(-longest // WORD_BYTES))
    matrix = _padded_words(column, words)
    tag = length.astype(np.uint64)
    if longest > SHORT_BYTES:
        tag[length > SHORT_BYTES] = 0
    tag <<= _S56
    second = matrix[:, 1] ^ tag if words > 1 else tag
    a, b = _sums([matrix[:, 0], second, *(matrix[:, j] for j in range(2, words))])
    if longest > SHORT_BYTES:
        beyond = np.where(length > SHORT_BYTES, length, 0).astype(np.uint64)
        a += beyond * _LENGTH_A
        b += beyond * _LENGTH_B
    return a, b


def _padded_words(column: pa.Array, words: int) -> U64:
    text = _as_text(column)
    padded = pc.ascii_rpad(text, width=words * WORD_BYTES, padding="\0")
    n = len(column)
    if n == 0:
        return np.empty((0, words), np.uint64)
    start = int(text_offsets(padded)[0])
    return np.frombuffer(padded.buffers()[2], np.uint64, n * words, start).reshape(n, words)


def _as_text(column: pa.Array) -> pa.Array:
    """Binary seen as string, without a copy: padding does not look at what the bytes mean."""
    kinds = {pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}
    kind = kinds.get(column.type)
    if kind is None:
        return column
    return pa.Array.from_buffers(
        kind, len(column), [None, *column.buffers()[1:]], offset=column.offset
    )


def _long_sums(column: pa.Array, length: I64) -> tuple[U64, U64]:
    """Text beyond LONG_BYTES goes through xxh3, row by row; the others as always."""
    rows = np.flatnonzero(length > LONG_BYTES)
    short = pc.if_else(pa.array(length <= LONG_BYTES), _as_text(column), "")
    short_length = np.where(length > LONG_BYTES, 0, length)
    a, b = _padded_sums(short, short_length, int(short_length.max()))
    binary = _as_text(column).take(pa.array(rows)).cast(pa.large_binary(), safe=False)
    digests = [xxhash.xxh3_128_intdigest(value.as_buffer()) for value in binary]
    a[rows] = np.array([d & _MASK for d in digests], np.uint64)
    b[rows] = np.array([d >> 64 for d in digests], np.uint64)
    return a, b


def key_groups(h1: U64, max_parallelism: int) -> npt.NDArray[np.uint16]:
    """The key group of every row, from bits 16..47 of h1; slot tables use the bits below and above."""
    h = h1 >> _S16
    h &= _LOW_32
    h *= np.uint64(max_parallelism)
    h >>= _S32
    return h.astype(np.uint16)


def owner_of(
    groups: npt.NDArray[np.uint16], parallelism: int, max_parallelism: int
) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    """The subtask that owns each key group: `group * parallelism // max_parallelism`."""
    owners: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    owners = _owners(parallelism, max_parallelism).take(groups)
    return owners


@lru_cache(maxsize=256)
def _owners(parallelism: int, max_parallelism: int) -> npt.NDArray[Any]:
    owners = np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism
    return owners.astype(np.uint8 if parallelism <= 256 else np.uint16)
