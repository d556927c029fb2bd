"""From frozen subtasks to an acknowledgement: one file per worker and checkpoint, written off the loop.

The subtasks of a worker freeze at different moments; when the last one has, all their state is written in one go. A
checkpoint is complete only when every subtask has answered, so waiting for one's neighbours costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.engine.operators.base import Encoded, FrozenOperator
from penstock.engine.spec import InDriver
from penstock.engine.worker.inputs import ChannelRows
from penstock.engine.worker.subtask import Taken
from penstock.errors import CheckpointCorrupt, CommitError, StorageError
from penstock.ports.clock import Clock
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.snapshot import (
    InFlight,
    OperatorSnapshot,
    Plain,
    Segment,
    SubtaskSnapshot,
    Timings,
)
from penstock.state.channel_rows import encode_rows, read_rows
from penstock.state.segments import Fetch, read_blocks
from penstock.wire import paths


@dataclass(frozen=True)
class WriteWork:
    """The asynchronous part of a worker's snapshot. Runs on another thread, on frozen data only."""

    store: CheckpointStore | None
    slot: SlotId
    attempt: AttemptId
    checkpoint: CheckpointId
    taken: Sequence[Taken]
    clock: Clock
    inline_bytes_max: int
    in_driver: InDriver | None = None

    def __call__(self) -> tuple[SubtaskSnapshot, ...]:
        began_ms = self.clock.monotonic_ms()
        if self.store is None and self.in_driver is None:
            release_all(self.taken)
            return tuple(_without_state(taken) for taken in self.taken)
        encoded = [_encode(taken) for taken in self.taken]
        everything = [table for parts in encoded for table in parts.tables()]
        total = sum(map(_size, everything))
        file = ""
        if self.in_driver is not None:
            _check_small(zip(self.taken, encoded, strict=True), total, self.in_driver)
        elif self.store is not None and total > self.inline_bytes_max:
            file = paths.worker_file(self.checkpoint, self.slot, self.attempt)
            self.store.write(file, _chunks(everything))
        places = _Places(file)
        snapshots = [
            _snapshot(taken, parts, places)
            for taken, parts in zip(self.taken, encoded, strict=True)
        ]
        async_ms = self.clock.monotonic_ms() - began_ms
        return tuple(replace(s, timings=replace(s.timings, async_ms=async_ms)) for s in snapshots)


class _Places:
    """Where each table comes to lie: one behind the other in the file, or each on its own inline."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._end = 0

    def segment(self, table: Encoded) -> Segment:
        size = _size(table)
        if not self._file:
            whole = b"".join(bytes(chunk) for chunk in table.chunks)
            return Segment(table.state, table.schema, table.blocks, inline=whole)
        start, self._end = self._end, self._end + size
        blocks = tuple(replace(block, offset=block.offset + start) for block in table.blocks)
        return Segment(table.state, table.schema, blocks, file=self._file)


def _size(table: Encoded) -> int:
    return sum(len(chunk) for chunk in table.chunks)


def _check_small(parts: Iterable[tuple[Taken, _Encoded]], total: int, limits: InDriver) -> None:
    """Rows in flight have a limit of their own (`inflight_bytes_max`) and count in the total only."""
    states = (
        (
            f"state {table.state!r} of operator {name!r} in subtask {taken.subtask.index}",
            _size(table),
        )
        for taken, encoded in parts
        for name, tables in encoded.operators
        for table in tables
    )
    for what, size in states:
        if size > limits.state_bytes_max:
            raise _too_large(what, size, limits.state_bytes_max)
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

    def read(segment: Segment, groups: range) -> Iterable[pa.RecordBatch]:
        return read_blocks(segment, groups, fetch_from(store, segment))

    return read


def read_inflight(
    store: CheckpointStore | None, inflight: InFlight, schema: pa.Schema
) -> list[pa.RecordBatch]:
    """The verified rows that were on their way on one channel, in order."""
    segment = inflight.segment
    try:
        return list(read_rows(segment, schema, fetch_from(store, segment)))
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(
            f"rows in flight to operator {inflight.operator!r}: {error}"
        ) from error


def fetch_from(store: CheckpointStore | None, segment: Segment) -> Fetch:
    """How the bytes of a segment are read: those inside it, or those of its file."""
    inline = segment.inline
    if inline is not None:
        return lambda at, size: inline[at : at + size]
    if store is None:
        raise ValueError(f"no store to read {segment.file} from")
    name = paths.segment_file(segment.file)
    return lambda at, size: store.read(name, at, size)


@dataclass(frozen=True)
class _Encoded:
    """A subtask's snapshot as bytes: by operator and state, then by channel."""

    operators: list[tuple[str, list[Encoded]]]
    inflight: list[tuple[ChannelRows, Encoded]]

    def tables(self) -> Iterable[Encoded]:
        """In the order in which they lie in the file."""
        for _, tables in self.operators:
            yield from tables
        for _, table in self.inflight:
            yield table


def _encode(taken: Taken) -> _Encoded:
    return _Encoded(
        [
            (name, [table.encode() for table in frozen.tables])
            for name, frozen in taken.operators.items()
        ],
        [(rows, encode_rows(rows.batches)) for rows in taken.inflight],
    )


def _chunks(tables: Iterable[Encoded]) -> Iterable[memoryview]:
    for table in tables:
        yield from table.chunks


def _snapshot(taken: Taken, encoded: _Encoded, places: _Places) -> SubtaskSnapshot:
    operators = {
        name: _operator(name, taken, tuple(places.segment(table) for table in tables))
        for name, tables in encoded.operators
    }
    head = next(iter(taken.operators))
    inflight = tuple(
        InFlight(head, rows.port, rows.source, places.segment(table))
        for rows, table in encoded.inflight
    )
    return _subtask(taken, operators, inflight)


def _without_state(taken: Taken) -> SubtaskSnapshot:
    return _subtask(taken, {name: _operator(name, taken, ()) for name in taken.operators})


def _operator(name: str, taken: Taken, segments: tuple[Segment, ...]) -> OperatorSnapshot:
    frozen = taken.operators[name]
    return OperatorSnapshot(segments, frozen.lanes, _transactions(name, frozen))


def _transactions(name: str, frozen: FrozenOperator) -> tuple[Plain, ...]:
    try:
        made = [entry.get() for entry in frozen.transactions]
    except Exception as error:
        what = f"sink {name!r} could not make its rows durable: {type(error).__name__}: {error}"
        raise CommitError(what, name) from error
    return tuple(entry for entry in made if entry is not None)


def _subtask(
    taken: Taken,
    operators: Mapping[str, OperatorSnapshot],
    inflight: tuple[InFlight, ...] = (),
) -> SubtaskSnapshot:
    state = sum(s.bytes_total for op in operators.values() for s in op.segments)
    rows = sum(entry.segment.bytes_total for entry in inflight)
    timings = Timings(
        taken.alignment_ms,
        taken.sync_ms,
        bytes_written=state + rows,
        inflight_bytes=rows,
        alignment_rows=taken.alignment_rows,
    )
    return SubtaskSnapshot(taken.subtask, operators, taken.finished, timings, inflight)


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
