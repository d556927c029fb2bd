"""What says which rows of a DataFrame are staged: one document for the set, one for each of its batches.

A batch is staged if and only if its document exists, so files that a killed driver left behind are never read. File f
of a batch belongs to lane `(first + f) % lanes`, where `first` counts the files of all batches before it: the files of
many small batches are dealt out to all lanes in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import CheckpointCorrupt
from penstock.wire import document

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StagedSet:
    """All that a source reads: one batch of a DataFrame that is no stream, or the batches of one that is."""

    operator: str
    schema: bytes
    """Of the rows, as an Arrow schema."""
    bounded: bool
    query: str
    """A digest of Spark's plan: whether it is the same DataFrame that is given again."""
    created_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class StagedFile:
    name: str
    bytes_total: int
    rows: int


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """`folder` is where the files are: below that of the set where it is relative, and somebody else's where it is
    absolute: files that are read in place."""

    batch: int
    first: int
    folder: str
    files: tuple[StagedFile, ...]
    staged_ms: float = 0.0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes_total(self) -> int:
        return sum(file.bytes_total for file in self.files)


def encode_set(record: StagedSet) -> bytes:
    return document.write(record, "penstock-staged-set", _VERSION)


def decode_set(data: bytes, name: str) -> StagedSet:
    record: StagedSet = document.read(data, "penstock-staged-set", {_VERSION: StagedSet}, name)
    return record


def encode_batch(record: StagedBatch) -> bytes:
    return document.write(record, "penstock-staged-batch", _VERSION)


def decode_batch(data: bytes, name: str) -> StagedBatch:
    kinds: dict[int, type] = {_VERSION: StagedBatch}
    record: StagedBatch = document.read(data, "penstock-staged-batch", kinds, name)
    numbers = [record.batch, record.first]
    numbers += [number for file in record.files for number in (file.bytes_total, file.rows)]
    if min(numbers) < 0:
        raise CheckpointCorrupt(f"{name}: a number in it is negative")
    return record
