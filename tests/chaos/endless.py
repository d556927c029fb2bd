"""A source for runs whose length is not known before: goes on until a file says where the input ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from tests.spark import jobs


class NumbersUntilTold(pen.Source):
    """Row i is in lane i modulo the number of lanes. `rate` is rows per second over all subtasks, until the file
    is there; its text is the number of rows in all, and from then on there is no limit."""

    def __init__(self, end_file: Path, rate: float) -> None:
        self.end_file = str(end_file)
        self.rate = rate

    @property
    def schema(self) -> pa.Schema:
        return jobs.numbers(0, 0).schema

    def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> pen.SourceReader:
        return _Reader(self, context, positions)


class _Reader(pen.SourceReader):
    def __init__(
        self, source: NumbersUntilTold, context: pen.SourceContext, positions: Mapping[int, Any]
    ) -> None:
        self._end_file = Path(source.end_file)
        self._per_ms = source.rate / context.parallelism / 1000
        self._lanes_total = context.max_parallelism
        self._now_ms = context.now_ms
        self._opened_ms = context.now_ms()
        self._given = 0
        self._next = {lane: int(positions.get(lane, 0)) for lane in context.lanes}

    def poll(self, max_rows: int) -> pa.RecordBatch | pen.Wait | pen.EndOfInput:
        rows = int(self._end_file.read_text()) if self._end_file.exists() else None
        due = max_rows if rows is not None else self._due()
        taken = [i for _ in range(min(due, max_rows)) if (i := self._take(rows)) is not None]
        if taken:
            self._given += len(taken)
            return pa.concat_batches([jobs.numbers(i, 1) for i in taken])
        return pen.END if rows is not None else pen.Wait(self._now_ms() + 5)

    def positions(self) -> Mapping[int, Any]:
        return dict(self._next)

    def _due(self) -> int:
        return int((self._now_ms() - self._opened_ms) * self._per_ms) - self._given

    def _take(self, rows: int | None) -> int | None:
        """The next row of the lane that is furthest behind."""
        lane = min(self._next, key=lambda each: (self._next[each], each))
        i = lane + self._next[lane] * self._lanes_total
        if rows is not None and i >= rows:
            return None
        self._next[lane] += 1
        return i
