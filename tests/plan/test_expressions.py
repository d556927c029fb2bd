"""Expressions: SQL's values by Arrow's kernels, and errors for what cannot be one."""

import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, SchemaError
from penstock.plan.expressions import Expression, coalesce, col, lit, when

BATCH = pa.RecordBatch.from_pydict(
    {
        "a": pa.array([1, 2, None, 0], pa.int64()),
        "i": pa.array([1, 2, 3, 4], pa.int32()),
        "f": pa.array([1.5, None, 2.0, -1.0]),
        "s": pa.array(["x", "Ab", None, ""]),
        "d": pa.array(
            [Decimal("1.50"), Decimal("0.00"), None, Decimal("3.00")], pa.decimal128(10, 2)
        ),
        "t": pa.array([True, False, None, True]),
    }
)

CASES: list[tuple[Expression, list[Any]]] = [
    (col("a") == 1, [True, False, None, False]),
    (col("a") != 1, [False, True, None, True]),
    (col("a") < 1, [False, False, None, True]),
    (col("a") <= 1, [True, False, None, True]),
    (col("a") > 1, [False, True, None, False]),
    (col("a") >= 1, [True, True, None, False]),
    (col("a").between(1, 2), [True, True, None, False]),
    (col("a").isin(0, 2), [False, True, None, True]),
    (col("a").isin([0, 2]), [False, True, None, True]),
    (col("a").isin(0, None), [None, None, None, True]),
    (~col("a").isin(1), [False, True, None, True]),
    (col("a").is_null(), [False, False, True, False]),
    (col("a").is_not_null(), [True, True, False, True]),
    (col("t") & (col("f") > 0), [True, False, None, False]),
    (col("t") | lit(None).cast("BOOLEAN"), [True, None, None, True]),
    (True & col("t"), [True, False, None, True]),
    (False | col("t"), [True, False, None, True]),
    (~col("t"), [False, True, None, False]),
    (col("a") + col("i"), [2, 4, None, 4]),
    (1 - col("a"), [0, -1, None, 1]),
    (2 * col("f"), [3.0, None, 4.0, -2.0]),
    (10 + col("i") - 1, [10, 11, 12, 13]),
    (-col("a"), [-1, -2, None, 0]),
    (col("i") / col("a"), [1.0, 1.0, None, None]),
    (6 / col("i"), [6.0, 3.0, 2.0, 1.5]),
    (col("f") / 0, [None, None, None, None]),
    (col("i") % 2, [1, 0, 1, 0]),
    (-7 % col("i"), [0, -1, -1, -3]),
    (col("i") % col("a"), [0, 0, None, None]),
    (col("i") // 2, [0, 1, 1, 2]),
    (-7 // col("i"), [-7, -4, -3, -2]),
    (col("i") // col("a"), [1, 1, None, None]),
    (col("d") + 1, [Decimal("2.50"), Decimal("1.00"), None, Decimal("4.00")]),
    (col("i").cast("STRING"), ["1", "2", "3", "4"]),
    (coalesce("a", -1), [1, 2, -1, 0]),
    (coalesce(col("a"), "i"), [1, 2, 3, 0]),
    (
        when(col("a") > 1, "many").when(col("a") == 1, "one").otherwise("none"),
        ["one", "many", "none", "none"],
    ),
    (when(col("a") > 1, col("i")), [None, 2, None, None]),
    (col("s").upper(), ["X", "AB", None, ""]),
    (col("s").lower(), ["x", "ab", None, ""]),
    (col("s").length(), [1, 2, None, 0]),
    (col("s").startswith("A"), [False, True, None, False]),
    (col("s").endswith("b"), [False, True, None, False]),
    (col("s").contains(""), [True, True, None, True]),
    (lit(7), [7, 7, 7, 7]),
    (col("a").alias("z"), [1, 2, None, 0]),
]


@pytest.mark.parametrize(("expression", "values"), CASES, ids=[str(case[0]) for case in CASES])
def test_an_expression_gives_sql_s_value_for_every_row(
    expression: Expression, values: list[Any]
) -> None:
    result = expression.array(BATCH)
    assert result.to_pylist() == values
    assert result.type == expression.result_type(BATCH.schema)


@pytest.mark.parametrize(("expression", "values"), CASES, ids=[str(case[0]) for case in CASES])
def test_an_expression_gives_the_same_after_pickling(
    expression: Expression, values: list[Any]
) -> None:
    copy = pickle.loads(pickle.dumps(expression))
    assert copy.array(BATCH).to_pylist() == values
    assert str(copy) == str(expression)


def test_the_columns_that_an_expression_reads_are_known() -> None:
    expression = when(col("a") > col("i"), col("s").upper()).otherwise(
        coalesce("f", 1).cast("STRING")
    )
    assert expression.columns() == {"a", "i", "s", "f"}
    assert lit(1).columns() == set()


def test_an_alias_names_the_result_and_a_cast_keeps_the_name() -> None:
    assert (col("a") + 1).alias("b").name() == "b"
    assert col("a").cast("STRING").name() == "a"
    assert (col("a") + 1).name() == "(a + 1)"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: (col("a") > 1) and (col("a") < 3),
        lambda: (col("a") > 1) or (col("a") < 3),
        lambda: not col("a"),
        lambda: 1 if col("a") > 1 else 2,
        lambda: 1 < col("a") < 3,
        lambda: col("a") in [1, 2],
    ],
)
def test_python_s_own_logic_on_an_expression_is_refused_with_what_to_write(attempt: Any) -> None:
    with pytest.raises(ConfigError, match="use & for 'and'") as caught:
        attempt()
    assert isinstance(caught.value, TypeError)


def test_a_missing_column_names_the_operator_and_the_columns() -> None:
    with pytest.raises(SchemaError, match=r"filter-1: there is no column 'ss'; did you mean 's'\?"):
        (col("ss") == "x").result_type(BATCH.schema, "filter-1")


@pytest.mark.parametrize(
    "expression",
    [
        col("s") + 1,
        col("s") > 1,
        col("a").upper(),
        col("f") % 2,
        col("f") // 2,
        col("a").isin("x"),
        ~col("a"),
        col("a") & True,
    ],
    ids=str,
)
def test_types_that_do_not_fit_are_refused_with_the_columns_types(expression: Expression) -> None:
    with pytest.raises(SchemaError, match=r"filter-1: .* does not fit the types of its columns"):
        expression.result_type(BATCH.schema, "filter-1")


def test_a_cast_that_would_lose_something_is_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid):
        (col("f") + 0.25).cast("INT").array(BATCH)


