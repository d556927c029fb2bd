"""A keyed table as it was at a freeze, and how a writer gets it while the table goes on changing.

The view holds the arrays the table had and an undo log that the table appends to (`save`) before it first
changes a row. The writer, on its own thread:

1. copies the first `count` rows of every column as they are, changes and half-written changes included;
2. then reads the log and puts the saved values over the copy, the oldest entry last, so the first save wins;
3. then ends copying, and the table stops saving for this view.

Why that is exact: an entry is appended before its rows change, and the log is read after the copy. If the copy
saw a change, its entry was appended before. CPython makes the same true for memory: both threads append and read
the list holding the interpreter lock, so what came before a lock release is seen after the next acquire. Rows
made after the freeze lie beyond `count`; an array that the table replaced by a longer one stays here as it was.
Keys and key groups never change once written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags
from penstock.protocol.snapshot import Segment
from penstock.state.columns import Values, int64_array, take_rows, to_arrow
from penstock.state.frozen import Out
from penstock.state.keystore import View
from penstock.state.segments import block_bounds

Saved = tuple[I64, Sequence[Values], Sequence[Flags | None]]


class FrozenTable:
    """Made by `KeyedTable.freeze`; meets the contract `Frozen`."""

    def __init__(
        self,
        state: str,
        schema: pa.Schema,
        *,
        count: int,
        keys: Sequence[View],
        groups: npt.NDArray[np.uint16],
        values: Sequence[Values],
        valid: Sequence[Flags | None],
    ) -> None:
        self.copying = True
        self._state = state
        self._schema = schema
        self._count = count
        self._keys = keys
        self._groups = groups
        self._values = values
        self._valid = valid
        self._undo: list[Saved] = []

    def save(self, slots: I64, values: Sequence[Values], valid: Sequence[Flags | None]) -> None:
        """Called by the table, on its own thread, before these rows change."""
        self._undo.append((slots, values, valid))

    def release(self) -> None:
        """The view is not needed any more: the table stops saving for it and its memory is given back."""
        self.copying = False
        self._undo = []
        self._keys, self._values, self._valid = (), (), ()

    def write(self, out: Out) -> tuple[Segment, ...]:
        """The rows at the freeze. Once."""
        views, groups = self._keys, self._groups[: self._count]
        values, valid = self._copy()
        self.release()
        keys = [view() for view in views]
        order = np.argsort(groups, kind="stable")
        batches = self._batches(keys, groups.take(order), order, values, valid)
        return (out.put(self._state, self._schema, batches),)

    def _copy(self) -> tuple[list[Values], list[Flags | None]]:
        count = self._count
        values = [array[:count].copy() for array in self._values]
        valid = [None if flags is None else flags[:count].copy() for flags in self._valid]
        for slots, old_values, old_valid in reversed(self._undo):
            known = slots < count
            if not known.all():
                slots = slots[known]
                old_values = [old[known] for old in old_values]
                old_valid = [None if old is None else old[known] for old in old_valid]
            for array, old in zip(values, old_values, strict=True):
                array[slots] = old
            for flags, old_flags in zip(valid, old_valid, strict=True):
                if flags is not None and old_flags is not None:
                    flags[slots] = old_flags
        return values, valid

    def _batches(
        self,
        keys: Sequence[pa.Array],
        groups: npt.NDArray[np.uint16],
        order: I64,
        values: Sequence[Values],
        valid: Sequence[Flags | None],
    ) -> Iterator[pa.RecordBatch]:
        """One batch per block. Rows are put in order a block at a time, so that little memory is needed."""
        types = [field.type for field in self._schema]
        for start, end in block_bounds(groups):
            rows = order[start:end]
            taken = int64_array(rows)
            columns = [to_arrow(groups[start:end], pa.uint16())]
            columns += [
                take_rows(key, taken).cast(kind) for key, kind in zip(keys, types[1:], strict=False)
            ]
            for array, flags, kind in zip(values, valid, types[1 + len(keys) :], strict=True):
                columns.append(
                    to_arrow(array.take(rows), kind, None if flags is None else flags.take(rows))
                )
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
