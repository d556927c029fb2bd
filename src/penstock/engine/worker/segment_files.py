"""Where the rows of a worker's snapshot go: into the segments themselves while they are few, then into files.

Rows become bytes a block at a time, and those go to the store before the next block is made: a snapshot of any size
needs memory for a few blocks. There are two files at most, one for what belongs to this checkpoint alone and one for
what later checkpoints may refer to, each begun with the first piece that is for it and too large to travel in the
metadata. Neither exists before `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from penstock.ports.store import Writing
from penstock.protocol.snapshot import ALL_GROUPS, Block, Segment
from penstock.state.channel_rows import STATE
from penstock.state.segments import (
    END_OF_STREAM,
    batch_message,
    checksum,
    ends_of,
    schema_message,
)
from penstock.wire import paths
from penstock.wire.paths import WorkerFile

SHARED_PART = "state"


class Files(Protocol):
    def begin(self, name: str) -> Writing: ...


class SegmentFiles:
    """Meets the contract `Out`."""

    def __init__(
        self,
        store: Files,
        place: WorkerFile,
        inline_bytes_max: int,
        compression: str | None = None,
    ) -> None:
        """`place` may say what part this is of all that the worker shares. `inline_bytes_max`: so much, of all segments
        together, may travel in the metadata."""
        own = paths.worker_file(place.checkpoint, place.slot, place.attempt)
        self._own = _File(store, own)
        shared = replace(place, part=place.part or SHARED_PART)
        self._shared = _File(store, paths.shared_file(shared))
        self._inline_left = inline_bytes_max
        self._compression = compression
        self.bytes_put = 0
        """The size of all blocks so far."""

    def put(
        self,
        state: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        groups: tuple[int, int] = ALL_GROUPS,
        delta: bool = False,
        shared: bool = False,
    ) -> Segment:
        file = self._shared if shared else self._own
        segment = self._put(file, state, schema, batches, ends_of)
        return replace(segment, groups=groups, delta=delta)

    def put_file(
        self,
        state: str,
        schema: pa.Schema,
        member: str,
        pieces: Iterable[bytes],
        *,
        groups: tuple[int, int],
        shared: bool = False,
    ) -> Segment:
        file = self._shared if shared else self._own
        piece, blocks = _Piece(file, self._inline_left), []
        for data in pieces:
            size = len(data)
            blocks.append(Block(groups[0], groups[1] - 1, 0, piece.size, size, checksum(data)))
            self.bytes_put += size
            piece.add(data)
        segment = self._placed(Segment(state, schema_message(schema), tuple(blocks)), piece, file)
        return replace(segment, groups=groups, member=member)

    def put_rows(self, batches: Sequence[pa.RecordBatch]) -> Segment:
        """Rows in flight: key groups mean nothing there. All batches have the schema of the first."""
        return self._put(self._own, STATE, batches[0].schema, batches, lambda _: (0, 0))

    def finish(self) -> None:
        """All that was put is durable when this returns."""
        for file in (self._shared, self._own):
            file.finish()

    def discard(self) -> None:
        """The snapshot is given up, half-way perhaps."""
        for file in (self._shared, self._own):
            file.discard()

    def _put(
        self,
        file: _File,
        state: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        groups_of: Callable[[pa.RecordBatch], tuple[int, int]],
    ) -> Segment:
        head = schema_message(schema)
        piece = _Piece(file, self._inline_left)
        piece.add(head)
        blocks = []
        for batch in batches:
            if batch.num_rows:
                data = batch_message(batch, self._compression)
                ends, rows, at = groups_of(batch), batch.num_rows, piece.size
                blocks.append(Block(*ends, rows, at, data.nbytes, checksum(data)))
                self.bytes_put += data.nbytes
                piece.add(data)
        piece.add(END_OF_STREAM)
        return self._placed(Segment(state, head, tuple(blocks)), piece, file)

    def _placed(self, segment: Segment, piece: _Piece, file: _File) -> Segment:
        """Now that it is known where its bytes are."""
        inline = piece.inline
        if inline is not None:
            self._inline_left -= len(inline)
            return replace(segment, inline=inline)
        moved = tuple(replace(b, offset=b.offset + piece.start) for b in segment.blocks)
        return replace(segment, blocks=moved, file=file.name)


class _File:
    """Begun when there is something for it."""

    def __init__(self, store: Files, name: str) -> None:
        self.name = name
        self.size = 0
        self._store = store
        self._writing: Writing | None = None

    @property
    def begun(self) -> bool:
        return self._writing is not None

    def write(self, chunk: bytes | memoryview) -> None:
        if self._writing is None:
            self._writing = self._store.begin(self.name)
        self._writing.write(chunk)
        self.size += len(chunk)

    def finish(self) -> None:
        if self._writing is not None:
            self._writing.finish()

    def discard(self) -> None:
        if self._writing is not None:
            self._writing.discard()


class _Piece:
    """One segment's bytes: held as long as there is room for them inline, and no file has been begun."""

    def __init__(self, file: _File, room: int) -> None:
        self.size = 0
        self.start = file.size
        """Where in the file it begins."""
        self._file = file
        self._room = room
        self._held: list[bytes | memoryview] | None = None if file.begun else []

    @property
    def inline(self) -> bytes | None:
        """All bytes, if they are not in the file."""
        return None if self._held is None else b"".join(self._held)

    def add(self, chunk: bytes | memoryview) -> None:
        self.size += len(chunk)
        if self._held is None:
            self._file.write(chunk)
            return
        self._held.append(chunk)
        if self.size > self._room:
            held, self._held = self._held, None
            for each in held:
                self._file.write(each)
