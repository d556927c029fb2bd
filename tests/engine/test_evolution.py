"""State that is restored by a job with other columns, keys or aggregates: what may change goes on as if nothing had
happened, over full snapshots and increments, and anything else is refused with all that one has to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import Operator, OperatorContext
from penstock.engine.operators.evolution import can_widen
from penstock.engine.operators.process import Process
from penstock.engine.reading.keyed import state_tables
from penstock.errors import PlanError, SchemaError
from penstock.plan.keyhash import key_groups, key_hashes
from penstock.plan.schema import parse_schema
from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.protocol.snapshot import OperatorSnapshot, SubtaskSnapshot
from penstock.state.aggregates import Aggregate
from penstock.storage.memory import MemoryStore
from penstock.wire.manifest import Manifest, ManifestOperator
from tests.state.helpers import read_segment, segments_of

CONTEXT = OperatorContext(
    job="job",
    operator="totals",
    index=0,
    parallelism=1,
    max_parallelism=128,
    attempt=1,
    input_schemas=(),
    now_ms=lambda: 0.0,
    wall_ms=lambda: 0.0,
    restored=(),
    read_segments=lambda segments, groups: (
        batch for each in segments for batch in read_segment(each, groups)
    ),
    to_driver=lambda item: None,
    incremental=True,
)
USERS = 40
"""So many keys that a change of a few of them is a delta."""
INPUT = "user INT, v INT, w STRING, d DECIMAL(10, 2)"


def rows(*given: tuple[Any, ...], schema: str = INPUT) -> pa.RecordBatch:
    wanted = parse_schema(schema)
    return pa.RecordBatch.from_pylist([dict(zip(wanted.names, r)) for r in given], wanted)


@dataclass
class Life:
    """One subtask from its restore on. Checkpoints build on one another."""

    operator: Operator
    last: int = 0

    def checkpoint(self) -> OperatorSnapshot:
        order = SnapshotOrder(CheckpointId(self.last + 1), base=CheckpointId(self.last))
        frozen = self.operator.freeze(order)
        self.last += 1
        return OperatorSnapshot(tuple(s for table in frozen.tables for s in segments_of(table)))

    def gives(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        out = [row for each in self.operator.process(batch, 0) for row in each.to_pylist()]
        return sorted(out, key=lambda row: str(row))


Restored = tuple[int, OperatorSnapshot] | None


def life(
    operator: Operator, schema: str = INPUT, restored: Restored = None, *, allowed: bool = False
) -> Life:
    checkpoint, snapshot = restored or (0, None)
    operator.open(
        replace(
            CONTEXT,
            input_schemas=(parse_schema(schema),),
            restored=() if snapshot is None else (snapshot,),
            restored_id=checkpoint,
            allow_non_restored_state=allowed,
        )
    )
    return Life(operator, checkpoint)


def aggregating(
    aggregates: dict[str, Aggregate],
    schema: str = INPUT,
    restored: Restored = None,
    *,
    keys: tuple[str, ...] = ("user",),
    allowed: bool = False,
) -> Life:
    return life(RunningAggregate(keys, aggregates), schema, restored, allowed=allowed)


def in_checkpoint(before: Life, chain: bool) -> Restored:
    """A checkpoint of 40 users with one row each; as a chain, the first of them has another row in a delta, and a
    later one has none."""
    before.gives(rows(*((u, 10 * u, f"w{u}", Decimal(u)) for u in range(USERS))))
    snapshot = before.checkpoint()
    assert not any(segment.delta for segment in snapshot.segments)
    if chain:
        before.gives(rows((0, 5, "again", Decimal(1))))
        snapshot = before.checkpoint()
        assert any(segment.delta for segment in snapshot.segments)
    return before.last, snapshot


chained = pytest.mark.parametrize("chain", [False, True], ids=["full", "chain"])

OLD = {"n": pen.count(), "total": pen.sum("v"), "top": pen.max("v")}


# ---- aggregates


@chained
def test_an_added_aggregate_begins_empty_for_keys_that_were_there(chain: bool) -> None:
    """S10: as if it had seen nothing yet, whatever function it is; the others go on, in any order."""
    restored = in_checkpoint(aggregating(OLD), chain)
    added = {
        "seen": pen.count(),
        "words": pen.count("w"),
        "mean": pen.avg("v"),
        "sum2": pen.sum("v"),
        "dec": pen.sum("d"),
        "low": pen.min("v"),
        "text": pen.max("w"),
        "end": pen.last("w"),
        "begin": pen.first("w"),
    }
    now = {"top": pen.max("v"), **added, "total": pen.sum("v"), "n": pen.count()}
    after = aggregating(now, restored=restored)
    (found,) = after.gives(rows((0, None, None, None)))
    known = 2 if chain else 1
    old = {"user": 0, "n": known + 1, "total": 5 if chain else 0, "top": 5 if chain else 0}
    nothing = dict.fromkeys(added) | {"seen": 1, "words": 0}
    assert found == old | nothing
    (found,) = after.gives(rows((7, 3, "x", Decimal(4))))
    fresh = {"seen": 1, "words": 1, "mean": 3.0, "sum2": 3, "dec": Decimal("4.00"), "low": 3}
    fresh |= {"text": "x", "end": "x", "begin": None}
    assert found == {"user": 7, "n": 2, "total": 73, "top": 70} | fresh
    (new,) = after.gives(rows((99, 3, "x", Decimal(4))))
    assert new["begin"] == "x", "a key that is new has a first row"


@chained
def test_an_aggregate_that_is_gone_is_refused_until_it_is_let_go(chain: bool) -> None:
    """S10, R8."""
    restored = in_checkpoint(aggregating(OLD), chain)
    less = {"n": pen.count(), "mean": pen.avg("v")}
    with pytest.raises(SchemaError, match=r"totals, state 'aggregate': column 'total' is sum\(v\)"):
        aggregating(less, restored=restored)
    with pytest.raises(SchemaError, match="allow_non_restored_state=True"):
        aggregating(less, restored=restored)
    (found,) = aggregating(less, restored=restored, allowed=True).gives(rows((0, 6, "", None)))
    assert found == {"user": 0, "n": 3 if chain else 2, "mean": 6.0}


@chained
@pytest.mark.parametrize(
    ("now", "schema", "message"),
    [
        (pen.max("v"), INPUT, r"'a' is sum\(v\) of type BIGINT .* and max\(v\) of type INT now"),
        (pen.count(), INPUT, r"'a' is sum\(v\) of type BIGINT .* and count\(\) of type BIGINT now"),
        (pen.sum("d"), INPUT, r"sum\(v\) of type BIGINT .* sum\(d\) of type DECIMAL\(20, ?2\) now"),
        (
            pen.sum("v"),
            "user INT, v DOUBLE, w STRING, d DECIMAL(10, 2)",
            r"'a' is sum\(v\) of type BIGINT .* and sum\(v\) of type DOUBLE now",
        ),
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
def test_another_aggregate_of_the_same_name_is_refused(
    now: Aggregate, schema: str, message: str, allowed: bool, chain: bool
) -> None:
    """S10: also where its columns look the same, and where state may be let go."""
    restored = in_checkpoint(aggregating({"a": pen.sum("v")}), chain)
    with pytest.raises(SchemaError, match=f"totals, state 'aggregate': column .*{message}"):
        aggregating({"a": now}, schema, restored, allowed=allowed)


def test_a_count_of_rows_is_not_a_count_of_values() -> None:
    """S10: both are kept as one number."""
    restored = in_checkpoint(aggregating({"n": pen.count()}), chain=False)
    with pytest.raises(SchemaError, match=r"'n' is count\(\) .* and count\(v\) "):
        aggregating({"n": pen.count("v")}, restored=restored)


@chained
def test_a_sum_of_decimals_keeps_its_scale(chain: bool) -> None:
    """S10: the limbs of a sum say nothing of it themselves."""
    restored = in_checkpoint(aggregating({"a": pen.sum("d")}), chain)
    wider = "user INT, v INT, w STRING, d DECIMAL(12, 2)"
    after = aggregating({"a": pen.sum("d")}, wider, restored)
    (found,) = after.gives(rows((3, 0, "", Decimal("0.5")), schema=wider))
    assert found["a"] == Decimal("3.50")
    other = "user INT, v INT, w STRING, d DECIMAL(10, 3)"
    with pytest.raises(SchemaError, match=r"DECIMAL\(20, ?2\) in .* DECIMAL\(20, ?3\) now"):
        aggregating({"a": pen.sum("d")}, other, restored)


@chained
def test_aggregates_of_a_wider_input_go_on(chain: bool) -> None:
    """S10: widened numbers."""
    every = {
        name: getattr(pen, name)("v") for name in ("sum", "min", "max", "first", "last", "avg")
    }
    restored = in_checkpoint(aggregating(every), chain)
    wider = "user INT, v BIGINT, w STRING, d DECIMAL(10, 2)"
    after = aggregating(every, wider, restored)
    (found,) = after.gives(rows((4, 1 << 40, "", None), schema=wider))
    big = 1 << 40
    expected = {"sum": 40 + big, "min": 40, "max": big, "first": 40, "last": big}
    assert found == {"user": 4, **expected, "avg": (40 + big) / 2}


class Function:
    """Declares what it is told, and does to its state what it is told for every key."""

    def __init__(self, declare: Callable[[Any], Any], work: Callable[..., Any]) -> None:
        self._declare, self._work = declare, work

    def open(self, ctx: Any) -> None:
        self.state = self._declare(ctx)

    def process(self, key: Any, given: list[Any], ctx: Any) -> Iterator[tuple[str]]:
        for row in given:
            yield (repr(self._work(self.state, row)),)


def processing(
    declare: Callable[[Any], Any],
    work: Callable[..., Any],
    restored: Restored = None,
    schema: str = INPUT,
    *,
    keys: tuple[str, ...] = ("user",),
    allowed: bool = False,
) -> Life:
    made = Process(Function(declare, work), keys, parse_schema("out STRING"))
    return life(made, schema, restored, allowed=allowed)


def got(after: Life, batch: pa.RecordBatch) -> list[str]:
    return [row["out"] for row in after.gives(batch)]


@chained
def test_an_aggregating_state_changes_as_an_agg_does(chain: bool) -> None:
    """S10."""

    def declare(**aggregates: Aggregate) -> Callable[[Any], Any]:
        return lambda ctx: ctx.aggregating_state("s", "v INT", **aggregates)

    def read(state: Any, row: Any) -> Any:
        return tuple(state.get())

    before = processing(declare(n=pen.count(), low=pen.min("v")), lambda s, row: s.add((row.v,)))
    restored = in_checkpoint(before, chain)
    more = declare(total=pen.sum("v"), low=pen.min("v"), n=pen.count())
    assert got(processing(more, read, restored), rows((2, 0, "", None))) == ["(None, 20, 1)"]
    with pytest.raises(SchemaError, match="totals, state 's': column 'low' is min"):
        processing(declare(n=pen.count()), read, restored)
    allowed = processing(declare(n=pen.count()), read, restored, allowed=True)
    assert got(allowed, rows((2, 0, "", None))) == ["(1,)"]
    with pytest.raises(SchemaError, match="totals, state 's': column 'low' is min.* and max"):
        processing(declare(n=pen.count(), low=pen.max("v")), read, restored)


@chained
@pytest.mark.parametrize("before", [None, "1 hour"])
@pytest.mark.parametrize("after", [None, "2 hours"])
def test_aggregates_and_a_time_to_live_change_together(
    before: str | None, after: str | None, chain: bool
) -> None:
    """S8, S10: the moment of a row is no aggregate, and no reason to refuse it."""

    def declare(ttl: str | None, **aggregates: Aggregate) -> Callable[[Any], Any]:
        return lambda ctx: ctx.aggregating_state("s", "v INT", ttl=ttl, **aggregates)

    old = processing(declare(before, n=pen.count()), lambda s, row: s.add((row.v,)))
    restored = in_checkpoint(old, chain)
    more = declare(after, top=pen.max("v"), n=pen.count())
    now = processing(more, lambda s, row: (s.add((row.v,)), tuple(s.get()))[1], restored)
    assert got(now, rows((0, 3, "", None))) == ["(3, 3)" if chain else "(3, 2)"]
    assert not any(segment.delta for segment in now.checkpoint().segments)


# ---- columns of users' states


def states() -> list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[..., Any]]]:
    """Each kind: how it is declared with some columns, written with a row's, and read."""
    return [
        (
            "value",
            lambda ctx, ddl: ctx.value_state("s", ddl),
            lambda s, row: s.update((row.v, row.w)),
            lambda s, row: tuple(s.get()),
        ),
        (
            "list",
            lambda ctx, ddl: ctx.list_state("s", ddl),
            lambda s, row: s.update([(row.v, row.w)]),
            lambda s, row: tuple(s.get()[0]),
        ),
        (
            "map",
            lambda ctx, ddl: ctx.map_state("s", "k BIGINT", ddl),
            lambda s, row: s.put(1, (row.v, row.w)),
            lambda s, row: tuple(s.get(1)),
        ),
    ]


