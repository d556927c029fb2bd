"""Rows that wait until they are worth a transaction of their own.

A sink whose `hold` says so gets its rows when there are enough of them, or when the oldest have waited long enough.
Until then they are state of the sink's operator, a copy of them in every checkpoint, so nothing is promised to the
outside and nothing is lost. What goes to the sink goes the usual way: a transaction is begun and ended between two
checkpoints, never kept open across one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from penstock.connectors.base import Hold
from penstock.engine.operators.base import OperatorContext
from penstock.errors import PlanError
from penstock.plan.schema import schema_differences
from penstock.protocol.snapshot import Segment
from penstock.state.frozen import Frozen, Out
from penstock.state.segments import BLOCK_ROWS_MAX, GROUP_FIELD

STATE = "held"
ROW = "row"


class HeldRows:
    """Of one subtask of a sink. Without a `hold` nothing waits; what a checkpoint holds comes back all the same."""

    def __init__(self, hold: Hold | None = None) -> None:
        self._hold = hold
        self._now_ms: Callable[[], float] = lambda: 0.0
        self._group = 0
        """What comes back from a checkpoint goes to the subtask that has this key group then."""
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._since_ms: float | None = None
        self._passing = False
        """There are enough: rows go to the sink as they come, up to the next checkpoint."""

    def open(self, context: OperatorContext) -> None:
        """Takes back what a checkpoint holds: it has waited long enough, and is written with the next one."""
        self._now_ms, self._group = context.now_ms, context.key_groups.start
        for batch in _restored(context):
            self._keep(batch, float("-inf"))

    def add(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """Rows in; those that go to the sink now out."""
        if self._hold is None or self._passing:
            return [*self.release(), batch]
        self._keep(batch, self._now_ms())
        return self.release() if self._bytes >= self._hold.bytes_max else ()

    def release(self) -> Sequence[pa.RecordBatch]:
        """All rows; the transaction that they are in ends with the next checkpoint."""
        rows, self._batches, self._bytes, self._since_ms = self._batches, [], 0, None
        self._passing = True
        return rows

    @property
    def due(self) -> bool:
        """Whether a transaction is to end with the checkpoint that is being taken, with all rows that wait."""
        return self._hold is None or self._passing or self._is_old(self._hold)

    def begin(self) -> None:
        """A transaction has ended: rows wait again."""
        self._passing = False

    def freeze(self) -> tuple[Frozen, ...]:
        return (FrozenRows(tuple(self._batches), self._group),) if self._batches else ()

    def _is_old(self, hold: Hold) -> bool:
        since_ms = self._since_ms
        return since_ms is not None and self._now_ms() - since_ms >= hold.wait_ms

    def _keep(self, batch: pa.RecordBatch, now_ms: float) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._since_ms is None:
            self._since_ms = now_ms


class FrozenRows:
    """Batches never change, so there is nothing to copy."""

    def __init__(self, batches: tuple[pa.RecordBatch, ...], group: int) -> None:
        self._batches = batches
        self._group = group

    def write(self, out: Out) -> tuple[Segment, ...]:
        rows = pa.Table.from_batches(self._batches).combine_chunks()
        kind = pa.struct(list(rows.schema))
        schema = pa.schema([GROUP_FIELD, pa.field(ROW, kind)])
        batches = rows.to_batches(max_chunksize=BLOCK_ROWS_MAX)
        return (out.put(STATE, schema, (self._grouped(each, schema) for each in batches)),)

    def release(self) -> None:
        self._batches = ()

    def _grouped(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        group = pa.repeat(pa.scalar(self._group, pa.uint16()), batch.num_rows)
        values = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
        return pa.RecordBatch.from_arrays([group, values], schema=schema)


def held_rows(stored: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that wait, out of what a checkpoint holds of them."""
    return pa.RecordBatch.from_struct_array(stored.column(ROW))


def _restored(context: OperatorContext) -> Iterable[pa.RecordBatch]:
    for batch in context.rows_of(STATE):
        rows = held_rows(batch)
        _require_same(rows.schema, context)
        yield rows.cast(context.input_schemas[0])


def _require_same(found: pa.Schema, context: OperatorContext) -> None:
    differences = schema_differences(found, context.input_schemas[0])
    if differences:
        raise PlanError(
            f"{context.operator}: the checkpoint holds rows that wait to be written, with other columns than the job"
            f" writes now: {'; '.join(differences)}. Start the job as it was, end it with job.stop(), which writes"
            " them, and change it then."
        )
