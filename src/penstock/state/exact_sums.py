"""Sums that are exact: of integers, with overflow noticed, and of decimals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DataError
from penstock.plan.keyhash import I64, Flags, decimal_words
from penstock.state.flat import Values, to_arrow, valid_of
from penstock.state.folds import Fold, NullUntilSeen, Step, flat_column, present
from penstock.state.table import Table

_LIMIT = 1 << 63
_LOW = (1 << 32) - 1
_S32 = 32
LIMBS = 4
SUM_TYPE = b"penstock.sum"
"""Says of a stored limb which decimal it is a part of, digits and scale: for readers that do not know the job."""


class SumIntegers(NullUntilSeen):
    """A sum in int64.

    `_bound` is never below the largest absolute sum of any key, and costs two reductions per batch to keep. Only
    when it reaches 2**63 are the sums themselves looked at."""

    _bound = 0

    def fields(self) -> list[pa.Field]:
        return [pa.field(f"{self.name}.sum", pa.int64())]

    def update(self, table: Table, step: Step) -> None:
        cells, values = present(step, step.batch.column(self.column))
        if len(values):
            self._guard(table, step, cells, values)
            np.add.at(
                flat_column(table, self.at).values, cells, values.astype(np.int64, copy=False)
            )
        self._mark(table, step, cells)

    def result(self, table: Table, cells: I64) -> pa.Array:
        values = flat_column(table, self.at).values.take(cells)
        return to_arrow(values, pa.int64(), self._nullable(table, cells))

    def restored(self, table: Table) -> None:
        super().restored(table)
        self._bound = _largest(flat_column(table, self.at).values[: table.cells.end])

    def brought(self, table: Table, cells: I64) -> None:
        super().brought(table, cells)
        sums = flat_column(table, self.at).values.take(cells)
        self._bound = max(self._bound, _largest(sums))

    def _guard(self, table: Table, step: Step, cells: I64, values: Values) -> None:
        most = _largest(values) * len(values)
        self._bound += most
        if self._bound < _LIMIT:
            return
        sums = flat_column(table, self.at).values
        self._bound = _largest(sums[: table.cells.end]) + most
        if self._bound >= _LIMIT:
            self._check_each(step, sums, cells, values)
            self._bound = _LIMIT

    def _check_each(self, step: Step, sums: Values, cells: I64, values: Values) -> None:
        """Adds up in halves of 32 bits, which cannot overflow in one batch, before anything is changed."""
        distinct, where = np.unique(cells, return_inverse=True)
        low, high = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
        np.add.at(low, where, (values & values.dtype.type(_LOW)).astype(np.int64))
        np.add.at(high, where, (values >> values.dtype.type(_S32)).astype(np.int64))
        totals = sums.take(distinct).astype(object) + (high.astype(object) << _S32) + low
        if not all(-_LIMIT <= total < _LIMIT for total in totals):
            column = step.batch.schema.field(self.column).name
            raise DataError(
                f"{self.name} = sum({column}) does not fit into a 64-bit integer any more; "
                f"cast {column!r} to decimal(28, 0) or double before summing it"
            )


def _largest(values: Values) -> int:
    """The largest absolute value, as a Python integer."""
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0


class SumDecimals(Fold):
    """A sum in four limbs of 32 bits in int64 columns; the highest is signed. Adding a batch limb by limb
    cannot overflow, and after each batch the carries of the touched rows are brought up. The highest limb is
    null until a value came."""

    def __init__(self, name: str, column: int, kind: pa.DataType, at: int, digits: int) -> None:
        super().__init__(name, column, kind, at)
        self._sum_kind = pa.decimal128(digits, kind.scale)

    def fields(self) -> list[pa.Field]:
        names = [f"{self.name}.sum{i}" for i in range(LIMBS)]
        kept = {SUM_TYPE: f"{self._sum_kind.precision},{self._sum_kind.scale}".encode("ascii")}
        return [pa.field(name, pa.int64(), i == LIMBS - 1, kept) for i, name in enumerate(names)]

    def update(self, table: Table, step: Step) -> None:
        column = step.batch.column(self.column)
        valid = valid_of(column)
        words, cells = decimal_words(column), step.cells
        if valid is not None:
            words, cells = words[valid], cells[valid]
        for i, limb in enumerate(_limbs(words)):
            np.add.at(flat_column(table, self.at + i).values, cells, limb)
        flags: Any = flat_column(table, self.at + 3).valid
        flags[cells] = True
        self._carry(table, step)

    def restored(self, table: Table) -> None:
        """What stands below a null is not kept in a snapshot."""
        flags: Any = flat_column(table, self.at + 3).valid
        flat_column(table, self.at + 3).values[: table.cells.end][~flags[: table.cells.end]] = 0

    def _carry(self, table: Table, step: Step) -> None:
        touched = step.cells.take(step.last)
        limbs = [flat_column(table, self.at + i).values.take(touched) for i in range(4)]
        for i in range(3):
            limbs[i + 1] += limbs[i] >> _S32
            limbs[i] &= _LOW
        if (limbs[3] != limbs[3].astype(np.int32)).any():
            self._raise_overflow(step.batch.schema.field(self.column).name)
        for i in range(4):
            flat_column(table, self.at + i).values[touched] = limbs[i]
        try:
            self.result(table, touched).validate(full=True)
        except pa.ArrowInvalid:
            self._raise_overflow(step.batch.schema.field(self.column).name)

    def _raise_overflow(self, column: str) -> None:
        raise DataError(
            f"{self.name} = sum({column}) does not fit into {self._sum_kind} any more; "
            f"cast {column!r} to a decimal with a smaller scale, or to double, before summing it"
        )

    def result(self, table: Table, cells: I64) -> pa.Array:
        limbs = [flat_column(table, self.at + i).values.take(cells) for i in range(LIMBS)]
        flags: Any = flat_column(table, self.at + 3).valid
        return decimal_sums(limbs, flags.take(cells), self._sum_kind)


def decimal_sums(limbs: Sequence[Values], valid: Flags, kind: pa.DataType) -> pa.Array:
    """Limbs put together, null where they are not valid."""
    words = np.empty((len(valid), 2), np.int64)
    words[:, 0] = limbs[0] | (limbs[1] << _S32)
    words[:, 1] = limbs[2] | (limbs[3] << _S32)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(valid), [bitmap, pa.py_buffer(words)])


def _limbs(words: Values) -> list[I64]:
    low, high = words[:, 0], words[:, 1]
    mask, shift = np.uint64(_LOW), np.uint64(_S32)
    return [
        (low & mask).view(np.int64),
        (low >> shift).view(np.int64),
        (high & mask).view(np.int64),
        np.ascontiguousarray(high).view(np.int64) >> _S32,
    ]