every_kind = pytest.mark.parametrize(
    ("declare", "write", "read"), [s[1:] for s in states()], ids=[s[0] for s in states()]
)


@chained
@every_kind
def test_columns_of_a_state_come_grow_and_go_when_asked(
    declare: Any, write: Any, read: Any, chain: bool
) -> None:
    """S10, R8."""
    restored = in_checkpoint(processing(lambda c: declare(c, "v INT, w STRING"), write), chain)

    def after(ddl: str, *, allowed: bool = False) -> list[str]:
        made = processing(lambda c: declare(c, ddl), read, restored, allowed=allowed)
        return got(made, rows((0, 0, "", None)))

    v, w = (5, "again") if chain else (0, "w0")
    assert after("more STRING, w STRING, v BIGINT") == [repr((None, w, v))]
    with pytest.raises(SchemaError, match=r"totals, state 's': column 'w' \(STRING\)"):
        after("v INT")
    assert after("v INT", allowed=True) == [repr((v,))]
    with pytest.raises(SchemaError, match="'v' is INT in the checkpoint and STRING now"):
        after("v STRING, w STRING", allowed=True)


@chained
@every_kind
def test_a_column_that_is_not_null_now_must_have_no_nulls_in_the_checkpoint(
    declare: Any, write: Any, read: Any, chain: bool
) -> None:
    """S10: neither in the rows that are always there nor in those of a delta, whose removed keys have none."""
    before = processing(lambda c: declare(c, "v INT, w STRING"), write)
    restored = in_checkpoint(before, chain)
    strict = "v INT NOT NULL, w STRING"
    processing(lambda c: declare(c, strict), read, restored)
    before.gives(rows((3, None, "", None)))
    snapshot = before.checkpoint()
    assert snapshot.segments[-1].delta
    with pytest.raises(SchemaError, match=r"column 'v' \(INT\) is now NOT NULL and has nulls"):
        processing(lambda c: declare(c, strict), read, (before.last, snapshot))


