"""States of users' functions: whatever is done to them, key by key or for whole batches, they answer as plain Python
dictionaries would, also after snapshots, given up or restored, at any parallelism."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.process import Process, ProcessContext
from penstock.errors import ConfigError, SchemaError
from penstock.plan.keyhash import key_groups, key_hashes
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import OperatorSnapshot
from penstock.state import (
    blocks,
    byte_pile,
    cell_table,
    changelog,
    changes,
    columns,
    floored,
    moving,
)
from tests.state.helpers import segments_of
from tests.state.log_kit import Listed
from tests.state.ways import WAYS, Way, after, read_segments

GROUPS = 16
INPUT = pa.schema([("user", pa.string()), ("code", pa.int64()), ("text", pa.string())])
OUT = pa.schema([("n", pa.int64())])
HEAP = WAYS["heap"]
KEYS = ("user",)
A_FAILURE_IS_WANTED = os.environ.get("HYPOTHESIS_PROFILE") == "a failure is wanted"
"""There is a bug to be found: see `tests.mutants`."""
NESTED = "n BIGINT, tags ARRAY<STRING>, part STRUCT<a: INT, b: STRING>, named MAP<STRING, INT>"

Do = Callable[["Function", ProcessContext, dict[str, Any], Any], None]


@dataclass(frozen=True)
class Op:
    """One thing that is done to the states of a key: what, and with which number and text."""

    what: str
    user: str | None
    code: int = 0
    text: str | None = None


class Function:
    """Does what each row says. `seen` has what it read."""

    def open(self, ctx: ProcessContext) -> None:
        self.value = ctx.value_state("value", "n BIGINT, text STRING")
        self.list = ctx.list_state("list", "n BIGINT, text STRING")
        self.map = ctx.map_state("map", "code BIGINT", "text STRING")
        self.pair = ctx.map_state("pair", "code BIGINT, name STRING", NESTED)
        self.most = ctx.reducing_state("most", "n BIGINT", lambda a, b: (max(a.n, b.n),))
        self.stats = ctx.aggregating_state(
            "stats",
            "n BIGINT, text STRING",
            rows=pen.count(),
            top=pen.max("n"),
            low=pen.min("text"),
        )
        self.nested = ctx.value_state("nested", NESTED)


def nested(code: int, text: str | None) -> tuple[Any, ...]:
    return (code, [text, "x"], {"a": code, "b": text}, [("k", code)])


class ByKey(Function):
    def __init__(self) -> None:
        self.ops: list[Op] = []

    def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> None:
        for op in [op for op in self.ops if op.user == key.user]:
            match op.what:
                case "value":
                    self.value.update((op.code, op.text))
                case "unvalue":
                    self.value.clear()
                case "list":
                    self.list.add((op.code, op.text))
                case "unlist":
                    self.list.clear()
                case "map":
                    self.map.put(op.code, (op.text,))
                    self.pair.put((op.code, op.text), nested(op.code, op.text))
                case "unmap":
                    self.map.remove(op.code)
                    self.pair.remove((op.code, op.text))
                case "clearmap":
                    self.map.clear()
                case "most":
                    self.most.add((op.code,))
                case "unmost":
                    self.most.clear()
                case "stats":
                    self.stats.add((op.code, op.text))
                case "unstats":
                    self.stats.clear()
                case "nested":
                    self.nested.update(nested(op.code, op.text))
                case "unnested":
                    self.nested.clear()


class ByBatch(Function):
    """The same, vectorised: a batch has ops of one kind."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def process_batch(self, batch: pa.RecordBatch, ctx: ProcessContext) -> None:
        if not self.ops:
            return
        code, text = batch.column("code"), batch.column("text")
        both = pa.record_batch([code, text], names=["n", "text"])
        match self.ops[0].what:
            case "value":
                self.value.update_batch(batch, both)
            case "unvalue":
                self.value.clear_batch(batch)
            case "list":
                self.list.add_batch(batch, both)
            case "unlist":
                self.list.clear_batch(batch)
            case "map":
                keys = pa.record_batch([code], names=["code"])
                self.map.put_batch(batch, keys, pa.record_batch([text], names=["text"]))
                self.pair.put_batch(batch, self._pair(batch), self._nested())
            case "unmap":
                self.map.remove_batch(batch, pa.record_batch([code], names=["code"]))
                self.pair.remove_batch(batch, self._pair(batch))
            case "clearmap":
                self.map.clear_batch(batch)
            case "stats":
                self.stats.add_batch(batch, both)
            case "unstats":
                self.stats.clear_batch(batch)
            case "nested":
                self.nested.update_batch(batch, self._nested())
            case "unnested":
                self.nested.clear_batch(batch)

    def _pair(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch(
            [batch.column("code"), batch.column("text")], schema=self.pair.key_schema
        )

    def _nested(self) -> pa.RecordBatch:
        rows = [nested(op.code, op.text) for op in self.ops]
        columns = [pa.array(c, f.type) for c, f in zip(zip(*rows), self.nested.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.nested.schema)


def plain(row: Any) -> Any:
    """A row with all its parts as lists, tuples and dicts that compare."""
    return None if row is None else [sorted(v) if isinstance(v, dict) else v for v in row]


@dataclass
class Model:
    """What the states of all keys must hold."""

    value: dict[Any, Any] = field(default_factory=dict)
    list: dict[Any, list[Any]] = field(default_factory=dict)
    map: dict[Any, dict[Any, Any]] = field(default_factory=dict)
    pair: dict[Any, dict[Any, Any]] = field(default_factory=dict)
    most: dict[Any, int] = field(default_factory=dict)
    stats: dict[Any, list[Any]] = field(default_factory=dict)
    nested: dict[Any, Any] = field(default_factory=dict)

    def do(self, op: Op) -> None:
        user, code, text = op.user, op.code, op.text
        match op.what:
            case "value":
                self.value[user] = (code, text)
            case "unvalue":
                self.value.pop(user, None)
            case "list":
                self.list.setdefault(user, []).append((code, text))
            case "unlist":
                self.list.pop(user, None)
            case "map":
                self.map.setdefault(user, {})[code] = (text,)
                self.pair.setdefault(user, {})[code, text] = nested(code, text)
            case "unmap":
                self.map.get(user, {}).pop(code, None)
                self.pair.get(user, {}).pop((code, text), None)
            case "clearmap":
                self.map.pop(user, None)
            case "most":
                self.most[user] = max(self.most.get(user, code), code)
            case "unmost":
                self.most.pop(user, None)
            case "stats":
                self.stats.setdefault(user, []).append((code, text))
            case "unstats":
                self.stats.pop(user, None)
            case "nested":
                self.nested[user] = nested(code, text)
            case "unnested":
                self.nested.pop(user, None)

    def copy(self) -> Model:
        lists = {user: list(rows) for user, rows in self.list.items()}
        maps = {user: dict(rows) for user, rows in self.map.items()}
        pairs = {user: dict(rows) for user, rows in self.pair.items()}
        stats = {user: list(rows) for user, rows in self.stats.items()}
        return Model(
            dict(self.value), lists, maps, pairs, dict(self.most), stats, dict(self.nested)
        )

    def answers(self, user: Any) -> dict[str, Any]:
        stats = self.stats.get(user)
        texts = [text for _, text in stats or () if text is not None]
        nested_row = self.nested.get(user)
        return {
            "value": self.value.get(user),
            "list": self.list.get(user, []),
            "map": self.map.get(user, {}),
            "pair": {key: shown(row) for key, row in self.pair.get(user, {}).items()},
            "most": self.most.get(user),
            "stats": stats
            and (len(stats), max(code for code, _ in stats), min(texts, default=None)),
            "nested": nested_row and shown(nested_row),
        }

    @property
    def keys(self) -> int:
        parts = (self.value, self.list, self.map, self.pair, self.most, self.stats, self.nested)
        return len({user for part in parts for user, rows in part.items() if rows != {}})


def shown(row: Any) -> tuple[Any, ...]:
    """A nested row as it can be compared."""
    number, tags, part, named = row
    return number, tuple(tags), tuple(part.values()), tuple(dict(named).items())


class Reader(Function):
    """Reads all states of a key, one key at a time."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.found: dict[Any, dict[str, Any]] = {}

    def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> None:
        most, value, stats, nested_row = (
            each.get() for each in (self.most, self.value, self.stats, self.nested)
        )
        self.found[key.user] = {
            "value": value and tuple(value),
            "list": [tuple(row) for row in self.list.get()],
            "map": {code: tuple(row) for code, row in self.map.items()},
            "pair": {key: shown(row) for key, row in self.pair.items()},
            "most": most and most.n,
            "stats": stats and tuple(stats),
            "nested": nested_row and shown(nested_row),
        }
        assert len(self.map) == len(self.found[key.user]["map"])


CONTEXT = OperatorContext(
    job="job",
    operator="op",
    index=0,
    parallelism=1,
    max_parallelism=GROUPS,
    attempt=1,
    input_schemas=(INPUT,),
    now_ms=lambda: 0.0,
    wall_ms=lambda: 0.0,
    restored=(),
    read_segments=read_segments,
    to_driver=lambda item: None,
)


def batch_of(rows: Sequence[Op]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "user": [op.user for op in rows],
            "code": [op.code for op in rows],
            "text": [op.text for op in rows],
        },
        INPUT,
    )


def owner_of(user: str | None, parallelism: int) -> int:
    group = int(key_groups(key_hashes([pa.array([user], pa.string())])[0], GROUPS)[0])
    return group * parallelism // GROUPS


class Stage:
    """The subtasks of an operator, over all their lives."""

    def __init__(
        self,
        parallelism: int,
        restored: tuple[OperatorSnapshot, ...] = (),
        restored_id: int = 0,
        way: Way = HEAP,
    ) -> None:
        self.parallelism = parallelism
        self.way = way
        self.log = Listed()
        self.base = self.newest = restored_id
        self.operators = []
        for index in range(parallelism):
            operator = Process(ByKey, KEYS, OUT)
            context = replace(
                CONTEXT,
                index=index,
                parallelism=parallelism,
                restored=restored,
                restored_id=restored_id,
                log=self.log,
            )
            operator.open(way.over(context))
            self.operators.append(operator)

    def do(self, ops: Sequence[Op], *, vectorised: bool) -> None:
        for index, operator in enumerate(self.operators):
            mine = [op for op in ops if owner_of(op.user, self.parallelism) == index]
            if not mine:
                continue
            made = ByBatch() if vectorised else ByKey()
            self._run(operator, made, mine)

    def read(self, users: Sequence[Any]) -> dict[Any, dict[str, Any]]:
        found: dict[Any, dict[str, Any]] = {}
        for index, operator in enumerate(self.operators):
            mine = [Op("", user) for user in users if owner_of(user, self.parallelism) == index]
            if mine:
                reader = Reader()
                self._run(operator, reader, mine)
                found.update(reader.found)
        return found

    def _run(self, operator: Any, function: Any, ops: list[Op]) -> None:
        """Another function over the same state."""
        function.__dict__.update({**operator.function.__dict__, **function.__dict__})
        function.ops = ops
        before, operator.function = operator.function, function
        operator._vectorised = hasattr(function, "process_batch")
        operator.process(batch_of(ops), 0)
        operator.function = before

    def freeze(self) -> list[Any]:
        self.newest += 1
        base = CheckpointId(self.base if self.way.incremental else 0)
        order = SnapshotOrder(CheckpointId(self.newest), base=base)
        return [operator.freeze(order) for operator in self.operators]

    @property
    def keys(self) -> int:
        return sum(operator._scope.keyed.space.cells.count for operator in self.operators)


USERS = ["a", "b", "", None, "a user with a long name", *"cdefgh"]
WHATS = ["value", "list", "map", "most", "stats", "nested"]
ops = st.builds(
    Op,
    st.sampled_from([*WHATS, *(f"un{what}" for what in WHATS), "clearmap"]),
    st.sampled_from(USERS),
    st.integers(0, 3),
    st.sampled_from([None, "", "x", "a text that is longer than sixteen bytes"]),
)
by_key = st.tuples(st.just("by key"), st.lists(ops, max_size=8))
by_batch = st.tuples(
    st.just("by batch"),
    st.builds(
        lambda what, rows: [replace(op, what=what) for op in rows],
        st.sampled_from(
            [w for w in [*WHATS, *(f"un{x}" for x in WHATS), "clearmap"] if "most" not in w]
        ),
        st.lists(ops, min_size=1, max_size=8),
    ),
)
work = st.lists(st.one_of(by_key, by_batch), max_size=3)


@dataclass(frozen=True)
class Round:
    """Work, a snapshot, work while it is not written yet; then it is written or given up, and perhaps restored."""

    before: list[tuple[str, list[Op]]]
    meanwhile: list[tuple[str, list[Op]]]
    parallelism: int
    written: bool = True
    restored: bool = False
    completed: bool = True
    """The next snapshot may build on it."""
    ahead: str = ""
    """With a changelog: what is written ahead of the snapshot, or late."""


rounds = st.lists(
    st.builds(
        Round,
        work,
        work,
        st.integers(1, 4),
        st.sampled_from([True, True, True, False]),
        st.booleans(),
        st.sampled_from([True, True, True, False]),
        st.sampled_from(["", "cut", "cut late", "whole", "whole late", "cut and whole"]),
    ),
    min_size=1,
    max_size=7,
)


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    """Blocks of piles are emptied, rows are moved and graves are cleared away all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "GARBAGE_BYTES_MIN", 30)
        patch.setattr(byte_pile, "BLOCK_BYTES", 64)
        patch.setattr(byte_pile, "ALONE_BYTES", 40)
        patch.setattr(byte_pile, "FIRST_BYTES", 8)
        patch.setattr(columns, "TIDY_CELLS", 3)
        patch.setattr(columns, "TIDY_BYTES", 9)
        patch.setattr(moving, "CELLS_MIN", 4)
        patch.setattr(moving, "USED_SHARE", 2)
        patch.setattr(moving, "MOVE_CELLS", 3)
        patch.setattr(moving, "SHRINK_CELLS", 8)
        patch.setattr(cell_table, "GRAVES_MIN", 1)
        patch.setattr(changes, "SMALL_MAX", 2)
        patch.setattr(changes, "LARGE_MAX", 2)
        patch.setattr(changelog, "SMALL_MAX", 2)
        patch.setattr(changelog, "INTERVALS_MAX", 5)
        yield


@pytest.mark.parametrize("way", WAYS)
@given(rounds=rounds, another=st.sampled_from([None, *WAYS]), full=st.sampled_from([0.8, 1e-12]))
@settings(max_examples=40 if A_FAILURE_IS_WANTED else 15, deadline=None)
def test_states_answer_as_dictionaries_would(
    way: str, rounds: list[Round], another: str | None, full: float
) -> None:
    """S1, S4, S5, S6, S7, S9, R6, I2, I20, I21, I23, bug-D19, bug-D22, bug-G16: key by key and for whole batches, with
    snapshots that are written long after they were taken, and restores at another parallelism, also by jobs that keep
    their state in another way. `full`: whether there is ever so little memory that a snapshot is written down at once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(floored, "FULL", full)
        _answer_as_dictionaries(way, rounds, another)


def _answer_as_dictionaries(way: str, rounds: list[Round], another: str | None) -> None:
    stage, model = Stage(1, way=WAYS[way]), Model()
    for each in rounds:
        work_on(stage, model, each.before)
        stage.log.begin(each.ahead)
        work_on(stage, model, each.meanwhile)
        if "late" not in each.ahead:
            stage.log.end()
        then, frozen = model.copy(), stage.freeze()
        work_on(stage, model, each.meanwhile)
        stage.log.end()
        if not each.written:
            for table in (table for part in frozen for table in part.tables):
                table.release()
            continue
        number, snapshots = stage.newest, tuple(_written(frozen))
        restored = Stage(each.parallelism, snapshots, number, after(way, another))
        check(restored, then)
        if each.completed:
            stage.base = number
        work_on(stage, model, each.before)
        check(stage, model)
        if each.restored:
            stage, model = restored, then


def work_on(stage: Stage, model: Model, work: list[tuple[str, list[Op]]]) -> None:
    for how, ops in work:
        stage.do(ops, vectorised=how == "by batch")
        for op in ops:
            model.do(op)
        check(stage, model)


def check(stage: Stage, model: Model) -> None:
    assert stage.read(USERS) == {user: model.answers(user) for user in USERS}
    if stage.way.floors is None:
        assert stage.keys == model.keys, "a key is there while any state has something for it"


def _written(frozen: list[Any]) -> Iterator[OperatorSnapshot]:
    for each in frozen:
        segments = [segment for table in each.tables for segment in segments_of(table)]
        yield OperatorSnapshot(segments=tuple(segments))


def test_states_of_many_keys_come_back_one_after_the_other() -> None:
    """S1, I2: the second is declared when the first has been filled already."""
    stage, model = Stage(1), Model()
    ops = [Op(what, f"user {n}", n) for what in ("value", "map") for n in range(500)]
    work_on(stage, model, [("by key", ops)])
    restored = Stage(1, tuple(_written(stage.freeze())), 1)
    check(restored, model)
    users = [op.user for op in ops]
    assert restored.read(users) == {user: model.answers(user) for user in users}


# ---- what is said when a state is declared wrongly


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        (lambda c: c.map_state("m", "k DOUBLE", "v INT"), SchemaError, "'k' is DOUBLE.*cannot be"),
        (lambda c: c.map_state("m", "k ARRAY<INT>", "v INT"), SchemaError, "cannot be a key"),
        (lambda c: c.map_state("m", "k INT", "k INT"), SchemaError, "another name"),
        (lambda c: c.reducing_state("r", "v INT", "sum"), ConfigError, "is no function"),
        (lambda c: c.aggregating_state("a", "v INT"), ConfigError, "at least one aggregate"),
        (
            lambda c: c.aggregating_state("a", "v INT", n=pen.sum("w")),
            SchemaError,
            "there is no column 'w'",
        ),
        (
            lambda c: (c.list_state("s", "v INT"), c.value_state("s", "v INT")),
            pen.PlanError,
            "'s' is declared twice",
        ),
    ],
)
def test_a_state_that_cannot_be_is_refused_when_it_is_declared(
    declare: Callable[[ProcessContext], Any], error: type[Exception], message: str
) -> None:
    class Declares:
        def open(self, ctx: ProcessContext) -> None:
            declare(ctx)

        def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> None: ...

    with pytest.raises(error, match=f"op.*{message}"):
        Process(Declares, KEYS, OUT).open(CONTEXT)


@pytest.mark.parametrize(
    "use", [lambda m: m.get(5), lambda m: 5 in m, lambda m: m.remove(5), lambda m: m.put(5, (1,))]
)
def test_a_map_key_of_another_type_is_refused_however_it_is_used(use: Callable[[Any], Any]) -> None:
    """S1: it would never be found. All of them say what is wrong."""

    class Asks:
        def open(self, ctx: ProcessContext) -> None:
            self.map = ctx.map_state("m", "k STRING", "v INT")

        def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> Iterator[Any]:
            assert self.map.get("5") is None
            use(self.map)
            yield from ()

    operator = Process(Asks, KEYS, OUT)
    operator.open(CONTEXT)
    with pytest.raises(SchemaError, match="state 'm', map key.*5 \\(int\\).*'k'"):
        list(operator.process(batch_of([Op("value", "somebody")]), 0))
