"""From frozen subtasks to an acknowledgement: one file per worker and checkpoint, written off the loop.

The subtasks of a worker freeze at different moments; when the last one has, all their state is written in one go. A
checkpoint is complete only when every subtask has answered, so waiting for one's neighbours costs nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from penstock.engine.operators.base import FrozenOperator
from penstock.engine.spec import InDriver
from penstock.engine.worker.segment_files import Files, SegmentFiles
from penstock.engine.worker.subtask import Taken
from penstock.errors import CheckpointCorrupt, CommitError, InvariantBroken, StorageError
from penstock.ports.clock import Clock
from penstock.ports.store import CheckpointStore, Writing
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.snapshot import (
    Block,
    InFlight,
    OperatorSnapshot,
    Plain,
    Segment,
    SubtaskSnapshot,
    Timings,
)
from penstock.state.channel_rows import read_rows
from penstock.state.segments import Fetch, read_blocks
from penstock.wire import paths

ReadBlock: TypeAlias = Callable[[str, Block], bytes]
"""Reads a block of a file."""
FetchOf: TypeAlias = Callable[[Segment], Fetch]


@dataclass(frozen=True)
class WriteWork:
    """The asynchronous part of a worker's snapshot. Runs on another thread, on frozen data only."""

    store: Files | None
    slot: SlotId
    attempt: AttemptId
    checkpoint: CheckpointId
    taken: Sequence[Taken]
    clock: Clock
    inline_bytes_max: int
    compression: str | None = None
    in_driver: InDriver | None = None

    def __call__(self) -> tuple[SubtaskSnapshot, ...]:
        began_ms = self.clock.monotonic_ms()
        if self.store is None and self.in_driver is None:
            release_all(self.taken)
            return tuple(_snapshot(taken, _Written()) for taken in self.taken)
        written = self._write(self.store or _NoFiles())
        if self.in_driver is not None:
            _check_small(self.taken, written, self.in_driver)
        snapshots = [
            _snapshot(taken, parts) for taken, parts in zip(self.taken, written, strict=True)
        ]
        async_ms = self.clock.monotonic_ms() - began_ms
        return tuple(replace(s, timings=replace(s.timings, async_ms=async_ms)) for s in snapshots)

    def _write(self, files: Files) -> list[_Written]:
        """Durable when this returns."""
        place = paths.WorkerFile(self.checkpoint, self.slot, self.attempt)
        room = self.inline_bytes_max if self.in_driver is None else sys.maxsize
        out = SegmentFiles(files, place, room, self.compression)
        try:
            written = [_write(taken, out) for taken in self.taken]
            out.finish()
        except BaseException:
            out.discard()
            raise
        return written


class _NoFiles:
    """Where checkpoints are kept in the driver's memory nothing goes into files."""

    def begin(self, name: str) -> Writing:
        raise InvariantBroken(f"{name} was to be written, and there is no place for files")


def _check_small(taken: Sequence[Taken], written: Sequence[_Written], limits: InDriver) -> None:
    """Rows in flight have a limit of their own (`inflight_bytes_max`) and count in the total only."""
    total = 0
    for subtask, parts in zip(taken, written, strict=True):
        total += sum(len(entry.segment.inline or b"") for entry in parts.inflight)
        for name, segments in parts.segments.items():
            sizes: Counter[str] = Counter()
            for segment in segments:
                sizes[segment.state] += len(segment.inline or b"")
            total += sizes.total()
            for state, size in sizes.items():
                if size > limits.state_bytes_max:
                    where = f"operator {name!r} in subtask {subtask.subtask.index}"
                    raise _too_large(f"state {state!r} of {where}", size, limits.state_bytes_max)
    if total > limits.worker_bytes_max:
        raise _too_large("all state of a worker together", total, limits.worker_bytes_max)


def _too_large(what: str, size: int, limit: int) -> StorageError:
    return StorageError(
        f'{what} has {size:,} bytes, and a checkpoint in the driver\'s memory (CheckpointConfig("memory:")) may have'
        f' {limit:,} of that: give the job a directory, as in CheckpointConfig("checkpoints/")'
    )


def release_all(taken: Iterable[Taken]) -> None:
    for entry in taken:
        entry.release()