def test_a_key_that_has_lost_its_row_has_no_nulls_to_be_refused() -> None:
    """S10: a delta says of it that it is gone, and nothing else."""

    def work(state: Any, row: Any) -> None:
        state.clear() if row.v is None else state.update((row.v,))

    before = processing(lambda c: c.value_state("s", "v INT"), work)
    in_checkpoint(before, chain=False)
    before.gives(rows((3, None, "", None)))
    snapshot = before.checkpoint()
    assert snapshot.segments[-1].delta
    after = processing(
        lambda c: c.value_state("s", "v INT NOT NULL"),
        lambda s, row: s.get() and s.get().v,
        (before.last, snapshot),
    )
    assert got(after, rows((3, 0, "", None), (4, 0, "", None))) == ["40", "None"]


def test_states_that_nobody_declares_go_when_asked() -> None:
    """R8: and are not in the next checkpoint."""
    restored = in_checkpoint(
        processing(lambda c: c.value_state("old", "v INT"), lambda s, row: s.update((row.v,))),
        chain=False,
    )
    with pytest.raises(PlanError, match="'old'.*allow_non_restored_state=True"):
        processing(lambda c: c.value_state("new", "v INT"), lambda s, row: s.get(), restored)
    after = processing(
        lambda c: c.value_state("new", "v INT"), lambda s, row: s.get(), restored, allowed=True
    )
    assert got(after, rows((1, 0, "", None))) == ["None"]
    assert {segment.state for segment in after.checkpoint().segments} == {"new"}


