"""How each aggregate is kept in a keyed table and brought up to date by a batch.

A fold owns a few neighbouring value columns of the table, from number `at` on. `update` folds a batch in, for all
rows at once; `result` reads the results of some cells. The caller has called `Table.touch` before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, Flags
from penstock.state.columns import FlatColumn
from penstock.state.flat import Values, int64_array, take_rows, to_arrow, valid_of, values_of
from penstock.state.keyspace import KeySpace
from penstock.state.table import Table


class Step(NamedTuple):
    """One batch, with the place of its rows in the table."""

    batch: pa.RecordBatch
    space: KeySpace
    cells: I64
    new: I64 | slice
    """The cells that were made for this batch."""
    last: I64
    """The last row of every key in the batch."""


class Fold(ABC):
    """`column` is the index of the input column in the batch, `at` that of the first state column."""

    means = ""
    """What it keeps, as `sum(amount)`: stored with its columns."""

    def __init__(self, name: str, column: int, kind: pa.DataType, at: int) -> None:
        self.name = name
        self.column = column
        self.kind = kind
        self.at = at

    @abstractmethod
    def fields(self) -> list[pa.Field]:
        """The state columns."""

    @abstractmethod
    def update(self, table: Table, step: Step) -> None: ...

    @abstractmethod
    def result(self, table: Table, cells: I64) -> pa.Array: ...

    def restored(self, table: Table) -> None:  # noqa: B027 (optional)
        """The table was filled from a snapshot."""

    def brought(self, table: Table, cells: I64) -> None:  # noqa: B027 (optional)
        """These rows came back from a floor below."""


def present(step: Step, column: pa.Array) -> tuple[I64, Values]:
    """Slots and values of the rows that are not null."""
    values = values_of(column)
    valid = valid_of(column)
    return (step.cells, values) if valid is None else (step.cells[valid], values[valid])


def add_floats(sums: Values, cells: I64, values: Values) -> None:
    """Infinities and NaN are values like any other: no warning."""
    with np.errstate(all="ignore"):
        np.add.at(sums, cells, values.astype(np.float64, copy=False))


class CountRows(Fold):
    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.count", pa.int64(), nullable=False)]

    def update(self, table: Table, step: Step) -> None:
        np.add.at(flat_column(table, self.at).values, step.cells, 1)

    def result(self, table: Table, cells: I64) -> pa.Array:
        return to_arrow(flat_column(table, self.at).values.take(cells), pa.int64())


class CountValues(CountRows):
    def update(self, table: Table, step: Step) -> None:
        valid = valid_of(step.batch.column(self.column))
        cells = step.cells if valid is None else step.cells[valid]
        np.add.at(flat_column(table, self.at).values, cells, 1)


class NullUntilSeen(Fold):
    """Base of folds whose result is null until a value came. The flags of new rows are set as a slice while no
    column of a batch ever held a null; only then are they set row by row."""

    _holes = False

    def restored(self, table: Table) -> None:
        """What stands below a null is not kept in a snapshot: it is put back to where folding starts."""
        empty = np.flatnonzero(~self._flags(table)[: table.cells.end])
        self._holes = len(empty) > 0
        kept = flat_column(table, self.at).values
        kept[empty] = self._start(kept.dtype)

    def brought(self, table: Table, cells: I64) -> None:
        self._holes = self._holes or not self._flags(table).take(cells).all()

    def _start(self, dtype: np.dtype[Any]) -> Any:
        """The value that a row has before any value came."""
        return dtype.type(0)

    def _flags(self, table: Table) -> Flags:
        flags = flat_column(table, self.at).valid
        assert flags is not None
        return flags

    def _mark(self, table: Table, step: Step, cells: I64) -> None:
        """`cells` are those of the rows that are not null."""
        flags = self._flags(table)
        if len(cells) == len(step.cells):
            flags[step.new] = True
        else:
            self._holes = True
        if self._holes:
            flags[cells] = True

    def _nullable(self, table: Table, cells: I64) -> Flags | None:
        return self._flags(table).take(cells) if self._holes else None


class SumFloats(NullUntilSeen):
    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.sum", pa.float64())]

    def update(self, table: Table, step: Step) -> None:
        cells, values = present(step, step.batch.column(self.column))
        add_floats(flat_column(table, self.at).values, cells, values)
        self._mark(table, step, cells)

    def result(self, table: Table, cells: I64) -> pa.Array:
        values = flat_column(table, self.at).values.take(cells)
        return to_arrow(values, pa.float64(), self._nullable(table, cells))


class Average(Fold):
    """Kept as a sum of floats and a count, whatever the input, as Spark does for integers."""

    def fields(self) -> list[pa.Field]:
        return [
            pa.field(f"{self.name}.sum", pa.float64(), nullable=False),
            pa.field(f"{self.name}.count", pa.int64(), nullable=False),
        ]

    def update(self, table: Table, step: Step) -> None:
        column = step.batch.column(self.column)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        cells, values = present(step, column)
        add_floats(flat_column(table, self.at).values, cells, values)
        np.add.at(flat_column(table, self.at + 1).values, cells, 1)

    def result(self, table: Table, cells: I64) -> pa.Array:
        return averages(*(flat_column(table, self.at + i).values.take(cells) for i in range(2)))


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

    def update(self, table: Table, step: Step) -> None:
        cells, values = present(step, step.batch.column(self.column))
        kept = _numbers(flat_column(table, self.at).values)
        kept[step.new] = self._start(kept.dtype)
        with np.errstate(all="ignore"):
            self._better.at(kept, cells, _numbers(values))
        self._mark(table, step, cells)

    def _start(self, dtype: np.dtype[Any]) -> Any:
        if self._floats:
            return -np.inf if self._largest else np.nan
        if dtype == np.dtype(np.bool_):
            return not self._largest
        limits = np.iinfo(dtype)
        return limits.min if self._largest else limits.max

    def result(self, table: Table, cells: I64) -> pa.Array:
        values = flat_column(table, self.at).values.take(cells)
        return to_arrow(values, self.kind, self._nullable(table, cells))


def _numbers(values: Values) -> Values:
    """Booleans as the bytes they are."""
    return values.view(np.uint8) if values.dtype == np.dtype(np.bool_) else values


class ExtremeValue(Fold):
    """min and max of decimals and text: Arrow finds the best of each key in the batch, and whether it beats the one
    that is kept."""

    def __init__(
        self, name: str, column: int, kind: pa.DataType, at: int, *, largest: bool
    ) -> None:
        super().__init__(name, column, kind, at)
        self._word = "max" if largest else "min"
        self._better: Any = pc.max_element_wise if largest else pc.min_element_wise

    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.{self._word}", self.kind)]

    def update(self, table: Table, step: Step) -> None:
        rows = pa.table(
            [int64_array(step.cells), step.batch.column(self.column)], ["cell", "value"]
        )
        best = rows.group_by("cell").aggregate([("value", self._word)]).combine_chunks()
        cells = best["cell"].chunk(0).to_numpy()
        column, found = table.columns[self.at], best[f"value_{self._word}"].chunk(0)
        column.put(cells, self._better(column.get(cells), found.cast(self.kind)))

    def result(self, table: Table, cells: I64) -> pa.Array:
        return table.columns[self.at].get(cells)


class _OneRow(Fold):
    """Base of first and last: keeps a row's value, null or not."""

    word = ""

    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.{self.word}", self.kind)]

    def result(self, table: Table, cells: I64) -> pa.Array:
        return table.columns[self.at].get(cells)


class First(_OneRow):
    word = "first"

    def update(self, table: Table, step: Step) -> None:
        """Only new keys have a first row."""
        new = step.new if not isinstance(step.new, slice) else _numbers_of(step.new)
        if len(new):
            rows = step.space.first_rows(step.cells, new)
            table.columns[self.at].put(new, _take(step.batch.column(self.column), rows))


class Last(_OneRow):
    word = "last"

    def update(self, table: Table, step: Step) -> None:
        column = _take(step.batch.column(self.column), step.last)
        table.columns[self.at].put(step.cells.take(step.last), column)


def flat_column(table: Table, at: int) -> FlatColumn:
    column = table.columns[at]
    assert isinstance(column, FlatColumn)
    return column


def _numbers_of(part: slice) -> I64:
    return np.arange(part.start, part.stop)


def _take(column: pa.Array, rows: I64) -> pa.Array:
    return take_rows(column, int64_array(rows))
