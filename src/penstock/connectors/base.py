"""The contracts for sources and sinks, shipped and users' own.

A source is read in *lanes*, numbered 0 to `max_parallelism - 1`. Every split of a source (a file, a partition,
a range of positions) belongs to one lane by a rule that never changes; subtask i of p reads the lanes l with
`l % p == i`. Positions are kept per lane, so that any parallelism can take over from any other.

A sink writes in transactions. `SinkWriter.prepare` ends one and makes its rows durable but invisible; its
description goes into the checkpoint; when that is complete the committer makes the rows visible, once, however
often it is asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.answer import Answer, answered
from penstock.protocol.snapshot import Plain


@dataclass(frozen=True)
class SourceContext:
    """What a reader is told about its place in the job."""

    operator: str
    index: int
    parallelism: int
    max_parallelism: int
    now_ms: Callable[[], float]
    """Monotonic milliseconds. Never read the clock yourself: in a simulation it is virtual."""
    ask: Callable[[Callable[[], Any]], Answer[Any]] = answered
    """Runs a function in the background: for what takes long, such as a look at a remote store. `poll` must not wait,
    so it looks whether the answer is `ready` the next time."""

    @property
    def lanes(self) -> tuple[int, ...]:
        return tuple(range(self.index, self.max_parallelism, self.parallelism))


@dataclass(frozen=True)
class Wait:
    """No rows now; ask again at `until_ms` (on the clock of the context)."""

    until_ms: float


class EndOfInput:
    """No rows any more."""


END = EndOfInput()


class SourceReader(ABC):
    """Reads the lanes of one subtask. Called from one thread."""

    @abstractmethod
    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        """The next rows, at most `max_rows`, without waiting. After END it is not called again."""

    @abstractmethod
    def positions(self) -> Mapping[int, Plain]:
        """Per lane, the position right behind the last row that `poll` returned."""

    def describe(self) -> str:
        """Where the last batch came from, for error messages: a file and row, a partition and offset."""
        return ""

    def lag(self) -> Mapping[str, float]:
        """How far behind it is, by unit, for the metrics: `{"rows": 12}`, `{"files": 3}`; empty where nobody knows.
        Called several times a second, so it must not ask the outside world."""
        return {}

    def close(self) -> None:  # noqa: B027 (optional)
        """Releases what the reader holds. Called once, also after a failure."""


class Source(ABC):
    """What to read. Pickled to the workers, so it holds parameters and no open files."""

    bounded: bool = True

    @property
    @abstractmethod
    def schema(self) -> pa.Schema: ...

    def check_access(self) -> None:  # noqa: B027 (optional)
        """Raises `ConfigError` when this can never be read. Called in the driver before anything is launched, where
        the workers are on the same machine; on a cluster `reader` is the first to know."""

    @abstractmethod
    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        """A reader that goes on at `positions`; a lane that is not in there starts at its beginning."""


@dataclass(frozen=True)
class SinkContext:
    """What a writer and a committer are told about their place in the job."""

    job: str
    operator: str
    index: int
    parallelism: int
    attempt: int
    """Unique and increasing over the life of the job: put it into the names of what you stage."""
    schema: pa.Schema
    to_driver: Callable[[Plain], None]
    """Hands plain data to the driver's own copy of the sink (`Sink.receive`), in order."""
    now_ms: Callable[[], float] = lambda: 0.0
    """Monotonic milliseconds, on any thread. Never read the clock yourself: in a simulation it is virtual, and where
    none was given it stands still."""


@dataclass(frozen=True)
class Hold:
    """Rows wait in the job's checkpoints until they have `bytes_max` bytes in a subtask, or the oldest has waited for
    `wait_ms`: fewer and larger transactions, at the price of rows that are seen later."""

    bytes_max: int
    wait_ms: float


class SinkWriter(ABC):
    """Writes the rows of one subtask. Called from one thread."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        """Ends the transaction: all rows so far are durable, none visible. What is returned describes it to the
        committer, in any later process; None when there is nothing to commit. Later rows are of the next one.

        Where making it durable takes long (an fsync, an upload), return a function that does it and returns the
        description: it is called once, from another thread, while the writer goes on."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Releases what the writer holds; rows of the open transaction are given up."""


class SinkCommitter(ABC):
    """Makes prepared transactions visible. Called beside the writer, from another thread."""

    @abstractmethod
    def commit(self, transaction: Plain) -> None:
        """Makes one transaction visible, all of it or nothing. Must be idempotent: it is called again after any
        failure whose outcome is unknown. Raises when the transaction is gone and was not committed."""

    @abstractmethod
    def abort_others(self, keep: Sequence[Plain]) -> None:
        """Removes what earlier attempts of this job staged for this subtask (staged indices i with
        `i % parallelism == index`), except the transactions in `keep`. Called when an attempt begins, and behind the
        last commit of the job."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Releases what the committer holds."""


class Sink(ABC):
    """Where to write. Pickled to the workers, so it holds parameters and no open files."""

    idempotent: bool = False
    """True when replaying rows after a newer commit does no harm (upserts)."""
    hold: Hold | None = None
    """Set it where small transactions cost much. None: every checkpoint ends one."""
    keys: tuple[str, ...] = ()
    """Columns that the rows are divided by on their way to the sink, as `key_by` does it: all rows with equal values in
    them come to one subtask, in order. Empty: rows come as they are. Not together with `hold`."""

    def check(self, schema: pa.Schema) -> None:  # noqa: B027 (optional)
        """Raises `SchemaError` when rows of this schema cannot be written. Called while the plan is made."""

    def check_access(self) -> None:  # noqa: B027 (optional)
        """Raises `ConfigError` when this can never be written. Called in the driver before anything is launched,
        where the workers are on the same machine; on a cluster `committer` and `writer` are the first to know."""

    def shared_folder(self) -> str | None:
        """A folder on a disk, hidden from readers, that all hosts must share, because one may have to commit what
        another has written; None where there is none. On a cluster this is checked before anything runs."""
        return None

    def receive(self, item: Plain) -> None:  # noqa: B027 (optional)
        """Called in the driver with what a committer gave to `SinkContext.to_driver`; may come twice."""

    @abstractmethod
    def writer(self, context: SinkContext) -> SinkWriter: ...

    @abstractmethod
    def committer(self, context: SinkContext) -> SinkCommitter: ...
