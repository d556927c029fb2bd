"""Expressions over columns: `col("amount") * 2 > lit(10)`, evaluated on whole batches by Arrow's kernels.

An expression is a small tree of plain frozen data, so that it pickles. `evaluate(batch)` walks the tree and
calls one kernel per node. Nulls follow SQL: a comparison with null is null, `&` and `|` know that
`false & null` is false, and a filter keeps a row only where its condition is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, SchemaError
from penstock.plan.column_hints import missing
from penstock.plan.kernels import KERNELS, PLAIN_NAMES, SIGNS
from penstock.plan.schema import parse_schema, require_columns, type_ddl

_COLUMN_INSTEAD = 'use pen.col("name") and pen.lit(value) here, as in pen.col("amount") > 0'


class Expression:
    """A value per row. Made with `col`, `lit`, `coalesce` and `when`; never directly."""

    __hash__ = None  # type: ignore[assignment]

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        """A `pa.Array`, or a `pa.Scalar` where the value does not depend on the rows."""
        raise NotImplementedError

    def columns(self) -> frozenset[str]:
        """The names of the columns that are read."""
        raise NotImplementedError

    def name(self) -> str:
        """What the result is called where no alias is given."""
        return str(self)

    def array(self, batch: pa.RecordBatch) -> pa.Array:
        """The value of every row, also where it is a constant."""
        value = self.evaluate(batch)
        return pa.repeat(value, batch.num_rows) if isinstance(value, pa.Scalar) else value

    def result_type(self, schema: pa.Schema, operator: str = "expression") -> pa.DataType:
        """The type for rows of this schema; SchemaError where a column is missing or a type does not fit."""
        require_columns(sorted(self.columns()), schema, operator)
        try:
            return self.evaluate(empty_batch(schema)).type
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            kinds = ", ".join(
                f"{n} {type_ddl(schema.field(n).type)}" for n in sorted(self.columns())
            )
            raise SchemaError(
                f"{operator}: {self} does not fit the types of its columns ({kinds}): {_first_line(error)}"
            ) from error

    # ---- comparison

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _call("equal", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _call("not_equal", self, other)

    def __lt__(self, other: object) -> Expression:
        return _call("less", self, other)

    def __le__(self, other: object) -> Expression:
        return _call("less_equal", self, other)

    def __gt__(self, other: object) -> Expression:
        return _call("greater", self, other)

    def __ge__(self, other: object) -> Expression:
        return _call("greater_equal", self, other)

    def between(self, low: object, high: object) -> Expression:
        """`low <= value <= high`."""
        return (self >= low) & (self <= high)

    def isin(self, *values: object) -> Expression:
        """True where the value is one of these, given one by one or as one list."""
        given = (
            values[0] if len(values) == 1 and isinstance(values[0], (list, tuple, set)) else values
        )
        return IsIn(self, tuple(_sorted_where_possible(given)))

    def is_null(self) -> Expression:
        return _call("is_null", self)

    def is_not_null(self) -> Expression:
        return _call("is_valid", self)

    # ---- logic

    def __and__(self, other: object) -> Expression:
        return _call("and_kleene", self, other)

    def __rand__(self, other: object) -> Expression:
        return _call("and_kleene", other, self)

    def __or__(self, other: object) -> Expression:
        return _call("or_kleene", self, other)

    def __ror__(self, other: object) -> Expression:
        return _call("or_kleene", other, self)

    def __invert__(self) -> Expression:
        return _call("invert", self)

    def __bool__(self) -> NoReturn:
        raise ExpressionTruthError(
            f"the expression {self} has no truth value of its own, it has one per row: use & for 'and',"
            " | for 'or', ~ for 'not', .between(a, b) for 'a <= x <= b' and .isin(...) for 'in',"
            ' with parentheses: (pen.col("a") > 1) & (pen.col("b") < 2)'
        )

    # ---- arithmetic

    def __add__(self, other: object) -> Expression:
        return _call("add_checked", self, other)

    def __radd__(self, other: object) -> Expression:
        return _call("add_checked", other, self)

    def __sub__(self, other: object) -> Expression:
        return _call("subtract_checked", self, other)

    def __rsub__(self, other: object) -> Expression:
        return _call("subtract_checked", other, self)

    def __mul__(self, other: object) -> Expression:
        return _call("multiply_checked", self, other)

    def __rmul__(self, other: object) -> Expression:
        return _call("multiply_checked", other, self)

    def __truediv__(self, other: object) -> Expression:
        return _call("true_divide", self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return _call("true_divide", other, self)

    def __floordiv__(self, other: object) -> Expression:
        return _call("floor_divide", self, other)

    def __rfloordiv__(self, other: object) -> Expression:
        return _call("floor_divide", other, self)

    def __mod__(self, other: object) -> Expression:
        return _call("remainder", self, other)

    def __rmod__(self, other: object) -> Expression:
        return _call("remainder", other, self)

    def __neg__(self) -> Expression:
        return _call("negate_checked", self)

    # ---- text

    def upper(self) -> Expression:
        return _call("utf8_upper", self)

    def lower(self) -> Expression:
        return _call("utf8_lower", self)

    def length(self) -> Expression:
        """The number of characters."""
        return _call("utf8_length", self)

    def startswith(self, text: str) -> Expression:
        return TextMatch("starts_with", self, text)

    def endswith(self, text: str) -> Expression:
        return TextMatch("ends_with", self, text)

    def contains(self, text: str) -> Expression:
        return TextMatch("match_substring", self, text)

    # ---- naming and types

    def cast(self, kind: str | pa.DataType) -> Expression:
        """As another type ("BIGINT", or an Arrow type); a value that does not fit is an error."""
        target = (
            kind if isinstance(kind, pa.DataType) else parse_schema(f"value {kind}").field(0).type
        )
        return Cast(self, target)

    def alias(self, name: str) -> Expression:
        """The same value under another name."""
        return Alias(self, _column_name(name, "alias"))

    if not TYPE_CHECKING:  # type checkers are to know the methods above and no others

        def __getattr__(self, name: str) -> Any:
            """Only for names that there are not: what somebody who knows Spark may have meant."""
            raise missing(name)


class ExpressionTruthError(ConfigError, TypeError):
    """An expression stood where Python wants true or false: `and`, `or`, `not`, `if`, `in`."""


@dataclass(frozen=True, eq=False, repr=False)
class Column(Expression):
    column: str

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        return batch.column(self.column)

    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def __repr__(self) -> str:
        return self.column


@dataclass(frozen=True, eq=False, repr=False)
class Literal(Expression):
    value: pa.Scalar

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        return self.value

    def columns(self) -> frozenset[str]:
        return frozenset()

    def __repr__(self) -> str:
        return repr(self.value.as_py())


@dataclass(frozen=True, eq=False, repr=False)
class Call(Expression):
    """One kernel over its arguments."""

    kernel: str
    arguments: tuple[Expression, ...]

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        return KERNELS[self.kernel](*(argument.evaluate(batch) for argument in self.arguments))

    def columns(self) -> frozenset[str]:
        return frozenset().union(*(argument.columns() for argument in self.arguments))

    def __repr__(self) -> str:
        sign = SIGNS.get(self.kernel)
        shown = [str(argument) for argument in self.arguments]
        if sign is None:
            return f"{PLAIN_NAMES.get(self.kernel, self.kernel)}({', '.join(shown)})"
        return f"({shown[0]} {sign} {shown[1]})" if len(shown) > 1 else f"({sign}{shown[0]})"


@dataclass(frozen=True, eq=False, repr=False)
class IsIn(Expression):
    value: Expression
    choices: tuple[object, ...]

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        value = self.value.array(batch)
        known = [choice for choice in self.choices if choice is not None]
        found = pc.is_in(value, value_set=pa.array(known, type=value.type))
        if len(known) < len(self.choices):  # as in SQL: it might be the unknown one
            found = pc.if_else(found, True, None)
        return pc.if_else(pc.is_valid(value), found, None) if value.null_count else found

    def columns(self) -> frozenset[str]:
        return self.value.columns()

    def __repr__(self) -> str:
        return f"{self.value} IN ({', '.join(map(repr, self.choices))})"


@dataclass(frozen=True, eq=False, repr=False)
class TextMatch(Expression):
    kernel: str
    value: Expression
    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise ConfigError(
                f"{self}: the text to look for is a plain text, not {type(self.pattern).__name__}"
            )

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        return pc.call_function(
            self.kernel, [self.value.evaluate(batch)], pc.MatchSubstringOptions(self.pattern)
        )

    def columns(self) -> frozenset[str]:
        return self.value.columns()

    def __repr__(self) -> str:
        return f"{PLAIN_NAMES[self.kernel]}({self.value}, {self.pattern!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expression):
    value: Expression
    target: pa.DataType

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        value = self.value.evaluate(batch)
        return value.cast(self.target)

    def columns(self) -> frozenset[str]:
        return self.value.columns()

    def name(self) -> str:
        return self.value.name()

    def __repr__(self) -> str:
        return f"CAST({self.value} AS {type_ddl(self.target)})"


@dataclass(frozen=True, eq=False, repr=False)
class Alias(Expression):
    value: Expression
    new_name: str

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        return self.value.evaluate(batch)

    def columns(self) -> frozenset[str]:
        return self.value.columns()

    def name(self) -> str:
        return self.new_name

    def __repr__(self) -> str:
        return f"{self.value} AS {self.new_name}"


@dataclass(frozen=True, eq=False, repr=False)
class When(Expression):
    """The value behind the first condition that is true; null, or `otherwise`, where none is."""

    branches: tuple[tuple[Expression, Expression], ...]
    default: Expression | None = None

    def when(self, condition: object, value: object) -> When:
        """One more branch."""
        self._refuse_after_otherwise()
        return When((*self.branches, (as_expression(condition), as_expression(value))))

    def otherwise(self, value: object) -> When:
        """The value where no condition is true."""
        self._refuse_after_otherwise()
        return When(self.branches, as_expression(value))

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        result = self.default.evaluate(batch) if self.default is not None else pa.scalar(None)
        for condition, value in reversed(self.branches):
            mask = pc.fill_null(condition.array(batch), False)
            result = pc.if_else(mask, value.evaluate(batch), result)
        return result

    def columns(self) -> frozenset[str]:
        parts = [each for branch in self.branches for each in branch]
        parts += [self.default] if self.default is not None else []
        return frozenset().union(*(part.columns() for part in parts))

    def _refuse_after_otherwise(self) -> None:
        if self.default is not None:
            raise ConfigError(f"{self}: .otherwise(...) comes last and only once")

    def __repr__(self) -> str:
        shown = " ".join(f"WHEN {condition} THEN {value}" for condition, value in self.branches)
        last = f" ELSE {self.default}" if self.default is not None else ""
        return f"CASE {shown}{last} END"


def col(name: str) -> Expression:
    """The column of this name."""
    return Column(_column_name(name, "col"))


def lit(value: object) -> Expression:
    """A constant: a Python value that Arrow has a type for, or a `pa.Scalar`."""
    if isinstance(value, Expression):
        return value
    refuse_spark_column(value, "pen.lit")
    try:
        return Literal(value if isinstance(value, pa.Scalar) else pa.scalar(value))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ConfigError(
            f"lit: {value!r} ({type(value).__name__}) cannot be a constant; numbers, text, bytes, booleans,"
            " dates, datetimes, Decimal and None can"
        ) from error


def coalesce(*values: object) -> Expression:
    """The first value that is not null. A text is a column's name."""
    if not values:
        raise ConfigError("coalesce: give at least one column or value")
    return _call("coalesce", *(col(value) if isinstance(value, str) else value for value in values))


