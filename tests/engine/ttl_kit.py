"""For tests of values that live for a while: a function over all states, what it must answer, and its subtasks under a
clock that the test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock.engine.operators.process import Process, ProcessContext
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import OperatorSnapshot
from tests.engine.test_states import CONTEXT, KEYS, OUT, Op, batch_of, owner_of
from tests.state.helpers import segments_of
from tests.state.log_kit import Listed
from tests.state.ways import Way

TTL_MS = 100
USERS = ["a", "b", None, "a user with a long name"]
STATES = ["value", "list", "map", "most", "stats"]


@dataclass
class Clock:
    ms: float = 1_000_000.0


@dataclass(frozen=True)
class Declared:
    """How the states are declared: with which ttl, and whether reads count."""

    ttl_ms: int | None = TTL_MS
    on_read: bool = False


class Function:
    """Does what each row says. `found` has what was read: for each row its user, the state, and the answer."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.ops: list[Op] = []
        self.found: list[tuple[Any, str, Any]] = []

    def open(self, ctx: ProcessContext) -> None:
        ms, on_read = self.declared.ttl_ms, self.declared.on_read
        life: dict[str, Any] = {} if ms is None else {"ttl": f"{ms} ms"}
        if ms is not None and on_read:
            life["ttl_on"] = "read"
        self.value = ctx.value_state("value", "n BIGINT", **life)
        self.list = ctx.list_state("list", "n BIGINT", **life)
        self.map = ctx.map_state("map", "code BIGINT", "n BIGINT", **life)
        self.most = ctx.reducing_state("most", "n BIGINT", lambda a, b: (max(a.n, b.n),), **life)
        self.stats = ctx.aggregating_state(
            "stats", "n BIGINT", **life, rows=pen.count(), top=pen.max("n"), first=pen.first("n")
        )


class ByKey(Function):
    def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> None:
        for op in [op for op in self.ops if op.user == key.user]:
            getattr(self, f"_{op.what}", lambda op: None)(op)

    def _value(self, op: Op) -> None:
        self.value.update((op.code,))

    def _list(self, op: Op) -> None:
        self.list.add((op.code,))

    def _map(self, op: Op) -> None:
        self.map.put(op.code, (op.code,))

    def _most(self, op: Op) -> None:
        self.most.add((op.code,))

    def _stats(self, op: Op) -> None:
        self.stats.add((op.code,))

    def _unvalue(self, op: Op) -> None:
        self.value.clear()

    def _unlist(self, op: Op) -> None:
        self.list.clear()

    def _unmap(self, op: Op) -> None:
        self.map.remove(op.code)

    def _unmost(self, op: Op) -> None:
        self.most.clear()

    def _unstats(self, op: Op) -> None:
        self.stats.clear()

    def _seevalue(self, op: Op) -> None:
        row = self.value.get()
        self.found.append((op.user, "value", row and row.n))

    def _seelist(self, op: Op) -> None:
        self.found.append((op.user, "list", [row.n for row in self.list.get()]))

    def _seemap(self, op: Op) -> None:
        self.found.append((op.user, "map", {key: row.n for key, row in self.map.items()}))

    def _seeentry(self, op: Op) -> None:
        row = self.map.get(op.code)
        self.found.append((op.user, "entry", row and row.n))

    def _hasentry(self, op: Op) -> None:
        self.found.append((op.user, "entry", op.code if op.code in self.map else None))

    def _countmap(self, op: Op) -> None:
        self.found.append((op.user, "count", len(self.map)))

    def _seemost(self, op: Op) -> None:
        row = self.most.get()
        self.found.append((op.user, "most", row and row.n))

    def _seestats(self, op: Op) -> None:
        row = self.stats.get()
        self.found.append((op.user, "stats", row and tuple(row)))


