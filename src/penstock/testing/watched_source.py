"""A user's source and operators in a simulation: small batches, failures, and a note of every start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.base import EndOfInput, Source, SourceContext, SourceReader, Wait
from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.errors import ConfigError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.snapshot import Plain
from penstock.testing.finding import Finding, short
from penstock.testing.outside import SimulatedFault

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
        return WatchedReader(self._world, inner, self._rows_max)


class WatchedReader(SourceReader):
    def __init__(self, world: UserWorld, inner: SourceReader, rows_max: int) -> None:
        self._world = world
        self._inner = inner
        self._rows_max = rows_max

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        world = self._world
        if world.happens("user_error"):
            raise SimulatedFault("simulated failure while a source is read")
        answer = self._inner.poll(min(max_rows, world.rng.randint(1, self._rows_max)))
        if isinstance(answer, pa.RecordBatch):
            world.rows_read += answer.num_rows
            if world.rows_read > ROWS_MAX and not world.luck.struck:
                self._too_many()
        return answer

    def positions(self) -> Mapping[int, Plain]:
        return self._inner.positions()

    def describe(self) -> str:
        return self._inner.describe()

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

    def freeze(self, checkpoint: CheckpointId) -> FrozenOperator:
        if self._world.happens("snapshot_error"):
            raise SimulatedFault("simulated failure in a snapshot")
        return self._inner.freeze(checkpoint)

    def close(self) -> None:
        self._inner.close()
