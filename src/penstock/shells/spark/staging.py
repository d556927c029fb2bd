"""Staging DataFrames: Spark writes the rows as Parquet beside the job's checkpoints, and documents say what is whole.

A *set* is all that a source reads. One that is complete is used again when the driver comes back; `restore="fresh"`
begins a new one. Old ones go when no checkpoint needs them any more (see `feeds.py`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.location import open_filesystem
from penstock.connectors.sources.listing import Listing
from penstock.connectors.sources.parquet import rows_in
from penstock.connectors.sources.staged import Staged, StagedSource, look
from penstock.errors import ConfigError, DataError, PlanError, StorageError
from penstock.plan.schema import schema_differences
from penstock.ports.store import CheckpointStore
from penstock.redaction import redacted
from penstock.shells.spark.dataframes import (
    DataFrameSource,
    files_in_place,
    first_line,
    query_digest,
)
from penstock.shells.spark.sharing import is_on_disk
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import paths
from penstock.wire.staging import (
    StagedBatch,
    StagedFile,
    StagedSet,
    decode_set,
    encode_batch,
    encode_set,
)

ROWS_PER_FILE = 1_000_000
"""A file is read by one subtask: so many rows at a time are dealt out."""
HOW = {
    "compression": "lz4_raw",
    "parquet.writer.version": "v2",
    "maxRecordsPerFile": ROWS_PER_FILE,
}
"""Measured: a fifth faster than Spark's defaults for numbers, half the bytes, and read as fast."""
AS_THEY_ARE = {
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""A program may have set these otherwise for its own files: to milliseconds, to the calendar of old Sparks. Rows are
staged as they are all the same, to the microsecond and on the day that Spark shows."""
PROGRESS_EVERY_S = 3.0
_SAME_TIME = 16

log = logging.getLogger("penstock")


@dataclass(frozen=True)
class Place:
    """Where one source of a job stages its rows."""

    job: str
    operator: str
    staged: Staged

    @cached_property
    def store(self) -> CheckpointStore:
        """Of the documents. Opened once: a remote one is probed then."""
        return self.staged.open_store()

    def folder(self, name: str) -> str:
        """As Spark spells it."""
        where = f"{self.staged.folder}/{name}"
        if is_on_disk(where):
            return f"file://{where.removeprefix('file://')}"
        return f"s3a{where.removeprefix('s3')}" if where.startswith("s3://") else where

    def remove(self, name: str = "") -> None:
        """A folder with all that is in it, if it is there; everything where no name is given."""
        where = f"{self.staged.folder}/{name}".rstrip("/")
        files, path = open_filesystem(where, self.staged.options)
        with suppress(FileNotFoundError):
            files.rm(path, recursive=True)


def place_for(job: str, operator: str, root: str, options: dict[str, Any]) -> Place:
    folder = f"{root}/{paths.staging_folder(operator)}"
    return Place(job, operator, Staged(folder, options, partial(FilesystemStore, folder, options)))


# ---- sets


def sets(place: Place) -> list[str]:
    """All that are complete, oldest first."""
    found = (paths.staged_set_of(name) for name in place.store.list())
    return sorted(name for name in found if name is not None)


def folders(place: Place) -> list[str]:
    """Of sets, oldest first, also of those that a killed driver did not complete or did not remove."""
    found = {name.partition("/")[0] for name in place.store.list()}
    return sorted(name for name in found if paths.is_staged_set(name))


def settle(source: DataFrameSource, place: Place, *, fresh: bool, begun: bool) -> StagedSource:
    """The set that this DataFrame is read from: one that is there already, or a new one. `begun`: the job has
    checkpoints, so what it reads is settled and may not change."""
    store = place.store
    digest = query_digest(source.frame) if source.bounded else ""
    known = [] if fresh else sets(place)
    if known:
        record = decode_set(store.read(paths.staged_set(known[-1])), known[-1])
        if _is_to_be_used(record, source, digest, known[-1], place, begun):
            return StagedSource(place.staged, known[-1], source.schema, bounded=source.bounded)
    number = int(max(folders(place), default="000000")[:6]) + 1
    name = f"{number:06d}-{uuid.uuid4().hex[:8]}"
    schema = source.schema.serialize().to_pybytes()
    record = StagedSet(place.operator, schema, source.bounded, digest, time.time() * 1000)
    if source.bounded:
        _stage(source, place, name, record)
    else:
        store.create(paths.staged_set(name), encode_set(record))
    return StagedSource(place.staged, name, source.schema, bounded=source.bounded)


def _is_to_be_used(
    record: StagedSet, source: DataFrameSource, digest: str, name: str, place: Place, begun: bool
) -> bool:
    differences = schema_differences(source.schema, pa.ipc.read_schema(pa.py_buffer(record.schema)))
    if record.bounded != source.bounded:
        differences.append("it was a stream" if source.bounded else "it was no stream")
    same = not differences and (not source.bounded or record.query == digest != "")
    if differences and begun:
        raise PlanError(
            f"{place.operator}: this job was begun with another DataFrame: {'; '.join(differences)}. Give it the one it"
            ' had, give the job another name, or start it with restore="fresh", which begins from scratch'
        )
    if not (same or begun):
        return False
    if source.bounded:
        batch = look(place.store, name, 0)
        if batch is None:
            raise DataError(
                f"{redacted(place.staged.folder)}/{name}: the list of the staged rows is gone; put it back, or start"
                ' the job with restore="fresh"'
            )
        if record.query == digest != "":
            _say(place, f"goes on with the {batch.rows:,} rows that were staged before")
        else:
            log.warning(
                "job %s: %s is another query than the one that this job was begun with. It goes on with the %s rows"
                ' that were staged then; to begin with the new one: restore="fresh", or another name',
                place.job,
                place.operator,
                f"{batch.rows:,}",
            )
    return True


# ---- a DataFrame that is no stream


def _stage(source: DataFrameSource, place: Place, name: str, record: StagedSet) -> None:
    """First the rows, then the list of their files, then the set: it is there if and only if all of it is."""
    batch = in_place(source)
    if batch is None:
        frame = _apart(source.frame)
        batch = write_rows(frame, place, name, StagedBatch(0, 0, "", ()), source.schema)
    else:
        _say(place, f"reads {batch.rows:,} rows in {len(batch.files)} files where they are")
    store = place.store
    store.create(paths.staged_batch(name, 0), encode_batch(batch))
    store.create(paths.staged_set(name), encode_set(record))


def in_place(source: DataFrameSource) -> StagedBatch | None:
    """The files of a plain scan, if they can be read as they are."""
    files = files_in_place(source.frame)
    if files is None:
        return None
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    if "://" in files[0]:
        folder = folder.replace(":/", "://", 1)
    try:
        listing = Listing(f"{folder}/", {}, literal=True)
        names = [file.removeprefix(f"{folder}/") for file in files]
        return StagedBatch(0, 0, f"{folder}/", _described(listing, names, source.schema))
    except (DataError, ConfigError, OSError, ImportError):
        return None


def _apart(frame: Any) -> Any:
    """The same DataFrame on a copy of its session, which can be set without anybody noticing."""
    from pyspark.sql import DataFrame

    session = frame.sparkSession
    copy = session._jsparkSession.cloneSession()
    plan = frame._jdf.queryExecution().analyzed()
    same = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(copy, plan)
    set_as_they_are(copy.conf())
    return DataFrame(same, session)


def set_as_they_are(conf: Any) -> None:
    """Of a session that is nobody else's."""
    for key, value in AS_THEY_ARE.items():
        conf.set(key, value)


def write_rows(
    frame: Any, place: Place, name: str, like: StagedBatch, schema: pa.Schema
) -> StagedBatch:
    """Has Spark write the rows; what is returned says where. `like` has the number of the batch and its first file."""
    folder = paths.staged_rows(name, like.batch, uuid.uuid4().hex)
    try:
        with _shown(frame.sparkSession.sparkContext, place):
            frame.write.options(**HOW).parquet(place.folder(folder))
    except BaseException as error:
        with suppress(OSError):
            place.remove(folder)
        raise _not_written(error, place) from error
    listing = Listing(f"{place.staged.folder}/{folder}", place.staged.options, literal=True)
    names = [file.name for file in listing.files()]
    files = _described(listing, names, schema)
    make_durable(place, folder, names)
    within = folder.partition("/")[2]
    return StagedBatch(like.batch, like.first, within, files, time.time() * 1000)


def _described(listing: Listing, names: list[str], schema: pa.Schema) -> tuple[StagedFile, ...]:
    def describe(name: str) -> StagedFile:
        return StagedFile(name, listing.size(name) or 0, rows_in(listing, name, schema))

    with ThreadPoolExecutor(min(_SAME_TIME, max(1, len(names)))) as pool:
        return tuple(file for file in pool.map(describe, names) if file.rows)


def make_durable(place: Place, folder: str, names: Sequence[str]) -> None:
    """Spark leaves that to the disk's own time; a checkpoint must not outlive what it is about."""
    if not is_on_disk(place.staged.folder):
        return
    where = Path(place.staged.folder.removeprefix("file://")) / folder
    with ThreadPoolExecutor(_SAME_TIME) as pool:
        list(pool.map(_sync, [*(where / name for name in names), where, where.parent]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_written(error: BaseException, place: Place) -> BaseException:
    if not isinstance(error, Exception):
        return error
    where = redacted(place.staged.folder)
    return StorageError(
        f"{place.operator}: Spark could not stage the DataFrame in {where}: {redacted(first_line(error))}"
    )


# ---- telling people


def _say(place: Place, text: str) -> None:
    log.info("job %s: %s %s", place.job, place.operator, text)


@contextmanager
def _shown(context: Any, place: Place) -> Iterator[None]:
    """What runs meanwhile has a name in Spark's UI, and long work shows how far it is."""
    tag = f"penstock-staging-{uuid.uuid4().hex[:8]}"
    over = threading.Event()
    before = context.getLocalProperty("spark.job.description")
    context.addJobTag(tag)
    context.setJobDescription(f"Penstock {place.job}: staging {place.operator}")
    watcher = threading.Thread(target=_watch, args=(context, tag, place, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        with suppress(Exception):  # the session may be gone, and then nothing needs its old name
            context.removeJobTag(tag)
            context.setJobDescription(before)


def _watch(context: Any, tag: str, place: Place, over: threading.Event) -> None:
    began_s = time.monotonic()
    while not over.wait(PROGRESS_EVERY_S):
        with suppress(Exception):  # a look at Spark's own books; the work itself says what fails
            done, total = _tasks(context, tag)
            if total:
                took_s = time.monotonic() - began_s
                told = f"staging {place.operator}: {done} of {total} tasks, {took_s:.0f} s"
                log.warning("job %s: %s", place.job, told)


def _tasks(context: Any, tag: str) -> tuple[int, int]:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(n) for n in context._jsc.sc().statusTracker().getJobIdsForTag(tag)]
    stages = [tracker.getStageInfo(n) for job in jobs if job is not None for n in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)
