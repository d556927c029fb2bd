"""Writes state ahead of checkpoints: who decides when, for all tables of an attempt, and what becomes of it.

Now and then the loop looks how much has changed that nobody has written. If that is much, it is written in the
background, so that a checkpoint finds most of it done. From time to time, and when its chain becomes long, all rows of
a table are written beside the checkpoints. The table says what belongs into either, and which checkpoint may use it
(`state/changelog.py`); here is only the when, and the files. Nothing of this can fail a job: what is not written ahead
is written by the next checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.engine.metrics import CHANGELOG_BYTES, series
from penstock.engine.spec import Changelogs
from penstock.engine.worker.segment_files import Files, SegmentFiles
from penstock.ports.background import Background
from penstock.ports.clock import Clock
from penstock.ports.store import Writing
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import Deploy
from penstock.protocol.retention import Role
from penstock.protocol.snapshot import Segment
from penstock.redaction import redacted
from penstock.state.changelog import Changelog, Cut, Whole
from penstock.state.frozen_table import FrozenTable
from penstock.state.logged_floor import WholeFloor
from penstock.state.table import Table
from penstock.wire import paths
from penstock.wire.paths import WorkerFile

LOOK_EVERY_MS = 50.0
"""Looking means to count the rows that have changed: a fraction of a millisecond for millions of keys."""
RETRY_MS = 10_000.0
"""After a failure the same table is left alone for so long."""
ROWS_WORTH_MEASURING = 1_000
TEXT_BYTES = 32
"""What a value of any length is taken to have, until some have been written."""

log = logging.getLogger("penstock")


@dataclass
class _Entry:
    """A table."""

    number: int
    table: Table
    changes: Changelog
    row_bytes: float
    due_ms: float
    """When all its rows are to be written again, if anything has changed."""
    not_before_ms: float = 0.0
    """Something failed."""


@dataclass(frozen=True)
class _Piece:
    """What is being written."""

    entry: _Entry
    plan: Cut | Whole | WholeFloor
    place: WorkerFile


class WritingAhead:
    """Of one attempt, on its loop. Meets the contract `Log`."""

    def __init__(
        self,
        limits: Changelogs,
        deploy: Deploy,
        files: Files,
        clock: Clock,
        background: Background,
        inline_bytes_max: int,
        compression: str | None = None,
    ) -> None:
        self._limits = limits
        self._deploy = deploy
        self._files = _UntilClosed(files)
        self._clock = clock
        self._background = background
        self._inline_bytes_max = inline_bytes_max
        self._compression = compression
        self._entries: list[_Entry] = []
        self._look_ms = 0.0
        self._under_way: dict[Role, _Piece] = {}
        """One of each at a time."""
        self._waiting: list[Callable[[], None]] = []
        self._bytes = {Role.LOG: 0, Role.BASE: 0}

    def admit(self, table: Table, changes: Changelog) -> None:
        due_ms = self._clock.monotonic_ms() + self._limits.materialize_every_ms
        number, width = len(self._entries), _width(table.schema)
        self._entries.append(_Entry(number, table, changes, width, due_ms))

    # ---- when

    def step(self) -> None:
        """Between two batches."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_EVERY_MS
        ready = [entry for entry in self._entries if entry.not_before_ms <= now_ms]
        if Role.LOG not in self._under_way:
            self._begin_cut(ready, now_ms)
        if Role.BASE not in self._under_way:
            self._begin_whole(ready, now_ms)

    def _begin_cut(self, entries: Sequence[_Entry], now_ms: float) -> None:
        for entry in entries:
            if entry.changes.unwritten_rows * entry.row_bytes < self._limits.ahead_bytes:
                continue
            plan = entry.changes.cut()
            if plan is None:
                entry.not_before_ms = now_ms + RETRY_MS
                continue
            self._begin(entry, plan, Role.LOG)
            return

    def _begin_whole(self, entries: Sequence[_Entry], now_ms: float) -> None:
        for entry in entries:
            is_due = now_ms >= entry.due_ms and entry.changes.has_deltas
            if is_due or entry.changes.is_long:
                entry.due_ms = now_ms + self._limits.materialize_every_ms
                self._begin(entry, entry.changes.materialize(), Role.BASE)
                return

    def when_cut(self, act: Callable[[], None]) -> None:
        """Now, or when what is being written ahead is durable, or has failed: to write the same rows once more would
        take longer."""
        if Role.LOG in self._under_way:
            self._waiting.append(act)
        else:
            act()

    # ---- how

    def _begin(self, entry: _Entry, plan: Cut | Whole | WholeFloor, role: Role) -> None:
        """The name says which checkpoint was the newest that this table knows of."""
        newest = CheckpointId(max(1, self._deploy.restored, entry.changes.newest))
        part = paths.ahead_part(role, entry.number, plan.mark)
        place = WorkerFile(newest, self._deploy.slot, self._deploy.attempt, part)
        piece = self._under_way[role] = _Piece(entry, plan, place)
        view = entry.table.view(plan)
        out = SegmentFiles(self._files, place, self._inline_bytes_max, self._compression)
        self._background.submit(
            lambda: _write(view, out),
            lambda segments: self._written(role, piece, segments),
            lambda error: self._failed(role, piece, view, error),
        )

    def _written(self, role: Role, piece: _Piece, segments: tuple[Segment, ...]) -> None:
        if self._files.closed:
            return
        size = sum(segment.bytes_total for segment in segments)
        rows = sum(block.rows for segment in segments for block in segment.blocks)
        if rows >= ROWS_WORTH_MEASURING:
            piece.entry.row_bytes = size / rows
        self._bytes[role] += size
        piece.entry.changes.add(piece.plan.links(segments))
        self._over(role)

    def _failed(self, role: Role, piece: _Piece, view: FrozenTable, error: BaseException) -> None:
        if self._files.closed:
            return
        view.release()
        piece.entry.not_before_ms = self._clock.monotonic_ms() + RETRY_MS
        if role is Role.BASE:
            piece.entry.due_ms = 0.0
        log.warning(
            "state %r: %s was not written in the background, and is tried again later: %s",
            piece.entry.table.state,
            paths.shared_file(piece.place),
            redacted(f"{type(error).__name__}: {error}"),
        )
        self._over(role)

    def _over(self, role: Role) -> None:
        del self._under_way[role]
        if role is Role.LOG:
            waiting, self._waiting = self._waiting, []
            for act in waiting:
                act()

    # ---- for others

    @property
    def held(self) -> frozenset[str]:
        """Files that no checkpoint refers to yet, perhaps."""
        links = (link for entry in self._entries for link in entry.changes.ahead)
        begun = (paths.shared_file(piece.place) for piece in self._under_way.values())
        return frozenset((*(link.segment.file for link in links), *begun))

    def metrics(self) -> dict[str, float]:
        return {
            series(CHANGELOG_BYTES, written="ahead"): self._bytes[Role.LOG],
            series(CHANGELOG_BYTES, written="materialized"): self._bytes[Role.BASE],
        }

    def close(self) -> None:
        """What is under way ends as soon as it can, and leaves no file."""
        self._files.closed = True
        self._waiting = []


def _write(view: FrozenTable, out: SegmentFiles) -> tuple[Segment, ...]:
    """Durable when this returns."""
    try:
        segments = view.write(out)
        out.finish()
    except BaseException:
        out.discard()
        raise
    return segments


class _UntilClosed:
    """Files that nobody wants any more when the attempt is over: all rows take their time to write."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.closed = False

    def begin(self, name: str) -> Writing:
        self.check()
        return _Writing(self._files.begin(name), self.check)

    def check(self) -> None:
        if self.closed:
            raise InterruptedError("the attempt is over")


@dataclass(frozen=True)
class _Writing:
    inner: Writing
    check: Callable[[], None]

    def write(self, chunk: bytes | memoryview) -> None:
        self.check()
        self.inner.write(chunk)

    def finish(self) -> int:
        self.check()
        return self.inner.finish()

    def discard(self) -> None:
        self.inner.discard()


def _width(schema: pa.Schema) -> float:
    """Of a row, before any has been written."""
    return float(sum(_bytes_of(field.type) for field in schema))


def _bytes_of(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return TEXT_BYTES
