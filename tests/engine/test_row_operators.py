"""Operators over rows and batches: what user functions get, what they may return, what state they keep."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.operators.base import Operator, OperatorContext
from penstock.engine.operators.process import Process, check_function
from penstock.engine.operators.row import OUTPUT_ROWS, make_row, python_values
from penstock.engine.operators.rows import Filter, FlatMapRows, MapBatches, MapRows, Select, Union
from penstock.errors import ConfigError, PlanError, SchemaError
from penstock.plan.expressions import col, lit
from penstock.plan.schema import parse_schema
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import OperatorSnapshot
from tests.engine.kit import segments_of
from tests.state.helpers import segment_of

ORDERS = parse_schema("user STRING, amount BIGINT")


def orders(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"user": u, "amount": a} for u, a in rows], schema=ORDERS)


CONTEXT = OperatorContext(
    job="job",
    operator="op-2",
    index=0,
    parallelism=1,
    max_parallelism=16,
    attempt=1,
    input_schemas=(ORDERS,),
    now_ms=lambda: 0.0,
    wall_ms=lambda: 0.0,
    restored=(),
    read_segments=segments_of(None),
    to_driver=lambda item: None,
)


def opened(operator: Operator, context: OperatorContext = CONTEXT) -> Any:
    operator.open(context)
    return operator


def rows_of(operator: Operator, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for out in operator.process(batch, 0) for row in out.to_pylist()]


def snapshot(operator: Operator) -> OperatorSnapshot:
    """What a checkpoint keeps of an operator, with its bytes inside."""
    tables = operator.freeze(SnapshotOrder(CheckpointId(1))).tables
    return OperatorSnapshot(segments=tuple(segment_of(frozen) for frozen in tables))


# ---- rows


def test_a_row_is_read_by_name_by_position_and_as_a_tuple() -> None:
    row = make_row(("user", "count", "a b"), ("x", 1, 2))
    assert (row.user, row["user"], row[0], row[-1]) == ("x", "x", "x", 2)
    assert row.count == 1, "a column wins over the tuple's own method"
    assert row["a b"] == 2
    assert row == ("x", 1, 2)
    assert len(row) == 3
    assert list(row) == ["x", 1, 2]
    assert row._asdict() == {"user": "x", "count": 1, "a b": 2}
    assert repr(row) == "Row(user='x', count=1, a b=2)"
    assert pickle.loads(pickle.dumps(row)).user == "x"


def test_a_row_cannot_be_changed_and_names_its_columns_when_one_is_missing() -> None:
    row = make_row(("user",), ("x",))
    with pytest.raises(AttributeError):
        row.user = "y"
    with pytest.raises(AttributeError, match="no column 'usr'; its columns are: user"):
        _ = row.usr
    with pytest.raises(KeyError, match="columns are: user"):
        _ = row["usr"]


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("BIGINT", [1, None, 2**62 + 1]),
        ("BIGINT", [2**62 + 1, -5]),
        ("TINYINT", [None, None]),
        ("DOUBLE", [1.5, None, float("inf")]),
        ("FLOAT", [0.5, None]),
        ("BOOLEAN", [True, None, False]),
        ("BOOLEAN", [True, False]),
        ("STRING", ["x", None, "", "é"]),
        ("BINARY", [b"x", None, b""]),
        ("DECIMAL(5,2)", [Decimal("1.50"), None]),
        ("TIMESTAMP_NTZ", [datetime(2026, 1, 1, 5), None]),  # noqa: DTZ001
        ("TIMESTAMP", [datetime(2026, 1, 1, 5, tzinfo=UTC), None]),
        ("TIMESTAMP", [datetime(1901, 1, 1, 5, 0, 0, 123456, tzinfo=UTC)]),
        ("ARRAY<INT>", [[1, 2], None, []]),
        ("STRING", []),
    ],
)
def test_values_reach_a_function_as_plain_python_values(ddl: str, values: list[Any]) -> None:
    array = pa.array([None, *values], parse_schema(f"x {ddl}").field(0).type).slice(1)
    got = python_values(array)
    assert got == values
    assert [type(value) for value in got] == [type(value) for value in values]


def test_timestamps_of_other_units_and_zones_reach_a_function_as_arrow_says() -> None:
    for kind in (pa.timestamp("ms"), pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Paris")):
        array = pa.array([1_700_000_000, None, -5], kind)
        assert python_values(array) == array.to_pylist()


# ---- map, flat_map


@pytest.mark.parametrize(
    "function",
    [
        lambda row: (row.user, row.amount * 2),
        lambda row: [row["user"], row[1] * 2],
        lambda row: {"amount": row.amount * 2, "user": row.user},
        lambda row: make_row(("user", "amount"), (row.user, row.amount * 2)),
    ],
    ids=["tuple", "list", "dict", "row"],
)
def test_map_takes_tuples_lists_dicts_and_rows(function: Any) -> None:
    operator = opened(MapRows(function, ORDERS))
    assert rows_of(operator, orders(("a", 1), ("b", 2))) == [("a", 2), ("b", 4)]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (("a", "many"), r"'many' \(str\) for column 'amount', which is BIGINT"),
        (("a", 1.5), r"1.5 \(float\) for column 'amount', which is BIGINT"),
        (("a", 2**70), "for column 'amount', which is BIGINT"),
        ((1, 1), r"1 \(int\) for column 'user', which is STRING"),
        (("a",), "1 values for 2 columns"),
        ({"user": "a"}, "no value for column 'amount'"),
        ({"user": "a", "amuont": 1}, "no column 'amuont'; did you mean 'amount'"),
        (None, r"None \(NoneType\), which is no row"),
        ("ab", r"'ab' \(str\), which is no row"),
    ],
)
def test_a_result_that_does_not_fit_names_operator_column_value_and_type(
    result: Any, message: str
) -> None:
    operator = opened(MapRows(lambda row: result, ORDERS))
    with pytest.raises(SchemaError, match=f"op-2.*{message}"):
        list(operator.process(orders(("a", 1)), 0))


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("INT", 1.0),
        ("INT", np.float32(1.5)),
        ("BIGINT", Decimal("1.5")),
        ("DATE", datetime(2026, 1, 1, 5)),  # noqa: DTZ001
        ("DATE", 3),
        ("TIMESTAMP", 1.5),
        ("DOUBLE", True),
        ("DECIMAL(4,2)", 1.5),
        ("DECIMAL(4,2)", Decimal("1.555")),
        ("BOOLEAN", 1),
    ],
)
def test_a_value_is_never_rounded_or_cut_to_fit_its_column(ddl: str, value: Any) -> None:
    operator = opened(MapRows(lambda row: (value,), parse_schema(f"x {ddl}")))
    with pytest.raises(SchemaError, match="for column 'x', which is"):
        list(operator.process(orders(("a", 1)), 0))


def test_a_null_in_a_not_null_column_is_refused() -> None:
    operator = opened(MapRows(lambda row: (None,), parse_schema("user STRING NOT NULL")))
    with pytest.raises(SchemaError, match="None for column 'user', which is NOT NULL"):
        list(operator.process(orders(("a", 1)), 0))


def test_what_user_code_raises_goes_up_as_it_is() -> None:
    operator = opened(MapRows(lambda row: (row.user, 1 // row.amount), ORDERS))
    with pytest.raises(ZeroDivisionError):
        list(operator.process(orders(("a", 0)), 0))


def test_flat_map_gives_any_number_of_rows() -> None:
    operator = opened(FlatMapRows(lambda row: ((row.user, i) for i in range(row.amount)), ORDERS))
    assert rows_of(operator, orders(("a", 2), ("b", 0), ("c", 1))) == [("a", 0), ("a", 1), ("c", 0)]
    assert rows_of(opened(FlatMapRows(lambda row: [], ORDERS)), orders(("a", 1))) == []


def test_flat_map_refuses_none_and_says_what_no_rows_are() -> None:
    operator = opened(FlatMapRows(lambda row: None, ORDERS))
    with pytest.raises(SchemaError, match="op-2: .*returned None for Row.*an empty one for none"):
        list(operator.process(orders(("a", 1)), 0))


def test_flat_map_refuses_a_single_row_in_place_of_several() -> None:
    operator = opened(FlatMapRows(lambda row: row, ORDERS))
    with pytest.raises(SchemaError, match="put a single row into a list"):
        list(operator.process(orders(("a", 1)), 0))


def test_flat_map_hands_rows_on_in_batches_of_limited_size() -> None:
    operator = opened(
        FlatMapRows(lambda row: [(i,) for i in range(row.amount)], parse_schema("i INT"))
    )
    sizes = [out.num_rows for out in operator.process(orders(("a", OUTPUT_ROWS + 1)), 0)]
    assert sizes == [OUTPUT_ROWS, 1]


# ---- map_batches


def test_map_batches_gives_what_the_function_returned() -> None:
    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "amount", pc.multiply(batch["amount"], 2))

    assert rows_of(opened(MapBatches(double, ORDERS)), orders(("a", 1))) == [("a", 2)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda b: b.rename_columns(["usr", "amount"]),
            "column 'user' is missing.*'usr'.*not expected",
        ),
        (
            lambda b: b.set_column(1, "amount", b["amount"].cast("int32")),
            "'amount' is INT, expected BIGINT",
        ),
        (lambda b: b.select(["amount", "user"]), "order"),
        (lambda b: None, "returned None.*is a return missing"),
        (lambda b: pa.Table.from_batches([b]), "returned Table"),
        (lambda b: b.to_pandas(), "from_pandas"),
    ],
)
def test_a_batch_of_another_schema_is_refused_with_the_differences(
    function: Any, message: str
) -> None:
    with pytest.raises(SchemaError, match=f"op-2: .*{message}"):
        list(opened(MapBatches(function, ORDERS)).process(orders(("a", 1)), 0))


def test_a_batch_whose_fields_only_forget_not_null_is_taken_if_it_has_no_nulls() -> None:
    strict = parse_schema("user STRING NOT NULL, amount BIGINT")
    operator = opened(MapBatches(lambda batch: batch, strict))
    (out,) = operator.process(orders(("a", None)), 0)
    assert out.schema.equals(strict)
    with pytest.raises(SchemaError, match="nulls in column 'user', which is NOT NULL"):
        list(operator.process(orders((None, 1)), 0))


# ---- filter, select, union


def test_filter_keeps_rows_where_the_expression_is_true_and_drops_null() -> None:
    operator = opened(Filter(col("amount") > 1))
    assert rows_of(operator, orders(("a", 1), ("b", 2), ("c", None))) == [("b", 2)]


def test_filter_hands_a_batch_on_untouched_where_all_rows_stay() -> None:
    batch = orders(("a", 1))
    assert next(iter(opened(Filter(lit(True))).process(batch, 0))) is batch
    assert list(opened(Filter(lit(False))).process(batch, 0)) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda batch: pc.greater(batch["amount"], 1),
        lambda batch: np.array([False, True]),
        lambda batch: pa.chunked_array([[False], [True]]),
    ],
)
def test_filter_takes_a_function_of_a_batch(function: Any) -> None:
    assert rows_of(opened(Filter(function)), orders(("a", 1), ("b", 2))) == [("b", 2)]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (pa.array([True]), "1 values for 2 rows"),
        (pa.array([1, 0]), "returned int64"),
        ([True, False], "returned list"),
        (None, "returned NoneType"),
    ],
)
def test_a_mask_that_is_not_one_boolean_per_row_is_refused(mask: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"op-2: .*{message}"):
        list(opened(Filter(lambda batch: mask)).process(orders(("a", 1), ("b", 2)), 0))


def test_select_evaluates_one_expression_per_column() -> None:
    operator = opened(
        Select(
            (col("amount"), col("amount") * 2, lit("x")),
            parse_schema("a BIGINT, b BIGINT, c STRING"),
        )
    )
    assert rows_of(operator, orders(("a", 1), ("b", None))) == [(1, 2, "x"), (None, None, "x")]


def test_union_gives_every_stream_the_common_schema() -> None:
    strict = parse_schema("user STRING NOT NULL, amount BIGINT")
    (out,) = Union(ORDERS).process(orders(("a", 1)).cast(strict), 1)
    assert out.schema.equals(ORDERS)


# ---- process


class Totals:
    """A running total per user, which forgets a user at amount 0."""

    def open(self, ctx: Any) -> None:
        self.total = ctx.value_state("total", "n BIGINT, last STRING")

    def process(self, key: Any, rows: list[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            old = self.total.get()
            if row.amount == 0:
                self.total.clear()
                continue
            self.total.update(((old.n if old else 0) + row.amount, row.user))
        now = self.total.get()
        yield key.user, now.n if now else None


OUT = parse_schema("user STRING, n BIGINT")
KEYS = ("user",)


def test_process_keeps_a_row_per_key_over_batches() -> None:
    """S1: value state is scoped to the key that is being processed."""
    operator = opened(Process(Totals(), KEYS, OUT))
    assert rows_of(operator, orders(("a", 1), ("b", 5), ("a", 2))) == [("a", 3), ("b", 5)]
    assert rows_of(operator, orders(("b", 1), (None, 7))) == [("b", 6), (None, 7)]
    assert rows_of(operator, orders(("a", 0), ("b", 1))) == [("a", None), ("b", 7)]
    assert rows_of(operator, orders(("a", 4), (None, 1))) == [("a", 4), (None, 8)]


def test_every_subtask_works_on_its_own_copy_of_the_function() -> None:
    function = Totals()
    first, second = opened(Process(function, KEYS, OUT)), opened(Process(function, KEYS, OUT))
    rows_of(first, orders(("a", 1)))
    assert rows_of(second, orders(("a", 1))) == [("a", 1)]
    assert not hasattr(function, "total")
    assert rows_of(opened(Process(Totals, KEYS, OUT)), orders(("a", 1))) == [("a", 1)]


def test_state_comes_back_from_its_snapshot_and_cleared_keys_stay_away() -> None:
    """S1, I2: a restored function goes on with exactly the rows it had."""
    operator = opened(Process(Totals(), KEYS, OUT))
    rows_of(operator, orders(("a", 1), ("b", 2), ("c", 3)))
    rows_of(operator, orders(("b", 0)))
    saved = snapshot(operator)
    again = opened(Process(Totals(), KEYS, OUT), replace(CONTEXT, restored=(saved,)))
    assert sum(segment.blocks[0].rows for segment in snapshot(again).segments) == 2
    assert rows_of(again, orders(("a", 1), ("b", 1), ("c", 1))) == [("a", 2), ("b", 1), ("c", 4)]


def test_a_frozen_state_does_not_see_what_comes_after_it() -> None:
    """S4: the stream goes on while the snapshot is written."""
    operator = opened(Process(Totals(), KEYS, OUT))
    rows_of(operator, orders(("a", 1), ("b", 1)))
    frozen = operator.freeze(SnapshotOrder(CheckpointId(1)))
    rows_of(operator, orders(("a", 10), ("b", 0), ("c", 1)))
    table = pa.ipc.open_stream(segment_of(frozen.tables[0]).inline).read_all()
    assert dict(zip(table["key.user"].to_pylist(), table["value.n"].to_pylist())) == {
        "a": 1,
        "b": 1,
    }


def test_a_snapshot_of_state_is_arrow_and_never_code() -> None:
    """S9: state is data: an Arrow stream with typed columns."""
    operator = opened(Process(Totals(), KEYS, OUT))
    rows_of(operator, orders(("a", 1)))
    data = snapshot(operator).segments[0].inline
    schema = pa.ipc.open_stream(data).read_all().schema
    assert schema.field("value.n").type == pa.int64()
    assert schema.field("value.last").type == pa.string()


_STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), min_size=1, max_size=6),
        st.sampled_from(["freeze", "restore"]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(_STEPS)
def test_state_agrees_with_a_dict_whatever_is_frozen_and_restored(steps: list[Any]) -> None:
    """S1, S4, I2: totals equal a plain fold, over freezes, restores and two subtasks by key group."""
    operators = _two_subtasks(())
    model: dict[str, int] = {}
    for step in steps:
        if step == "freeze":
            for operator in operators:
                operator.freeze(SnapshotOrder(CheckpointId(1)))
        elif step == "restore":
            operators = _two_subtasks(tuple(snapshot(operator) for operator in operators))
        else:
            _fold(model, step)
            for key in sorted({user for user, _ in step}):
                mine = orders(*(row for row in step if row[0] == key))
                out = rows_of(operators[_owner(key)], mine)
                assert out == [(key, model.get(key))]


def _fold(model: dict[str, int], rows: list[tuple[str, int]]) -> None:
    for user, amount in rows:
        if amount == 0:
            model.pop(user, None)
        else:
            model[user] = model.get(user, 0) + amount


def _two_subtasks(restored: tuple[OperatorSnapshot, ...]) -> list[Any]:
    contexts = [replace(CONTEXT, index=i, parallelism=2, restored=restored) for i in range(2)]
    return [opened(Process(Totals(), KEYS, OUT), context) for context in contexts]


def _owner(key: str) -> int:
    from penstock.plan.keyhash import key_groups, key_hashes

    group = int(key_groups(key_hashes([pa.array([key])])[0], CONTEXT.max_parallelism)[0])
    return group * 2 // CONTEXT.max_parallelism


class BatchTotals:
    def open(self, ctx: Any) -> None:
        self.total = ctx.value_state("total", "n BIGINT NOT NULL")

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        sums = batch.to_pandas().groupby("user", sort=False)["amount"].sum()
        keys = pa.RecordBatch.from_pydict({"user": pa.array(list(sums.index), pa.string())})
        old = pc.fill_null(self.total.get_batch(keys)["n"], 0)
        new = pc.add(old, pa.array(sums.to_numpy()))
        self.total.update_batch(keys, pa.RecordBatch.from_pydict({"n": new}))
        yield pa.RecordBatch.from_arrays([keys["user"], new], schema=OUT)


def test_a_function_of_whole_batches_reads_and_writes_state_by_batch() -> None:
    """S1: value state, vectorised."""
    operator = opened(Process(BatchTotals(), KEYS, OUT))
    assert rows_of(operator, orders(("a", 1), ("b", 5), ("a", 2))) == [("a", 3), ("b", 5)]
    assert rows_of(operator, orders(("b", 1))) == [("b", 6)]


class Duplicates:
    """Writes the batch as it is: keys come several times."""

    def open(self, ctx: Any) -> None:
        self.state = ctx.value_state("s", "n BIGINT")

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        self.state.update_batch(batch, batch.select(["amount"]).rename_columns(["n"]))
        if pc.any(pc.equal(batch["amount"], 0)).as_py():
            self.state.clear_batch(batch)
        read = self.state.get_batch(batch)["n"]
        return pa.RecordBatch.from_arrays([batch["user"], read], schema=OUT)


def test_the_last_value_of_a_key_in_a_batch_counts() -> None:
    operator = opened(Process(Duplicates(), KEYS, OUT))
    batch = orders(("a", 1), ("b", 2), ("a", 3))
    assert rows_of(operator, batch) == [("a", 3), ("b", 2), ("a", 3)]
    assert rows_of(operator, orders(("a", 0))) == [("a", None)]


class _Function:
    """A function put together for one test."""

    def __init__(self, opening: Any = None, work: Any = None) -> None:
        self.opening = opening
        self.work = work

    def open(self, ctx: Any) -> None:
        self.state = self.opening(ctx) if self.opening else ctx.value_state("s", "n BIGINT")

    def process(self, key: Any, rows: list[Any], ctx: Any) -> Any:
        return self.work(self.state, ctx) if self.work else None


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (
            lambda s, ctx: s.update(("x",)),
            SchemaError,
            r"state 's': it was given 'x' \(str\) for column 'n'",
        ),
        (
            lambda s, ctx: s.update((1, 2)),
            SchemaError,
            "state 's': it was given 2 values for 1 columns",
        ),
        (lambda s, ctx: s.update({"m": 2}), SchemaError, "no column 'm'"),
        (lambda s, ctx: ctx.value_state("late", "n INT"), PlanError, "'late' is declared too late"),
        (lambda s, ctx: ctx.value_state("s", "n INT"), PlanError, "'s' is declared twice"),
        (
            lambda s, ctx: [(1, 2)],
            SchemaError,
            r"the function returned 1 \(int\) for column 'user'",
        ),
        (lambda s, ctx: ("a", 1), SchemaError, "'a' .*no row"),
    ],
)
def test_a_wrong_use_of_state_says_what_and_where(work: Any, error: Any, message: str) -> None:
    operator = opened(Process(_Function(work=work), KEYS, OUT))
    with pytest.raises(error, match=f"op-2.*{message}"):
        operator.process(orders(("a", 1)), 0)


def test_reading_state_outside_of_a_key_is_refused() -> None:
    with pytest.raises(PlanError, match="no current key here"):
        opened(Process(_Function(lambda ctx: ctx.value_state("s", "n INT").get()), KEYS, OUT))


@pytest.mark.parametrize("name", ["broadcast_state", "timers", "side_output"])
def test_what_a_function_cannot_have_yet_is_said_plainly(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"ctx.{name} is not there \(yet\)"):
        opened(Process(_Function(lambda ctx: getattr(ctx, name)), KEYS, OUT))


def _restored_as(ddl: str) -> Any:
    """State saved as `n INT NOT NULL` with one row, restored with another declaration."""
    before = opened(
        Process(
            _Function(lambda c: c.value_state("s", "n INT"), lambda s, c: s.update((7,))), KEYS, OUT
        )
    )
    rows_of(before, orders(("a", 1)))
    context = replace(CONTEXT, restored=(snapshot(before),))
    after = _Function(lambda c: c.value_state("s", ddl), lambda s, c: [("got", int(s.get()[0]))])
    return opened(Process(after, KEYS, OUT), context)


@pytest.mark.parametrize("ddl", ["n INT", "n BIGINT", "n DOUBLE", "n INT, m STRING"])
def test_a_state_may_get_nullable_columns_and_wider_numbers(ddl: str) -> None:
    """S10: schema evolution that loses nothing."""
    assert rows_of(_restored_as(ddl), orders(("a", 1))) == [("got", 7)]


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("n SMALLINT", "column 'n' is INT in the checkpoint and SMALLINT now"),
        ("n STRING", "column 'n' is INT in the checkpoint and STRING now"),
        ("m INT", r"column 'n' \(INT\) is in the checkpoint and no longer declared"),
        ("n INT, m INT NOT NULL", r"column 'm' \(INT\) is new and NOT NULL"),
    ],
)
def test_any_other_change_of_a_state_names_operator_state_and_column(
    ddl: str, message: str
) -> None:
    """S10: anything else is refused with an error that names operator, state and column."""
    with pytest.raises(SchemaError, match=f"op-2, state 's': {message}"):
        _restored_as(ddl)


def test_restored_state_that_is_no_longer_declared_is_never_dropped_silently() -> None:
    """R8: dropping state must be asked for."""
    operator = opened(Process(Totals(), KEYS, OUT))
    rows_of(operator, orders(("a", 1)))
    context = replace(CONTEXT, restored=(snapshot(operator),))
    with pytest.raises(PlanError, match="op-2: the checkpoint has state 'total'.*it declares: 's'"):
        opened(Process(_Function(), KEYS, OUT), context)


def test_close_reaches_the_function_once_it_was_opened() -> None:
    closed = []

    class Closing(_Function):
        def close(self) -> None:
            closed.append(1)

    Process(Closing(), KEYS, OUT).close()
    assert closed == []
    opened(Process(Closing(), KEYS, OUT)).close()
    assert closed == [1]


class _Both(Totals):
    process_batch = BatchTotals.process_batch


class _Timers(Totals):
    def on_timer(self, key: Any, time: int, ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda key: key, "which has neither"),
        (_Both(), "got both"),
        (_Timers(), "not supported yet"),
    ],
)
def test_an_object_that_is_no_function_for_process_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"process-2: .*{message}"):
        check_function(function, "process-2")


class Counted:
    def process(self, key: Any, rows: list[Any], ctx: Any) -> Iterator[tuple[int]]:
        yield (len(rows),)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("us", "Europe/Berlin"), [1_729_989_000_000_000, 1_729_992_600_000_000]),
        (pa.time64("ns"), [1, 2]),
    ],
)
def test_keys_that_python_takes_for_equal_stay_apart(kind: pa.DataType, values: list[int]) -> None:
    """I15: the two half past two of the night when clocks are set back; nanoseconds."""
    keys = pa.array(values, pa.int64()).view(kind)
    schema = pa.schema([("at", kind)])
    operator = Process(Counted(), ("at",), parse_schema("n BIGINT"))
    context = replace(CONTEXT, input_schemas=(schema,))
    batch = pa.RecordBatch.from_arrays([keys], schema=schema)
    assert rows_of(opened(operator, context), batch) == [(1,), (1,)]