def test_an_overflow_is_an_error_and_never_a_wrong_number() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([2**62], pa.int64())})
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        (col("a") * 2).array(batch)


class Column:
    """Looks to Penstock as PySpark's Column does: by its name and module."""

    __module__ = "pyspark.sql.column"


@pytest.mark.parametrize(
    "use", [lambda c: lit(c), lambda c: col("a") > c, lambda c: col(c), lambda c: coalesce("a", c)]
)
def test_a_pyspark_column_is_refused_with_what_to_use_instead(use: Any) -> None:
    with pytest.raises(SchemaError, match=r'PySpark Column.*pen\.col\("name"\)'):
        use(Column())


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_column_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="not a column name"):
        col(name)


def test_a_value_that_arrow_has_no_type_for_is_no_constant() -> None:
    with pytest.raises(ConfigError, match="cannot be a constant"):
        lit(object())


def test_a_pattern_must_be_text() -> None:
    with pytest.raises(ConfigError, match="plain text"):
        col("s").contains(3)  # type: ignore[arg-type]


def test_otherwise_comes_last_and_once() -> None:
    done = when(col("a") > 1, 1).otherwise(2)
    with pytest.raises(ConfigError, match="comes last"):
        done.otherwise(3)
    with pytest.raises(ConfigError, match="comes last"):
        done.when(col("a") > 2, 3)


_NUMBERS = st.lists(st.none() | st.integers(-1000, 1000), min_size=1, max_size=20)


@given(_NUMBERS, st.integers(-10, 10))
def test_arithmetic_agrees_with_python_row_by_row(values: list[int | None], other: int) -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array(values, pa.int64())})
    result = ((col("x") + other) * 3 - other).array(batch).to_pylist()
    assert result == [None if x is None else (x + other) * 3 - other for x in values]


@given(_NUMBERS, st.integers(-10, 10))
def test_the_remainder_has_the_sign_of_the_left_side_and_is_null_for_zero(
    values: list[int | None], divisor: int
) -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array(values, pa.int64())})
    expected = [
        None if x is None or divisor == 0 else (abs(x) % abs(divisor)) * (1 if x >= 0 else -1)
        for x in values
    ]
    assert (col("x") % divisor).array(batch).to_pylist() == expected


@given(_NUMBERS, st.integers(-10, 10))
def test_a_division_to_whole_numbers_rounds_down_and_is_null_for_zero(
    values: list[int | None], divisor: int
) -> None:
    """So that buckets below zero are as wide as the others."""
    batch = pa.RecordBatch.from_pydict({"x": pa.array(values, pa.int64())})
    expected = [None if x is None or divisor == 0 else x // divisor for x in values]
    assert (col("x") // divisor).array(batch).to_pylist() == expected
