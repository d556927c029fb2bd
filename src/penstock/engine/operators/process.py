"""Own functions with state per key.

A function is an object with `process(key, rows, ctx)`, called once per key of a batch with that key's rows, or
`process_batch(batch, ctx)`, called once per batch. `open(ctx)` declares state with `ctx.value_state` and its like,
`close()` ends what was opened; both may be left out. Every subtask of every attempt works on a fresh copy of the
object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.evolution import BEGIN_ANEW, LET_GO
from penstock.engine.operators.keyed import make_keyed
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows, python_values, row_type
from penstock.engine.operators.rows import checked_batch, checked_rows
from penstock.engine.operators.states.base import Place, State, label_of
from penstock.engine.operators.states.expiry import TtlOn, parse_ttl
from penstock.engine.operators.states.folded import AggregatingState, ReducingState
from penstock.engine.operators.states.lists import ListState
from penstock.engine.operators.states.maps import MapState
from penstock.engine.operators.states.prolonged import (
    ProlongedListState,
    ProlongedMapState,
    ProlongedValueState,
)
from penstock.engine.operators.states.scope import Scope
from penstock.engine.operators.states.unkeyed import SplitListState, UnionListState
from penstock.engine.operators.states.value import ValueState
from penstock.errors import ConfigError, PlanError
from penstock.plan.keyhash import I64
from penstock.plan.schema import parse_schema
from penstock.protocol.messages import SnapshotOrder
from penstock.state.aggregates import Aggregate
from penstock.state.lifetime import Now, Ttl

Made = TypeVar("Made", bound=State)


class ProcessContext:
    """What a function is given as `ctx`. State is declared in `open`: calling again with the same name gives the same
    state.

    With `ttl="1 hour"` a value is gone an hour after it was written last, by the clock of the host; with
    `ttl_on="read"`, after it was written or read last. From then on no read finds it. Of a list or a map every entry
    has its own time. A read counts when a tenth of the ttl has passed since the last touch that did: so a value may go
    up to that much earlier. The ttl of a state may be another one, or none, when the job is started again."""

    def __init__(self, context: OperatorContext, keys: tuple[str, ...]) -> None:
        self.operator = context.operator
        self.index = context.index
        self.parallelism = context.parallelism
        self._context = context
        key_schema = pa.schema([context.input_schemas[0].field(key) for key in keys])
        self._scope = Scope(make_keyed(key_schema, context), keys, Now(context.wall_ms))
        self._states: dict[str, State] = {}
        self._declared: dict[str, tuple[object, ...]] = {}
        self._opened = False

    def value_state(
        self,
        name: str,
        schema: str | pa.Schema,
        *,
        ttl: str | timedelta | None = None,
        ttl_on: TtlOn = "write",
    ) -> ValueState:
        """One row per key."""
        wanted, life = parse_schema(schema), self._ttl(name, ttl, ttl_on)
        make = ProlongedValueState if _on_read(life) else ValueState
        return self._declare(name, make, ("value", wanted), life, wanted)

    def list_state(
        self,
        name: str,
        schema: str | pa.Schema,
        *,
        ttl: str | timedelta | None = None,
        ttl_on: TtlOn = "write",
    ) -> ListState:
        """Any number of rows per key, in the order in which they were added. Each has its own time to live."""
        wanted, life = parse_schema(schema), self._ttl(name, ttl, ttl_on)
        make = ProlongedListState if _on_read(life) else ListState
        return self._declare(name, make, ("list", wanted), life, wanted)

    def map_state(
        self,
        name: str,
        key_schema: str | pa.Schema,
        schema: str | pa.Schema,
        *,
        ttl: str | timedelta | None = None,
        ttl_on: TtlOn = "write",
    ) -> MapState:
        """Rows per key, each under a map key of its own, and with its own time to live."""
        keys, wanted = parse_schema(key_schema), parse_schema(schema)
        life = self._ttl(name, ttl, ttl_on)
        make = ProlongedMapState if _on_read(life) else MapState
        return self._declare(name, make, ("map", keys, wanted), life, keys, wanted)

    def reducing_state(
        self,
        name: str,
        schema: str | pa.Schema,
        function: Callable[[Row, Row], Any],
        *,
        ttl: str | timedelta | None = None,
        ttl_on: TtlOn = "write",
    ) -> ReducingState:
        """One row per key, with which every row that is added is put together by the function."""
        wanted, life = parse_schema(schema), self._ttl(name, ttl, ttl_on)
        return self._declare(name, ReducingState, ("reducing", wanted), life, wanted, function)

    def aggregating_state(
        self,
        name: str,
        schema: str | pa.Schema,
        *,
        ttl: str | timedelta | None = None,
        ttl_on: TtlOn = "write",
        **aggregates: Aggregate,
    ) -> AggregatingState:
        """Aggregates, as in `agg`, of the rows that are added to each key; `schema` is that of these rows. When the ttl
        has passed since the last row was added, the next one begins anew."""
        wanted, life = parse_schema(schema), self._ttl(name, ttl, ttl_on)
        means = ("aggregating", wanted, tuple(aggregates.items()))
        return self._declare(name, AggregatingState, means, life, wanted, aggregates)

    def _ttl(self, name: str, ttl: str | timedelta | None, ttl_on: TtlOn) -> Ttl | None:
        return parse_ttl(ttl, ttl_on, label_of(self.operator, name))

    def split_list_state(self, name: str, schema: str | pa.Schema) -> SplitListState:
        """Any number of rows of this subtask, whatever the key; shared out evenly when the parallelism changes."""
        wanted = parse_schema(schema)
        return self._declare(name, SplitListState, ("split list", wanted), None, wanted)

    def union_list_state(self, name: str, schema: str | pa.Schema) -> UnionListState:
        """Any number of rows of this subtask, whatever the key; after a restore it sees those of all subtasks."""
        wanted = parse_schema(schema)
        return self._declare(name, UnionListState, ("union list", wanted), None, wanted)

    if not TYPE_CHECKING:  # type checkers are to know what is above and nothing else

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"ctx.{name} is not there (yet); a function has ctx.value_state, ctx.list_state, ctx.map_state,"
                " ctx.reducing_state, ctx.aggregating_state, ctx.split_list_state and ctx.union_list_state,"
                " ctx.operator, ctx.index and ctx.parallelism"
            )

    def _declare(
        self,
        name: str,
        make: Callable[..., Made],
        means: tuple[object, ...],
        ttl: Ttl | None,
        *given: Any,
    ) -> Made:
        known: Any = self._states.get(name)
        if known is not None:
            if self._declared[name] != (*means, ttl):
                raise PlanError(
                    f"{self.operator}: state {name!r} is declared twice with different schemas or ttls"
                )
            return known  # type: ignore[no-any-return]
        if self._opened:
            raise PlanError(
                f"{self.operator}: state {name!r} is declared too late; declare it in open(ctx),"
                " so that it is there before the first row and in every checkpoint"
            )
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{self.operator}: {name!r} is not a name for a state; give a text")
        made = make(Place(name, self._scope, self._context, ttl), *given)
        self._states[name], self._declared[name] = made, (*means, ttl)
        return made

    def _finish_open(self) -> None:
        """Declared state and restored state must match: dropping some must be asked for."""
        self._opened = True
        self._scope.keyed.settle()
        restored = {seg.state for snap in self._context.restored for seg in snap.segments}
        lost = sorted(restored - set(self._states))
        if lost and not self._context.allow_non_restored_state:
            raise PlanError(
                f"{self.operator}: the checkpoint has state {', '.join(map(repr, lost))}, which open(ctx) no"
                f" longer declares; it declares: {', '.join(map(repr, self._states)) or '(nothing)'}."
                f" Declare it again, or {LET_GO}, or {BEGIN_ANEW}"
            )


def _on_read(ttl: Ttl | None) -> bool:
    return ttl is not None and ttl.on_read


class ProcessFunction(Protocol):
    """A function with state that gets the rows of one key at a time. `open(ctx)` and `close()` may be there, too."""

    def process(self, key: Row, rows: list[Row], ctx: ProcessContext, /) -> Iterable[Any] | None:
        """The rows that come out: returned or yielded; None for none."""
        ...


class BatchProcessFunction(Protocol):
    """A function with state that gets whole batches, with rows of many keys. `open(ctx)` and `close()` may be there,
    too."""

    def process_batch(
        self, batch: pa.RecordBatch, ctx: ProcessContext, /
    ) -> pa.RecordBatch | Iterable[pa.RecordBatch] | None:
        """The batches that come out: one, or any number of them; None for none."""
        ...


StatefulFunction: TypeAlias = ProcessFunction | BatchProcessFunction


class Process(Operator):
    """Runs a user's function over keyed rows."""

    def __init__(self, function: Any, keys: tuple[str, ...], schema: pa.Schema) -> None:
        self.function = function() if isinstance(function, type) else copy.deepcopy(function)
        self._keys = keys
        self._schema = schema
        self._vectorised = hasattr(self.function, "process_batch")
        self._opened = False

    def open(self, context: OperatorContext) -> None:
        self._name = context.operator
        self._to_batch = RowsToBatch(self._schema, context.operator)
        self._context = ProcessContext(context, self._keys)
        self._states, self._scope = self._context._states, self._context._scope
        self._opened = True
        if hasattr(self.function, "open"):
            self.function.open(self._context)
        self._context._finish_open()

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        self._scope.tick()
        if self._vectorised:
            out = self._process_batch(batch)
        else:
            out = list(self._to_batch.batches(self._results(batch)))
            for state in self._states.values():
                state.end_batch()
        self._scope.end()
        return out

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        self._scope.tick()
        return FrozenOperator(tables=tuple(state.freeze(order) for state in self._states.values()))

    def close(self) -> None:
        if self._opened and hasattr(self.function, "close"):
            self.function.close()

    def _process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        given = self.function.process_batch(batch, self._context)
        results = [given] if isinstance(given, pa.RecordBatch) else checked_rows(given, self._name)
        checked = [checked_batch(result, self._schema, self._name) for result in results]
        return [result for result in checked if result.num_rows]

    def _results(self, batch: pa.RecordBatch) -> Iterator[Any]:
        order, bounds = grouped(batch, self._keys)
        together = batch.take(pa.array(order))
        firsts = pa.array(bounds[:-1])
        columns = [together.column(key).take(firsts) for key in self._keys]
        self._scope.begin(columns)
        rows, ends = list(batch_rows(together)), bounds.tolist()
        keys = map(row_type(self._keys), zip(*map(python_values, columns)))
        for number, key in enumerate(keys):
            self._scope.current = number
            of_key = rows[ends[number] : ends[number + 1]]
            given = self.function.process(key, of_key, self._context)
            if given is not None:
                yield from checked_rows(given, self._name)


def grouped(batch: pa.RecordBatch, keys: tuple[str, ...]) -> tuple[I64, I64]:
    """The rows in an order in which those of one key are together, as they came, and where each key's rows begin;
    keys in the order in which they first come."""
    codes = np.zeros(batch.num_rows, np.int64)
    for name in keys:
        coded = batch.column(name).dictionary_encode(null_encoding="encode")
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        if len(keys) > 1:
            _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
            codes = np.argsort(np.argsort(first)).take(codes)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes.take(order), prepend=-1))
    return order, np.append(starts, batch.num_rows)


def check_function(function: object, label: str) -> None:
    """A function for `process` has the right methods."""
    has = [each for each in ("process", "process_batch") if callable(getattr(function, each, None))]
    if len(has) != 1:
        found = "both" if has else f"{function!r}, which has neither"
        raise ConfigError(
            f"{label}: a function with state is an object with process(key, rows, ctx) or"
            f" process_batch(batch, ctx), one of the two; got {found}"
        )
    if hasattr(function, "on_timer"):
        raise ConfigError(f"{label}: timers (on_timer) are not supported yet")
