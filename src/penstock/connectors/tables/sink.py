"""`UpsertFileSink`: the latest row of each key, as a table in a folder that others read while the job runs.

A transaction is one file, with the last row of each of its keys. Its rows have the checkpoint's id as their version.
Ids grow as long as the job lives, and a job that begins anew, or under another name, begins above all versions that the
table has: so a later row of a key always has a higher one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.connectors.location import absolute
from penstock.connectors.sinks.files import (
    PART,
    STAGED,
    STAGING,
    FileCommitter,
    PromisedFile,
    path_safe,
    prune,
    staged_path,
)
from penstock.connectors.sinks.folder import Folder, open_folder
from penstock.connectors.sinks.formats import require_writable
from penstock.connectors.tables import definition, files, ledger, names
from penstock.connectors.tables.compaction import Aside, Compaction, InThread
from penstock.connectors.tables.files import RowsFile
from penstock.connectors.tables.names import TableFile
from penstock.connectors.tables.rows import HIDDEN, last_rows, stamped, stamped_schema
from penstock.errors import CommitError, ConfigError, SchemaError
from penstock.plan.keyhash import check_key_types
from penstock.plan.schema import require_columns
from penstock.protocol.snapshot import Plain
from penstock.redaction import has_parameters, redacted, remember

KEPT_ROWS_MIN = 65_536
KEPT_BATCHES_MAX = 1_024


class UpsertFileSink(Sink):
    """A table of the latest row per key: `pen.read_table(path)`, or `spark.read.format("penstock").load(path)`.

    `key` is a column or a list of columns. The rows of a key come to one subtask, in order, and the last one of each
    checkpoint is written. The path is local or an fsspec URL; the folder belongs to the table, and one sink writes it.

    It is idempotent: where the newest checkpoint is damaged, a job may go back to an older one. Rows that were
    committed since are then computed and written again, with higher versions, and each key ends with the row that it
    would have had. Until then some keys show older rows again."""

    idempotent = True

    def __init__(
        self,
        path: str,
        key: str | Sequence[str],
        *,
        format: str = "parquet",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if format != "parquet":
            raise ConfigError(
                f"UpsertFileSink: a table is made of Parquet files, so format={format!r} cannot be; leave it out"
            )
        self.keys = _checked_keys(key)
        self._path = absolute(path)
        self._storage_options = dict(storage_options or {})
        self._schema: pa.Schema | None = None
        remember(self._path, self._storage_options)
        if has_parameters(self._path):
            raise ConfigError(
                f"UpsertFileSink: {redacted(self._path)} is not a folder: ?name=value cannot stand behind it; give"
                " what the store needs with storage_options={...}"
            )

    def __repr__(self) -> str:
        return f"UpsertFileSink({redacted(self._path)!r}, {list(self.keys)!r})"

    def check(self, schema: pa.Schema) -> None:
        require_columns(self.keys, schema, "UpsertFileSink: key")
        try:
            check_key_types(schema, self.keys)
        except SchemaError as error:
            raise SchemaError(f"UpsertFileSink: {error}") from error
        reserved = [name for name in schema.names if name in HIDDEN]
        if reserved:
            raise SchemaError(
                f"UpsertFileSink: the table has a column {reserved[0]!r} of its own; rename yours"
            )
        require_writable("parquet", schema, "UpsertFileSink")
        self._schema = schema

    def check_access(self) -> None:
        folder = self._folder()
        if self._schema is not None:
            definition.expected(folder, redacted(self._path), self._schema, self.keys)

    def shared_folder(self) -> str | None:
        return f"{self._path.rstrip('/')}/{STAGING}"

    def writer(self, context: SinkContext) -> SinkWriter:
        folder = self._folder()
        definition.settle(folder, redacted(self._path), context, self.keys)
        return TableWriter(folder, self.keys, context)

    def committer(self, context: SinkContext) -> SinkCommitter:
        folder, path = self._folder(), redacted(self._path)
        definition.settle(folder, path, context, self.keys)
        compaction = Compaction(folder, self.keys, context, path)
        return TableCommitter(folder, path, context, compaction, self._aside(compaction.step))

    def _aside(self, work: Callable[[], None]) -> Aside:
        return InThread(work)

    def _folder(self) -> Folder:
        """The folder, which is made when it is not there. Raises where it can never be written."""
        folder = open_folder(self._path, self._storage_options)
        folder.require_writable()
        return folder


def _checked_keys(given: object) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else given
    if (
        not isinstance(found, Sequence)
        or not found
        or not all(isinstance(name, str) for name in found)
    ):
        raise ConfigError(
            f'UpsertFileSink: key={given!r} is no column; give a name, key="user", or a list of names'
        )
    twice = [name for name in found if list(found).count(name) > 1]
    if twice:
        raise ConfigError(f"UpsertFileSink: key={given!r} has {twice[0]!r} twice")
    return tuple(found)


class LatestRows:
    """The last row of each key so far. Rows that were overwritten are thrown away when there are as many of them as
    there are keys, so memory is for the keys of a transaction and not for its rows."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._schema = schema
        self._keys = list(keys)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._rows_max = KEPT_ROWS_MIN

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= self._rows_max or len(self._batches) >= KEPT_BATCHES_MAX:
            latest = self.table()
            self._batches, self._rows = latest.to_batches(), latest.num_rows
            self._rows_max = max(KEPT_ROWS_MIN, 2 * self._rows)

    def table(self) -> pa.Table:
        rows = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        return rows.take(pa.array(last_rows(rows.select(self._keys))))


