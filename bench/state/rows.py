"""Rows for much state: first every key once, so that all of them are there soon, then what the benchmark is about.

What comes then is drawn from a window over the keys that moves on with the clock: so it is known how many keys change
in a second, however many rows a second has. Such rows are not the same when they are made again, which matters to
nobody here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as pen
from bench.modes import ROWS_IN
from bench.waiting import wait_for
from bench.workload import INT_SCHEMA, OPERATOR, aggregates, int_batch, keys_of

LONG_SCHEMA = pa.schema([*INT_SCHEMA, ("text", pa.string())])
TEXT_BYTES = 90
_PRIME = 2_654_435_761
_TEXTS = 65_536


@dataclass(frozen=True)
class Rows:
    """Meets the contract of a generator's function. Keys that follow one another do not lie side by side in state."""

    keys: int
    window: int = 0
    """So many keys take turns at any time; 0: all."""
    moves_s: float = 0.0
    """So many of them are replaced in a second."""
    texts: bool = False
    """With a text of about 90 bytes."""

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        numbers = np.arange(start, start + count, dtype=np.int64)
        batch = int_batch(self._keys(numbers), numbers)
        if not self.texts:
            return batch
        return pa.RecordBatch.from_arrays([*batch.columns, _long(start, count)], schema=LONG_SCHEMA)

    def _keys(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if numbers[0] < self.keys:
            return numbers * _PRIME % self.keys
        found = keys_of(numbers, self.window or self.keys)
        if self.window:
            first = int(time.monotonic() * self.moves_s) % self.keys
            found += first
            if first + self.window > self.keys:
                found[found >= self.keys] -= self.keys
        return found


def much_state(rows: Rows, rate: float | None = None) -> pen.Stream:
    """A running count and sum per key, and with texts the last one."""
    schema = LONG_SCHEMA if rows.texts else INT_SCHEMA
    source = pen.GeneratorSource(rows, schema, rate=rate)
    last = {"text": pen.last("text")} if rows.texts else {}
    return pen.from_source(source).key_by("key").agg(**aggregates(), **last).named(OPERATOR)


def wait_for_all_keys(job: pen.Job, keys: int, within_s: float = 300.0) -> None:
    wait_for("all keys", lambda: job.metrics().get(ROWS_IN, 0) >= keys, job, within_s)


def _long(start: int, count: int) -> pa.Array:
    """Texts that differ from their neighbours."""
    first = start % _TEXTS
    some = _some_texts()[first * TEXT_BYTES : (first + count) * TEXT_BYTES]
    ends = np.arange(0, (count + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(some)])


@lru_cache(maxsize=1)
def _some_texts() -> npt.NDArray[np.uint8]:
    """Twice as many as a batch has at most, so that one may begin anywhere."""
    letters = np.random.default_rng(3).integers(97, 123, _TEXTS * TEXT_BYTES, dtype=np.uint8)
    return np.concatenate([letters, letters])
