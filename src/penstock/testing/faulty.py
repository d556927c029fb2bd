"""Sources and sinks that fail at a place that a script names, once, whichever process gets there.

    FaultySink(sink, [fail_before("commit", 2), fail_after("commit", 5)])
    FaultySource(source, [fail_before("read", 3)])

Calls are counted over all subtasks and attempts, from 1. `fail_before` raises and does nothing; `fail_after` does it
and raises all the same, so that nobody knows whether it took effect. They work in `simulate` and on a real Spark whose
workers are on this machine.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import pyarrow as pa

from penstock.api.config import whole_number
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
from penstock.errors import ConfigError
from penstock.protocol.snapshot import Plain
from penstock.testing.outside import SimulatedFault, is_calm
from penstock.testing.tally import Tally

SOURCE_CALLS = ("open", "read", "recover")
SINK_CALLS = ("open", "write", "prepare", "commit", "abort", "recover")
Call: TypeAlias = Literal["open", "read", "recover", "write", "prepare", "commit", "abort"]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Failure:
    """The `number`-th call of this kind fails, before or after it took effect."""

    call: Call
    number: int
    took_effect: bool


def fail_before(call: Call, number: int = 1) -> Failure:
    """Raises instead of doing it."""
    return Failure(call, whole_number(number, "fail_before: number", 1, 1 << 31), False)


def fail_after(call: Call, number: int = 1) -> Failure:
    """Does it and raises all the same: the outcome is unknown."""
    return Failure(call, whole_number(number, "fail_after: number", 1, 1 << 31), True)


class Script:
    """The failures that are to come, and how far things have got."""

    def __init__(self, failures: Iterable[Failure], known: Sequence[str], what: str) -> None:
        self._failures = tuple(failures)
        self._tally = Tally()
        for failure in self._failures:
            _check(failure, known, what)

    def run(self, call: Call, work: Callable[[], Answer]) -> Answer:
        """Does the work, or fails where the script says so."""
        if is_calm() or not any(failure.call == call for failure in self._failures):
            return work()
        number = self._tally.next(call)
        if Failure(call, number, False) in self._failures:
            raise SimulatedFault(f"{call} {number} fails, as the script says")
        answer = work()
        if Failure(call, number, True) in self._failures:
            raise SimulatedFault(f"{call} {number} is done and fails, as the script says")
        return answer


def _check(failure: object, known: Sequence[str], what: str) -> None:
    if not isinstance(failure, Failure):
        raise ConfigError(f"{what}: {failure!r} is no failure; write fail_before({known[1]!r}, 2)")
    if failure.call not in known:
        close = difflib.get_close_matches(str(failure.call), known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"{what}: there is no call {failure.call!r}; {hint}")


# ---- sources


class FaultySource(Source):
    """`open` is every start of a reader, `recover` a start at positions, `read` every poll."""

    def __init__(self, source: Source, script: Iterable[Failure]) -> None:
        self.inside = source
        self.bounded = source.bounded
        self._script = Script(script, SOURCE_CALLS, "FaultySource")

    @property
    def schema(self) -> pa.Schema:
        return self.inside.schema

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        def open_it() -> SourceReader:
            return self._script.run("open", lambda: self.inside.reader(context, positions))

        reader = self._script.run("recover", open_it) if positions else open_it()
        return _FaultyReader(reader, self._script)


class _FaultyReader(SourceReader):
    def __init__(self, inside: SourceReader, script: Script) -> None:
        self._inside = inside
        self._script = script

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        return self._script.run("read", lambda: self._inside.poll(max_rows))

    def positions(self) -> Mapping[int, Plain]:
        return self._inside.positions()

    def describe(self) -> str:
        return self._inside.describe()

    def lag(self) -> Mapping[str, float]:
        return self._inside.lag()

    def close(self) -> None:
        self._inside.close()


# ---- sinks


class FaultySink(Sink):
    """`open` is every start of a writer, `recover` every start of a later attempt, `abort` is `abort_others`."""

    def __init__(self, sink: Sink, script: Iterable[Failure]) -> None:
        self.inside = sink
        self.idempotent = sink.idempotent
        self.hold = sink.hold
        self.keys = sink.keys
        self._script = Script(script, SINK_CALLS, "FaultySink")

    def around(self, sink: Sink) -> FaultySink:
        """The same script around another sink."""
        made = FaultySink(sink, ())
        made._script = self._script
        return made

    def check(self, schema: pa.Schema) -> None:
        self.inside.check(schema)

    def receive(self, item: Plain) -> None:
        self.inside.receive(item)

    def writer(self, context: SinkContext) -> SinkWriter:
        inside = self._script.run("open", lambda: self.inside.writer(context))
        return _FaultyWriter(inside, self._script)

    def committer(self, context: SinkContext) -> SinkCommitter:
        def open_it() -> SinkCommitter:
            return self.inside.committer(context)

        is_later = context.attempt > 1
        inside = self._script.run("recover", open_it) if is_later else open_it()
        return _FaultyCommitter(inside, self._script)


class _FaultyWriter(SinkWriter):
    def __init__(self, inside: SinkWriter, script: Script) -> None:
        self._inside = inside
        self._script = script

    def write(self, batch: pa.RecordBatch) -> None:
        self._script.run("write", lambda: self._inside.write(batch))

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        """Counts when the rows are made durable, wherever that is done."""
        made = self._inside.prepare(checkpoint)
        if callable(made):
            work = made
            return lambda: self._script.run("prepare", work)
        if made is None:
            return None
        done = made
        return self._script.run("prepare", lambda: done)

    def close(self) -> None:
        self._inside.close()


class _FaultyCommitter(SinkCommitter):
    def __init__(self, inside: SinkCommitter, script: Script) -> None:
        self._inside = inside
        self._script = script

    def commit(self, transaction: Plain) -> None:
        self._script.run("commit", lambda: self._inside.commit(transaction))

    def abort_others(self, keep: Sequence[Plain]) -> None:
        self._script.run("abort", lambda: self._inside.abort_others(keep))

    def close(self) -> None:
        self._inside.close()
