"""A user's sink in a simulation: every call is kept, fails before or after it took effect, and is watched.

A sink that Penstock ships (files, collected rows) is replaced by a stand-in that keeps its transactions in memory:
those have proofs of their own, and a schedule should take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.base import Hold, Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.connectors.contract import refuse, wrong_committer, wrong_writer
from penstock.errors import CommitError
from penstock.protocol.snapshot import Plain
from penstock.testing.finding import short
from penstock.testing.outside import SimulatedFault
from penstock.testing.sink_place import as_kept, not_plain
from penstock.testing.sink_watch import SinkWatch

if TYPE_CHECKING:
    from penstock.testing.world import UserWorld


class WatchedSink(Sink):
    def __init__(self, watch: SinkWatch, inner: Sink) -> None:
        self._watch = watch
        self._inner = inner
        self.idempotent = inner.idempotent
        self.hold = inner.hold

    def receive(self, item: Plain) -> None:
        self._inner.receive(item)

    def writer(self, context: SinkContext) -> SinkWriter:
        made = self._inner.writer(context)
        refuse(wrong_writer(made))
        return WatchedWriter(self._watch, context, made)

    def committer(self, context: SinkContext) -> SinkCommitter:
        made = self._inner.committer(context)
        refuse(wrong_committer(made))
        return WatchedCommitter(self._watch, context, made)


class WatchedWriter(SinkWriter):
    def __init__(self, watch: SinkWatch, context: SinkContext, inner: SinkWriter) -> None:
        self._watch = watch
        self._context = context
        self._inner = inner
        self._rows: list[tuple[Any, ...]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._inner.write(batch)
        columns = [column.to_pylist() for column in batch.columns]
        rows = list(zip(*columns, strict=True))
        self._watch.written(rows)
        self._rows += rows

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        rows, self._rows = self._rows, []
        with _inside(self._watch.world, "prepare_error"):
            made = self._inner.prepare(checkpoint)
        if made is None:
            self._watch.left_out(self._context, checkpoint, rows)
            return None
        name = self._watch.begun(self._context, checkpoint, rows)
        if callable(made):
            work = made
            return lambda: self._make_durable(name, work)
        described = made
        return self._make_durable(name, lambda: described)

    def close(self) -> None:
        self._inner.close()

    def _make_durable(self, name: str, work: Callable[[], Plain]) -> Plain:
        watch, checkpoint = self._watch, int(name.split("/")[-2])
        if watch.world.happens("prepare_error"):
            watch.call(self._context, f"prepare({checkpoint}) -> simulated failure", name)
            raise SimulatedFault(f"simulated failure while {name} is made durable")
        with _inside(watch.world, "prepare_error"):
            made = work()
        if made is None:
            watch.left_out(self._context, checkpoint, watch.forgotten(name))
            return None
        problem = not_plain(made)
        watch.call(self._context, f"prepare({checkpoint}) -> {short(made)}", name)
        if problem is not None:
            watch.cannot_be_kept(name, problem)
            raise CommitError(f"sink {watch.name!r}, what prepare() returned: {problem}")
        watch.prepared(name, as_kept(made))
        return name


class WatchedCommitter(SinkCommitter):
    def __init__(self, watch: SinkWatch, context: SinkContext, inner: SinkCommitter) -> None:
        self._watch = watch
        self._context = context
        self._inner = inner

    def commit(self, transaction: Plain) -> None:
        name, watch = str(transaction), self._watch
        description = watch.description(name)
        told = f"commit({short(description)})"
        if watch.world.happens("commit_error"):
            watch.call(self._context, f"{told} -> not called: simulated failure before it", name)
            raise SimulatedFault(f"simulated failure before the commit of {name}")
        if not watch.is_known(name):
            if not watch.world.checkers.went_back:
                watch.world.violation("I10", f"{name} is to be committed and was aborted")
            raise CommitError(f"transaction {name} is gone")
        self._commit(name, description, told)

    def _commit(self, name: str, description: Plain, told: str) -> None:
        watch = self._watch
        try:
            with _inside(watch.world, "commit_error"):
                self._inner.commit(description)
        except Exception as error:
            watch.call(self._context, f"{told} -> raised {type(error).__name__}: {error}", name)
            watch.commit_raised(name)
            raise
        is_lost = watch.world.happens("commit_error")
        answer = "done, but the answer is lost (simulated)" if is_lost else "returned"
        watch.call(self._context, f"{told} -> {answer}", name)
        watch.committed(name)
        if is_lost:
            raise SimulatedFault(f"simulated failure after the commit of {name}")

    def abort_others(self, keep: Sequence[Plain]) -> None:
        watch, names = self._watch, [str(name) for name in keep]
        told = f"abort_others(keep {len(names)})"
        if watch.world.happens("restore_error"):
            watch.call(self._context, f"{told} -> not called: simulated failure before it")
            raise SimulatedFault("simulated failure in a recovery")
        with _inside(watch.world, "restore_error"):
            self._inner.abort_others([watch.description(name) for name in names])
        watch.call(self._context, f"{told} -> returned")
        watch.aborted_others(self._context, set(names))

    def close(self) -> None:
        self._inner.close()


class StandIn(Sink):
    """In the place of a shipped sink: perfect, and in memory."""

    def __init__(self, idempotent: bool = False, hold: Hold | None = None) -> None:
        self.idempotent = idempotent
        self.hold = hold

    def writer(self, context: SinkContext) -> SinkWriter:
        return _StandInWriter()

    def committer(self, context: SinkContext) -> SinkCommitter:
        return _StandInCommitter()


class _StandInWriter(SinkWriter):
    def __init__(self) -> None:
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        rows, self._rows = self._rows, 0
        return (lambda: f"{rows} rows") if rows else None


class _StandInCommitter(SinkCommitter):
    def commit(self, transaction: Plain) -> None:
        """The watch keeps the rows."""

    def abort_others(self, keep: Sequence[Plain]) -> None:
        """The watch forgets them."""


@contextmanager
def _inside(world: UserWorld, fault: str) -> Iterator[None]:
    before, world.inside = world.inside, fault
    try:
        yield
    finally:
        world.inside = before
