"""Schemas: Spark DDL to Arrow and back, and errors that point at the place."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError, SchemaError
from penstock.plan.schema import (
    parse_schema,
    require_columns,
    schema_differences,
    to_ddl,
    unknown_column,
)

UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("BOOLEAN", pa.bool_()),
        ("TINYINT", pa.int8()),
        ("BYTE", pa.int8()),
        ("SMALLINT", pa.int16()),
        ("SHORT", pa.int16()),
        ("INT", pa.int32()),
        ("integer", pa.int32()),
        ("BIGINT", pa.int64()),
        ("Long", pa.int64()),
        ("FLOAT", pa.float32()),
        ("REAL", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("DECIMAL(5)", pa.decimal128(5, 0)),
        ("DECIMAL(38, 18)", pa.decimal128(38, 18)),
        ("STRING", pa.string()),
        ("VARCHAR(20)", pa.string()),
        ("CHAR(3)", pa.string()),
        ("BINARY", pa.binary()),
        ("DATE", pa.date32()),
        ("TIMESTAMP", UTC),
        ("TIMESTAMP_NTZ", pa.timestamp("us")),
        ("ARRAY<INT>", pa.list_(pa.field("element", pa.int32()))),
        ("MAP<STRING, BIGINT>", pa.map_(pa.string(), pa.int64())),
        ("STRUCT<a: INT, b: STRING>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("STRUCT<a INT>", pa.struct([("a", pa.int32())])),
        ("ARRAY<ARRAY<DATE>>", pa.list_(pa.list_(pa.date32()))),
    ],
)
def test_every_ddl_type_has_its_arrow_type(ddl: str, kind: pa.DataType) -> None:
    """S9: state and rows are typed by a schema; no type is widened or narrowed on the way."""
    assert parse_schema(f"x {ddl}").field("x").type == kind


def test_names_may_be_quoted_and_columns_may_have_colons_not_null_and_comments() -> None:
    schema = parse_schema(
        "`a b`: INT NOT NULL COMMENT 'it''s', `x``y` STRING COMMENT \"q\", type INT"
    )
    assert schema.names == ["a b", "x`y", "type"]
    assert not schema.field("a b").nullable
    assert schema.field("a b").metadata == {b"comment": b"it's"}
    assert schema.field("x`y").nullable


def test_an_arrow_schema_is_taken_as_it_is() -> None:
    schema = pa.schema([("a", pa.uint16())])
    assert parse_schema(schema) is schema


@pytest.mark.parametrize(
    ("ddl", "position", "problem"),
    [
        ("", 1, "expected a column name"),
        ("a", 2, "expected a type"),
        ("a INTT", 3, "did you mean INT"),
        ("a INT,", 7, "expected a column name"),
        ("a INT b INT", 7, "expected ','"),
        ("a ARRAY<INT", 12, "expected '>'"),
        ("a MAP<INT>", 10, "expected ','"),
        ("a DECIMAL(40,2)", 3, "precision"),
        ("a DECIMAL(4,5)", 3, "scale"),
        ("a DECIMAL(x)", 11, "whole number"),
        ("a VARCHAR", 10, r"expected '\('"),
        ("a INT COMMENT x", 15, "quoted comment"),
        ("a INT NOT b", 7, "expected ','"),
        ("a INT; b INT", 6, "unexpected character"),
        ("a `INT`", 3, "expected a type"),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, 201, "nested more than"),
    ],
)
def test_a_wrong_ddl_is_refused_with_its_position(ddl: str, position: int, problem: str) -> None:
    with pytest.raises(SchemaError, match=f"position {position}: .*{problem}"):
        parse_schema(ddl)


@pytest.mark.parametrize(
    "ddl", ["a INT, a STRING", pa.schema([("a", pa.int8()), ("a", pa.int8())])]
)
def test_a_column_that_appears_twice_is_refused(ddl: str) -> None:
    with pytest.raises(SchemaError, match="'a' appears twice"):
        parse_schema(ddl)


def test_something_that_is_no_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="not dict"):
        parse_schema({"a": "INT"})  # type: ignore[arg-type]


@given(st.text(max_size=40))
def test_no_text_raises_anything_but_a_schema_error(text: str) -> None:
    try:
        parse_schema(text)
    except PenstockError as error:
        assert isinstance(error, SchemaError)  # noqa: PT017


_SIMPLE = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.binary(), pa.date32(), UTC]
)
_TYPES = st.recursive(
    _SIMPLE,
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.tuples(_SIMPLE, inner).map(lambda pair: pa.map_(*pair)),
        st.lists(inner, max_size=3).map(
            lambda kinds: pa.struct([(f"f {i}", k) for i, k in enumerate(kinds)])
        ),
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=8), _TYPES, st.booleans(), st.none() | st.text())
    ).filter(lambda columns: columns and len({name for name, *_ in columns}) == len(columns))
)
def test_a_schema_survives_the_way_to_ddl_and_back(
    columns: list[tuple[str, pa.DataType, bool, str]],
) -> None:
    """S9: a schema can be written down as text and read back as the same schema."""
    schema = pa.schema(
        pa.field(name, kind, nullable, {b"comment": note.encode()} if note is not None else None)
        for name, kind, nullable, note in columns
    )
    assert parse_schema(to_ddl(schema)).equals(schema, check_metadata=True)


def test_an_unknown_column_is_answered_with_the_likeliest_one_and_all_there_are() -> None:
    schema = parse_schema("user STRING, amount DOUBLE")
    message = str(unknown_column("Amuont", schema, "filter-2"))
    assert "filter-2" in message
    assert "did you mean 'amount'" in message
    assert "user, amount" in message


def test_required_columns_that_are_there_pass_and_the_first_missing_one_is_named() -> None:
    schema = parse_schema("a INT, b INT")
    require_columns(["a", "b"], schema, "x")
    with pytest.raises(SchemaError, match="no column 'c'"):
        require_columns(["a", "c", "d"], schema, "x")


def test_differences_name_every_column_and_both_types() -> None:
    have = parse_schema("a INT, b STRING, c DATE")
    want = parse_schema("a BIGINT, b STRING, d DATE")
    text = "; ".join(schema_differences(have, want))
    assert "'d' is missing" in text
    assert "'a' is INT, expected BIGINT" in text
    assert "'c' (DATE) is not expected" in text
    assert schema_differences(have, have) == []


def test_another_order_of_the_same_columns_is_a_difference() -> None:
    lines = schema_differences(parse_schema("a INT, b INT"), parse_schema("b INT, a INT"))
    assert len(lines) == 1
    assert "order" in lines[0]
