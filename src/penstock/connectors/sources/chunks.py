"""What the file formats have in common: a file is a sequence of chunks that can be entered at any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.connectors.sources.listing import Listing

Mark = tuple[int, int]
"""Where a file can be entered: (row group, 0) in Parquet, (byte, line number) in formats made of lines."""

START: Mark = (0, 0)


@dataclass(frozen=True)
class Chunk:
    """Rows that follow each other in a file: the first is `base` rows behind the mark `at`."""

    batch: pa.RecordBatch
    at: Mark
    base: int
    last: bool
    """Nothing follows in this file."""


class FileFormat(Protocol):
    def infer(self, listing: Listing, name: str) -> pa.Schema:
        """The schema of a file, from its metadata or its first rows."""
        ...

    def chunks(self, listing: Listing, name: str, schema: pa.Schema, at: Mark) -> Iterator[Chunk]:
        """The rows from a mark on. Closing the iterator closes the file. Raises `DataError`."""
        ...


class Cursor:
    """One open file. The next row is `skip` rows behind the mark `at`; both go into the checkpoint."""

    def __init__(self, chunks: Iterator[Chunk], at: Mark, skip: int) -> None:
        self._chunks: Any = chunks
        self._chunk: Chunk | None = None
        self._offset = 0
        self._discard = skip
        self.at = at
        self.skip = skip
        self.finished = False

    def take(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows; None when the file has no more (it is `finished` then)."""
        if self._chunk is None:
            self._advance()
        if self._chunk is None:
            return None
        chunk = self._chunk
        batch = chunk.batch.slice(self._offset, max_rows)
        self._offset += batch.num_rows
        self.at, self.skip = chunk.at, chunk.base + self._offset
        if self._offset == chunk.batch.num_rows:
            self._chunk = None
            self.finished = chunk.last
        return batch

    def close(self) -> None:
        self._chunks.close()

    def _advance(self) -> None:
        """Goes to the next chunk that has rows, passing over those that were read before."""
        for chunk in self._chunks:
            if self._discard < chunk.batch.num_rows:
                self._chunk, self._offset, self._discard = chunk, self._discard, 0
                return
            self._discard -= chunk.batch.num_rows
        self.finished = True

    @property
    def missing_rows(self) -> int:
        """Rows that were read before and are not in the file any more."""
        return self._discard
