"""Rows of a DataFrame that Spark has staged as Parquet: what `from_dataframe` becomes when the job starts.

Batches follow each other: the one of a DataFrame that is no stream, or those of Spark's micro-batches. What is in a
batch, and which lane each of its files belongs to, is settled when it is staged (see `wire/staging.py`). A lane's
position is

    [set, batch, file, row group, rows behind its start]

and a lane that has nothing in a batch passes over it like all others, so that what every lane has behind it can go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.connectors.answer import Answer
from penstock.connectors.base import END, EndOfInput, Source, SourceContext, SourceReader, Wait
from penstock.connectors.sources.chunks import Cursor
from penstock.connectors.sources.listing import Listing
from penstock.connectors.sources.parquet import ParquetFormat
from penstock.errors import CheckpointCorrupt, DataError, InvariantBroken
from penstock.ports.store import CheckpointStore
from penstock.protocol.snapshot import Plain
from penstock.redaction import redacted
from penstock.wire import paths
from penstock.wire.staging import StagedBatch, StagedFile, decode_batch

LOOK_MS = 10.0
"""How often to look for the next batch."""
EMPTIED_AFTER_LOOKS = 100
"""After so many looks in vain: whether the batch is still to come, or is gone."""
_BEGIN_ANEW = (
    'start the job with restore="fresh" to stage the DataFrame again and to begin from scratch'
)


@dataclass(frozen=True)
class Staged:
    """Where staged rows are: all sets of one source, on a path or URL that every process sees."""

    folder: str
    options: Mapping[str, Any]
    open_store: Callable[[], CheckpointStore]
    """For the documents in it."""

    def listing(self, name: str, batch: StagedBatch) -> Listing:
        """The files of a batch. Those that are elsewhere were found without the options, which are for this folder."""
        if batch.folder.startswith("/") or "://" in batch.folder:
            return Listing(batch.folder, {}, literal=True)
        within = f"{self.folder}/{paths.staged_set_folder(name)}/{batch.folder}"
        return Listing(within, self.options, literal=True)


def look(store: CheckpointStore, name: str, number: int) -> StagedBatch | None:
    """A batch; None when it is not there (yet)."""
    file = paths.staged_batch(name, number)
    try:
        data = store.read(file)
    except CheckpointCorrupt:  # so a store says that there is no such file
        return None
    return decode_batch(data, file)


class StagedSource(Source):
    def __init__(self, staged: Staged, name: str, schema: pa.Schema, *, bounded: bool) -> None:
        self.staged = staged
        self.name = name
        """The set to begin with. A position says which one it is about."""
        self.bounded = bounded
        self._schema = schema

    def __repr__(self) -> str:
        return f"StagedSource({redacted(self.staged.folder)!r}, {self.name!r})"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        return StagedReader(self, context, positions)


@dataclass(frozen=True, order=True)
class At:
    """Where a lane's next row is."""

    batch: int = 0
    file: int = 0
    group: int = 0
    skip: int = 0


@dataclass(frozen=True)
class Files:
    """The files of the batch that is being read."""

    batch: StagedBatch
    listing: Listing

    def shown(self, number: int) -> str:
        return self.listing.shown(self.batch.files[number].name)

    def require_whole(self, number: int) -> StagedFile:
        file = self.batch.files[number]
        size = self.listing.size(file.name)
        if size != file.bytes_total:
            now = "is gone" if size is None else f"has {size} bytes"
            raise self.damaged(number, f"had {file.bytes_total} bytes when it was staged and {now}")
        return file

    def damaged(self, number: int, problem: str) -> DataError:
        return DataError(
            f"{self.shown(number)}: this staged file {problem}; put it back, or {_BEGIN_ANEW}"
        )


