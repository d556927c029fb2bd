"""Files in a folder: Parquet, CSV and JSON lines, all that are there or also those that come later.

A file belongs to the lane `xxhash64(relative name) % max_parallelism`. A lane's position says which files are
done (16 characters each) and where the next row of the file in work is:

    {"done": "...", "file": "a/b.csv", "size": 1234, "at": [byte, line], "skip": rows behind `at`}

A watched folder may live for years, so a file that is done is remembered only as long as it is there, and for a while
longer: a listing that misses a file for a moment must not bring it back as a new one. A folder that looks empty tells
nothing (a disk that is not mounted looks like that).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import xxhash

from penstock.connectors.answer import Answer
from penstock.connectors.base import END, EndOfInput, Source, SourceContext, SourceReader, Wait
from penstock.connectors.location import absolute
from penstock.connectors.sources.chunks import START, Cursor, FileFormat, Mark
from penstock.connectors.sources.csv import CsvFormat
from penstock.connectors.sources.json import JsonFormat
from penstock.connectors.sources.lines import BAD_RECORD
from penstock.connectors.sources.listing import Listed, Listing
from penstock.connectors.sources.parquet import ParquetFormat
from penstock.errors import ConfigError, DataError, SchemaError
from penstock.plan.schema import parse_schema
from penstock.protocol.snapshot import Plain
from penstock.redaction import redacted, remember

Format: TypeAlias = Literal["parquet", "csv", "json"]
BadRecords: TypeAlias = Literal["fail", "column"]
POLL_INTERVAL_MS = 1000.0
ANSWER_MS = 10.0
"""How long to leave a listing alone that is under way."""
FORGET_AFTER_MS = 600_000.0
"""So long must a file be missing from a watched folder until its name may be used for another one."""
_DIGEST_CHARACTERS = 16


class FileSource(Source):
    """A file, a folder (with its subfolders) or a pattern such as `in/*.csv`; a local path or an fsspec URL.

    `watch=True` goes on with files that appear later. Files must appear whole: write elsewhere (or under a name
    that starts with `_` or `.`) and rename. With `bad_records="column"` a CSV or JSON line that does not parse is
    a row of nulls with the line in `_bad_record`; otherwise it fails the job."""

    def __init__(
        self,
        path: str,
        format: Format = "parquet",
        schema: pa.Schema | str | None = None,
        watch: bool = False,
        *,
        bad_records: BadRecords = "fail",
        header: bool = True,
        delimiter: str = ",",
        poll_interval_ms: float = POLL_INTERVAL_MS,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        _require_one_of("format", format, get_args(Format))
        _require_one_of("bad_records", bad_records, get_args(BadRecords))
        if bad_records == "column" and format == "parquet":
            raise ConfigError('FileSource: bad_records="column" is for csv and json, not parquet')
        if len(delimiter) != 1:
            raise ConfigError(f"FileSource: delimiter must be one character, not {delimiter!r}")
        if poll_interval_ms <= 0:
            raise ConfigError(f"FileSource: poll_interval_ms must be > 0, not {poll_interval_ms!r}")
        self._path = absolute(path)
        self._format = format
        self._schema = None if schema is None else self._promised(parse_schema(schema), bad_records)
        self._keep_bad = bad_records == "column"
        self._header = header
        self._delimiter = delimiter
        self._poll_interval_ms = poll_interval_ms
        self._storage_options = dict(storage_options or {})
        remember(self._path, self._storage_options)
        self.bounded = not watch

    def __repr__(self) -> str:
        return f"FileSource({redacted(self._path)!r}, {self._format!r})"

    def check_access(self) -> None:
        Listing(self._path, self._storage_options).require_readable()

    @property
    def schema(self) -> pa.Schema:
        """As given, or inferred from the first file."""
        if self._schema is None:
            bad_records = "column" if self._keep_bad else "fail"
            self._schema = self._promised(self._infer(), bad_records)
        return self._schema

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        return FileReader(
            Listing(self._path, self._storage_options),
            self._file_format(),
            self.schema,
            context=context,
            positions=positions,
            poll_interval_ms=None if self.bounded else self._poll_interval_ms,
        )

    def _infer(self) -> pa.Schema:
        listing = Listing(self._path, self._storage_options)
        files = listing.files()
        if not files:
            raise SchemaError(
                f"FileSource: there is no file in {listing.path} to infer a schema from;"
                ' give it a schema="..."'
            )
        return self._file_format().infer(listing, files[0].name)

    def _file_format(self) -> FileFormat:
        if self._format == "csv":
            return CsvFormat(
                delimiter=self._delimiter, header=self._header, keep_bad=self._keep_bad
            )
        return JsonFormat(keep_bad=self._keep_bad) if self._format == "json" else ParquetFormat()

    @staticmethod
    def _promised(schema: pa.Schema, bad_records: str) -> pa.Schema:
        if bad_records == "fail":
            return schema
        if BAD_RECORD in schema.names:
            raise SchemaError(f"FileSource: leave {BAD_RECORD} out of the schema, it is added")
        nullable = [pa.field(each.name, each.type) for each in schema]
        return pa.schema([*nullable, pa.field(BAD_RECORD, pa.string())])


@dataclass(frozen=True)
class InWork:
    """A file that was begun, and where its next row is."""

    file: Listed
    at: Mark = START
    skip: int = 0


@dataclass
class Lane:
    done: set[str] = field(default_factory=set)
    in_work: InWork | None = None
    left: set[str] | None = None
    """What is still to be read, where that was settled when the job began: a bounded source after a failure must
    read what it would have read without."""
    missing: dict[str, float] = field(default_factory=dict)
    """Files that are done and not in the folder any more, and since when."""
    written: str | None = None
    """What a checkpoint says of `done`, as long as nothing was added: they may be many."""

    def position(self) -> dict[str, Plain]:
        if self.written is None:
            self.written = "".join(sorted(self.done))
        position: dict[str, Plain] = {"done": self.written}
        if self.left is not None:
            position["left"] = "".join(sorted(self.left))
        if self.in_work is not None:
            position |= {"file": self.in_work.file.name, "size": self.in_work.file.bytes_total}
            position |= {"at": list(self.in_work.at), "skip": self.in_work.skip}
        return position

    def finish(self, key: str) -> None:
        self.done.add(key)
        if self.left is not None:
            self.left.discard(key)
        self.in_work = self.written = None

    def forget(self, present: set[str], now_ms: float) -> None:
        """Lets go of files that have been missing for long."""
        gone = self.done - present
        since = {key: self.missing.get(key, now_ms) for key in gone}
        forgotten = {key for key, first in since.items() if now_ms - first >= FORGET_AFTER_MS}
        if forgotten:
            self.done -= forgotten
            self.written = None
        self.missing = {key: first for key, first in since.items() if key not in forgotten}


class FileReader(SourceReader):
    """Reads one file after the other: first those that were begun, then the others by name."""

    def __init__(
        self,
        listing: Listing,
        format_: FileFormat,
        schema: pa.Schema,
        *,
        context: SourceContext,
        positions: Mapping[int, Plain],
        poll_interval_ms: float | None,
    ) -> None:
        self._listing = listing
        self._format = format_
        self._schema = schema
        self._context = context
        self._poll_interval_ms = poll_interval_ms
        owned = set(context.lanes)
        self._lanes = {
            lane: _parse(lane, each) for lane, each in positions.items() if lane in owned
        }
        if poll_interval_ms is None:
            self._lanes = {lane: self._lanes.get(lane, Lane()) for lane in sorted(owned)}
        else:
            self._lanes = {n: replace(lane, left=None) for n, lane in self._lanes.items()}
        self._cursor: Cursor | None = None
        self._lane = 0
        self._file = Listed("", 0)
        self._rows = 0
        self._queue: list[tuple[int, InWork]] = []
        self._rescan_ms = 0.0
        self._asked: Answer[list[Listed]] | None = None
        """A listing that is under way."""
        self._queue_up(owned, listing.files())
        if poll_interval_ms is None:
            self._settle()

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        while self._cursor is not None or self._open_next():
            batch = self._take(max_rows)
            if batch is not None:
                return batch
        if self._poll_interval_ms is None:
            return END
        soon_ms = self._context.now_ms() + ANSWER_MS
        return Wait(self._rescan_ms if self._asked is None else soon_ms)

    def positions(self) -> Mapping[int, Plain]:
        return {lane: state.position() for lane, state in self._lanes.items()}

    def describe(self) -> str:
        if not self._file.name:
            return ""
        return f"{self._listing.shown(self._file.name)}, before row {self._rows} of those read"

    def lag(self) -> Mapping[str, float]:
        """Files that are known and not read to their end."""
        return {"files": len(self._queue) + (self._cursor is not None)}

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _take(self, max_rows: int) -> pa.RecordBatch | None:
        cursor = self._cursor
        assert cursor is not None
        batch = cursor.take(max_rows)
        lane = self._lanes[self._lane]
        lane.in_work = InWork(self._file, cursor.at, cursor.skip)
        self._rows += 0 if batch is None else batch.num_rows
        if cursor.finished:
            self._require_unchanged(self._file, cursor.missing_rows)
            lane.finish(digest(self._file.name))
            self.close()
        return batch

    def _open_next(self) -> bool:
        if not self._queue and self._poll_interval_ms is not None:
            self._rescan()
        if not self._queue:
            return False
        self._lane, work = self._queue.pop()
        self._file, self._rows = work.file, work.skip
        self._require_unchanged(work.file, 0)
        chunks = self._format.chunks(self._listing, work.file.name, self._schema, work.at)
        self._cursor = Cursor(chunks, work.at, work.skip)
        self._lanes.setdefault(self._lane, Lane())
        return True

    def _rescan(self) -> None:
        """Looks into a watched folder when it is time, without waiting: remote stores take long to list."""
        if self._asked is None and self._context.now_ms() >= self._rescan_ms:
            self._asked = self._context.ask(self._listing.files)
        if self._asked is not None and self._asked.ready:
            asked, self._asked = self._asked, None
            self._queue_up(set(self._context.lanes), asked.get())

    def _queue_up(self, owned: set[int], files: list[Listed]) -> None:
        """Queues what is to be read, the next one last."""
        begun = [(lane, state.in_work) for lane, state in self._lanes.items() if state.in_work]
        names = {work.file.name for _, work in begun}
        present: dict[int, set[str]] = {lane: set() for lane in owned}
        fresh = []
        for file in files:
            lane = lane_of(file.name, self._context.max_parallelism)
            if lane not in owned:
                continue
            key = digest(file.name)
            present[lane].add(key)
            if file.name not in names and not self._is_done(lane, key):
                fresh.append((lane, InWork(file)))
        begun.sort(key=lambda each: each[1].file)
        self._queue = [*reversed(fresh), *reversed(begun)]
        self._rescan_ms = self._context.now_ms() + (self._poll_interval_ms or 0.0)
        if self._poll_interval_ms is not None and files:
            for number, state in self._lanes.items():
                state.forget(present[number], self._context.now_ms())

    def _settle(self) -> None:
        """Files that came after the job had begun are not of its input; files of its input that went are missed."""
        queued: dict[int, set[str]] = {lane: set() for lane in self._lanes}
        for lane, work in self._queue:
            queued[lane].add(digest(work.file.name))
        for lane, state in self._lanes.items():
            if state.left is None:
                state.left = queued[lane]
            elif gone := len(state.left - queued[lane]):
                raise DataError(
                    f"{self._listing.path}: {gone} files that were there when the job began, and were not read"
                    " yet, are gone; put them back"
                )
        lefts = {lane: state.left or set() for lane, state in self._lanes.items()}
        self._queue = [(n, work) for n, work in self._queue if digest(work.file.name) in lefts[n]]

    def _is_done(self, lane: int, key: str) -> bool:
        state = self._lanes.get(lane)
        return state is not None and key in state.done

    def _require_unchanged(self, file: Listed, missing_rows: int) -> None:
        size = self._listing.size(file.name)
        if size == file.bytes_total and not missing_rows:
            return
        now = "is gone" if size is None else f"has {size} bytes now"
        if missing_rows:
            now += f" with {missing_rows} rows less than were read"
        raise DataError(
            f"{self._listing.shown(file.name)}: the file had {file.bytes_total} bytes when it was listed and"
            f" {now}; input files must appear whole (by a rename) and stay as they are until they are read"
        )


def digest(name: str) -> str:
    """A file's name in 16 characters, the same in every process."""
    return base64.urlsafe_b64encode(xxhash.xxh3_128_digest(name.encode())[:12]).decode()


def lane_of(name: str, max_parallelism: int) -> int:
    return int(xxhash.xxh64_intdigest(name.encode())) % max_parallelism


def _require_one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"FileSource: {option} must be one of {', '.join(allowed)}, not {value!r}"
        )


def _parse(lane: int, position: Plain) -> Lane:
    match position:
        case {
            "done": str(done),
            "file": str(name),
            "size": int(size),
            "at": [int(a), int(b)],
            "skip": int(skip),
        }:
            in_work = InWork(Listed(name, size), (a, b), skip)
            return Lane(_split(done), in_work, _left(position))
        case {"done": str(done)}:
            return Lane(_split(done), None, _left(position))
        case _:
            raise DataError(
                f"lane {lane}: {position!r} is not a position of a FileSource;"
                " the snapshot was taken with another kind of source under this name"
            )


def _left(position: Plain) -> set[str] | None:
    left = position.get("left") if isinstance(position, dict) else None
    return _split(left) if isinstance(left, str) else None


def _split(done: str) -> set[str]:
    step = _DIGEST_CHARACTERS
    return {done[start : start + step] for start in range(0, len(done), step)}
