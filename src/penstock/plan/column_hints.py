"""What somebody who knows PySpark's or pandas' columns may have meant by a name that an expression does not have."""

from __future__ import annotations

NOT_THERE = (
    *("concat", "concat_ws", "substring", "regexp_extract", "regexp_replace", "split", "trim"),
    *(
        "abs",
        "round",
        "floor",
        "ceil",
        "sqrt",
        "to_timestamp",
        "to_date",
        "date_trunc",
        "date_format",
    ),
    *("from_json", "to_json", "get_json_object", "struct", "explode", "hash", "xxhash64"),
)
"""Functions that Spark has, and Arrow or Python in another way."""
BY_ARROW = (
    "it is not there yet; use .map_batches(...) with pyarrow.compute, or .map(...) with Python"
)
_TEXT = "use .startswith(...), .endswith(...) or .contains(...), or .map_batches(...) with pyarrow.compute"

MEANT = {
    **dict.fromkeys(("isNull", "isnull", "isna"), "use .is_null()"),
    **dict.fromkeys(("isNotNull", "notnull", "notna"), "use .is_not_null()"),
    **dict.fromkeys(("is_in", "isIn"), "use .isin(...)"),
    **dict.fromkeys(("like", "ilike", "rlike", "matches"), _TEXT),
    **dict.fromkeys((*NOT_THERE, "substr", "getItem", "getField", "str", "dt"), BY_ARROW),
    **dict.fromkeys(
        ("asc", "desc"), "a stream has no end to sort at; sort what a sink has written"
    ),
    "over": "windows are not there yet; aggregates run on: .key_by(...).agg(...)",
    "astype": "use .cast(...)",
    "startsWith": "use .startswith(...)",
    "endsWith": "use .endswith(...)",
    "otherwise": "it goes behind pen.when(condition, value)",
    "eqNullSafe": "use (a == b) | (a.is_null() & b.is_null())",
}


def missing(name: str) -> AttributeError:
    """The error for a name that an expression does not have, with what may have been meant."""
    hint = f": {MEANT[name]}" if name in MEANT else ""
    return AttributeError(f"a column expression has no {name!r}{hint}")
