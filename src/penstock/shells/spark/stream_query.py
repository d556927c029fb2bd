"""Spark's own query that stages a streaming DataFrame, micro-batch by micro-batch.

Spark calls `foreachBatch` at least once for every batch, with the same rows for the same number. The rows are written
to a folder of their own first; then the document of the batch is created exclusively, and only what has a document is
read. So however often a batch is tried, and by whichever driver, it is staged once.

Back pressure: a batch waits while more is staged than the job has read and made durable (decision 9).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Never

from penstock.connectors.sources.staged import look
from penstock.errors import CheckpointCorrupt, DataError, StorageError
from penstock.ports.feed import Trouble
from penstock.protocol.restart import GiveUp, RestartAfter, Strategy, decide
from penstock.redaction import redacted
from penstock.shells.spark.dataframes import DataFrameSource, first_line
from penstock.shells.spark.session import is_stopped
from penstock.shells.spark.sharing import is_on_disk
from penstock.shells.spark.staging import Place, make_durable, set_as_they_are, write_rows
from penstock.wire import paths
from penstock.wire.staging import StagedBatch, decode_batch, encode_batch

STAGED_BYTES_MAX = 256 << 20
"""So much may be staged and not yet behind a completed checkpoint."""

WRITING_S = 60.0
"""How long the end of a job waits for a batch that is being written."""
STOPPING_MS = 30_000.0
_OFFSETS, _SOURCES = "offsets", "sources"
"""In the folder of Spark's notes: which rows a batch has, and what a source notes for itself about them."""

log = logging.getLogger("penstock")


