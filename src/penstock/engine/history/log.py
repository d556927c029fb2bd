"""Keeps the history of a job in its directory, beside everything else: reads it at the start, writes it now and then.

It has a queue of its own in the background and waits for nobody; a store that fails or hangs costs history, and never
a checkpoint, a start or an end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.engine.checkpoints.restore_points import RestorePoint
from penstock.engine.history.files import HistoryFiles, Past
from penstock.engine.history.history import History
from penstock.engine.serial import Serial
from penstock.protocol.ids import AttemptId
from penstock.redaction import redacted
from penstock.wire import paths
from penstock.wire.manifest import Manifest

PAUSE_MS = 1_000.0
"""Between two writes: what a killed driver loses at most, without the checkpoints that the next one finds."""

LOAD_TRIES_MAX = 3

log = logging.getLogger("penstock")


class HistoryLog:
    """`location` is where the job's directory is, fit to be shown."""

    def __init__(
        self, job: str, location: str, history: History, files: HistoryFiles, queue: Serial
    ) -> None:
        self._job = job
        self._location = location
        self._history = history
        self._files = files
        self._queue = queue
        self._loaded = False
        self._load_tries = 0
        self._first: RestorePoint | None = None
        self._next_ms = 0.0
        self._closed = False

    # ---- the past

    def begin(self) -> None:
        self._load_tries += 1
        self._queue.submit(self._files.load, self._on_loaded, self._on_not_loaded)

    def _on_loaded(self, past: Past) -> None:
        for name in past.damaged:
            log.warning(
                "job %s: %s is damaged; what it said about old checkpoints is lost, and nothing else",
                self._job,
                name,
            )
        self._history.remember(past.checkpoints, past.totals)
        self._loaded = True
        self._complete()

    def _on_not_loaded(self, error: BaseException) -> None:
        if self._load_tries < LOAD_TRIES_MAX and not self._closed:
            self.begin()
            return
        log.warning("job %s: the history of its checkpoints cannot be read: %s", self._job, error)
        self._loaded = True
        self._complete()

    def restored(self, point: RestorePoint) -> None:
        """An attempt was claimed, with what it goes on from."""
        if point.manifest is not None:
            path = self._path(point.manifest, point.origin)
            self._history.restored(path)
            self._tell(point.manifest, path)
        if self._first is None:
            self._first = point
            self._complete()

    def _tell(self, manifest: Manifest, path: str | None) -> None:
        taken = datetime.fromtimestamp(manifest.completed_ms / 1_000, UTC)
        when = taken.isoformat(" ", "seconds")[:19]
        number, where = manifest.checkpoint, f" ({path})" if path else ""
        log.info("job %s: goes on from checkpoint %s of %s UTC%s", self._job, number, when, where)

    def _complete(self) -> None:
        """What the last driver completed and had no time to write down is known from what this one restores."""
        point = self._first
        if not self._loaded or point is None or point.manifest is None or point.origin:
            return
        for manifest in (*point.older, point.manifest):
            self._history.add_missing(manifest, self._path(manifest))

    def _path(self, manifest: Manifest, origin: str = "") -> str | None:
        root = redacted(origin) or self._location
        return f"{root}/{paths.checkpoint_folder(manifest.checkpoint)}" if root else None

    # ---- the present

    @property
    def idle(self) -> bool:
        return self._queue.idle and (self._closed or not self._is_wanted())

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._next_ms and self._queue.idle and self._is_wanted():
            self._next_ms = now_ms + PAUSE_MS
            self._save()

    def _is_wanted(self) -> bool:
        ready = self._loaded and self._first is not None and not self._closed
        return ready and self._history.has_unsaved

    def _save(self) -> None:
        if self._first is None:
            return
        attempt: AttemptId = self._first.attempt
        infos, totals = self._history.take_unsaved(), self._history.totals
        self._queue.submit(
            lambda: self._files.add(attempt, infos, totals), lambda _: None, self._on_not_saved
        )

    def _on_not_saved(self, error: BaseException) -> None:
        log.info("job %s: history: %s", self._job, error)

    # ---- the end

    def finish(self) -> None:
        """The job is over: what is unsaved is written at once."""
        self._next_ms = 0.0

    def abandon(self, then: Callable[[], None]) -> None:
        """Nothing is written any more; `then` is called when nothing is being written either."""
        self._closed = True
        self._queue.submit(lambda: None, lambda _: then(), lambda _: then())
