"""One sink and the simulated processes that use it: each has a copy of its own, as it would come over the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.protocol.snapshot import Plain


@dataclass(frozen=True)
class Where:
    job: str = "job"
    operator: str = "out"
    index: int = 0
    parallelism: int = 1
    attempt: int = 1


@dataclass
class Place:
    """One sink and the processes that use it: each gets its own copy, as over the wire."""

    sink: Sink
    schema: pa.Schema
    opened: list[SinkWriter | SinkCommitter] = field(default_factory=list)
    crashed: list[SinkWriter] = field(default_factory=list)
    checkpoint: int = 0

    def open(self, where: Where) -> tuple[SinkWriter, SinkCommitter]:
        return self.writer(where), self.committer(where)

    def writer(self, where: Where) -> SinkWriter:
        writer = self._copy().writer(self._context(where))
        self.opened.append(writer)
        return writer

    def committer(self, where: Where) -> SinkCommitter:
        committer = self._copy().committer(self._context(where))
        self.opened.append(committer)
        return committer

    def stage(self, where: Where, batch: pa.RecordBatch) -> Plain:
        """A transaction that was prepared; its process is gone."""
        writer = self.stage_open(where, batch)
        self.checkpoint += 1
        return plain(writer.prepare(self.checkpoint))

    def stage_open(self, where: Where, batch: pa.RecordBatch) -> SinkWriter:
        """A transaction that was begun by a process that is gone."""
        writer = self._copy().writer(self._context(where))
        writer.write(batch)
        self.crashed.append(writer)
        return writer

    def crash_leftovers_are_closed(self) -> None:
        """A process that is gone closes nothing; here its memory is given back at last."""
        for writer in self.crashed:
            writer.close()

    def close(self) -> None:
        for each in self.opened:
            each.close()

    def _copy(self) -> Sink:
        return deepcopy(self.sink)

    def _context(self, where: Where) -> SinkContext:
        return SinkContext(
            where.job,
            where.operator,
            where.index,
            where.parallelism,
            where.attempt,
            self.schema,
            lambda item: self.sink.receive(plain(item)),
        )


def plain(value: Plain | Callable[[], Plain]) -> Plain:
    """As it comes back from a checkpoint or over the wire: anything that is no plain data shows here."""
    made = value() if callable(value) else value
    result: Plain = json.loads(json.dumps(made))
    return result