class _StoppedError(Exception):
    """Raised in a batch that is not staged because the query is being stopped: Spark will bring it again. Spark logs
    every exception of `foreachBatch` at length, except where it reads that its own thread was interrupted by the stop;
    so this says so, in the words that it looks for."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
        )


class _NotStagedError(Exception):
    """What Spark hears of a batch that failed: one line. It searches the text for those words, and a long text that has
    them ends its thread with a stack overflow, so that the query neither runs nor ends."""


class StreamQuery:
    """`step` is called by one thread, `_on_batch` by Spark's, one batch at a time."""

    def __init__(
        self,
        source: DataFrameSource,
        place: Place,
        strategy: Strategy,
        now_ms: Callable[[], float],
    ) -> None:
        self._source = source
        self._place = place
        self._strategy = strategy
        self._now_ms = now_ms
        self._name = ""
        self._opened = False
        self._query: Any = None
        self._problem: Exception | None = None
        """What went wrong with a batch: Spark's own words for it hide it."""
        self._failures_ms: list[float] = []
        self._not_before_ms = 0.0
        self._ending = False
        self._busy = False
        """Rows are being written."""
        self._changed = threading.Condition()
        self._staged: dict[int, StagedBatch] = {}
        """Those that a retained checkpoint may need."""
        self._durable_notes: set[str] = set()
        self._read = 0
        """Every batch below it is behind the newest checkpoint."""

    @property
    def label(self) -> str:
        return f"penstock {self._place.job}: {self._place.operator}"

    def open(self, name: str, batch: int) -> Trouble | None:
        """Goes on with this set, of which `batch` is the first that is not read. Raises where rows are missing that
        Spark will not bring again; a store that does not answer is another matter, and asked again."""
        store, self._name = self._place.store, name
        if self._now_ms() < self._not_before_ms:
            return None
        try:
            names = store.list(paths.staged_set_folder(name))
            numbers = {file: found for file in names if (found := paths.staged_batch_of(file))}
            staged = {n: decode_batch(store.read(file), file) for file, (_, n) in numbers.items()}
        except CheckpointCorrupt:
            raise
        except (OSError, StorageError) as error:
            return self._failed(f"{type(error).__name__}: {error}")
        with self._changed:
            self._staged = staged
        if paths.staged_set(name) not in names or max(staged, default=-1) < batch - 1:
            raise self._emptied(f"batch {batch} is to be read next")
        self._opened = True
        return None

    @property
    def opened(self) -> bool:
        return self._opened

    def _emptied(self, what: str) -> DataError:
        where = redacted(f"{self._place.staged.folder}/{self._name}")
        newest = f"batch {max(self._staged)} is the newest" if self._staged else "there is none"
        return DataError(
            f"{where}: {what} of {self._place.operator!r}, and {newest} that is staged: somebody has removed staged"
            ' rows. Put them back, or start the job with restore="fresh", which begins from scratch'
        )

    def behind(self, batch: int) -> None:
        """Every batch below this one is behind the newest checkpoint."""
        with self._changed:
            self._read = max(self._read, batch)
            self._changed.notify_all()

    def forget(self, before: int) -> list[StagedBatch]:
        """The batches below this one, which nobody needs any more. The newest stays: it shows that none is missing."""
        with self._changed:
            before = min(before, max(self._staged, default=0))
            gone = [batch for number, batch in self._staged.items() if number < before]
            self._staged = {n: batch for n, batch in self._staged.items() if n >= before}
        return gone

    # ---- the query

    def step(self) -> Trouble | None:
        """Starts the query, or looks how it is. What went wrong, if something did."""
        if self._query is None:
            return self._start() if self._now_ms() >= self._not_before_ms else None
        if self._query.isActive:
            return None
        query, problem = self._query, self._problem
        with suppress(Exception):  # how it ended is asked below
            query.awaitTermination(STOPPING_MS // 1000)
        self._query = self._problem = None
        error = query.exception()
        if isinstance(problem, DataError):
            return Trouble(f"DataError: {problem}", fatal=True)
        if problem is not None:
            return self._failed(f"{type(problem).__name__}: {problem}")
        return self._failed("it was stopped from outside" if error is None else first_line(error))

    def stop(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy, WRITING_S)
        query = self._query
        if query is not None and not is_stopped(self._source.frame.sparkSession.sparkContext):
            try:
                query.stop()
            except Exception as error:  # the JVM may be going, too
                log.debug("job %s: stopping %s: %s", self._place.job, self.label, error)

    def _start(self) -> Trouble | None:
        source, folder = self._source, self._place.folder(paths.staged_query(self._name))
        try:
            self._require_notes()
            writer = source.frame.writeStream.outputMode("append").queryName(self._free_label())
            writer = writer.option("checkpointLocation", folder).foreachBatch(self._on_batch)
            if source.interval is not None:
                writer = writer.trigger(processingTime=source.interval)
            self._query = writer.start()
        except DataError:
            raise
        except Exception as error:
            return self._failed(first_line(error))
        return None

    def _free_label(self) -> str:
        """A query of the same name may run in this session: that of another job, or of one that is about to notice
        that this one has taken it over."""
        taken = {query.name for query in self._source.frame.sparkSession.streams.active}
        return self.label if self.label not in taken else f"{self.label} ({uuid.uuid4().hex[:8]})"

    def _require_notes(self) -> None:
        """Spark notes what a batch is before it brings it. Without its notes it would count from 0 again, and bring
        other rows under the numbers of batches that are staged."""
        folder = paths.staged_query(self._name)
        newest = max(self._staged, default=-1)
        prefix = f"{folder}/{_OFFSETS}/"
        noted = (name.removeprefix(prefix) for name in self._place.store.list(folder))
        if newest < 0 or any(note.isdecimal() and int(note) >= newest for note in noted):
            return
        where = redacted(f"{self._place.staged.folder}/{folder}")
        raise DataError(
            f"{where}: what Spark had noted here about batch {newest} of {self._place.operator!r} is gone: somebody has"
            ' removed it. Put it back, or start the job with restore="fresh", which begins from scratch'
        )

    def _failed(self, why: str) -> Trouble | None:
        if self._ending:
            return None
        self._failures_ms.append(self._now_ms())
        told = f"QueryFailed: Spark's query of {self._place.operator!r} ended: {why}"
        match decide(self._strategy, self._failures_ms):
            case RestartAfter(delay_ms):
                self._not_before_ms = self._now_ms() + delay_ms
                return Trouble(f"{told}; it is started again")
            case GiveUp(reason):
                return Trouble(f"{told}; {reason}", fatal=True)

    # ---- a batch

    def _on_batch(self, frame: Any, number: int) -> None:
        """Called by Spark, at least once for every batch."""
        try:
            self._take(frame, number)
        except Exception as error:
            query = self._query
            if isinstance(error, _StoppedError) or (query is not None and not query.isActive):
                raise _StoppedError from None
            self._problem = error
            raise _NotStagedError(f"batch {number} is not staged: {first_line(error)}") from None

    def _take(self, frame: Any, number: int) -> None:
        with self._changed:
            known = number in self._staged or number < min(self._staged, default=0)
            if known or self._is_there(number):
                return
            last = max(self._staged, default=number - 1)
            while last + 1 < number and self._is_there(last + 1):
                last += 1
            if number != last + 1:
                raise self._emptied(f"Spark brings batch {number}")
            self._changed.wait_for(self._has_room)
            self._busy = not self._ending
        if not self._busy:
            self._give_back()
        try:
            batch = self._write(frame, number)
            self._keep_notes()
            self._add(batch)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _give_back(self) -> Never:
        """The job ends. Spark must hear of it after it was told to stop: before, it would be a failure."""
        query, end_ms = self._query, self._now_ms() + STOPPING_MS
        while query is not None and self._now_ms() < end_ms and query.isActive:
            with self._changed:
                self._changed.wait(0.05)
        raise _StoppedError

    def _write(self, frame: Any, number: int) -> StagedBatch:
        """A task per core is enough: more would only make more and smaller files."""
        first = sum(len(b.files) for b in self._staged.values()) + self._first_of_those_left()
        tasks = frame.sparkSession.sparkContext.defaultParallelism
        set_as_they_are(frame.sparkSession.conf)  # Spark has made a session for this query alone
        like = StagedBatch(number, first, "", ())
        return write_rows(frame.coalesce(tasks), self._place, self._name, like, self._source.schema)

    def _keep_notes(self) -> None:
        """What Spark has noted about this batch must last as long as the batch: see `_require_notes`."""
        folder = paths.staged_query(self._name)
        if not is_on_disk(self._place.staged.folder):
            return
        kept = (f"{folder}/{_OFFSETS}/", f"{folder}/{_SOURCES}/")
        there = {name for name in self._place.store.list(folder) if name.startswith(kept)}
        new = sorted(there - self._durable_notes)
        folders = {str(parent) for name in new for parent in PurePosixPath(name).parents}
        make_durable(self._place, "", [*new, *sorted(folders)])
        self._durable_notes = there

    def _first_of_those_left(self) -> int:
        return self._staged[min(self._staged)].first if self._staged else 0

    def _add(self, batch: StagedBatch) -> None:
        file = paths.staged_batch(self._name, batch.batch)
        if not self._place.store.create(file, encode_batch(batch)):
            self._place.remove(f"{paths.staged_set_folder(self._name)}/{batch.folder}")
            if not self._is_there(batch.batch):
                raise StorageError(f"{file} is there and cannot be read")
            return
        with self._changed:
            self._staged[batch.batch] = batch

    def _is_there(self, number: int) -> bool:
        """Another driver may have staged it."""
        found = look(self._place.store, self._name, number)
        if found is not None:
            self._staged[number] = found
        return found is not None

    def _has_room(self) -> bool:
        waiting = (b.bytes_total for n, b in self._staged.items() if n >= self._read)
        return self._ending or sum(waiting) < STAGED_BYTES_MAX