@chained
@pytest.mark.parametrize("allowed", [False, True])
def test_a_state_of_another_kind_is_refused(allowed: bool, chain: bool) -> None:
    """S10."""
    restored = in_checkpoint(
        processing(lambda c: c.value_state("s", "v INT"), lambda s, row: s.update((row.v,))), chain
    )
    with pytest.raises(SchemaError, match="state 's': it is a value.* state .* a list state now"):
        processing(lambda c: c.list_state("s", "v INT"), lambda s, r: 0, restored, allowed=allowed)


# ---- keys


@chained
def test_a_key_may_become_wider(chain: bool) -> None:
    """S10, I15: a number has the same key group in every integer type."""
    restored = in_checkpoint(aggregating(OLD), chain)
    wider = INPUT.replace("user INT", "user BIGINT")
    after = aggregating(OLD, wider, restored)
    (found,) = after.gives(rows((7, 1, "", None), schema=wider))
    assert (found["user"], found["n"], found["total"]) == (7, 2, 71)


@pytest.mark.parametrize(
    ("schema", "keys", "message"),
    [
        (
            INPUT.replace("user INT", "user STRING"),
            ("user",),
            r"\(user INT\) .*\(user STRING\) now",
        ),
        (INPUT.replace("user INT", "user SMALLINT"), ("user",), r"\(user SMALLINT\) now"),
        (INPUT, ("w",), r"the key is \(user INT\) in the checkpoint and \(w STRING\) now"),
        (INPUT, ("user", "w"), r"\(user INT\) in the checkpoint and \(user INT, w STRING\) now"),
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
def test_another_key_is_refused(
    schema: str, keys: tuple[str, ...], message: str, allowed: bool
) -> None:
    """S10: it names both, for aggregates and for own functions."""
    restored = in_checkpoint(aggregating({"n": pen.count()}), chain=False)
    with pytest.raises(SchemaError, match=f"totals, state 'aggregate': .*{message}"):
        aggregating({"n": pen.count()}, schema, restored, keys=keys, allowed=allowed)
    restored = in_checkpoint(
        processing(lambda c: c.value_state("s", "v INT"), lambda s, row: s.update((row.v,))),
        chain=False,
    )
    with pytest.raises(SchemaError, match=f"totals, state 's': .*{message}"):
        processing(
            lambda c: c.value_state("s", "v INT"),
            lambda s, row: s.get(),
            restored,
            schema,
            keys=keys,
            allowed=allowed,
        )


def test_the_order_of_key_columns_is_part_of_the_key() -> None:
    """S10, I15: another order has another hash."""
    restored = in_checkpoint(aggregating({"n": pen.count()}, keys=("user", "w")), chain=False)
    with pytest.raises(SchemaError, match=r"the key is \(user INT, w STRING\)"):
        aggregating({"n": pen.count()}, restored=restored, keys=("w", "user"))


@chained
def test_a_map_key_may_become_wider_and_nothing_else(chain: bool) -> None:
    """S10."""

    def declare(keys: str) -> Callable[[Any], Any]:
        return lambda ctx: ctx.map_state("s", keys, "v INT")

    before = processing(declare("k INT"), lambda s, row: s.put(row.v, (row.v,)))
    restored = in_checkpoint(before, chain)
    after = processing(declare("k BIGINT"), lambda s, row: sorted(s.keys()), restored)
    assert got(after, rows((0, 0, "", None))) == ["[0, 5]" if chain else "[0]"]
    with pytest.raises(SchemaError, match=r"the map key is \(k INT\) .* \(k INT, l INT\) now"):
        processing(declare("k INT, l INT"), lambda s, row: 0, restored)


WIDER = [
    *((pa.int8(), wide) for wide in (pa.int16(), pa.int32(), pa.int64())),
    *((pa.int16(), wide) for wide in (pa.int32(), pa.int64())),
    (pa.int32(), pa.int64()),
    (pa.decimal128(9, 2), pa.decimal128(20, 2)),
    (pa.decimal128(20, 2), pa.decimal128(38, 2)),
]


@given(
    types=st.sampled_from(WIDER),
    values=st.lists(st.none() | st.integers(-128, 127), min_size=1),
    beside=st.booleans(),
    groups=st.sampled_from([1, 7, 128, 32_768]),
)
@settings(max_examples=200, deadline=None)
def test_a_widened_key_has_the_same_key_group(
    types: tuple[pa.DataType, pa.DataType], values: list[int | None], beside: bool, groups: int
) -> None:
    """S10, I15: why keys may become wider at all. Alone, beside another column, and null."""
    old, new = types
    assert can_widen(old, new)
    edges = [-(1 << 31), (1 << 31) - 1] if old == pa.int32() else []
    narrow = pa.array([*values, *edges], old)
    other = [pa.array(["x"] * len(narrow))] if beside else []
    before, after = (
        key_groups(key_hashes([column, *other])[0], groups) for column in (narrow, narrow.cast(new))
    )
    assert np.array_equal(before, after)


# ---- chains of increments


@pytest.mark.parametrize(
    ("now", "schema", "builds_on_it"),
    [
        (OLD, INPUT, True),
        (dict(reversed(OLD.items())), INPUT, False),
        (OLD | {"more": pen.count()}, INPUT, False),
        ({"n": pen.count()}, INPUT, False),
        (OLD, INPUT.replace("v INT", "v BIGINT"), False),
        (OLD, INPUT.replace("user INT", "user BIGINT"), False),
    ],
)
def test_increments_begin_anew_after_a_change(
    now: dict[str, Aggregate], schema: str, builds_on_it: bool
) -> None:
    """S6, S10: a checkpoint never has two kinds of columns in one state; and it can be restored and read."""
    restored = in_checkpoint(aggregating(OLD), chain=True)
    after = aggregating(now, schema, restored, allowed=True)
    after.gives(rows((1, 1, "", None), schema=schema))
    first = after.checkpoint()
    assert any(segment.delta for segment in first.segments) == builds_on_it
    after.gives(rows((1, 1, "", None), schema=schema))
    second = after.checkpoint()
    assert second.segments[-1].delta
    again = aggregating(now, schema, (after.last, second))
    (found,) = again.gives(rows((1, 1, "", None), schema=schema))
    assert found["n"] == 4
    (row,) = [row for row in shown(second) if row["user"] == 1]
    assert row["n"] == 3


def test_a_wider_decimal_begins_increments_anew() -> None:
    """S6, S10: its sum looks the same to Arrow, and readers are told of the digits by the first segment."""
    restored = in_checkpoint(aggregating({"a": pen.sum("d")}), chain=True)
    wider = INPUT.replace("(10, 2)", "(28, 2)")
    after = aggregating({"a": pen.sum("d")}, wider, restored)
    after.gives(rows((1, 1, "", Decimal(10**20)), schema=wider))
    snapshot = after.checkpoint()
    assert not any(segment.delta for segment in snapshot.segments)
    assert {row["user"]: row["a"] for row in shown(snapshot)}[1] == Decimal(10**20 + 1)


def test_a_chain_whose_first_rows_are_elsewhere_still_begins_with_all_rows() -> None:
    """S6: the state was empty when the chain began, so all of its rows are in deltas; it can be restored again, in
    another shape, too, and read."""
    declare = lambda c: c.value_state("s", "v INT")

    def work(state: Any, row: Any) -> None:
        state.clear() if row.v is None else state.update((row.v,))

    before = processing(declare, work)
    before.gives(rows(*((u, u, "", None) for u in range(USERS))))
    before.gives(rows(*((u, None, "", None) for u in range(USERS))))
    before.checkpoint()
    before.gives(rows((1, 5, "", None)))
    snapshot = before.checkpoint()
    assert [segment.delta for segment in snapshot.segments] == [False, True]
    after = processing(declare, work, (before.last, snapshot))
    after.gives(rows((2, 6, "", None)))
    second = after.checkpoint()
    assert not second.segments[0].delta
    assert sorted((row["user"], row["v"]) for row in shown(second)) == [(1, 5), (2, 6)]
    wider = processing(
        lambda c: c.value_state("s", "v BIGINT"), lambda s, row: s.get().v, (after.last, second)
    )
    assert got(wider, rows((1, 0, "", None), (2, 0, "", None))) == ["5", "6"]
    assert not any(segment.delta for segment in wider.checkpoint().segments)


def shown(snapshot: OperatorSnapshot) -> Sequence[dict[str, Any]]:
    """The rows as people see them who have the checkpoint alone."""
    manifest = Manifest(
        "job",
        CheckpointId(9),
        AttemptId(1),
        SnapshotKind.CHECKPOINT,
        0.0,
        0.0,
        1,
        128,
        (ManifestOperator("totals", "aggregate"),),
        (SubtaskSnapshot(SubtaskId(0, 0), {"totals": snapshot}),),
    )
    (table,) = state_tables(manifest)
    return [row for batch in table.read(MemoryStore()) for row in batch.to_pylist()]
