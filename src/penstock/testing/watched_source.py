"""A user's source and operators in a simulation: small batches, failures, and a note of every start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.base import EndOfInput, Source, SourceContext, SourceReader, Wait
from penstock.connectors.contract import refuse, wrong_answer, wrong_reader
from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.errors import ConfigError
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import Plain
from penstock.testing.finding import Finding, short
from penstock.testing.outside import SimulatedFault
from penstock.testing.sink_place import RETURN_PLAIN, not_plain_positions

if TYPE_CHECKING:
    from penstock.testing.world import UserWorld

ROWS_MAX = 20_000
"""A source with more rows is a mistake: thousands of schedules read them again and again."""
SLOW_MS = 200.0


class WatchedSource(Source):
    def __init__(self, world: UserWorld, inner: Source, rows_max: int) -> None:
        self._world = world
        self._inner = inner
        self._rows_max = rows_max
        self.bounded = inner.bounded

    @property
    def schema(self) -> pa.Schema:
        return self._inner.schema

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        where = f"{context.operator} [{context.index}]"
        told = f"at {short(dict(positions))}" if positions else "at the beginning"
        self._world.call(where, f"opens {told}")
        inner = self._inner.reader(context, positions)
        refuse(wrong_reader(inner))
        return WatchedReader(self._world, where, inner, self._rows_max)


class WatchedReader(SourceReader):
    def __init__(self, world: UserWorld, where: str, inner: SourceReader, rows_max: int) -> None:
        self._world = world
        self._where = where
        self._inner = inner
        self._rows_max = rows_max
        self._asked = world.opens(where)

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        world = self._world
        if world.happens("user_error"):
            raise SimulatedFault("simulated failure while a source is read")
        answer = self._inner.poll(min(max_rows, world.rng.randint(1, self._rows_max)))
        refuse(wrong_answer(answer))
        if isinstance(answer, pa.RecordBatch) and answer.num_rows:
            self._asked.in_vain = 0
            world.batches_read += 1
            world.rows_read += answer.num_rows
            if world.rows_read > ROWS_MAX and not world.luck.struck:
                self._too_many()
        else:
            self._asked.ended = isinstance(answer, EndOfInput)
            self._asked.in_vain += 1
            self._asked.answer = short(answer)
        return answer

    def positions(self) -> Mapping[int, Plain]:
        made = self._inner.positions()
        problem = not_plain_positions(made)
        if problem is not None:
            what = f"source {self._where}, what positions() returned: {problem}"
            look_at = f"positions() of this source, and what it returns. {RETURN_PLAIN}"
            kept = "positions can be kept in a checkpoint"
            self._world.found(Finding(f"plain {self._where}", kept, what, look_at=look_at))
            raise ConfigError(f"simulate: {what}")
        return made

    def describe(self) -> str:
        return self._inner.describe()

    def lag(self) -> Mapping[str, float]:
        return self._inner.lag()

    def close(self) -> None:
        self._inner.close()

    def _too_many(self) -> None:
        what = f"the sources have more than {ROWS_MAX} rows"
        look_at = "The size of the input: some hundred rows show as much as millions, and a thousand times as fast."
        self._world.found(Finding("rows", "a simulated input is small", what, look_at=look_at))
        raise ConfigError(f"simulate: {what}; give it a small, bounded input")


class FlakyOperator(Operator):
    """Does what the user's operator does, and sometimes fails before it or after it."""

    def __init__(self, world: UserWorld, inner: Operator) -> None:
        self._world = world
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, context: OperatorContext) -> None:
        if self._world.happens("restore_error"):
            raise SimulatedFault(f"simulated failure while {context.operator!r} is opened")
        self._inner.open(context)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        if self._world.happens("slow_user"):
            self._world.clock.now_ms += self._world.rng.random() * SLOW_MS
        self._world.inside = "user_error"
        try:
            made = list(self._inner.process(batch, port))
        finally:
            self._world.inside = ""
        if self._world.happens("user_error"):
            raise SimulatedFault("simulated failure in user code")
        return made

    def finish(self) -> Iterable[pa.RecordBatch]:
        return self._inner.finish()

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        if self._world.happens("snapshot_error"):
            raise SimulatedFault("simulated failure in a snapshot")
        return self._inner.freeze(order)

    def close(self) -> None:
        self._inner.close()
