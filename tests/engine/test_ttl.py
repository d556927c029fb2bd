"""Values that live for a while: states with a ttl answer as dictionaries would whose entries know when they were
touched, under a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.engine.operators.process import Process, ProcessContext
from penstock.engine.reading.layouts import layout_of
from penstock.errors import ConfigError, PlanError
from penstock.protocol.snapshot import OperatorSnapshot
from penstock.state import lifetime
from penstock.state.child import Child
from penstock.state.lifetime import Lifetimes
from penstock.state.segments import read_schema
from tests.engine.test_states import CONTEXT, KEYS, OUT, Op, batch_of
from tests.engine.ttl_kit import STATES, TTL_MS, USERS, Clock, Declared, Model, Stage, written
from tests.state.helpers import read_segment
from tests.state.ways import WAYS

EVERYTHING = 1 << 20

# ---- the property

WRITES = [*STATES, *(f"un{state}" for state in STATES)]
READS = [*(f"see{state}" for state in STATES), "seeentry", "hasentry", "countmap"]
BATCHED = [w for w in [*WRITES, *READS] if "most" not in w and w not in ("hasentry", "countmap")]
ops = st.builds(
    Op,
    st.sampled_from([*STATES, *WRITES, *READS, *READS]),
    st.sampled_from(USERS),
    st.integers(0, 3),
)
batches = st.one_of(
    st.tuples(st.just(False), st.lists(ops, min_size=1, max_size=8)),
    st.tuples(
        st.just(True),
        st.builds(
            lambda what, rows: [replace(op, what=what) for op in rows],
            st.sampled_from(BATCHED),
            st.lists(ops, min_size=1, max_size=6),
        ),
    ),
)
passing = st.sampled_from([0, 1, 9, 10, 11, 50, 89, 90, 99, 100, 101, 250, -30])
work = st.lists(st.tuples(passing, batches), max_size=4)
declared = st.builds(Declared, st.sampled_from([TTL_MS] * 4 + [None, 40]), st.booleans())


@dataclass(frozen=True)
class Round:
    """Work, a snapshot, work while it is not written yet; then perhaps the state is restored from it, a while later and
    perhaps with another ttl."""

    before: list[Any]
    meanwhile: list[Any]
    later_ms: int
    parallelism: int
    declared: Declared
    restored: bool
    ahead: str


rounds = st.lists(
    st.builds(
        Round,
        work,
        work,
        passing,
        st.integers(1, 3),
        declared,
        st.booleans(),
        st.sampled_from(["", "cut", "whole", "cut and whole"]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("way", WAYS)
@given(
    first=declared,
    rounds=rounds,
    sweep_cells=st.sampled_from([1, EVERYTHING]),
)
@settings(max_examples=30, deadline=None)
def test_states_answer_as_dictionaries_with_a_time_to_live_would(
    way: str, first: Declared, rounds: list[Round], sweep_cells: int
) -> None:
    """S7, S8, I21, S1, R6: a read finds a value if and only if less than the ttl has passed since it was touched, key
    by key and for whole batches, before and after a restore at another parallelism, and with another ttl."""
    kept, incremental = WAYS[way], WAYS[way].incremental
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifetime, "SWEEP_CELLS", sweep_cells)
        patch.setattr(lifetime, "SWEEP_PER_ROW", 0)
        clock = Clock()
        stage = Stage(clock, first, way=kept)
        model = Model(int(clock.ms), first)
        for number, each in enumerate(rounds, start=1):
            work_on(stage, model, clock, each.before)
            stage.log.begin(each.ahead)
            work_on(stage, model, clock, each.meanwhile)
            stage.log.end()
            frozen = stage.freeze(number)
            model.tick(clock.ms)
            then = model.restored(model.declared, model.now)
            work_on(stage, model, clock, each.meanwhile)
            snapshots = written(frozen)
            stage.base = number if incremental else 0
            check_keys(stage, model, clock, sweep_cells)
            if each.restored:
                clock.ms += each.later_ms
                # What is over and still in an increment may come back when it is given more time, by another ttl or by
                # a clock that goes back.
                assume(not (incremental and model.something_was_over and clock.ms < then.now))
                again = then.declared if incremental else each.declared
                stage = Stage(
                    clock,
                    again,
                    each.parallelism,
                    snapshots,
                    checkpoint=number,
                    way=kept,
                )
                model = then.restored(again, clock.ms)
        reads = [Op(what, user, 1) for what in READS for user in USERS]
        work_on(stage, model, clock, [(0, (False, reads))])
        check_keys(stage, model, clock, sweep_cells)


def work_on(stage: Stage, model: Model, clock: Clock, work: list[Any]) -> None:
    for passed_ms, (vectorised, ops) in work:
        clock.ms += passed_ms
        model.tick(clock.ms)
        stage.tick()
        found = stage.do(ops, vectorised=vectorised)
        wanted = [answer for op in ops for answer in model.do(op)]
        assert in_order(found) == in_order(wanted)


def in_order(found: list[tuple[Any, str, Any]]) -> list[tuple[Any, str, Any]]:
    """By user: subtasks and keys come in any order."""
    return sorted(found, key=lambda each: str(each[0]))


def check_keys(stage: Stage, model: Model, clock: Clock, sweep_cells: int) -> None:
    """A key is there while any state has something for it that is not over."""
    stage.do([Op("", user) for user in USERS])
    model.tick(clock.ms)
    if stage.way.floors is not None:
        return
    if sweep_cells == EVERYTHING:
        assert stage.keys == model.keys
    else:
        assert stage.keys >= model.keys


# ---- how what is over goes


def users(first: int, end: int, what: str = "value") -> list[Op]:
    return [Op(what, f"user {number}", number) for number in range(first, end)]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cells each look for what is over has looked at."""
    sizes: list[int] = []
    original = Lifetimes.over

    def over(self: Lifetimes, cells: Any) -> Any:
        flags = original(self, cells)
        sizes.append(len(flags))
        return flags

    monkeypatch.setattr(Lifetimes, "over", over)
    return sizes


