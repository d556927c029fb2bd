"""Mistakes that newcomers make: the error says what was meant, or that it is not there yet."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as pen


def people() -> pen.Stream:
    return pen.from_rows([("ann", 3), ("bob", 5)], "user STRING, amount BIGINT")


# ---- a batch taken for a row


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda row: row.amount > 3, AttributeError),
        (lambda row: row["amount"] > 3, TypeError),
    ],
)
def test_a_filter_written_for_rows_is_told_that_it_gets_batches(
    function: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        people().filter(function).take(2)
    (note,) = caught.value.__notes__
    assert "gets a whole batch" in note and "not a row" in note
    assert 'pen.col("amount") > 0' in note


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda row: (row.user, row.amount + 1), AttributeError),
        (lambda row: row["amount"] > 3, TypeError),
    ],
)
def test_map_batches_with_a_function_for_rows_points_at_map(
    function: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        people().map_batches(function).take(2)
    (note,) = caught.value.__notes__
    assert "map_batches-2: the function of map_batches gets a whole batch" in note
    assert "use .map(...)" in note


def test_other_errors_of_a_batch_function_stay_as_they_are() -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        people().map_batches(fails).take(1)
    assert not hasattr(caught.value, "__notes__")


# ---- no schema given


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.map(lambda row: (row.user,)),
        lambda s: s.map(lambda row: {"user": row.user, "amount": 1, "twice": 2}),
        lambda s: s.flat_map(lambda row: [(row.user, "x")]),
        lambda s: s.map_batches(lambda batch: batch.select(["user"])),
    ],
)
def test_where_no_schema_was_given_the_error_says_so_and_declares_nothing(use: Any) -> None:
    with pytest.raises(pen.SchemaError) as caught:
        use(people()).take(2)
    text = str(caught.value)
    assert "No schema was given, so the result must have the input's" in text
    assert "user STRING, amount BIGINT" in text
    assert "declared" not in text.lower()


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.map(lambda row: (row.user,), "user STRING, n INT"),
        lambda s: s.map_batches(lambda batch: batch.select(["user"]), "user STRING, n INT"),
    ],
)
def test_a_schema_that_was_given_is_called_declared(use: Any) -> None:
    with pytest.raises(pen.SchemaError, match="declared"):
        use(people()).take(2)


# ---- aggregates


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (pen.count, r"forgot \(\)\? Write pen\.count\(\)"),
        (pen.sum, r'forgot \(\)\? Write pen\.sum\("column"\)'),
        (max, r'forgot \(\)\? Write pen\.max\("column"\)'),
    ],
)
def test_an_aggregate_without_parentheses_is_told_so(given: Any, meant: str) -> None:
    with pytest.raises(pen.ConfigError, match=f"agg-2: n=... is no aggregate: .*{meant}"):
        people().key_by("user").agg(n=given)
    with pytest.raises(pen.ConfigError, match=f"agg-2: .*{meant}, with a name"):
        people().key_by("user").agg(given)


# ---- names that there are not


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("join", "not there yet.*union"),
        ("window", "not there yet"),
        ("distinct", r"yet.*process\("),
        ("collect", r"take\(n\).*CollectSink"),
        ("toPandas", r"take\(n\).*CollectSink"),
        ("start", r"\.to\(sink\)"),
        ("groupBy", "key_by"),
        ("withColumn", r"with_columns\("),
        ("withWatermark", "watermarks are not there yet"),
        ("with_watermark", "watermarks are not there yet"),
        ("session_window", "not there yet"),
        ("foreachBatch", r"pen\.Sink"),
        ("applyInPandasWithState", r"key_by\(\.\.\.\)\.process\("),
        ("withColumnRenamed", r'new="old"'),
        ("unionByName", r"\.union\("),
        ("dropna", "is_not_null"),
        ("sum", r"key_by\(\.\.\.\)\.agg"),
    ],
)
def test_what_a_stream_does_not_have_is_an_attribute_error_with_a_hint(
    name: str, meant: str
) -> None:
    with pytest.raises(AttributeError, match=f"a stream has no '{name}': .*{meant}"):
        getattr(people(), name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("count", r"agg\(n=pen\.count\(\)\)"),
        ("sum", r"agg\(sum=pen\.sum\("),
        ("window", "not there yet"),
        ("session_window", "not there yet"),
        ("withWatermark", "not there yet"),
        ("applyInPandasWithState", r"use \.process\("),
        ("filter", "goes before key_by"),
        ("with_columns", "goes before key_by"),
        ("to", "goes before key_by or behind"),
    ],
)
def test_what_a_stream_by_key_does_not_have_is_an_attribute_error_with_a_hint(
    name: str, meant: str
) -> None:
    with pytest.raises(AttributeError, match=f"a stream by key has no '{name}': .*{meant}"):
        getattr(people().key_by("user"), name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mean", r"pen\.avg"),
        ("count_distinct", "not there yet"),
        ("read", "FileSource"),
        ("session_window", "not there yet"),
        ("udf", "map_batches"),
        ("lower", r'pen\.col\("x"\)\.lower\(\)'),
        ("date_trunc", "pyarrow.compute"),
        ("current_timestamp", "other rows after a restart"),
    ],
)
def test_what_penstock_does_not_have_is_an_attribute_error_with_a_hint(
    name: str, meant: str
) -> None:
    with pytest.raises(AttributeError, match=f"penstock has no '{name}': .*{meant}"):
        getattr(pen, name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("isNull", r"\.is_null\(\)"),
        ("rlike", r"\.contains\("),
        ("over", "not there yet"),
        ("otherwise", r"pen\.when\("),
    ],
)
def test_what_a_column_does_not_have_is_an_attribute_error_with_a_hint(
    name: str, meant: str
) -> None:
    with pytest.raises(AttributeError, match=f"a column expression has no '{name}': .*{meant}"):
        getattr(pen.col("amount"), name)


def test_what_pipelines_and_jobs_do_not_have_is_an_attribute_error_with_a_hint() -> None:
    pipeline: Any = people().to(pen.CollectSink())
    with pytest.raises(AttributeError, match=r"a pipeline has no 'run': use \.start\("):
        pipeline.run()
    job: Any = pen.Job(None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"no 'awaitTermination': use \.await_termination\("):
        job.awaitTermination()


def test_a_name_that_nobody_could_mean_is_a_plain_attribute_error() -> None:
    assert not hasattr(people(), "frobnicate")
    assert not hasattr(people().key_by("user"), "frobnicate")
    assert not hasattr(pen.col("user"), "frobnicate")
    assert not hasattr(people().to(pen.CollectSink()), "frobnicate")
    with pytest.raises(AttributeError, match="penstock has no 'frobnicate'$"):
        getattr(pen, "frobnicate")  # noqa: B009 (a type checker refuses the attribute)


def test_hints_are_for_names_that_are_really_missing() -> None:
    """One that has come to be must not be called missing."""
    from penstock.api import hints
    from penstock.plan import column_hints

    assert not [name for name in hints.STREAM if name in dir(pen.Stream)]
    assert not [name for name in hints.KEYED if name in dir(pen.KeyedStream)]
    assert not [name for name in hints.PENSTOCK if name in dir(pen)]
    assert not [name for name in hints.PIPELINE if name in dir(pen.Pipeline)]
    assert not [name for name in hints.JOB if name in dir(pen.Job)]
    assert not [name for name in column_hints.MEANT if name in dir(pen.Expression)]
