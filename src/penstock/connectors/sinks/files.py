"""Files in a folder, exactly once: what a plain reader of the folder sees is what was committed.

    <path>/_staging/<job>/<operator>-<index>-<attempt>-<number>-<random>.<ext>      written here
    <path>/part-<operator>-<index>-<checkpoint>-<attempt>-<random>.<ext>            renamed to this by the commit
    <path>/<column>=<value>/part-...                                                the same, with `partition_by`

Readers pass over names that start with `_`. A transaction is one file per subtask and checkpoint, or one for each
partition; without rows there is none. Its files are renamed one after the other, and those that are still missing when
that breaks off by the next commit of it. The random part keeps two jobs, or two lives of one job, apart even where all
numbers are the same.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import xxhash

from penstock.connectors.base import Hold, Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.connectors.location import absolute
from penstock.connectors.sinks.folder import Folder, open_folder
from penstock.connectors.sinks.formats import ENCODERS, Encoder, Format, require_writable
from penstock.connectors.sinks.partitions import (
    Partitions,
    check_partition_columns,
    checked_columns,
)
from penstock.errors import CommitError, ConfigError, DataError
from penstock.plan.duration import parse_duration_ms
from penstock.protocol.snapshot import Plain
from penstock.redaction import has_parameters, redacted, remember

STAGING = "_staging"
_NAME_CHARACTERS_MAX = 80
HELD_BYTES_MAX = 8 << 20
"""So many bytes of rows make a file that is large enough; also the most that a subtask has in a checkpoint."""
_OPEN_BYTES = 64 << 20
"""The most that all partitions of an open transaction may hold in memory."""
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
PART = r"[A-Za-z0-9_][A-Za-z0-9_.~-]*"
STAGED = re.compile(
    rf"(?P<operator>{PART})-(?P<index>\d+)-(?P<attempt>\d+)-(?P<number>\d+)-[0-9a-f]{{8}}\.\w+"
)
_FINAL = re.compile(rf"part-{PART}-\d+-\d+-\d+-[0-9a-f]{{8}}\.\w+")
PARTITION = r"[^/=_.][^/=]*=[^/]+"
_FOLDER = re.compile(rf"(?:{PARTITION}(?:/{PARTITION})*)?")


class FileSink(Sink):
    """`format` is parquet, csv or json (lines). The path is local or an fsspec URL. With `partition_by=["day"]` the
    rows of each value are in a folder of their own, such as `day=2026-01-31`, and a transaction of a subtask may have
    rows of so many of them. With `commit_every="1 minute"` rows wait for a larger file, in the checkpoints, until there
    are 8 MiB of them or a minute is over; without, every checkpoint makes a file in each subtask that has rows."""

    def __init__(
        self,
        path: str,
        format: Format = "parquet",
        *,
        partition_by: str | Sequence[str] = (),
        max_partitions: int = 100,
        commit_every: str | timedelta | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if format not in ENCODERS:
            raise ConfigError(
                f"FileSink: format must be one of {', '.join(ENCODERS)}, not {format!r}"
            )
        if not isinstance(max_partitions, int) or max_partitions < 1:
            raise ConfigError(
                f"FileSink: max_partitions={max_partitions!r} is not a number of at least 1"
            )
        self._path = absolute(path)
        self._format = format
        self._partition_by = checked_columns(partition_by)
        self._max_partitions = max_partitions
        self.hold = None if commit_every is None else Hold(HELD_BYTES_MAX, _wait_ms(commit_every))
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
        check_partition_columns(self._partition_by, schema)
        require_writable(self._format, Partitions(self._partition_by, schema).schema)

    def check_access(self) -> None:
        self._folder()

    def shared_folder(self) -> str | None:
        return f"{self._path.rstrip('/')}/{STAGING}"

    def writer(self, context: SinkContext) -> SinkWriter:
        partitions = Partitions(self._partition_by, context.schema)
        return FileWriter(self._folder(), self._format, context, partitions, self._max_partitions)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return FileCommitter(self._folder(), redacted(self._path), context)

    def _folder(self) -> Folder:
        """The folder, which is made when it is not there. Raises where it can never be written."""
        folder = open_folder(self._path, self._storage_options)
        folder.require_writable()
        return folder


def _wait_ms(commit_every: str | timedelta) -> float:
    wait_ms = parse_duration_ms(commit_every, "FileSink.commit_every")
    if wait_ms <= 0:
        raise ConfigError(f"FileSink.commit_every: {commit_every!r} must be longer than zero")
    return wait_ms


def path_safe(name: str) -> str:
    """A job's or an operator's name as part of a file name; different names stay different."""
    if _SAFE.fullmatch(name) and len(name) <= _NAME_CHARACTERS_MAX:
        return name
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_NAME_CHARACTERS_MAX].lstrip("-") or "_"
    return f"{readable}~{xxhash.xxh64_hexdigest(name.encode())}"


@dataclass
class Staged:
    """A file of the open transaction, which rows of one partition are being written into."""

    folder: str
    """Of the partition; empty where there are none."""
    name: str
    random: str
    handle: Any
    encoder: Encoder
    rows: int = 0
    bytes_written: int = 0


class FileWriter(SinkWriter):
    def __init__(
        self,
        folder: Folder,
        format_: Format,
        context: SinkContext,
        partitions: Partitions,
        max_partitions: int,
    ) -> None:
        self._folder = folder
        self._format = format_
        self._partitions = partitions
        self._max_partitions = max_partitions
        self._buffer_bytes = _OPEN_BYTES // max_partitions if partitions.columns else _OPEN_BYTES
        self._job = path_safe(context.job)
        self._operator = path_safe(context.operator)
        self._index = context.index
        self._attempt = context.attempt
        self._number = 0
        self._staged: dict[str, Staged] = {}
        """The open transaction, by partition."""

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for folder, rows in self._partitions.split(batch):
            staged = self._staged.get(folder) or self._begin(folder)
            staged.encoder.write(rows)
            staged.rows += rows.num_rows

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        """The files are closed here; making them durable is left to the background."""
        if not self._staged:
            return None
        for staged in self._staged.values():
            staged.encoder.finish()
            staged.bytes_written = staged.handle.tell()
            staged.handle.close()
        done, self._staged = list(self._staged.values()), {}
        return partial(self._seal, done, checkpoint)

    def _seal(self, done: list[Staged], checkpoint: int) -> Plain:
        sealed: list[Plain] = [self._seal_file(staged, checkpoint) for staged in done]
        return sealed[0] if len(sealed) == 1 else {"files": sealed}

    def _seal_file(self, staged: Staged, checkpoint: int) -> Plain:
        bytes_total = self._folder.seal(staged_path(self._job, staged.name))
        if bytes_total != staged.bytes_written:
            raise OSError(
                f"{staged.name}: {staged.bytes_written} bytes were written and {bytes_total} are there"
            )
        return {
            "job": self._job,
            "staged": staged.name,
            "folder": staged.folder,
            "final": f"part-{self._operator}-{self._index}-{checkpoint}-{self._attempt}"
            f"-{staged.random}.{self._format}",
            "rows": staged.rows,
            "bytes": bytes_total,
        }

    def close(self) -> None:
        given_up, self._staged = list(self._staged.values()), {}
        for staged in given_up:
            with suppress(pa.ArrowException, OSError, ValueError):
                staged.encoder.finish()
            staged.handle.close()
            self._folder.delete(staged_path(self._job, staged.name))
        prune(self._folder, self._job)

    def _begin(self, folder: str) -> Staged:
        if len(self._staged) >= self._max_partitions:
            raise DataError(_too_many(self._max_partitions, [*self._staged, folder][-3:]))
        self._number += 1
        random = uuid.uuid4().hex[:8]
        place = f"{self._operator}-{self._index}-{self._attempt}-{self._number}"
        name = f"{place}-{random}.{self._format}"
        handle = self._folder.create(staged_path(self._job, name))
        encoder = ENCODERS[self._format](handle, self._partitions.schema, self._buffer_bytes)
        staged = self._staged[folder] = Staged(folder, name, random, handle, encoder)
        return staged


def _too_many(limit: int, some: list[str]) -> str:
    return (
        f"FileSink: more than {limit} partitions in one transaction of a subtask, such as {', '.join(some)};"
        " partition by columns with fewer values, take checkpoints more often, or give max_partitions=..., at one"
        " open file for each"
    )


@dataclass(frozen=True)
class PromisedFile:
    """What `prepare` described, checked: the names come from a file that others may have touched."""

    staged: str
    final: str
    bytes_total: int


class FileCommitter(SinkCommitter):
    """Moves staged files to where they are seen. Sinks with other names for them have their own `_promised`."""

    sink = "FileSink"

    def __init__(self, folder: Folder, path: str, context: SinkContext) -> None:
        self._folder = folder
        self._path = path
        self._job = path_safe(context.job)
        self._operator = path_safe(context.operator)
        self._context = context

    def commit(self, transaction: Plain) -> None:
        if transaction is None:
            return
        for wanted in self._promised(transaction):
            if self._is_committed(wanted) or not self._move(wanted):
                self._folder.settle(wanted.final)
                self._folder.delete(wanted.staged)

    def _move(self, wanted: PromisedFile) -> bool:
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
        promised = [each for each in keep if each is not None]
        kept = {file.staged for each in promised for file in self._promised(each)}
        for name in self._folder.list(f"{STAGING}/{self._job}"):
            path = staged_path(self._job, name)
            if path not in kept and self._is_mine(name):
                self._folder.delete(path)
        prune(self._folder, self._job)

    def close(self) -> None:
        prune(self._folder, self._job)

    def _promised(self, transaction: Plain) -> Sequence[PromisedFile]:
        return _parse(transaction)

    def _is_committed(self, wanted: PromisedFile) -> bool:
        """On stores that copy, a target of another size is a copy that did not end."""
        return self._folder.size(wanted.final) == wanted.bytes_total

    def _is_mine(self, name: str) -> bool:
        """Staged by an earlier attempt, for a subtask whose place this one has taken."""
        match = STAGED.fullmatch(name)
        return (
            match is not None
            and match["operator"] == self._operator
            and int(match["index"]) % self._context.parallelism == self._context.index
            and int(match["attempt"]) < self._context.attempt
        )

    def _lost(self, wanted: PromisedFile, size: int | None) -> CommitError:
        found = "is gone" if size is None else f"has {size} bytes instead of {wanted.bytes_total}"
        return CommitError(
            f"{self.sink} {self._path}: a completed checkpoint promises {wanted.final}, which is not there, and"
            f" its staged file {wanted.staged} {found}. Was the folder cleaned up or changed by hand,"
            " or does the sink have another path now? Put the file back, or restore an older savepoint"
        )


def staged_path(job: str, name: str) -> str:
    return f"{STAGING}/{job}/{name}"


def prune(folder: Folder, job: str) -> None:
    folder.prune(f"{STAGING}/{job}")
    folder.prune(STAGING)


def _parse(transaction: Plain) -> list[PromisedFile]:
    """Of one file, or of several."""
    files = transaction.get("files") if isinstance(transaction, dict) else None
    return [_parse_file(each) for each in (files if isinstance(files, list) else [transaction])]


def _parse_file(transaction: Plain) -> PromisedFile:
    match transaction:
        case {"job": str(job), "staged": str(staged), "final": str(final), "bytes": int(size)} if (
            re.fullmatch(PART, job) and STAGED.fullmatch(staged) and _FINAL.fullmatch(final)
        ):
            folder = transaction.get("folder", "") if isinstance(transaction, dict) else ""
            return PromisedFile(staged_path(job, staged), _in_folder(folder, final), size)
        case _:
            raise CommitError(
                f"FileSink: {transaction!r} is not a transaction of a FileSink; the snapshot was taken"
                " with another kind of sink under this name"
            )


def _in_folder(folder: Plain, final: str) -> str:
    """The name below the sink's folder; one that would lead out of it is refused."""
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
        raise CommitError(f"FileSink: {folder!r} is not the folder of a partition")
    return f"{folder}/{final}" if folder else final
