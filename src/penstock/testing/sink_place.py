"""One sink and the simulated processes that use it: each has a copy of its own, as it would come over the wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.protocol.snapshot import OperatorSnapshot, Plain
from penstock.testing.finding import short
from penstock.wire.structure import Codec, Malformed, Structure, check_plain


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
    problem = not_plain(made)
    if problem is not None:
        raise AssertionError(f"{problem}. {RETURN_PLAIN}")
    return as_kept(made)


def as_kept(value: Plain) -> Plain:
    """Plain data as it comes back: a copy of its own."""
    made: Plain = json.loads(json.dumps(value))
    return made


def not_plain(value: object) -> str | None:
    """Why a checkpoint cannot keep what `prepare` returned; None where it can. The check is the one of the engine."""
    problem = _refused(OperatorSnapshot(transactions=(value,)))  # type: ignore[arg-type]
    return None if problem is None else f"{short(value)} cannot be kept in a checkpoint: {problem}"


def not_plain_positions(positions: object) -> str | None:
    """Why a checkpoint cannot keep what `positions` returned; None where it can."""
    if not isinstance(positions, Mapping):
        return f"{short(positions)} is a {type(positions).__name__}, and no dict of lanes and positions"
    problem = _refused(OperatorSnapshot(lanes=positions))
    if problem is None:
        return None
    return f"{short(dict(positions))} cannot be kept in a checkpoint: {problem}"


def _refused(snapshot: OperatorSnapshot) -> str | None:
    try:
        _SNAPSHOTS.dump(snapshot)
        for value in (*snapshot.transactions, *snapshot.lanes.values()):
            check_plain(value)
    except Malformed as error:
        where = error.where.removeprefix("transactions[0]").lstrip(".,").strip()
        return f"{where}: {error.problem}" if where else error.problem
    return None


def _itself(value: Any) -> Any:
    return value


_SNAPSHOTS = Structure(Codec(_itself, _itself)).of(OperatorSnapshot)
RETURN_PLAIN = (
    "It is written to a file and comes back in another process, so return None, bool, int, float, str, and lists and"
    " dicts (with text as keys) of these: list(pair) for a tuple, int(n) for NumPy's numbers, t.isoformat() for a date."
)