class ByBatch(Function):
    """The same, vectorised: a batch has ops of one kind."""

    def process_batch(self, batch: pa.RecordBatch, ctx: ProcessContext) -> None:
        code = batch.column("code")
        n, key = (pa.record_batch([code], names=[name]) for name in ("n", "code"))
        match self.ops[0].what:
            case "value":
                self.value.update_batch(batch, n)
            case "list":
                self.list.add_batch(batch, n)
            case "map":
                self.map.put_batch(batch, key, n)
            case "stats":
                self.stats.add_batch(batch, n)
            case "unvalue":
                self.value.clear_batch(batch)
            case "unlist":
                self.list.clear_batch(batch)
            case "unmap":
                self.map.remove_batch(batch, key)
            case "unstats":
                self.stats.clear_batch(batch)
            case "seevalue":
                self._saw("value", self.value.get_batch(batch).column("n").to_pylist())
            case "seelist":
                lists: list[list[Any]] = [[] for _ in self.ops]
                at, values = self.list.get_batch(batch)
                for row, each in zip(at.to_pylist(), values.column("n").to_pylist(), strict=True):
                    lists[row].append(each)
                self._saw("list", lists)
            case "seemap":
                maps: list[dict[Any, Any]] = [{} for _ in self.ops]
                items = self.map.items_batch(batch)
                keys, kept = items.keys.column("code"), items.values.column("n")
                for row, code, each in zip(*(part.to_pylist() for part in (items[0], keys, kept))):
                    maps[row][code] = each
                self._saw("map", maps)
            case "seeentry":
                self._saw("entry", self.map.get_batch(batch, key).column("n").to_pylist())
            case "seestats":
                rows = self.stats.get_batch(batch).to_pylist()
                self._saw("stats", [tuple(row.values()) if row["rows"] else None for row in rows])

    def _saw(self, what: str, answers: list[Any]) -> None:
        self.found += [(op.user, what, each) for op, each in zip(self.ops, answers, strict=True)]


# ---- the model


@dataclass
class Entry:
    value: Any
    touched: int


@dataclass
class Model:
    """For every state and user (and map key) what is there, and when it was touched."""

    now: int
    declared: Declared
    value: dict[Any, Entry] = field(default_factory=dict)
    list: dict[Any, list[Entry]] = field(default_factory=dict)
    map: dict[Any, dict[int, Entry]] = field(default_factory=dict)
    most: dict[Any, Entry] = field(default_factory=dict)
    stats: dict[Any, Entry] = field(default_factory=dict)
    something_was_over: bool = False

    def tick(self, wall_ms: float) -> None:
        """Time goes on, never back, and what is over goes."""
        self.now = max(self.now, int(wall_ms))
        for part in (self.value, self.most, self.stats):
            for user in [user for user, entry in part.items() if self._over(entry)]:
                del part[user]
        self.list = {u: [e for e in rows if not self._over(e)] for u, rows in self.list.items()}
        for rows in self.map.values():
            for key in [key for key, entry in rows.items() if self._over(entry)]:
                del rows[key]

    def _over(self, entry: Entry) -> bool:
        ttl_ms = self.declared.ttl_ms
        over = ttl_ms is not None and self.now >= entry.touched + ttl_ms
        self.something_was_over |= over
        return over

    def _read(self, entry: Entry | None) -> Any:
        if entry is None:
            return None
        ttl_ms = self.declared.ttl_ms
        if self.declared.on_read and ttl_ms and self.now - entry.touched >= ttl_ms // 10:
            entry.touched = self.now
        return entry.value

    def do(self, op: Op) -> list[tuple[Any, str, Any]]:
        """What is read."""
        user, code = op.user, op.code
        new = Entry(code, self.now)
        match op.what:
            case "value":
                self.value[user] = new
            case "list":
                self.list.setdefault(user, []).append(new)
            case "map":
                self.map.setdefault(user, {})[code] = new
            case "most":
                before = self.most.get(user, new)
                self.most[user] = Entry(max(before.value, code), self.now)
            case "stats":
                rows, top, first = self.stats.get(user, Entry((0, code, code), 0)).value
                self.stats[user] = Entry((rows + 1, max(top, code), first), self.now)
            case "unmap":
                self.map.get(user, {}).pop(code, None)
            case "unvalue" | "unlist" | "unmost" | "unstats":
                getattr(self, op.what[2:]).pop(user, None)
            case "seevalue" | "seemost" | "seestats":
                state = op.what[3:]
                return [(user, state, self._read(getattr(self, state).get(user)))]
            case "seelist":
                return [(user, "list", [self._read(entry) for entry in self.list.get(user, [])])]
            case "seemap":
                rows = self.map.get(user, {})
                return [(user, "map", {key: self._read(entry) for key, entry in rows.items()})]
            case "seeentry" | "hasentry":
                return [(user, "entry", self._read(self.map.get(user, {}).get(code)))]
            case "countmap":
                return [(user, "count", len(self.map.get(user, {})))]
        return []

    def restored(self, declared: Declared, wall_ms: float) -> Model:
        """The state after a restore, when all this was in the snapshot. What has no moment, or one that is to come, has
        that of the restore."""
        now = int(wall_ms)
        fresh = self.declared.ttl_ms is None

        def kept(entry: Entry) -> Entry:
            return Entry(entry.value, now if fresh else min(entry.touched, now))

        lists = {user: [kept(e) for e in rows] for user, rows in self.list.items()}
        maps = {u: {key: kept(e) for key, e in rows.items()} for u, rows in self.map.items()}
        value, most, stats = (
            {user: kept(entry) for user, entry in part.items()}
            for part in (self.value, self.most, self.stats)
        )
        made = Model(now, declared, value, lists, maps, most, stats, self.something_was_over)
        made.tick(wall_ms)
        return made

    @property
    def keys(self) -> int:
        parts: tuple[dict[Any, Any], ...] = (
            self.value,
            self.list,
            self.map,
            self.most,
            self.stats,
        )
        return len({user for part in parts for user, rows in part.items() if rows not in ({}, [])})


