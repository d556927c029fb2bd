"""How each aggregate is kept in a keyed table and brought up to date by a batch.

A fold owns a few neighbouring value columns of the table, from number `at` on. `update` folds a batch in, for all
rows at once; `result` reads the results of some slots. The caller has called `KeyedTable.touch` before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.state.columns import (
    Values,
    int64_array,
    is_flat,
    take_rows,
    to_arrow,
    valid_of,
    values_of,
)
from penstock.state.table import KeyedTable


class Step(NamedTuple):
    """One batch, with the place of its rows in the table."""

    batch: pa.RecordBatch
    slots: I64
    first_new: int
    end: int
    last: I64
    """The last row of every key in the batch."""


class Fold(ABC):
    """`column` is the index of the input column in the batch, `at` that of the first state column."""

    def __init__(self, name: str, column: int, kind: pa.DataType, at: int) -> None:
        self.name = name
        self.column = column
        self.kind = kind
        self.at = at

    @abstractmethod
    def fields(self) -> list[pa.Field]:
        """The state columns."""

    @abstractmethod
    def update(self, table: KeyedTable, step: Step) -> None: ...

    @abstractmethod
    def result(self, table: KeyedTable, slots: I64) -> pa.Array: ...

    def restored(self, table: KeyedTable) -> None:  # noqa: B027 (optional)
        """The table was filled from a snapshot."""


def present(step: Step, column: pa.Array) -> tuple[I64, Values]:
    """Slots and values of the rows that are not null."""
    values = values_of(column)
    valid = valid_of(column)
    return (step.slots, values) if valid is None else (step.slots[valid], values[valid])


def add_floats(sums: Values, slots: I64, values: Values) -> None:
    """Infinities and NaN are values like any other: no warning."""
    with np.errstate(all="ignore"):
        np.add.at(sums, slots, values.astype(np.float64, copy=False))


class CountRows(Fold):
    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.count", pa.int64(), nullable=False)]

    def update(self, table: KeyedTable, step: Step) -> None:
        np.add.at(table.values[self.at], step.slots, 1)

    def result(self, table: KeyedTable, slots: I64) -> pa.Array:
        return to_arrow(table.values[self.at].take(slots), pa.int64())


class CountValues(CountRows):
    def update(self, table: KeyedTable, step: Step) -> None:
        valid = valid_of(step.batch.column(self.column))
        slots = step.slots if valid is None else step.slots[valid]
        np.add.at(table.values[self.at], slots, 1)


class NullUntilSeen(Fold):
    """Base of folds whose result is null until a value came. The flags of new rows are set as a slice while no
    column of a batch ever held a null; only then are they set row by row."""

    _holes = False

    def restored(self, table: KeyedTable) -> None:
        """What stands below a null is not kept in a snapshot: it is put back to where folding starts."""
        empty = np.flatnonzero(~self._flags(table)[: len(table)])
        self._holes = len(empty) > 0
        kept = table.values[self.at]
        kept[empty] = self._start(kept.dtype)

    def _start(self, dtype: np.dtype[Any]) -> Any:
        """The value that a row has before any value came."""
        return dtype.type(0)

    def _flags(self, table: KeyedTable) -> Flags:
        flags = table.valid[self.at]
        assert flags is not None
        return flags

    def _mark(self, table: KeyedTable, step: Step, slots: I64) -> None:
        """`slots` are those of the rows that are not null."""
        flags = self._flags(table)
        if len(slots) == len(step.slots):
            flags[step.first_new : step.end] = True
        else:
            self._holes = True
        if self._holes:
            flags[slots] = True

    def _nullable(self, table: KeyedTable, slots: I64) -> Flags | None:
        return self._flags(table).take(slots) if self._holes else None


class SumFloats(NullUntilSeen):
    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.sum", pa.float64())]

    def update(self, table: KeyedTable, step: Step) -> None:
        slots, values = present(step, step.batch.column(self.column))
        add_floats(table.values[self.at], slots, values)
        self._mark(table, step, slots)

    def result(self, table: KeyedTable, slots: I64) -> pa.Array:
        values = table.values[self.at].take(slots)
        return to_arrow(values, pa.float64(), self._nullable(table, slots))


class Average(Fold):
    """Kept as a sum of floats and a count, whatever the input, as Spark does for integers."""

    def fields(self) -> list[pa.Field]:
        return [
            pa.field(f"{self.name}.sum", pa.float64(), nullable=False),
            pa.field(f"{self.name}.count", pa.int64(), nullable=False),
        ]

    def update(self, table: KeyedTable, step: Step) -> None:
        column = step.batch.column(self.column)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        slots, values = present(step, column)
        add_floats(table.values[self.at], slots, values)
        np.add.at(table.values[self.at + 1], slots, 1)

    def result(self, table: KeyedTable, slots: I64) -> pa.Array:
        return averages(*(table.values[self.at + i].take(slots) for i in range(2)))


def averages(total: Values, count: Values) -> pa.Array:
    """Null where there was no value."""
    return to_arrow(total / np.maximum(count, 1), pa.float64(), count > 0)


class Extreme(NullUntilSeen):
    """min and max of flat values. New rows start at the value that any other beats."""

    def __init__(
        self, name: str, column: int, kind: pa.DataType, at: int, *, largest: bool
    ) -> None:
        super().__init__(name, column, kind, at)
        self._word = "max" if largest else "min"
        self._floats = bool(pa.types.is_floating(kind))
        # fmin passes over NaN and maximum keeps it: NaN is the largest number.
        smallest = np.fmin if self._floats else np.minimum
        self._better: Any = np.maximum if largest else smallest
        self._largest = largest

    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.{self._word}", self.kind)]

    def update(self, table: KeyedTable, step: Step) -> None:
        slots, values = present(step, step.batch.column(self.column))
        kept = _numbers(table.values[self.at])
        kept[step.first_new : step.end] = self._start(kept.dtype)
        with np.errstate(all="ignore"):
            self._better.at(kept, slots, _numbers(values))
        self._mark(table, step, slots)

    def _start(self, dtype: np.dtype[Any]) -> Any:
        if self._floats:
            return -np.inf if self._largest else np.nan
        if dtype == np.dtype(np.bool_):
            return not self._largest
        limits = np.iinfo(dtype)
        return limits.min if self._largest else limits.max

    def result(self, table: KeyedTable, slots: I64) -> pa.Array:
        values = table.values[self.at].take(slots)
        return to_arrow(values, self.kind, self._nullable(table, slots))


def _numbers(values: Values) -> Values:
    """Booleans as the bytes they are."""
    return values.view(np.uint8) if values.dtype == np.dtype(np.bool_) else values


class ExtremeObject(Fold):
    """min and max of decimals and text: Arrow finds the best of each key in the batch, Python compares it with
    the one that is kept."""

    def __init__(
        self, name: str, column: int, kind: pa.DataType, at: int, *, largest: bool
    ) -> None:
        super().__init__(name, column, kind, at)
        self._word = "max" if largest else "min"
        self._largest = largest

    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.{self._word}", self.kind)]

    def update(self, table: KeyedTable, step: Step) -> None:
        slots = int64_array(step.slots)
        rows = pa.table([slots, step.batch.column(self.column)], ["slot", "value"])
        best = rows.group_by("slot").aggregate([("value", self._word)])
        kept = table.values[self.at]
        pairs = zip(best["slot"].to_pylist(), best[f"value_{self._word}"].to_pylist(), strict=True)
        for slot, value in pairs:
            if value is None:
                continue
            old = kept[slot]
            if old is None or (value > old if self._largest else value < old):
                kept[slot] = value

    def result(self, table: KeyedTable, slots: I64) -> pa.Array:
        return to_arrow(table.values[self.at].take(slots), self.kind)


class _OneRow(Fold):
    """Base of first and last: keeps a row's value, null or not."""

    word = ""

    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.{self.word}", self.kind)]

    def _put(self, table: KeyedTable, slots: I64, column: pa.Array) -> None:
        table.values[self.at][slots] = values_of(column)
        flags = table.valid[self.at]
        if flags is not None:
            valid = valid_of(column)
            flags[slots] = True if valid is None else valid

    def result(self, table: KeyedTable, slots: I64) -> pa.Array:
        flags = table.valid[self.at]
        valid = None if flags is None else flags.take(slots)
        return to_arrow(table.values[self.at].take(slots), self.kind, valid)


class First(_OneRow):
    word = "first"

    def update(self, table: KeyedTable, step: Step) -> None:
        """Only new keys have a first row; writing backwards leaves the earliest."""
        if step.first_new == step.end:
            return
        rows = np.flatnonzero(step.slots >= step.first_new)[::-1]
        earliest = np.empty(step.end - step.first_new, np.int64)
        earliest[step.slots[rows] - step.first_new] = rows
        slots = np.arange(step.first_new, step.end)
        self._put(table, slots, _take(step.batch.column(self.column), earliest))


class Last(_OneRow):
    word = "last"

    def update(self, table: KeyedTable, step: Step) -> None:
        column = _take(step.batch.column(self.column), step.last)
        self._put(table, step.slots.take(step.last), column)


def _take(column: pa.Array, rows: I64) -> pa.Array:
    return take_rows(column, int64_array(rows))


def is_object(kind: pa.DataType) -> bool:
    return not is_flat(kind)
