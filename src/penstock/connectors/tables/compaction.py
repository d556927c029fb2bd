"""Keeps the files of a table few: several of about the same size are merged into one, and the old ones go later.

A file of n rows is in tier log(n) to the base 8. Eight files of a tier become one, so there are at most seven for each
tier and subtask, and a row is written again at most once for each tier that the table grows by. First the merged file
appears, then the others are superseded by its name, and when everybody who has listed them is done they are deleted. It
does not matter where this breaks off, or whether two do it at the same time: every row is there with its version all
along, some of them twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Protocol

import pyarrow as pa

from penstock.connectors.base import SinkContext
from penstock.connectors.sinks.files import path_safe, staged_path
from penstock.connectors.sinks.folder import Folder
from penstock.connectors.tables import files, ledger
from penstock.connectors.tables.files import RowsFile
from penstock.connectors.tables.merging import merged, united_schema
from penstock.connectors.tables.names import SOURCES_MAX, TableFile, list_files, live, new_id
from penstock.errors import DataError
from penstock.redaction import redacted

FAN_IN = SOURCES_MAX
TIER_ROWS = 4_096
"""Files with fewer rows are all in the lowest tier: they cost what a file costs."""
GRACE_MS = 2 * 60_000.0
"""How long a superseded file stays for readers that have listed it."""
CLOSE_S = 5.0
log = logging.getLogger("penstock")


class Compaction:
    """For the files of one subtask, and of those of earlier attempts whose place it has taken."""

    def __init__(
        self, folder: Folder, keys: Sequence[str], context: SinkContext, path: str
    ) -> None:
        self._folder = folder
        self._keys = tuple(keys)
        self._context = context
        self._path = path
        self._since_ms: dict[TableFile, float] = {}
        """Superseded files, and when that was noticed."""
        self._told = ""
        self._stopped = False

    def step(self) -> None:
        """Does what there is to do. What fails is left for the next time: a table with many files is as right."""
        try:
            while chosen := due(filter(self._is_mine, live(list_files(self._folder)))):
                self._merge(chosen)
            self._delete_superseded()
        except Stopped:
            return
        except FileNotFoundError as error:
            log.debug("table %s: somebody else has merged these files: %r", self._path, error)
        except Exception as error:
            self._tell(redacted(repr(error)))

    def stop(self) -> None:
        """A merge that is under way breaks off at its next piece."""
        self._stopped = True

    def _tell(self, problem: str) -> None:
        """Once, although it is tried again with every commit."""
        if problem != self._told:
            self._told = problem
            log.warning("table %s: files could not be merged, for now: %s", self._path, problem)

    def _is_mine(self, file: TableFile) -> bool:
        return file.index % self._context.parallelism == self._context.index

    def _merge(self, chosen: Sequence[TableFile]) -> None:
        with ExitStack() as opened:
            sources = [
                opened.enter_context(closing(RowsFile(self._folder, file))) for file in chosen
            ]
            schema = united_schema(sources)
            committed = ledger.united([source.ledger for source in sources])
            pieces = self._unless_stopped(merged(sources, self._keys, schema))
            id_ = new_id()
            staged = self._staged(id_, chosen)
            rows, _ = files.write(self._folder, staged, schema, committed, pieces)
        try:
            self._folder.move(staged, self._merged_file(id_, rows, chosen).path)
        except BaseException:
            with suppress(OSError):
                self._folder.delete(staged)
            raise

    def _staged(self, id_: str, chosen: Sequence[TableFile]) -> str:
        """Like the name of a staged transaction: if this breaks off, the next attempt removes it."""
        context, version = self._context, max(file.highest for file in chosen)
        place = f"{path_safe(context.operator)}-{context.index}-{context.attempt}-{version}"
        return staged_path(path_safe(context.job), f"{place}-{id_[:8]}.parquet")

    def _merged_file(self, id_: str, rows: int, chosen: Sequence[TableFile]) -> TableFile:
        return TableFile(
            min(file.lowest for file in chosen),
            max(file.highest for file in chosen),
            self._context.index,
            self._context.attempt,
            rows,
            id_,
            tuple(file.id for file in chosen),
        )

    def _unless_stopped(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for piece in pieces:
            if self._stopped:
                raise Stopped
            yield piece

    def _delete_superseded(self) -> None:
        every = list_files(self._folder)
        superseded = filter(self._is_mine, set(every) - set(live(every)))
        now_ms = self._context.now_ms()
        self._since_ms = {file: self._since_ms.get(file, now_ms) for file in superseded}
        for file in sorted(self._since_ms, key=_age):
            is_old = now_ms - self._since_ms[file] >= GRACE_MS
            if is_old and any(self._is_safe(other) for other in every if file.id in other.sources):
                self._folder.delete(file.path)

    def _is_safe(self, file: TableFile) -> bool:
        """Whether a merged file can stand for its sources. Where a move is a copy, one that did not end may be there;
        on a disk, one whose name is not durable yet."""
        try:
            RowsFile(self._folder, file).close()
        except (DataError, FileNotFoundError):
            return False
        self._folder.settle(file.path)
        return True


class Stopped(Exception):
    """The committer is being closed."""


def _age(file: TableFile) -> tuple[int, int, str]:
    """Those that were merged into others first."""
    return (file.highest, -file.lowest, file.id)


def due(there: Iterable[TableFile]) -> list[TableFile]:
    """Files to merge into one now, oldest first; none where no tier has enough of them."""
    tiers: dict[int, list[TableFile]] = {}
    for file in sorted(there, key=_age):
        tiers.setdefault(tier(file.rows), []).append(file)
    full = (tiers[number][:FAN_IN] for number in sorted(tiers) if len(tiers[number]) >= FAN_IN)
    return next(full, [])


def tier(rows: int) -> int:
    number, size = 0, rows // TIER_ROWS
    while size:
        number, size = number + 1, size // FAN_IN
    return number


class Aside(Protocol):
    """Where compaction runs: beside the commits, which do not wait for it."""

    def wanted(self) -> None: ...

    def close(self) -> None: ...


class InThread:
    """At most one at a time; asked while it is at work it does nothing, because it is asked again with the next
    commit."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None

    def wanted(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            name = "penstock-compaction"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Waits for a while; what hangs on a broken disk is left behind."""
        if self._thread is not None:
            self._thread.join(CLOSE_S)