def reader(
    store: CheckpointStore | None,
) -> Callable[[Segment, range], Iterable[pa.RecordBatch]]:
    """Reads verified rows of a segment, only the blocks that a range of key groups needs."""
    fetch = fetch_from(store)

    def read(segment: Segment, groups: range) -> Iterable[pa.RecordBatch]:
        return read_blocks(segment, groups, fetch(segment))

    return read


def read_inflight(fetch: FetchOf, inflight: InFlight, schema: pa.Schema) -> list[pa.RecordBatch]:
    """The verified rows that were on their way on one channel, in order."""
    segment = inflight.segment
    try:
        return list(read_rows(segment, schema, fetch(segment)))
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(
            f"rows in flight to operator {inflight.operator!r}: {error}"
        ) from error


def fetch_from(store: CheckpointStore | None) -> FetchOf:
    """From where they were written to."""
    if store is None:
        return fetch_with(None)
    return fetch_with(lambda name, block: store.read(name, block.offset, block.length))


def fetch_with(read: ReadBlock | None) -> FetchOf:
    """How the bytes of a segment are read: those inside it, or those of its file. None: there are no files."""

    def fetch_of(segment: Segment) -> Fetch:
        inline = segment.inline
        if inline is not None:
            return lambda block: inline[block.offset : block.offset + block.length]
        if read is None:
            raise ValueError(f"no store to read {segment.file} from")
        name = paths.segment_file(segment.file)
        return lambda block: read(name, block)

    return fetch_of


@dataclass(frozen=True)
class _Written:
    """Where a subtask's snapshot lies: its segments by operator, and its rows in flight by channel."""

    segments: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    inflight: tuple[InFlight, ...] = ()
    bytes: int = 0
    """So many were written; segments of earlier checkpoints were before."""


def _write(taken: Taken, out: SegmentFiles) -> _Written:
    before = out.bytes_put
    segments = {
        name: tuple(segment for table in frozen.tables for segment in table.write(out))
        for name, frozen in taken.operators.items()
    }
    head = next(iter(taken.operators))
    inflight = tuple(
        InFlight(head, rows.port, rows.source, out.put_rows(rows.batches))
        for rows in taken.inflight
    )
    return _Written(segments, inflight, out.bytes_put - before)


def _snapshot(taken: Taken, written: _Written) -> SubtaskSnapshot:
    operators = {
        name: OperatorSnapshot(
            written.segments.get(name, ()), frozen.lanes, _transactions(name, frozen)
        )
        for name, frozen in taken.operators.items()
    }
    timings = Timings(
        taken.alignment_ms,
        taken.sync_ms,
        bytes_written=written.bytes,
        inflight_bytes=sum(entry.segment.bytes_total for entry in written.inflight),
        alignment_rows=taken.alignment_rows,
    )
    return SubtaskSnapshot(taken.subtask, operators, taken.finished, timings, written.inflight)


def _transactions(name: str, frozen: FrozenOperator) -> tuple[Plain, ...]:
    try:
        made = [entry.get() for entry in frozen.transactions]
    except Exception as error:
        what = f"sink {name!r} could not make its rows durable: {type(error).__name__}: {error}"
        raise CommitError(what, name) from error
    return tuple(entry for entry in made if entry is not None)


class Assembler:
    """Collects the snapshots of a worker's subtasks until all have taken one."""

    def __init__(self, subtasks: Iterable[SubtaskId]) -> None:
        self._subtasks = frozenset(subtasks)
        self._collected: dict[CheckpointId, dict[SubtaskId, Taken]] = {}

    def add(self, taken: Taken) -> tuple[Taken, ...] | None:
        """All snapshots of this checkpoint, in order of their subtasks, when this was the last one."""
        collected = self._collected.setdefault(taken.checkpoint, {})
        collected[taken.subtask] = taken
        if collected.keys() != self._subtasks:
            return None
        del self._collected[taken.checkpoint]
        return tuple(collected[subtask] for subtask in sorted(collected))

    def forget(self, upto: CheckpointId | None = None, only: CheckpointId | None = None) -> None:
        """Snapshots that will never be complete are let go."""
        for checkpoint in sorted(self._collected):
            if checkpoint == only or (upto is not None and checkpoint <= upto):
                release_all(self._collected.pop(checkpoint).values())

    def close(self) -> None:
        for collected in self._collected.values():
            release_all(collected.values())
        self._collected.clear()
