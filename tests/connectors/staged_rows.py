"""Staged rows as Spark's writer would leave them, made without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.sources.staged import Staged, StagedSource
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import paths
from penstock.wire.staging import StagedBatch, StagedFile, StagedSet, encode_batch, encode_set

SET = "000001-0123abcd"
SCHEMA = pa.schema([("i", pa.int64())])


class Stage:
    """A folder of staged rows, to which batches are added."""

    def __init__(self, folder: Path, *, bounded: bool) -> None:
        self.folder = folder
        self.store = FilesystemStore(str(folder))
        self.files = 0
        self.rows = 0
        self.batches = 0
        self.source = StagedSource(
            Staged(str(folder), {}, partial(FilesystemStore, str(folder))),
            SET,
            SCHEMA,
            bounded=bounded,
        )
        record = StagedSet("in", SCHEMA.serialize().to_pybytes(), bounded, "")
        self.store.create(paths.staged_set(SET), encode_set(record))

    def add(self, *lengths: int) -> None:
        """One more batch, of files with so many rows each."""
        place = paths.staged_rows(SET, self.batches, "0" * 8)
        (self.folder / place).mkdir(parents=True)
        files = [self._file(f"{place}/part-{n:05}.parquet", rows) for n, rows in enumerate(lengths)]
        batch = StagedBatch(self.batches, self.files, place.partition("/")[2], tuple(files))
        self.store.create(paths.staged_batch(SET, self.batches), encode_batch(batch))
        self.batches += 1
        self.files += len(files)

    def _file(self, name: str, rows: int) -> StagedFile:
        values = list(range(self.rows, self.rows + rows))
        path = self.folder / name
        pq.write_table(pa.table({"i": values}, schema=SCHEMA), path, row_group_size=13)
        self.rows += rows
        return StagedFile(path.name, path.stat().st_size, rows)


def staged(folder: Path, batches: Sequence[Sequence[int]], *, bounded: bool) -> Stage:
    stage = Stage(folder, bounded=bounded)
    for lengths in batches:
        stage.add(*lengths)
    return stage