@pytest.mark.parametrize("state", STATES)
def test_memory_of_keys_that_never_come_back_returns_a_little_with_every_batch(
    state: str, monkeypatch: pytest.MonkeyPatch, looked_at: list[int]
) -> None:
    """S8, I26: nobody reads them, and no batch looks at more cells than a few and its own."""
    limit, count = 100, 1_000
    monkeypatch.setattr(lifetime, "SWEEP_CELLS", limit)
    clock = Clock()
    stage = Stage(clock, Declared())
    stage.do(users(0, count, state))
    assert stage.keys == count
    clock.ms += TTL_MS
    kept = []
    for _ in range(count // limit + 3):
        looked_at.clear()
        stage.do([Op(state, "another", 1)])
        assert all(size <= limit + lifetime.SWEEP_PER_ROW for size in looked_at)
        kept.append(stage.keys)
    assert kept == sorted(kept, reverse=True)
    assert limit < count - kept[0] + limit <= 3 * limit
    assert kept[-1] == 1


def test_a_state_of_large_batches_does_not_outgrow_its_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S8, I26: the more rows come, the more cells are looked at; garbage stays a part of what is alive."""
    monkeypatch.setattr(lifetime, "SWEEP_CELLS", 10)
    clock = Clock()
    stage = Stage(clock, Declared())
    living = 0
    for number in range(60):
        stage.do(users(100 * number, 100 * (number + 1)), vectorised=True)
        clock.ms += TTL_MS / 5
        living = 500
    assert stage.keys <= 3 * living


@pytest.mark.parametrize("what", ["list", "map"])
def test_entries_that_are_over_go_without_a_look_at_the_others_of_their_key(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8: a sweep never walks along a list."""
    clock = Clock()
    stage = Stage(clock, Declared())
    stage.do([Op(what, "a", number) for number in range(50)])
    clock.ms += TTL_MS / 2
    stage.do([Op(what, "a", number) for number in range(50, 60)])
    clock.ms += TTL_MS / 2
    with monkeypatch.context() as patch:
        patch.setattr(Child, "walk", lambda *_: pytest.fail("the list is walked along"))
        stage.do([Op("value", "b")])
    (operator,) = stage.operators
    assert len(getattr(operator.function, what)._child.table) == 10
    ((_, _, found),) = stage.do([Op(f"see{what}", "a")])
    assert list(found) == list(range(50, 60))


def rows_in(snapshots: Sequence[OperatorSnapshot], state: str) -> int:
    return sum(snapshot.rows[state] for snapshot in snapshots)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("incremental", [False, True])
def test_a_snapshot_of_all_rows_leaves_out_those_that_are_over(
    state: str, incremental: bool
) -> None:
    """S8: also when no batch came meanwhile that could have dropped them."""
    clock = Clock()
    stage = Stage(clock, Declared(), incremental=incremental)
    stage.do(users(0, 10, state))
    clock.ms += TTL_MS / 2
    stage.do(users(10, 30, state))
    clock.ms += TTL_MS / 2
    assert rows_in(written(stage.freeze(1)), state) == 20


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("incremental", [False, True])
def test_what_is_over_is_not_there_after_a_restore(state: str, incremental: bool) -> None:
    """S8, I21: before the first batch comes. Keys that have nothing else are gone with it."""
    clock = Clock()
    stage = Stage(clock, Declared(), incremental=incremental)
    stage.do(users(0, 10, state))
    clock.ms += TTL_MS / 2
    stage.do(users(10, 30, state))
    snapshots = written(stage.freeze(1))
    assert rows_in(snapshots, state) == 30
    clock.ms += TTL_MS / 2
    again = Stage(clock, Declared(), 1, snapshots, checkpoint=1, incremental=incremental)
    assert rows_in(written(again.freeze(2)), state) == 20
    again.do([Op("", "nobody")])
    assert again.keys == 20


@pytest.mark.parametrize("state", STATES)
def test_a_row_that_went_because_it_was_over_is_gone_in_the_next_increment(state: str) -> None:
    """S8, S6: otherwise it would come back from the rows of an earlier checkpoint when the ttl is taken away."""
    clock = Clock()
    stage = Stage(clock, Declared(), incremental=True)
    stage.do(users(0, 10, state))
    clock.ms += TTL_MS / 2
    stage.do(users(10, 100, state))
    written(stage.freeze(1))
    stage.base = 1
    clock.ms += TTL_MS / 2
    stage.do([Op("", "nobody")])
    snapshots = written(stage.freeze(2))
    (snapshot,) = snapshots
    assert any(each.delta for each in snapshot.segments if each.state == state)
    again = Stage(clock, Declared(None), 1, snapshots, checkpoint=2, incremental=True)
    assert again.keys == 90


def test_what_was_over_at_a_restore_is_gone_in_the_next_increment() -> None:
    """S8, S6: the checkpoint that was restored still has it."""
    clock = Clock()
    stage = Stage(clock, Declared(), incremental=True)
    stage.do(users(0, 10))
    clock.ms += TTL_MS / 2
    stage.do(users(10, 100))
    first = written(stage.freeze(1))
    clock.ms += TTL_MS / 2
    stage = Stage(clock, Declared(), 1, first, checkpoint=1, incremental=True)
    second = written(stage.freeze(2))
    assert any(each.delta for snapshot in second for each in snapshot.segments)
    again = Stage(clock, Declared(None), 1, second, checkpoint=2, incremental=True)
    assert again.keys == 90


def test_a_row_that_is_read_again_and_again_changes_ten_times_in_its_life() -> None:
    """S8: reading a state does not make increments as large as the state."""
    clock = Clock()
    stage = Stage(clock, Declared(on_read=True), incremental=True)
    stage.do(users(0, 100))
    written(stage.freeze(1))
    stage.base = 1
    clock.ms += TTL_MS // 10 - 1
    stage.do(users(0, 100, "seevalue"), vectorised=True)
    (snapshot,) = written(stage.freeze(2))
    deltas = [each for each in snapshot.segments if each.state == "value" and each.delta]
    assert [sum(block.rows for block in each.blocks) for each in deltas] == [0]
    stage.base = 2
    clock.ms += 1
    stage.do(users(0, 10, "seevalue"), vectorised=True)
    (snapshot,) = written(stage.freeze(3))
    deltas = [each for each in snapshot.segments if each.state == "value" and each.delta]
    assert [sum(block.rows for block in each.blocks) for each in deltas] == [0, 10]


# ---- what else sees them


@pytest.mark.parametrize("state", STATES)
def test_readers_of_a_checkpoint_do_not_see_the_moments(state: str) -> None:
    """S8: nor whether a state has a ttl."""
    shown = []
    for declared in (Declared(), Declared(None)):
        stage = Stage(Clock(), declared)
        stage.do(users(0, 3, state))
        (snapshot,) = written(stage.freeze(1))
        (segment,) = (each for each in snapshot.segments if each.state == state)
        layout = layout_of(read_schema(segment))
        rows = [layout.shown(batch) for batch in read_segment(segment, range(1 << 16))]
        shown.append((layout.schema, [row for batch in rows for row in batch.to_pylist()]))
    assert shown[0] == shown[1]
    assert len(shown[0][1]) == 3


def test_rows_that_had_no_ttl_live_as_long_as_those_that_were_written_at_the_restore() -> None:
    """S8: a ttl may come, and go."""
    clock = Clock()
    stage = Stage(clock, Declared(None))
    stage.do(users(0, 3))
    clock.ms += 10 * TTL_MS
    stage = Stage(clock, Declared(), 1, written(stage.freeze(1)), checkpoint=1)
    clock.ms += TTL_MS - 1
    stage.do([Op("", "nobody")])
    assert stage.keys == 3
    without = Stage(clock, Declared(None), 1, written(stage.freeze(2)), checkpoint=2)
    clock.ms += 1
    stage.do([Op("", "nobody")])
    without.do([Op("", "nobody")])
    assert (stage.keys, without.keys) == (0, 3)


def test_a_moment_that_is_to_come_counts_as_that_of_the_restore() -> None:
    """S8, I21: the clock of the host before was ahead."""
    clock = Clock()
    stage = Stage(clock, Declared())
    stage.do(users(0, 3))
    clock.ms -= 1_000 * TTL_MS
    again = Stage(clock, Declared(), 1, written(stage.freeze(1)), checkpoint=1)
    clock.ms += TTL_MS
    again.do([Op("", "nobody")])
    assert again.keys == 0


def test_time_stands_still_while_a_batch_is_processed() -> None:
    """S8: a value that a function has found is there until it returns."""
    clock, found = Clock(), []

    class Looks:
        def open(self, ctx: ProcessContext) -> None:
            self.seen = ctx.value_state("seen", "n BIGINT", ttl=timedelta(milliseconds=TTL_MS))

        def process_batch(self, batch: pa.RecordBatch, ctx: ProcessContext) -> None:
            for _ in range(2):
                found.append(self.seen.get_batch(batch).column("n").to_pylist())
                clock.ms += TTL_MS
            self.seen.update_batch(batch, pa.record_batch([batch.column("code")], names=["n"]))

    operator = Process(Looks, KEYS, OUT)
    operator.open(replace(CONTEXT, wall_ms=lambda: clock.ms))
    batch = batch_of([Op("", "a", 7)])
    operator.process(batch, 0)
    operator.process(batch, 0)
    clock.ms -= 3 * TTL_MS
    operator.process(batch, 0)
    assert found == [[None]] * 4 + [[7]] * 2


# ---- what is said when a ttl is declared wrongly


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda c: c.value_state("s", "n INT", ttl="soon"), "ttl: 'soon' is not a duration"),
        (lambda c: c.list_state("s", "n INT", ttl=5), "ttl: 5 has no unit"),
        (lambda c: c.map_state("s", "k INT", "n INT", ttl="0 s"), "'0 s' is no time to live"),
        (lambda c: c.value_state("s", "n INT", ttl="-1 s"), "ttl: '-1 s' is not a duration"),
        (lambda c: c.value_state("s", "n INT", ttl=timedelta(days=-1)), "ttl: .*is negative"),
        (
            lambda c: c.reducing_state("s", "n INT", max, ttl="1 s", ttl_on="access"),
            'ttl_on=\'access\' is neither "write" nor "read"',
        ),
        (lambda c: c.value_state("s", "n INT", ttl_on="read"), "ttl_on='read' without a ttl"),
        (
            lambda c: c.aggregating_state("s", "n INT", ttl=pen.count()),
            "ttl: .*is not a duration",
        ),
    ],
)
def test_a_ttl_that_cannot_be_is_refused_when_it_is_declared(
    declare: Callable[[ProcessContext], Any], message: str
) -> None:
    """S8."""
    with pytest.raises(ConfigError, match=f"op, state 's': .*{message}"):
        declare(ProcessContext(CONTEXT, KEYS))


def test_a_state_has_one_ttl() -> None:
    """S8."""
    ctx = ProcessContext(CONTEXT, KEYS)
    first = ctx.value_state("s", "n INT", ttl="1 hour")
    assert ctx.value_state("s", "n INT", ttl="60 minutes") is first
    with pytest.raises(PlanError, match="'s' is declared twice with different schemas or ttls"):
        ctx.value_state("s", "n INT")


def test_a_ttl_of_any_length_will_do() -> None:
    """S8: longer than a number of 64 bits can say, too."""
    ctx = ProcessContext(CONTEXT, KEYS)
    state = ctx.value_state("s", "n INT", ttl="999999999999 days", ttl_on="read")
    lifetimes = state._table.lifetimes
    assert lifetimes is not None
    cells = np.arange(3)
    lifetimes.touch(cells)
    assert not lifetimes.over(cells).any()
    assert not lifetimes.fading(cells).any()
