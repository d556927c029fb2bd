"""Reading state back when an attempt is deployed.

Blocks are fetched, verified and decoded ahead of the operator that puts their rows into its table, several at a time
where the shell has threads. When it takes long the driver is told how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.engine.worker.snapshots import FetchOf
from penstock.ports.background import Background
from penstock.ports.clock import Clock
from penstock.ports.floor import Floors
from penstock.protocol.messages import Deploy, Restoring
from penstock.protocol.snapshot import Block, Segment
from penstock.state.floor_files import parts, read_floor
from penstock.state.segments import block_reads, blocks_in, read_bytes

TELL_EVERY_MS = 1_000.0
"""What takes no longer is not told at all."""


class Loading:
    """Of one attempt: one state after the other is read, all of them on the loop's thread."""

    def __init__(
        self,
        deploy: Deploy,
        fetch: FetchOf,
        background: Background,
        clock: Clock,
        tell: Callable[[Restoring], None],
        open_floors: Callable[[], Floors],
    ) -> None:
        self._deploy = deploy
        self._fetch = fetch
        self._background = background
        self._clock = clock
        self._tell = tell
        self._open_floors = open_floors
        self._tell_ms: float | None = None
        self._rows = self._bytes = 0
        self._totals = (0, 0)
        self._ahead: Generator[Any] | None = None

    def read(self, segments: Sequence[Segment], groups: range) -> Iterator[pa.RecordBatch]:
        """The verified rows of these segments, in order, whose key groups are in the range."""
        self._begin(groups)
        rows: list[Segment] = []
        for part in parts(segments):
            if isinstance(part, Segment):
                rows.append(part)
                continue
            yield from self._read_rows(rows, groups)
            rows = []
            yield from read_floor(part, groups, self.pieces, self._open_floors())
        yield from self._read_rows(rows, groups)

    def pieces(self, segment: Segment) -> Iterator[bytes]:
        """The verified bytes of a floor's file."""
        fetch = self._fetch(segment)
        reads = [partial(read_bytes, segment, block, fetch) for block in segment.blocks]
        self._ahead = read = self._background.each(reads)
        for block, data in zip(segment.blocks, read, strict=True):
            yield data
            self._loaded(block)

    def _begin(self, groups: range) -> None:
        if self._tell_ms is None:
            self._tell_ms = self._clock.monotonic_ms() + TELL_EVERY_MS
            self._totals = _totals(self._deploy, groups)

    def _read_rows(self, segments: Sequence[Segment], groups: range) -> Iterator[pa.RecordBatch]:
        reads = [
            read
            for segment in segments
            for read in block_reads(segment, groups, self._fetch(segment))
        ]
        self._ahead = batches = self._background.each(reads)
        for read, batch in zip(reads, batches, strict=True):
            if batch.num_rows:
                yield batch
            self._loaded(read.block)

    def close(self) -> None:
        """What is read ahead for an operator that has failed is given up."""
        if self._ahead is not None:
            self._ahead.close()

    def _loaded(self, block: Block) -> None:
        self._rows += block.rows
        self._bytes += block.length
        now_ms = self._clock.monotonic_ms()
        if self._tell_ms is not None and now_ms >= self._tell_ms:
            self._tell_ms = now_ms + TELL_EVERY_MS
            attempt, slot = self._deploy.attempt, self._deploy.slot
            self._tell(Restoring(attempt, slot, self._rows, self._bytes, *self._totals))


def _totals(deploy: Deploy, groups: range) -> tuple[int, int]:
    """The rows and bytes that this slot has to read."""
    blocks = list(_blocks(deploy, groups))
    return sum(block.rows for block in blocks), sum(block.length for block in blocks)


def _blocks(deploy: Deploy, groups: range) -> Iterable[Block]:
    for snapshot in deploy.snapshots:
        for operator in snapshot.operators.values():
            for segment in operator.segments:
                yield from blocks_in(segment, groups)
