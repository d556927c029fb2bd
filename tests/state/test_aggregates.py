"""What an aggregate gives, and what is said when it cannot."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.state import aggregates as pen
from penstock.state.aggregates import Aggregate, result_field, result_schema

SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("amount", pa.int32()),
        ("price", pa.float32()),
        ("money", pa.decimal128(12, 2)),
        ("wide", pa.decimal128(33, 4)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)


@pytest.mark.parametrize(
    ("aggregate", "kind", "nullable"),
    [
        (pen.count(), pa.int64(), False),
        (pen.count("tags"), pa.int64(), False),
        (pen.sum("amount"), pa.int64(), True),
        (pen.sum("price"), pa.float64(), True),
        (pen.sum("money"), pa.decimal128(22, 2), True),
        (pen.sum("wide"), pa.decimal128(38, 4), True),
        (pen.avg("money"), pa.float64(), True),
        (pen.min("user"), pa.string(), True),
        (pen.max("price"), pa.float32(), True),
        (pen.first("at"), pa.timestamp("us", "UTC"), True),
        (pen.last("wide"), pa.decimal128(33, 4), True),
    ],
)
def test_the_type_of_a_result(aggregate: Aggregate, kind: pa.DataType, nullable: bool) -> None:
    assert result_field("x", aggregate, SCHEMA) == pa.field("x", kind, nullable)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (
            pen.sum("amout"),
            r"x = sum\(amout\): there is no column 'amout' \(did you mean 'amount'\?\); the columns",
        ),
        (pen.sum("zzz"), r"there is no column 'zzz'; the columns are user, amount"),
        (
            pen.sum("user"),
            r"column 'user' has type string; sum takes integers, floats and decimal128",
        ),
        (pen.avg("at"), r"column 'at' has type timestamp.*; avg takes"),
        (pen.min("tags"), r"column 'tags' has type list.*; min takes numbers"),
        (Aggregate("median", "amount"), r"no such aggregate; there are count, sum"),
        (Aggregate("sum", None), r"only count\(\) goes without a column"),
    ],
)
def test_what_cannot_be_computed_is_said_with_name_type_and_choice(
    aggregate: Aggregate, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        result_field("x", aggregate, SCHEMA)


def test_the_rows_of_an_aggregation_are_the_keys_and_then_the_results() -> None:
    schema = result_schema(["at", "user"], {"n": pen.count(), "total": pen.sum("amount")}, SCHEMA)
    assert schema.names == ["at", "user", "n", "total"]


def test_a_result_may_not_take_the_name_of_a_key() -> None:
    with pytest.raises(SchemaError, match="'user' has the name of a key column"):
        result_schema(["user"], {"user": pen.count()}, SCHEMA)


def test_an_aggregation_of_nothing_is_refused() -> None:
    with pytest.raises(SchemaError, match="nothing to aggregate"):
        result_schema(["user"], {}, SCHEMA)
