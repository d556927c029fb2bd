"""The two ends of a pipeline as operators: a source that is polled, a sink that commits in two phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.connectors.base import (
    EndOfInput,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
    Wait,
)
from penstock.connectors.contract import (
    refuse,
    wrong_answer,
    wrong_committer,
    wrong_positions,
    wrong_reader,
    wrong_writer,
)
from penstock.connectors.deferred import Deferred
from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.held_rows import HeldRows
from penstock.errors import InvariantBroken, PlanError, SchemaError
from penstock.protocol.commit import Pending, covered
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import Plain
from penstock.wire.structure import Malformed, check_plain


class SourceOperator(Operator):
    """The head of a task: its subtask calls `poll` instead of reading channels."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reader: SourceReader | None = None
        self._lanes: frozenset[int] = frozenset()

    def open(self, context: OperatorContext) -> None:
        place = SourceContext(
            operator=context.operator,
            index=context.index,
            parallelism=context.parallelism,
            max_parallelism=context.max_parallelism,
            now_ms=context.now_ms,
            ask=context.ask,
        )
        mine = self._lanes = frozenset(place.lanes)
        positions = {
            lane: position
            for snapshot in context.restored
            for lane, position in snapshot.lanes.items()
            if lane in mine
        }
        reader = self._source.reader(place, positions)
        refuse(wrong_reader(reader))
        self._reader = reader

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        if self._reader is None:
            raise InvariantBroken("a source was polled before it was opened")
        rows = self._reader.poll(max_rows)
        if not isinstance(rows, pa.RecordBatch):
            refuse(wrong_answer(rows))
        elif rows.schema != self._source.schema:
            raise SchemaError(
                f"The source promised the schema ({_brief(self._source.schema)}) and returned "
                f"({_brief(rows.schema)}). Make `schema` and the batches of `poll` agree."
            )
        return rows

    def describe(self) -> str:
        return self._reader.describe() if self._reader is not None else ""

    def lag(self) -> Mapping[str, float]:
        """How far behind the source is. It is for people: one that cannot tell disturbs nothing."""
        try:
            told = self._reader.lag() if self._reader is not None else {}
            return {str(unit): float(behind) for unit, behind in told.items()}
        except Exception:
            return {}

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        return (batch,)

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        if self._reader is None:
            return FrozenOperator()
        positions = self._reader.positions()
        refuse(wrong_positions(positions, self._lanes))
        for lane, position in positions.items():
            _check_plain(position, f"the position of lane {lane} from positions()")
        return FrozenOperator(lanes=dict(positions))

    def close(self) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.close()


@dataclass(frozen=True)
class CommitWork:
    """Transactions to commit, oldest first, off the loop's thread; `upto` is done when all are. With the job's `last`
    checkpoint goes what workers of earlier attempts, taken for lost, have staged since this one began."""

    committer: SinkCommitter
    transactions: tuple[Deferred[Plain], ...]
    upto: CheckpointId
    last: bool = False

    def __call__(self) -> CheckpointId:
        for transaction in self.transactions:
            description = transaction.get()
            if description is not None:
                self.committer.commit(description)
        if self.last:
            self.committer.abort_others(())
        return self.upto


class SinkOperator(Operator):
    """Keeps every pre-committed transaction until it is known to be committed, whatever became of its checkpoint:
    a transaction of an aborted checkpoint is committed with the next one that completes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._writer: SinkWriter | None = None
        self._committer: SinkCommitter | None = None
        self._held = HeldRows(sink.hold)
        self._pending: tuple[Pending[Deferred[Plain]], ...] = ()
        self.committed = NO_CHECKPOINT

    def open(self, context: OperatorContext) -> None:
        place = SinkContext(
            job=context.job,
            operator=context.operator,
            index=context.index,
            parallelism=context.parallelism,
            attempt=context.attempt,
            schema=context.input_schemas[0],
            to_driver=context.to_driver,
            now_ms=context.now_ms,
        )
        committer = self._sink.committer(place)
        refuse(wrong_committer(committer))
        self._committer = committer
        for number, snapshot in enumerate(context.restored):
            if number % context.parallelism == context.index:
                for transaction in snapshot.transactions:
                    committer.commit(transaction)
        promised = [t for snapshot in context.restored for t in snapshot.transactions]
        committer.abort_others(promised)
        writer = self._sink.writer(place)
        refuse(wrong_writer(writer))
        self._writer = writer
        self._held.open(context)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        if self._writer is None:
            raise InvariantBroken("a sink was written to before it was opened")
        for rows in self._held.add(batch):
            self._writer.write(rows)
        return ()

    def finish(self) -> Iterable[pa.RecordBatch]:
        self.hold_nothing_back()
        return ()

    def hold_nothing_back(self) -> None:
        if self._writer is not None:
            for rows in self._held.release():
                self._writer.write(rows)

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        if self._writer is not None and self._held.due:
            self.hold_nothing_back()
            prepared = self._writer.prepare(order.id)
            self._held.begin()
            if prepared is not None:
                if not callable(prepared):
                    _check_plain(prepared, "what prepare() returned")
                work = partial(_prepared, prepared)
                self._pending = (*self._pending, Pending(order.id, Deferred(work)))
        return FrozenOperator(
            tables=self._held.freeze(),
            transactions=tuple(entry.transaction for entry in self._pending),
        )

    def commit_work(self, checkpoint: CheckpointId, last: bool = False) -> CommitWork | None:
        """What completing `checkpoint` allows and requires; None when there is nothing to do. `last`: the job ends
        with it."""
        if checkpoint <= self.committed or self._committer is None:
            return None
        due = covered(self._pending, checkpoint)
        transactions = tuple(entry.transaction for entry in due)
        return CommitWork(self._committer, transactions, checkpoint, last)

    def commit_done(self, upto: CheckpointId) -> None:
        self.committed = max(self.committed, upto)
        self._pending = tuple(entry for entry in self._pending if entry.checkpoint > upto)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        committer, self._committer = self._committer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            if committer is not None:
                committer.close()


def _prepared(given: Plain | Callable[[], Plain]) -> Plain:
    """A transaction, or what the rest of `prepare` makes of it, off the loop's thread."""
    if not callable(given):
        return given
    made = given()
    _check_plain(made, "what the function from prepare() returned")
    return made


def _check_plain(value: Plain, what: str) -> None:
    """A checkpoint keeps it: better told here than by the storage, which does not know whose it is."""
    try:
        check_plain(value)
    except Malformed as error:
        where = error.where.strip(", ")[:80]
        place = f" ({where})" if where else ""
        raise PlanError(
            f"{what} cannot be kept in a checkpoint: {error.problem}{place}. Convert it first, with int(), str() or "
            "list() for example."
        ) from None


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
