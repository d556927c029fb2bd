"""What a sink had promised in a checkpoint is kept by whoever goes on from it, whatever the parallelism."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.connect import SinkOperator
from penstock.protocol.snapshot import OperatorSnapshot, Plain
from tests.engine.kit import SCHEMA, ListSink

PROMISED = tuple(OperatorSnapshot(transactions=(f"of {i}",)) for i in range(3))


class CommitLog(Sink):
    """Notes what is committed, and what is not to be aborted."""

    def __init__(self) -> None:
        self.committed: list[Plain] = []
        self.kept: list[list[Plain]] = []

    def writer(self, context: SinkContext) -> SinkWriter:
        return ListSink().writer(context)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return _LogCommitter(self)


class _LogCommitter(SinkCommitter):
    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def commit(self, transaction: Plain) -> None:
        self._log.committed.append(transaction)

    def abort_others(self, keep: Sequence[Plain]) -> None:
        self._log.kept.append(list(keep))


def context(index: int, parallelism: int) -> OperatorContext:
    return OperatorContext(
        job="job",
        operator="out",
        index=index,
        parallelism=parallelism,
        max_parallelism=8,
        attempt=2,
        input_schemas=(SCHEMA,),
        now_ms=lambda: 0.0,
        wall_ms=lambda: 0.0,
        restored=PROMISED,
        read_segments=lambda segments, groups: (),
        to_driver=lambda item: None,
    )


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_every_promise_is_kept_once_by_whoever_goes_on(parallelism: int) -> None:
    """E2, R6, bug-F2: 3 subtasks had promised; those of them that are no more have heirs, and nobody aborts them."""
    sink = CommitLog()
    for index in range(parallelism):
        SinkOperator(sink).open(context(index, parallelism))
    assert sorted(map(str, sink.committed)) == ["of 0", "of 1", "of 2"]
    assert sink.kept == [["of 0", "of 1", "of 2"]] * parallelism


def test_a_committer_is_closed_also_where_its_writer_cannot_be() -> None:
    """I26, bug-F11."""
    closed: list[str] = []

    class Stuck(CommitLog):
        def writer(self, context: SinkContext) -> SinkWriter:
            made = ListSink().writer(context)
            made.close = lambda: _fail(closed)  # type: ignore[method-assign]
            return made

        def committer(self, context: SinkContext) -> SinkCommitter:
            made = _LogCommitter(self)
            made.close = lambda: closed.append("committer")  # type: ignore[method-assign]
            return made

    operator = SinkOperator(Stuck())
    operator.open(context(0, 1))
    with pytest.raises(OSError, match="half open"):
        operator.close()
    assert closed == ["writer", "committer"]


def _fail(closed: list[str]) -> None:
    closed.append("writer")
    raise OSError("half open")
