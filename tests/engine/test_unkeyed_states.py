"""State of subtasks that belongs to no key: whatever the parallelism was and is, each entry is there once, and only as
long as its owner keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.process import Process, ProcessContext
from penstock.engine.operators.states.unkeyed import share
from penstock.engine.reading.keyed import StateTable, state_tables
from penstock.engine.reading.where import narrowed
from penstock.engine.worker.attempt import _restored
from penstock.errors import PlanError, SchemaError
from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.protocol.snapshot import OperatorSnapshot, SubtaskSnapshot
from penstock.storage.memory import MemoryStore
from penstock.wire.manifest import Manifest, ManifestOperator, decode, encode
from penstock.wire.paths import metadata
from tests.state.helpers import read_segment, segments_of

INPUT = pa.schema([("user", pa.string()), ("n", pa.int64())])
OUT = pa.schema([("out", pa.string())])
ENTRY = pa.schema([("n", pa.int64()), ("text", pa.string())])
GROUPS = 8
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
    read_segments=lambda segments, groups: (
        batch for each in segments for batch in read_segment(each, groups)
    ),
    to_driver=lambda item: None,
    incremental=True,
)

Entry = tuple[int | None, str | None]


class Lists:
    """Both kinds, and a state by key beside them."""

    def open(self, ctx: ProcessContext) -> None:
        self.split = ctx.split_list_state("split", "n BIGINT, text STRING")
        self.union = ctx.union_list_state("union", "n BIGINT, text STRING")
        self.value = ctx.value_state("value", "n BIGINT")

    def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> Iterator[tuple[str]]:
        for row in rows:
            self.split.add((row.n, key.user))
            self.union.add((row.n, key.user))
        yield (f"{len(self.split.get())} {len(self.union.get())}",)


class Stage:
    """All subtasks of one operator from one restore to the next."""

    def __init__(
        self,
        parallelism: int,
        restored: Sequence[OperatorSnapshot] = (),
        function: Callable[[], Any] = Lists,
        *,
        allowed: bool = False,
    ) -> None:
        self.operators = []
        for index in range(parallelism):
            operator = Process(function(), ("user",), OUT)
            operator.open(
                replace(
                    CONTEXT,
                    index=index,
                    parallelism=parallelism,
                    restored=tuple(restored),
                    allow_non_restored_state=allowed,
                )
            )
            self.operators.append(operator)

    @property
    def functions(self) -> list[Any]:
        return [operator.function for operator in self.operators]

    def snapshot(self) -> list[OperatorSnapshot]:
        order = SnapshotOrder(CheckpointId(1))
        frozen = [operator.freeze(order) for operator in self.operators]
        return [
            OperatorSnapshot(tuple(s for table in part.tables for s in segments_of(table)))
            for part in frozen
        ]


def entries_of(snapshot: OperatorSnapshot, state: str) -> list[Entry]:
    """What one subtask has written."""
    segments = [segment for segment in snapshot.segments if segment.state == state]
    batches = (batch for each in segments for batch in read_segment(each, range(GROUPS)))
    return [(row["value.n"], row["value.text"]) for b in batches for row in b.to_pylist()]


def tuples(rows: Sequence[Any]) -> list[Entry]:
    return [tuple(row) for row in rows]


def batch_of(entries: Sequence[Entry]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(ENTRY.names, e)) for e in entries], ENTRY)


# ---- whatever is done


entries = st.tuples(st.none() | st.integers(0, 9), st.sampled_from([None, "", "a longer text"]))
ops = st.tuples(
    st.sampled_from(["add", "add", "update", "clear", "add_batch", "add_batch", "update_batch"]),
    st.integers(0, 5),
    st.lists(entries, max_size=4),
)


@dataclass
class Seen:
    """What one subtask sees of a list: its own entries between those of others."""

    own: list[Entry]
    before: list[Entry]
    behind: list[Entry]

    @property
    def all(self) -> list[Entry]:
        return [*self.before, *self.own, *self.behind]

    def do(self, what: str, given: list[Entry]) -> None:
        if what.startswith("add"):
            self.own = [*self.own, *given]
        else:
            self.before, self.behind = [], []
            self.own = [] if what == "clear" else list(given)


def do(state: Any, what: str, given: list[Entry]) -> None:
    match what:
        case "add":
            for entry in given:
                state.add(entry)
        case "update":
            state.update(given)
        case "clear":
            state.clear()
        case "add_batch":
            state.add_batch(batch_of(given))
        case "update_batch":
            state.update_batch(batch_of(given))


rounds = st.lists(
    st.tuples(st.integers(1, 6), st.lists(ops, max_size=6), st.lists(ops, max_size=2)),
    min_size=2,
    max_size=5,
)


@given(rounds=rounds, state=st.sampled_from(["split", "union"]))
@settings(max_examples=300, deadline=None)
def test_lists_without_a_key_are_shared_out_as_plain_lists_would_be(
    rounds: list[tuple[int, list[Any], list[Any]]], state: str
) -> None:
    """S2, R6, bug-E9, bug-E11: over any changes of the parallelism, with snapshots that are written later.
    Each entry is in a checkpoint once, as long as its owner has it; at the same parallelism every subtask has its own,
    at another one as many as any other."""
    restored: list[OperatorSnapshot] = []
    owned: list[list[Entry]] = []
    for parallelism, before, meanwhile in rounds:
        stage = Stage(parallelism, restored)
        everything = list(chain(*owned))
        mine = dealt(everything, owned, parallelism)
        lists = [getattr(function, state) for function in stage.functions]
        model = []
        for index, own in enumerate(mine):
            first = sum(map(len, mine[:index]))
            others = (everything[:first], everything[first + len(own) :])
            model.append(Seen(own, *(others if state == "union" else ([], []))))
        check(lists, model)
        work(lists, model, before)
        frozen = [operator.freeze(SnapshotOrder(CheckpointId(1))) for operator in stage.operators]
        owned = [list(each.own) for each in model]
        work(lists, model, meanwhile)
        restored = [
            OperatorSnapshot(tuple(s for table in part.tables for s in segments_of(table)))
            for part in frozen
        ]
        assert [entries_of(part, state) for part in restored] == owned


def dealt(everything: list[Entry], owned: list[list[Entry]], parallelism: int) -> list[list[Entry]]:
    if len(owned) == parallelism:
        return [list(own) for own in owned]
    parts, rest = [], list(everything)
    for index in range(parallelism):
        size = (index + 1) * len(everything) // parallelism - index * len(everything) // parallelism
        parts.append(rest[:size])
        rest = rest[size:]
    sizes = [len(part) for part in parts]
    assert not rest and max(sizes) - min(sizes) <= 1
    return parts


def work(lists: list[Any], model: list[Seen], work: list[Any]) -> None:
    for what, index, entries in work:
        do(lists[index % len(lists)], what, entries)
        model[index % len(lists)].do(what, entries)
        check(lists, model)


def check(lists: list[Any], model: list[Seen]) -> None:
    for found, wanted in zip(lists, model, strict=True):
        assert tuples(found.get()) == wanted.all
        assert found.get_batch().equals(batch_of(wanted.all))


@pytest.mark.parametrize("old", range(1, 7))
@pytest.mark.parametrize("new", range(1, 7))
def test_every_entry_is_somebodys_once(old: int, new: int) -> None:
    """S2, R6, bug-E9: for all changes of the parallelism up to 6, also where subtasks had nothing."""
    for sizes in ([3] * old, [0] * old, [7, *[0] * (old - 1)], [*[0] * (old - 1), 5], range(old)):
        shares = [share(list(sizes), index, new) for index in range(new)]
        assert list(chain(*shares)) == list(range(sum(sizes)))
        if old == new:
            assert [len(each) for each in shares] == list(sizes)
        else:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_at_the_same_parallelism_every_subtask_has_its_own_back_also_if_that_is_nothing() -> None:
    """S2, bug-E9: an empty one in the middle moves nothing."""
    stage = Stage(3)
    stage.functions[0].split.update([(1, "a")])
    stage.functions[2].split.update([(3, "c"), (4, "d")])
    again = Stage(3, stage.snapshot())
    assert [tuples(f.split.get()) for f in again.functions] == [
        [(1, "a")],
        [],
        [(3, "c"), (4, "d")],
    ]


def test_snapshots_come_in_the_order_of_their_subtasks() -> None:
    """bug-E9: whatever the order in which they were acknowledged; one that has nothing counts, too."""
    parts = [
        OperatorSnapshot(lanes={index: index}) if index != 1 else OperatorSnapshot()
        for index in range(11)
    ]
    given = [SubtaskSnapshot(SubtaskId(2, i), {"op": part}) for i, part in enumerate(parts)]
    other = SubtaskSnapshot(SubtaskId(1, 0), {"before": OperatorSnapshot()})
    assert _restored((*reversed(given), other), "op") == tuple(parts)


# ---- union lists, as people use them


class KeepsAll:
    """Looks at what there is, and never tells anybody what it keeps."""

    def open(self, ctx: ProcessContext) -> None:
        self.union = ctx.union_list_state("union", "n BIGINT, text STRING")
        self.seen = tuples(self.union.get())

    def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> None: ...


class KeepsItsShare(KeepsAll):
    """Decides in `open`, by a rule of its own, what is its own."""

    def open(self, ctx: ProcessContext) -> None:
        super().open(ctx)
        self.union.update([e for e in self.seen if (e[0] or 0) % ctx.parallelism == ctx.index])


class KeepsByPosition(KeepsAll):
    """Takes every n-th entry: all subtasks must see them in one order."""

    def open(self, ctx: ProcessContext) -> None:
        super().open(ctx)
        self.union.update(self.seen[ctx.index :: ctx.parallelism])


@pytest.mark.parametrize("function", [KeepsAll, KeepsItsShare, KeepsByPosition])
def test_a_union_list_neither_grows_nor_brings_back_what_was_forgotten(
    function: type[KeepsAll],
) -> None:
    """S2, bug-E11: rescaled from 1 to 2 to 1, twice."""
    stage = Stage(1, function=function)
    stage.functions[0].union.update([(n, "x") for n in range(6)])
    expected = set(range(6))
    for number, parallelism in enumerate((2, 1, 2, 1)):
        stage = Stage(parallelism, stage.snapshot(), function)
        for each in stage.functions:
            assert sorted(n for n, _ in each.seen) == sorted(expected)
        forgetful = stage.functions[-1].union
        own = [n for n, _ in entries_of(stage.snapshot()[-1], "union")]
        forgetful.update([(n, "x") for n in own if n != min(own)])
        expected -= {min(own)}
        stage.functions[0].union.add((10 + number, "x"))
        expected |= {10 + number}
        written = [n for part in stage.snapshot() for n, _ in entries_of(part, "union")]
        assert sorted(written) == sorted(expected)


def test_entries_of_others_are_seen_and_never_written() -> None:
    """S2, bug-E11: not in the next checkpoint, nor in any later one."""
    stage = Stage(2)
    stage.functions[0].union.update([(1, "a")])
    stage.functions[1].union.update([(2, "b")])
    stage = Stage(2, stage.snapshot())
    assert [tuples(f.union.get()) for f in stage.functions] == [[(1, "a"), (2, "b")]] * 2
    stage.functions[1].union.clear()
    for _ in range(2):
        assert [entries_of(part, "union") for part in stage.snapshot()] == [[(1, "a")], []]
    assert tuples(stage.functions[0].union.get()) == [(1, "a"), (2, "b")]
    stage = Stage(2, stage.snapshot())
    assert [tuples(f.union.get()) for f in stage.functions] == [[(1, "a")]] * 2


# ---- where they are used


def test_they_are_used_in_every_method_of_a_function() -> None:
    """S2: there is no key to be had, in `open` or for a whole batch."""

    class Whole:
        def open(self, ctx: ProcessContext) -> None:
            self.split = ctx.split_list_state("split", "n BIGINT")
            self.split.add((ctx.index,))

        def process_batch(self, batch: pa.RecordBatch, ctx: ProcessContext) -> None:
            self.split.add_batch(batch.select(["n"]))
            self.split.add({"n": 9})

    rows = pa.RecordBatch.from_pydict({"user": ["a", "b"], "n": [1, 2]}, INPUT)
    stage = Stage(1, function=Whole)
    stage.operators[0].process(rows, 0)
    assert [row.n for row in stage.functions[0].split.get()] == [0, 1, 2, 9]
    by_key = Stage(1)
    (out,) = by_key.operators[0].process(rows, 0)
    assert out.column("out").to_pylist() == ["1 1", "2 2"]
    assert tuples(by_key.functions[0].split.get()) == [(1, "a"), (2, "b")]


def test_many_entries_make_few_batches_and_blocks() -> None:
    """T6: however they were added."""
    stage = Stage(1)
    split = stage.functions[0].split
    for number in range(3_000):
        split.add_batch(batch_of([(number, None)]))
    assert len(split._own) < 13
    (segment,) = [s for s in stage.snapshot()[0].segments if s.state == "split"]
    assert [block.rows for block in segment.blocks] == [3_000]
    assert split.get_batch()["n"].to_pylist() == list(range(3_000))


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda s: s.add((1, 2, 3)), "3 values for 2 columns"),
        (lambda s: s.add_batch(batch_of([]).select(["n"])), "'text'"),
        (lambda s: (s.add(("x", None)), s.end_batch()), "'x'"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_with_its_state(work: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"op, state 'split': .*{message}"):
        work(Stage(1).functions[0].split)


def declaring(declare: Callable[[ProcessContext], Any]) -> Callable[[], Any]:
    class Declares:
        def open(self, ctx: ProcessContext) -> None:
            self.state = declare(ctx)

        def process(self, key: Any, rows: list[Any], ctx: ProcessContext) -> None: ...

    return Declares


def test_they_change_as_other_states_do() -> None:
    """S10, R8."""
    before = Stage(1, function=declaring(lambda c: c.split_list_state("s", "n INT, text STRING")))
    before.functions[0].state.update([(7, "x"), (8, None)])
    restored = before.snapshot()

    def after(declare: Callable[[ProcessContext], Any], *, allowed: bool = False) -> list[Entry]:
        stage = Stage(1, restored, declaring(declare), allowed=allowed)
        return tuples(stage.functions[0].state.get())

    wider = after(lambda c: c.split_list_state("s", "m DATE, text STRING, n BIGINT"))
    assert wider == [(None, "x", 7), (None, None, 8)]
    with pytest.raises(SchemaError, match=r"op, state 's': column 'text' \(STRING\)"):
        after(lambda c: c.split_list_state("s", "n INT"))
    assert after(lambda c: c.split_list_state("s", "n INT"), allowed=True) == [(7,), (8,)]
    with pytest.raises(SchemaError, match="'text' .* is now NOT NULL and has nulls"):
        after(lambda c: c.split_list_state("s", "n INT, text STRING NOT NULL"))
    with pytest.raises(SchemaError, match="a split list state in .* and a union list state now"):
        after(lambda c: c.union_list_state("s", "n INT, text STRING"))
    with pytest.raises(SchemaError, match="a split list state in .* and a value state now"):
        after(lambda c: c.value_state("s", "n INT, text STRING"))
    with pytest.raises(PlanError, match="'s'"):
        after(lambda c: c.split_list_state("other", "n INT"))


# ---- reading them back


def test_people_see_the_entries_with_their_subtask() -> None:
    """S9, P5: in the manifest as in Spark and on the command line."""
    stage = Stage(3)
    stage.functions[0].split.update([(1, "a")])
    stage.functions[2].split.update([(3, "c"), (4, None)])
    parts = tuple(
        SubtaskSnapshot(SubtaskId(0, index), {"op": part})
        for index, part in enumerate(stage.snapshot())
    )
    kind, operator = SnapshotKind.CHECKPOINT, ManifestOperator("op", "process")
    made = Manifest(
        "job", CheckpointId(1), AttemptId(1), kind, 0.0, 0.0, 3, GROUPS, (operator,), parts
    )
    manifest = decode(encode(made), metadata(CheckpointId(1)))
    tables = {table.state: table for table in state_tables(manifest)}
    assert tables["split"].schema.names == ["n", "text", "subtask"]
    assert (tables["split"].rows, tables["union"].rows) == (3, 0)
    rows = [{"n": 1, "text": "a", "subtask": 0}, {"n": 3, "text": "c", "subtask": 2}]
    rows += [{"n": 4, "text": None, "subtask": 2}]
    assert shown(tables["split"]) == rows
    assert [row for piece in tables["split"].pieces(3) for row in shown(piece)] == rows
    assert shown(narrowed(tables["split"], {"subtask": "2"})) == rows[1:]
    assert shown(tables["union"]) == []


def shown(table: Any) -> list[dict[str, Any]]:
    assert isinstance(table, StateTable)
    return [row for batch in table.read(MemoryStore()) for row in batch.to_pylist()]