# ---- the real thing


class Stage:
    """The subtasks of an operator."""

    def __init__(
        self,
        clock: Clock,
        declared: Declared,
        parallelism: int = 1,
        restored: tuple[OperatorSnapshot, ...] = (),
        *,
        checkpoint: int = 0,
        incremental: bool = False,
        way: Way | None = None,
    ) -> None:
        way = way or Way(incremental=incremental)
        incremental = way.incremental
        self.way = way
        self.parallelism = parallelism
        self.log = Listed()
        self.operators = []
        self.base = checkpoint if incremental else 0
        for index in range(parallelism):
            operator = Process(ByKey(declared), KEYS, OUT)
            context = replace(
                CONTEXT,
                index=index,
                parallelism=parallelism,
                restored=restored,
                wall_ms=lambda: clock.ms,
                log=self.log,
                restored_id=checkpoint,
            )
            operator.open(way.over(context))
            self.operators.append(operator)

    def do(self, ops: Sequence[Op], *, vectorised: bool = False) -> list[tuple[Any, str, Any]]:
        found: list[tuple[Any, str, Any]] = []
        for index, operator in enumerate(self.operators):
            mine = [op for op in ops if owner_of(op.user, self.parallelism) == index]
            if mine:
                found += self._run(operator, mine, ByBatch if vectorised else ByKey)
        return found

    def _run(
        self, operator: Process, ops: list[Op], kind: type[Function]
    ) -> list[tuple[Any, str, Any]]:
        """Another function over the same states."""
        function: Any = kind(operator.function.declared)
        for name in STATES:
            setattr(function, name, getattr(operator.function, name))
        function.ops = ops
        before, operator.function = operator.function, function
        operator._vectorised = kind is ByBatch
        operator.process(batch_of(ops), 0)
        operator.function = before
        return list(function.found)

    def freeze(self, checkpoint: int) -> list[Any]:
        base = CheckpointId(self.base) if self.base else NO_CHECKPOINT
        order = SnapshotOrder(CheckpointId(checkpoint), base=base)
        return [operator.freeze(order) for operator in self.operators]

    def tick(self) -> None:
        """All subtasks see what time it is, also those that have no rows in the next batch."""
        for operator in self.operators:
            operator._scope.tick()

    @property
    def keys(self) -> int:
        return sum(operator._scope.keyed.space.cells.count for operator in self.operators)


def written(frozen: list[Any]) -> tuple[OperatorSnapshot, ...]:
    return tuple(
        OperatorSnapshot(segments=tuple(s for table in each.tables for s in segments_of(table)))
        for each in frozen
    )