class TableWriter(SinkWriter):
    def __init__(self, folder: Folder, keys: tuple[str, ...], context: SinkContext) -> None:
        self._folder = folder
        self._keys = keys
        self._context = context
        self._job = path_safe(context.job)
        self._id = names.new_id()
        self._number = 0
        """Of its last transaction."""
        self._version = newest_version(folder)
        """Of its last transaction; or the highest of those before it, its own or others'."""
        self._open: LatestRows | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._open is None:
            self._open = LatestRows(self._context.schema, self._keys)
        self._open.add(batch)

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        """The file is written in the background: only then is it known which rows are the last."""
        if self._open is None:
            return None
        latest, self._open = self._open, None
        self._number += 1
        self._version = max(checkpoint, self._version + 1)
        return partial(self._seal, latest, self._version, self._number)

    def _seal(self, latest: LatestRows, version: int, number: int) -> Plain:
        context, id_ = self._context, names.new_id()
        place = f"{path_safe(context.operator)}-{context.index}-{context.attempt}"
        staged = f"{place}-{version}-{id_[:8]}.parquet"
        rows, bytes_total = files.write(
            self._folder,
            staged_path(self._job, staged),
            stamped_schema(context.schema),
            ledger.one(self._id, number),
            [stamped(latest.table(), self._keys, version)],
        )
        final = TableFile(version, version, context.index, context.attempt, rows, id_)
        return {
            "job": self._job,
            "staged": staged,
            "final": final.name,
            "bytes": bytes_total,
            "writer": self._id,
            "number": number,
        }

    def close(self) -> None:
        self._open = None
        prune(self._folder, self._job)


def newest_version(folder: Folder) -> int:
    """The highest version that the table has, or may come to have by a commit that is still under way. What is staged
    is listed first: a file that is committed in between is seen twice, and not missed."""
    jobs = folder.folders(STAGING)
    staged = [STAGED.fullmatch(name) for job in jobs for name in folder.list(f"{STAGING}/{job}")]
    versions = [int(match["number"]) for match in staged if match is not None]
    return max([0, *versions, *(file.highest for file in names.list_files(folder))])


@dataclass(frozen=True)
class PromisedRows(PromisedFile):
    writer: str
    number: int


class TableCommitter(FileCommitter):
    """Commits a transaction as `FileSink` does. It is committed, too, when its file has been merged into another."""

    sink = "UpsertFileSink"

    def __init__(
        self, folder: Folder, path: str, context: SinkContext, compaction: Compaction, aside: Aside
    ) -> None:
        super().__init__(folder, path, context)
        self._compaction = compaction
        self._aside = aside

    def commit(self, transaction: Plain) -> None:
        super().commit(transaction)
        self._aside.wanted()

    def close(self) -> None:
        self._compaction.stop()
        self._aside.close()
        super().close()

    def _promised(self, transaction: Plain) -> Sequence[PromisedRows]:
        return [_parse(transaction)]

    def _is_committed(self, wanted: PromisedFile) -> bool:
        if super()._is_committed(wanted):
            return True
        if not isinstance(wanted, PromisedRows) or self._folder.size(wanted.staged) is not None:
            return False
        return self._is_merged(wanted)

    def _is_merged(self, wanted: PromisedRows) -> bool:
        """Asked when the file is nowhere, so hardly ever. One that is merged or deleted meanwhile has been merged into
        one that is listed the next time."""
        seen: set[TableFile] = set()
        while more := [file for file in names.list_files(self._folder) if file not in seen]:
            if any(self._has(file, wanted) for file in more if file.sources):
                return True
            seen.update(more)
        return False

    def _has(self, file: TableFile, wanted: PromisedRows) -> bool:
        try:
            with closing(RowsFile(self._folder, file)) as opened:
                return ledger.has(opened.ledger, wanted.writer, wanted.number)
        except FileNotFoundError:
            return False


def _parse(transaction: Plain) -> PromisedRows:
    match transaction:
        case {
            "job": str(job),
            "staged": str(staged),
            "final": str(final),
            "bytes": int(size),
            "writer": str(writer),
            "number": int(number),
        } if re.fullmatch(PART, job) and STAGED.fullmatch(staged) and names.parse(final):
            path = f"{names.ROWS}/{final}"
            return PromisedRows(staged_path(job, staged), path, size, writer, number)
        case _:
            raise CommitError(
                f"UpsertFileSink: {transaction!r} is not a transaction of an UpsertFileSink; the snapshot was taken"
                " with another kind of sink under this name"
            )
