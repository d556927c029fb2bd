"""Columns by "*", `with_columns`, and keys that are expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock as pen
from penstock.plan.schema import to_ddl


def clicks() -> pen.Stream:
    rows = [("ann", 59), ("bob", 60), ("ann", 61), ("ann", 119)]
    return pen.from_rows(rows, "user STRING NOT NULL, second BIGINT")


# ---- select


def test_a_star_is_all_columns_also_among_others() -> None:
    for star in ("*", pen.col("*")):
        assert clicks().select(star).schema.equals(clicks().schema)
        stream = clicks().select(star, twice=pen.col("second") * 2)
        assert to_ddl(stream.schema) == "user STRING NOT NULL, second BIGINT, twice BIGINT"
        assert stream.take(1) == [("ann", 59, 118)]
    stream = clicks().select((pen.col("second") + 1).alias("next"), "*")
    assert stream.schema.names == ["next", "user", "second"]


def test_a_star_and_a_column_of_the_same_name_point_at_with_columns() -> None:
    with pytest.raises(pen.SchemaError, match=r"two columns are called 'second'.*with_columns"):
        clicks().select("*", second=pen.col("second") * 2)


# ---- with_columns


def test_with_columns_replaces_in_place_and_puts_new_ones_behind() -> None:
    stream = clicks().with_columns(
        user=pen.col("user").upper(), minute=pen.col("second") // 60, who="user"
    )
    assert to_ddl(stream.schema) == "user STRING, second BIGINT, minute BIGINT, who STRING"
    assert stream.take(2) == [("ANN", 59, 0, "ann"), ("BOB", 60, 1, "bob")]


def test_columns_that_stay_keep_that_they_are_not_null() -> None:
    stream = clicks().with_columns(minute=pen.col("second") // 60)
    assert not stream.schema.field("user").nullable


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.with_columns(),
        lambda s: s.with_columns("twice", pen.col("second") * 2),
        lambda s: s.with_columns({"twice": pen.col("second") * 2}),
        lambda s: s.with_columns((pen.col("second") * 2).alias("twice")),
    ],
)
def test_with_columns_without_names_says_how_it_is_written(use: Any) -> None:
    with pytest.raises(pen.PlanError, match=r"with_columns-2: .*with_columns\(twice=.*\*\*columns"):
        use(clicks())


def test_a_wrong_column_is_told_with_the_operator() -> None:
    with pytest.raises(pen.SchemaError, match=r"with_columns-2: .*'secnd'; did you mean 'second'"):
        clicks().with_columns(minute=pen.col("secnd") // 60)
    with pytest.raises(pen.ConfigError, match=r"with_columns-2: 3 .*pen\.lit"):
        clicks().with_columns(three=3)  # type: ignore[arg-type]


# ---- keys


@pytest.mark.parametrize(
    ("keys", "named", "name"),
    [
        ((), {"minute": pen.col("second") // 60}, "minute"),
        (((pen.col("second") // 60).alias("minute"),), {}, "minute"),
        ((pen.col("second") // 60,), {}, "(second // 60)"),
    ],
)
def test_a_key_that_is_an_expression_is_a_column_with_its_name(
    keys: Any, named: Any, name: str
) -> None:
    """Its name is the keyword, the alias, or the expression's own text."""
    counts = clicks().key_by("user", *keys, **named).agg(n=pen.count(), last=pen.last("second"))
    assert counts.schema.names == ["user", name, "n", "last"]
    found = {row[:2]: row[2:] for row in counts.take()}
    assert found == {("ann", 0): (1, 59), ("bob", 1): (1, 60), ("ann", 1): (2, 119)}


class Seen:
    def process(self, key: pen.Row, rows: list[pen.Row], ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield key.minute, sorted(row.second for row in rows), rows[0].minute


def test_a_function_sees_the_computed_key_beside_all_columns() -> None:
    stream = clicks().key_by(minute=pen.col("second") // 60)
    assert stream.schema.names == ["user", "second", "minute"]
    seen = stream.process(Seen(), "minute BIGINT, seconds ARRAY<BIGINT>, again BIGINT").take()
    assert sorted(seen) == [(0, [59], 0), (1, [60, 61, 119], 1)]


def test_plain_keys_need_no_operator_of_their_own() -> None:
    """Names that were made automatically stay as they are, and with them the state that is found by them."""
    for keyed in (clicks().key_by(pen.col("user")), clicks().key_by(user="user")):
        names = [node.name for node in keyed.agg(n=pen.count()).graph().nodes]
        assert names == ["rows-source-1", "agg-2"]
    computed = clicks().key_by(minute=pen.col("second") // 60).agg(n=pen.count())
    assert [node.name for node in computed.graph().nodes] == ["rows-source-1", "key_by-2", "agg-3"]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s.key_by(user=pen.col("user").upper()), r"'user', and there is such a column"),
        (lambda s: s.key_by(pen.col("second").cast("INT")), r"'second', and there is such"),
        (lambda s: s.key_by(pen.col("second") / 60), r"cannot be a key.*a // b divides to whole"),
        (lambda s: s.key_by(m=pen.col("secnd") // 60), r"did you mean 'second'"),
        (lambda s: s.key_by(m=pen.col("user"), n=pen.lit(None)), r"has no type"),
        (lambda s: s.key_by("user", "user"), r"'user' is given twice"),
        (lambda s: s.key_by("usr", minute=pen.col("second") // 60), r"did you mean 'user'"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_with_what_to_do(use: Any, message: str) -> None:
    with pytest.raises(pen.SchemaError, match=f"key_by behind rows-source-1: .*{message}"):
        use(clicks())
