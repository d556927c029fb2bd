"""What all states of a function have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

import pyarrow as pa

from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.evolution import evolved
from penstock.engine.operators.states.scope import Scope
from penstock.errors import PlanError
from penstock.protocol.messages import SnapshotOrder
from penstock.state.changes import GONE_FIELD
from penstock.state.frozen import Frozen
from penstock.state.lifetime import Lifetimes, Ttl, without_moments
from penstock.state.table import VALUE_PREFIX, Table


class State(Protocol):
    """For the operator."""

    kind: ClassVar[str]

    def end_batch(self) -> None:
        """Writes what the function changed key by key."""
        ...

    def freeze(self, order: SnapshotOrder) -> Frozen: ...


class Place:
    """Where a state belongs: for its messages, and for its keys."""

    def __init__(
        self, name: str, scope: Scope, context: OperatorContext, ttl: Ttl | None = None
    ) -> None:
        self.name = name
        self.scope = scope
        self.context = context
        self.ttl = ttl
        self.label = label_of(context.operator, name)

    def lifetimes(self) -> Lifetimes | None:
        """For the table of the state."""
        return None if self.ttl is None else Lifetimes(self.ttl, self.scope.now)

    def position(self, calls: str) -> int:
        """Of the key that is being processed."""
        if self.scope.current < 0:
            raise PlanError(
                f"{self.label}: there is no current key here; {calls} work inside process(key, rows, ctx), and the"
                " methods that end in _batch everywhere else"
            )
        return self.scope.current

    def restored(self, table: Table, required: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a snapshot, in the shape that the state has now."""
        may_lose = self.context.allow_non_restored_state
        for batch in self.stored(table):
            yield evolved(batch, table.schema, self.label, required=required, may_lose=may_lose)

    def stored(self, table: Table) -> Iterator[pa.RecordBatch]:
        """The rows of a snapshot as they are, but with a moment where the state has a ttl now, and only there. Rows
        that are over do not come, except where the next checkpoint may build on this one and must say that they went.
        """
        for batch in self.context.rows_of(self.name):
            if table.lifetimes is None:
                yield without_moments(batch)
                continue
            fit = table.lifetimes.restored(batch)
            is_whole = table.changes is None and GONE_FIELD.name not in batch.schema.names
            yield table.lifetimes.living(fit) if is_whole else fit


def label_of(operator: str, state: str) -> str:
    """What a state is called in messages."""
    return f"{operator}, state {state!r}"


def required_columns(schema: pa.Schema) -> frozenset[str]:
    """As they are stored."""
    return frozenset(VALUE_PREFIX + each.name for each in schema if not each.nullable)


def nullable(schema: pa.Schema) -> pa.Schema:
    """As it is kept: where a key has no row there are nulls."""
    return pa.schema([field.with_nullable(True) for field in schema])
