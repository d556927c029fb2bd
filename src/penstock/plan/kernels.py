"""The kernels behind expressions: Arrow's own, and the few where SQL's rules differ from Arrow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def _true_divide(left: Any, right: Any) -> Any:
    """As in Spark: whole numbers divide to a DOUBLE, and a division by zero is null."""
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        left = pc.cast(left, pa.float64())
    return pc.divide_checked(left, _null_where_zero(right))


def _floor_divide(left: Any, right: Any) -> Any:
    """Whole numbers divided and rounded down, as in Python; a division by zero is null."""
    if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)):
        raise TypeError(f"// needs whole numbers on both sides, got {left.type} and {right.type}")
    divisor = _null_where_zero(right)
    quotient = pc.divide_checked(left, divisor)
    rest = pc.subtract(left, pc.multiply(quotient, divisor))
    is_lower = pc.and_(pc.not_equal(rest, 0), pc.xor(pc.less(rest, 0), pc.less(divisor, 0)))
    return pc.if_else(is_lower, pc.subtract(quotient, pa.scalar(1, quotient.type)), quotient)


def _remainder(left: Any, right: Any) -> Any:
    """The rest of a whole-number division, with the sign of the left side, as in SQL."""
    if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)):
        raise TypeError(f"% needs whole numbers on both sides, got {left.type} and {right.type}")
    divisor = _null_where_zero(right)
    return pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))


def _null_where_zero(value: Any) -> Any:
    zero = pa.scalar(0, type=value.type) if not pa.types.is_decimal(value.type) else pa.scalar(0)
    return pc.if_else(pc.equal(value, zero), pa.scalar(None, type=value.type), value)


KERNELS: dict[str, Callable[..., Any]] = {
    name: getattr(pc, name)
    for name in (
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("is_null", "is_valid", "and_kleene", "or_kleene", "invert", "coalesce"),
        *("add_checked", "subtract_checked", "multiply_checked", "negate_checked"),
        *("utf8_upper", "utf8_lower", "utf8_length"),
    )
} | {"true_divide": _true_divide, "floor_divide": _floor_divide, "remainder": _remainder}

SIGNS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and_kleene": "AND",
    "or_kleene": "OR",
    "invert": "NOT ",
    "add_checked": "+",
    "subtract_checked": "-",
    "multiply_checked": "*",
    "true_divide": "/",
    "floor_divide": "//",
    "remainder": "%",
    "negate_checked": "-",
}
PLAIN_NAMES = {
    "is_valid": "is_not_null",
    "utf8_upper": "upper",
    "utf8_lower": "lower",
    "utf8_length": "length",
    "starts_with": "startswith",
    "ends_with": "endswith",
    "match_substring": "contains",
}
