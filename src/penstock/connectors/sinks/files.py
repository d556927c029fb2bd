"""Files in a folder, exactly once: what a plain reader of the folder sees is what was committed.

    <path>/_staging/<job>/<operator>-<index>-<attempt>-<number>-<random>.<ext>      written here
    <path>/part-<operator>-<index>-<checkpoint>-<attempt>-<random>.<ext>            renamed to this by the commit

Readers pass over names that start with `_`. A transaction is one file per subtask and checkpoint; without rows
there is none. The random part keeps two jobs, or two lives of one job, apart even where all numbers are the same.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import xxhash

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.connectors.location import absolute
from penstock.connectors.sinks.folder import Folder, open_folder
from penstock.connectors.sinks.formats import ENCODERS, Encoder, require_writable
from penstock.errors import CommitError, ConfigError
from penstock.protocol.snapshot import Plain
from penstock.redaction import has_parameters, redacted, remember

STAGING = "_staging"
_NAME_CHARACTERS_MAX = 80
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.~-]*"
_STAGED = re.compile(
    rf"(?P<operator>{_PART})-(?P<index>\d+)-(?P<attempt>\d+)-\d+-[0-9a-f]{{8}}\.\w+"
)
_FINAL = re.compile(rf"part-{_PART}-\d+-\d+-\d+-[0-9a-f]{{8}}\.\w+")


class FileSink(Sink):
    """`format` is parquet, csv or json (lines). The path is local or an fsspec URL."""

    def __init__(
        self,
        path: str,
        format: str = "parquet",
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if format not in ENCODERS:
            raise ConfigError(
                f"FileSink: format must be one of {', '.join(ENCODERS)}, not {format!r}"
            )
        self._path = absolute(path)
        self._format = format
        self._storage_options = dict(storage_options or {})
        remember(self._path, self._storage_options)
        if has_parameters(self._path):
            raise ConfigError(
                f"FileSink: {redacted(self._path)} is not a folder: ?name=value cannot stand behind it; give"
                " what the store needs with storage_options={...}"
            )

    def __repr__(self) -> str:
        return f"FileSink({redacted(self._path)!r}, {self._format!r})"

    def check(self, schema: pa.Schema) -> None:
        require_writable(self._format, schema)

    def check_access(self) -> None:
        self._folder()

    def writer(self, context: SinkContext) -> SinkWriter:
        return FileWriter(self._folder(), self._format, context)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return FileCommitter(self._folder(), redacted(self._path), context)

    def _folder(self) -> Folder:
        """The folder, which is made when it is not there. Raises where it can never be written."""
        folder = open_folder(self._path, self._storage_options)
        folder.require_writable()
        return folder


def path_safe(name: str) -> str:
    """A job's or an operator's name as part of a file name; different names stay different."""
    if _SAFE.fullmatch(name) and len(name) <= _NAME_CHARACTERS_MAX:
        return name
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_NAME_CHARACTERS_MAX].lstrip("-") or "_"
    return f"{readable}~{xxhash.xxh64_hexdigest(name.encode())}"


@dataclass
class Staged:
    """The open transaction: one file that rows are being written into."""

    name: str
    random: str
    handle: Any
    encoder: Encoder
    rows: int = 0


class FileWriter(SinkWriter):
    def __init__(self, folder: Folder, format_: str, context: SinkContext) -> None:
        self._folder = folder
        self._format = format_
        self._schema = context.schema
        self._job = path_safe(context.job)
        self._operator = path_safe(context.operator)
        self._index = context.index
        self._attempt = context.attempt
        self._number = 0
        self._staged: Staged | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        staged = self._staged = self._staged or self._begin()
        staged.encoder.write(batch)
        staged.rows += batch.num_rows

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        """The file is closed here; making it durable is left to the background."""
        staged = self._staged
        if staged is None:
            return None
        staged.encoder.finish()
        staged.handle.close()
        self._staged = None
        return partial(self._seal, staged, checkpoint)

    def _seal(self, staged: Staged, checkpoint: int) -> Plain:
        bytes_total = self._folder.seal(_staged_path(self._job, staged.name))
        return {
            "job": self._job,
            "staged": staged.name,
            "final": f"part-{self._operator}-{self._index}-{checkpoint}-{self._attempt}"
            f"-{staged.random}.{self._format}",
            "rows": staged.rows,
            "bytes": bytes_total,
        }

    def close(self) -> None:
        staged, self._staged = self._staged, None
        if staged is not None:
            with suppress(pa.ArrowException, OSError, ValueError):
                staged.encoder.finish()
            staged.handle.close()
            self._folder.delete(_staged_path(self._job, staged.name))
        _prune(self._folder, self._job)

    def _begin(self) -> Staged:
        self._number += 1
        random = uuid.uuid4().hex[:8]
        place = f"{self._operator}-{self._index}-{self._attempt}-{self._number}"
        name = f"{place}-{random}.{self._format}"
        handle = self._folder.create(_staged_path(self._job, name))
        return Staged(name, random, handle, ENCODERS[self._format](handle, self._schema))


@dataclass(frozen=True)
class Transaction:
    """What `prepare` described, checked: the names come from a file that others may have touched."""

    staged: str
    final: str
    bytes_total: int


class FileCommitter(SinkCommitter):
    def __init__(self, folder: Folder, path: str, context: SinkContext) -> None:
        self._folder = folder
        self._path = path
        self._job = path_safe(context.job)
        self._operator = path_safe(context.operator)
        self._context = context

    def commit(self, transaction: Plain) -> None:
        if transaction is None:
            return
        wanted = _parse(transaction)
        if self._is_committed(wanted) or not self._move(wanted):
            self._folder.settle(wanted.final)
            self._folder.delete(wanted.staged)

    def _move(self, wanted: Transaction) -> bool:
        """False when somebody else was faster: one who was taken for dead may be committing the same at this very
        moment. What counts is that the file is there in the end."""
        size = self._folder.size(wanted.staged)
        moved = False
        if size == wanted.bytes_total:
            size = None
            with suppress(FileNotFoundError):
                self._folder.move(wanted.staged, wanted.final)
                moved = True
        if not self._is_committed(wanted):
            raise self._lost(wanted, size)
        return moved

    def abort_others(self, keep: Sequence[Plain]) -> None:
        kept = {_parse(each).staged for each in keep if each is not None}
        for name in self._folder.list(f"{STAGING}/{self._job}"):
            path = _staged_path(self._job, name)
            if path not in kept and self._is_mine(name):
                self._folder.delete(path)
        _prune(self._folder, self._job)

    def close(self) -> None:
        _prune(self._folder, self._job)

    def _is_committed(self, wanted: Transaction) -> bool:
        """On stores that copy, a target of another size is a copy that did not end."""
        return self._folder.size(wanted.final) == wanted.bytes_total

    def _is_mine(self, name: str) -> bool:
        """Staged by an earlier attempt, for a subtask whose place this one has taken."""
        match = _STAGED.fullmatch(name)
        return (
            match is not None
            and match["operator"] == self._operator
            and int(match["index"]) % self._context.parallelism == self._context.index
            and int(match["attempt"]) < self._context.attempt
        )

    def _lost(self, wanted: Transaction, size: int | None) -> CommitError:
        found = "is gone" if size is None else f"has {size} bytes instead of {wanted.bytes_total}"
        return CommitError(
            f"FileSink {self._path}: a completed checkpoint promises {wanted.final}, which is not there, and"
            f" its staged file {wanted.staged} {found}. Was the folder cleaned up or changed by hand,"
            " or does the sink have another path now? Put the file back, or restore an older savepoint"
        )


def _staged_path(job: str, name: str) -> str:
    return f"{STAGING}/{job}/{name}"


def _prune(folder: Folder, job: str) -> None:
    folder.prune(f"{STAGING}/{job}")
    folder.prune(STAGING)


def _parse(transaction: Plain) -> Transaction:
    match transaction:
        case {"job": str(job), "staged": str(staged), "final": str(final), "bytes": int(size)} if (
            re.fullmatch(_PART, job) and _STAGED.fullmatch(staged) and _FINAL.fullmatch(final)
        ):
            return Transaction(_staged_path(job, staged), final, size)
        case _:
            raise CommitError(
                f"FileSink: {transaction!r} is not a transaction of a FileSink; the snapshot was taken"
                " with another kind of sink under this name"
            )