def when(condition: object, value: object) -> When:
    """`when(col("n") > 9, "many").otherwise("few")`."""
    return When(((as_expression(condition), as_expression(value)),))


def as_expression(value: object) -> Expression:
    """An expression as it is; any other value as a constant."""
    return value if isinstance(value, Expression) else lit(value)


def is_spark_column(value: object) -> bool:
    return (
        type(value).__name__ == "Column" and type(value).__module__.partition(".")[0] == "pyspark"
    )


def refuse_spark_column(value: object, operator: str, instead: str = _COLUMN_INSTEAD) -> None:
    """A PySpark Column only means something inside Spark SQL: say so, and what to write instead."""
    if is_spark_column(value):
        raise SchemaError(
            f"{operator}: {value} is a PySpark Column, which only Spark SQL can evaluate; {instead}"
        )


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """No rows of this schema: what types are tried on."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _column_name(name: object, where: str) -> str:
    if isinstance(name, str) and name:
        return name
    refuse_spark_column(name, where)
    raise ConfigError(f"{where}: {name!r} is not a column name; write it like pen.col('amount')")


def _call(kernel: str, *arguments: object) -> Expression:
    return Call(kernel, tuple(as_expression(argument) for argument in arguments))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _sorted_where_possible(values: Iterable[object]) -> list[object]:
    """A set has no order of its own, and the plan must be the same every time."""
    return sorted(values, key=repr) if isinstance(values, set) else list(values)