class StagedReader(SourceReader):
    """Batch by batch, and in a batch file by file in their order. After a change of parallelism a subtask may have
    lanes that are ahead of others: they wait."""

    def __init__(
        self, source: StagedSource, context: SourceContext, positions: Mapping[int, Plain]
    ) -> None:
        self._source = source
        self._staged = source.staged
        self._store = source.staged.open_store()
        self._context = context
        self._name = source.name
        self._at = {lane: At() for lane in context.lanes}
        for lane in context.lanes:
            if lane in positions:
                self._name, self._at[lane] = _parse(lane, positions[lane])
        self._files: Files | None = None
        self._work: list[tuple[int, int]] = []
        """The files of this batch that are to be read, with their lanes, the next one last."""
        self._cursor: Cursor | None = None
        self._asked: Answer[StagedBatch | None] | None = None
        self._looks = 0

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        while self._cursor is not None or self._open_next():
            batch = self._take(max_rows)
            if batch is not None:
                return batch
        if self._source.bounded and self._number > 0:
            return END
        return Wait(self._context.now_ms() + LOOK_MS)

    def positions(self) -> Mapping[int, Plain]:
        return {
            lane: [self._name, at.batch, at.file, at.group, at.skip]
            for lane, at in self._at.items()
        }

    def describe(self) -> str:
        if self._files is None or not self._work:
            return ""
        _, number = self._work[-1]
        return f"batch {self._files.batch.batch}, {self._files.shown(number)}"

    def lag(self) -> Mapping[str, float]:
        """Rows of this batch that are still to be read: nobody here knows of later ones."""
        files = self._files.batch.files if self._files is not None else ()
        return {"rows": float(sum(files[number].rows for _, number in self._work))}

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    @property
    def _number(self) -> int:
        """The batch that is to be read now."""
        return min(at.batch for at in self._at.values())

    def _take(self, max_rows: int) -> pa.RecordBatch | None:
        cursor, files = self._cursor, self._files
        if cursor is None or files is None:
            raise InvariantBroken("rows were taken of a file that is not open")
        batch = cursor.take(max_rows)
        lane, number = self._work[-1]
        self._at[lane] = At(self._at[lane].batch, number, cursor.at[0], cursor.skip)
        if cursor.finished:
            if cursor.missing_rows:
                raise files.damaged(number, f"has {cursor.missing_rows} rows less than were read")
            self._at[lane] = At(self._at[lane].batch, number + 1)
            self.close()
            self._work.pop()
        return batch

    def _open_next(self) -> bool:
        """Opens the next file; False when there is none, or none yet."""
        while self._files is not None or self._find_batch():
            if self._files is not None and self._work:
                self._open(self._files, *self._work[-1])
                return True
            self._pass_over()
        return False

    def _open(self, files: Files, lane: int, number: int) -> None:
        file, at = files.require_whole(number), self._at[lane]
        begun = number == at.file
        mark = (at.group if begun else 0, 0)
        chunks = ParquetFormat().chunks(files.listing, file.name, self._source.schema, mark)
        self._cursor = Cursor(chunks, mark, at.skip if begun else 0)

    def _pass_over(self) -> None:
        """Every lane has this batch behind it."""
        number = self._number
        self._at = {
            lane: At(number + 1) if at.batch == number else at for lane, at in self._at.items()
        }
        self._files = None

    # ---- finding the next batch

    def _find_batch(self) -> bool:
        if self._source.bounded and self._number > 0:
            return False
        if self._asked is None:
            self._asked = self._context.ask(partial(look, self._store, self._name, self._number))
        if not self._asked.ready:
            return False
        asked, self._asked = self._asked, None
        found = asked.get()
        if found is None:
            self._in_vain()
            return False
        self._looks = 0
        self._begin(found)
        return True

    def _begin(self, batch: StagedBatch) -> None:
        """A batch whose files of these lanes are to be read."""
        lanes = self._context.max_parallelism
        mine = {lane: at for lane, at in self._at.items() if at.batch == batch.batch}
        owners = [(batch.first + number) % lanes for number in range(len(batch.files))]
        self._work = [
            (lane, number)
            for number, lane in reversed(list(enumerate(owners)))
            if lane in mine and number >= mine[lane].file
        ]
        self._files = Files(batch, self._staged.listing(self._name, batch))

    def _in_vain(self) -> None:
        """The batch may be still to come. It is not where the set itself is gone, or a later one is there."""
        self._looks += 1
        if not self._source.bounded and self._looks % EMPTIED_AFTER_LOOKS:
            return
        where = redacted(f"{self._staged.folder}/{self._name}")
        names = self._store.list(paths.staged_set_folder(self._name))
        if paths.staged_set(self._name) not in names:
            raise DataError(
                f"{where}: the rows that were staged for {self._context.operator!r} are not there; somebody has removed"
                f" them, or the checkpoint is another job's. Put them back, or {_BEGIN_ANEW}"
            )
        batches = [found for name in names if (found := paths.staged_batch_of(name)) is not None]
        if self._source.bounded or any(number > self._number for _, number in batches):
            raise DataError(
                f"{where}: batch {self._number} of the staged rows of {self._context.operator!r} is missing; put it"
                f" back, or {_BEGIN_ANEW}"
            )


def _parse(lane: int, position: Plain) -> tuple[str, At]:
    match position:
        case [str(name), int(batch), int(file), int(group), int(skip)] if paths.is_staged_set(name):
            return name, At(batch, file, group, skip)
        case _:
            raise DataError(
                f"lane {lane}: {position!r} is not a position of a staged DataFrame;"
                " the snapshot was taken with another kind of source under this name"
            )
