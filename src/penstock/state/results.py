"""The results of aggregates, out of the columns that they are kept in: for who has a checkpoint and not the job.

A fold names its columns `<result>.<word>` (see `folds` and `exact_sums`). Most keep just the result; an average is kept
as a sum and a count, a sum of decimals as limbs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from penstock.errors import CheckpointCorrupt
from penstock.state.exact_sums import LIMBS, SUM_TYPE, decimal_sums
from penstock.state.flat import values_of
from penstock.state.folds import averages

AGGREGATE = b"penstock.aggregate"
"""Says of a stored column which aggregate it is kept for, as `sum(amount)`."""

Columns: TypeAlias = Sequence[pa.Array]

_ALONE = ("count", "sum", "min", "max", "first", "last")
_AVERAGE = ("sum", "count")
_LIMB_WORDS = tuple(f"sum{i}" for i in range(LIMBS))
_DECIMAL = re.compile(rb"([1-9][0-9]?),([0-9]{1,2})")


class Result(NamedTuple):
    """`compute` makes it of the `columns` that it is kept in, given by their numbers."""

    field: pa.Field
    columns: tuple[int, ...]
    compute: Callable[[Columns], pa.Array]
    means: str = ""
    """Which aggregate it is."""


def results_of(stored: Sequence[pa.Field]) -> list[Result]:
    """The results that are kept in these columns, in order."""
    kept: dict[str, dict[str, int]] = {}
    for number, field in enumerate(stored):
        name, _, word = field.name.rpartition(".")
        kept.setdefault(name, {})[word] = number
    made = [_result(name, words, stored) for name, words in kept.items()]
    return [each._replace(means=_means(stored[each.columns[0]])) for each in made]


def _means(field: pa.Field) -> str:
    means: bytes = (field.metadata or {}).get(AGGREGATE, b"")
    return means.decode(errors="replace")


def _result(name: str, kept: dict[str, int], stored: Sequence[pa.Field]) -> Result:
    columns = tuple(kept.values())
    first = stored[columns[0]]
    match tuple(kept):
        case (word,) if word in _ALONE:
            return Result(first.with_name(name), columns, lambda given: given[0])
        case words if words == _AVERAGE:
            return Result(pa.field(name, pa.float64()), columns, _average)
        case words if words == _LIMB_WORDS:
            kind = _decimal_of(first)
            return Result(pa.field(name, kind), columns, lambda given: _decimal(given, kind))
        case words:
            shown = ", ".join(f"{name}.{word}" for word in words)
            raise CheckpointCorrupt(f"no aggregate of this Penstock is kept in the columns {shown}")


def _average(given: Columns) -> pa.Array:
    return averages(*map(values_of, given))


def _decimal(given: Columns, kind: pa.DataType) -> pa.Array:
    """The highest limb is null until a value came."""
    valid = given[-1].is_valid().to_numpy(zero_copy_only=False)
    return decimal_sums([values_of(column) for column in given], valid, kind)


def _decimal_of(limb: pa.Field) -> pa.DataType:
    found = _DECIMAL.fullmatch((limb.metadata or {}).get(SUM_TYPE, b""))
    try:
        if found is not None:
            return pa.decimal128(int(found[1]), int(found[2]))
    except ValueError:
        pass
    raise CheckpointCorrupt(f"{limb.name} does not say which decimal it is a part of")
