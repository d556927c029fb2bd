"""Input whose end a test decides, and an operator that is slow until a test lets it go: what a test needs to happen
while a job runs happens in time, however fast or slow the machine is."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from tests.spark import jobs

BATCH_ROWS_MAX = 1_000
"""Small batches, so that an operator behind a tap can be slow from its first row on."""
ROW_S = 0.05
CALL_S_MAX = 0.2


class Tap:
    """Numbered rows at a rate, the first `held` of them or without a limit, until the test lets more come or says how
    many there are in all: those come at once. A program that is started again goes on with the same tap."""

    def __init__(self, file: Path, rate: float, held: int | None = None) -> None:
        self.file = file
        self.rate = rate
        self.held = held

    def snapshots(self) -> int:
        """How many of its subtasks have been asked for their positions: a barrier stands behind what they gave."""
        return len(list(self.file.parent.glob(f"{self.file.name}-asked-*")))

    def stream(self, name: str = "numbers") -> pen.Stream:
        return pen.from_source(NumbersUntilTold(self), name)

    def more(self, rows: int) -> None:
        """So many may come from now on, and there may be more."""
        self._write(f"{rows} so far")

    def end(self, rows: int) -> None:
        """The input has this many rows: as many as were given so far, or more."""
        self._write(f"{rows} in all")

    def _write(self, text: str) -> None:
        """Whole: a reader never sees a part of it."""
        hidden = self.file.with_name(f"_{self.file.name}")
        hidden.write_text(text)
        os.replace(hidden, self.file)

    def told(self) -> tuple[int, bool] | None:
        """How many rows may come, and whether these are all; None: nothing was said yet."""
        try:
            rows, _, how = self.file.read_text().partition(" ")
        except FileNotFoundError:
            return None
        return int(rows), how == "in all"


class NumbersUntilTold(pen.Source):
    """Row i is in lane i modulo the number of lanes."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    @property
    def schema(self) -> pa.Schema:
        return jobs.numbers(0, 0).schema

    def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> pen.SourceReader:
        return _Reader(self.tap, context, positions)


class _Reader(pen.SourceReader):
    def __init__(self, tap: Tap, context: pen.SourceContext, positions: Mapping[int, Any]) -> None:
        self._tap = tap
        self._asked = tap.file.with_name(f"{tap.file.name}-asked-{context.index}")
        self._per_ms = tap.rate / context.parallelism / 1000
        self._lanes_total = context.max_parallelism
        self._now_ms = context.now_ms
        self._opened_ms = context.now_ms()
        self._given = 0
        self._next = {lane: int(positions.get(lane, 0)) for lane in context.lanes}

    def poll(self, max_rows: int) -> pa.RecordBatch | pen.Wait | pen.EndOfInput:
        told = self._tap.told()
        below, is_end = told or (self._tap.held, False)
        max_rows = min(max_rows, BATCH_ROWS_MAX)
        due = min(self._due() if told is None else max_rows, max_rows)
        taken = list(islice(iter(lambda: self._take(below), None), max(0, due)))
        if taken:
            self._given += len(taken)
            return jobs.rows_of(np.array(taken, dtype=np.int64))
        return pen.END if is_end else pen.Wait(self._now_ms() + 5)

    def positions(self) -> Mapping[int, Any]:
        self._asked.touch()
        return dict(self._next)

    def _due(self) -> int:
        return int((self._now_ms() - self._opened_ms) * self._per_ms) - self._given

    def _take(self, below: int | None) -> int | None:
        """The next row of the lane that is furthest behind."""
        lane = min(self._next, key=lambda each: (self._next[each], each))
        i = lane + self._next[lane] * self._lanes_total
        if below is not None and i >= below:
            return None
        self._next[lane] += 1
        return i


class Slow:
    """An operator that takes so long for a row that rows pile up before it for minutes, until it is released. The
    engine learns that it is slow, and gives it few rows at a time."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.file.exists():
            time.sleep(min(CALL_S_MAX, batch.num_rows * ROW_S))
        return batch

    def release(self) -> None:
        self.file.touch()


def all_at_once(file: Path, rows: int) -> pen.Stream:
    """So many rows, as fast as they are taken."""
    tap = Tap(file, rate=1.0)
    tap.end(rows)
    return tap.stream()
