"""Rows that a function computes from their number: for tests, demos and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pyarrow as pa

from penstock.connectors.base import END, EndOfInput, Source, SourceContext, SourceReader, Wait
from penstock.connectors.schemas import as_declared, require_no_nulls
from penstock.connectors.stripes import Run, Stripes
from penstock.errors import ConfigError, SchemaError
from penstock.plan.schema import parse_schema
from penstock.protocol.snapshot import Plain

BLOCK_ROWS = 65_536
RATED_BLOCK_ROWS_MAX = 8_192
RATED_BLOCK_SECONDS = 0.005
_ROUNDING = 1e-6  # a row must be due at the very moment that `due_ms` said

RowsFunction = Callable[[int, int], pa.RecordBatch]


class GeneratorSource(Source):
    """Rows `start .. start + n - 1` of an endless sequence are `fn(start, n)`; the same call must always return
    the same rows. `rows` ends the sequence; `rate` is rows per second over all subtasks."""

    def __init__(
        self,
        fn: RowsFunction,
        schema: pa.Schema | str,
        rows: int | None = None,
        rate: float | None = None,
    ) -> None:
        if not callable(fn):
            raise ConfigError(f"GeneratorSource: fn must be a function fn(start, n), not {fn!r}")
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 0):
            raise ConfigError(f"GeneratorSource: rows must be a whole number >= 0, not {rows!r}")
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise ConfigError(f"GeneratorSource: rate must be rows per second > 0, not {rate!r}")
        self._fn = fn
        self._schema = parse_schema(schema)
        self._rows = rows
        self._rate = rate
        self.bounded = rows is not None

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        block = block_rows(self._rows, self._rate, context.max_parallelism)
        stripes = Stripes(context.lanes, context.max_parallelism, block, self._rows, positions)
        pace = Pace(self._rate, stripes.next_row if positions else 0, context.now_ms)
        return GeneratorReader(self._fn, self._schema, stripes, pace)


def block_rows(rows: int | None, rate: float | None, lanes_total: int) -> int:
    """Large blocks for speed; smaller ones where otherwise some subtasks would have no rows, or, with a rate,
    would have all of theirs due at once."""
    block = BLOCK_ROWS
    if rate is not None:
        block = max(1, min(RATED_BLOCK_ROWS_MAX, int(rate * RATED_BLOCK_SECONDS)))
    if rows is not None:
        block = max(1, min(block, -(-rows // lanes_total)))
    return block


class Pace:
    """When rows are due: row `first` at the moment this is made, the others at an even rate around it."""

    def __init__(self, rate: float | None, first: int, now_ms: Callable[[], float]) -> None:
        self._rate = rate
        self._first = first
        self._now_ms = now_ms
        self._opened_ms = now_ms()

    def due_below(self) -> int | None:
        """Rows below this number are due; None: all are."""
        if self._rate is None:
            return None
        elapsed_ms = self._now_ms() - self._opened_ms
        return self._first + math.floor(elapsed_ms * self._rate / 1000 + _ROUNDING) + 1

    def due_ms(self, row: int) -> float:
        """When a row will be due."""
        if self._rate is None:
            return self._now_ms()
        return self._opened_ms + (row - self._first) * 1000 / self._rate


class GeneratorReader(SourceReader):
    def __init__(self, fn: RowsFunction, schema: pa.Schema, stripes: Stripes, pace: Pace) -> None:
        self._fn = fn
        self._schema = schema
        self._stripes = stripes
        self._pace = pace
        self._last: Run = (0, 0)

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        if self._stripes.finished:
            return END
        runs = self._stripes.take(max_rows, self._pace.due_below())
        if not runs:
            return Wait(self._pace.due_ms(self._stripes.next_row))
        batches = [self._generate(run) for run in runs]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def positions(self) -> Mapping[int, Plain]:
        return self._stripes.positions()

    def describe(self) -> str:
        start, count = self._last
        return f"generated rows {start} to {start + count - 1}" if count else ""

    def lag(self) -> Mapping[str, float]:
        """Rows that are due by the rate; without one there is no hurry."""
        due = self._pace.due_below()
        return {} if due is None else {"rows": self._stripes.rows_below(due)}

    def _generate(self, run: Run) -> pa.RecordBatch:
        self._last = run
        start, count = run
        where = f"GeneratorSource: fn({start}, {count})"
        batch = self._fn(start, count)
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"{where} returned {type(batch).__name__}, not a pyarrow.RecordBatch")
        if batch.num_rows != count:
            raise SchemaError(f"{where} returned {batch.num_rows} rows, not {count}")
        batch = as_declared(batch, self._schema, where)
        require_no_nulls(batch, where)
        return batch
