"""The past of a job in its directory: pages that are replaced whole while they fill, within limits.

Every driver writes pages of its own, named by its first attempt, so two of them never write the same file. It takes
over the lines of small pages that earlier drivers left and deletes those. All calls block; they run in the background,
one after the other, and a failure of any of them harms nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from penstock.engine.history.pages import Entry, Page, decode, encode, make_entry
from penstock.engine.history.records import CheckpointInfo, Totals
from penstock.errors import CheckpointCorrupt, InvariantBroken
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import AttemptId
from penstock.wire import paths

PAGE_BYTES_MAX = 256 * 1024
PAGES_MAX = 32
WAITING_MAX = 1_000


@dataclass(frozen=True)
class Past:
    """What earlier drivers wrote down, oldest first."""

    checkpoints: tuple[CheckpointInfo, ...] = ()
    totals: Totals = Totals()
    damaged: tuple[str, ...] = ()
    """Files with lines that cannot be read."""


class HistoryFiles:
    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._older: list[str] = []
        """Pages that are full or somebody else's, oldest first."""
        self._adopted: list[str] = []
        """Pages whose lines are in ours, to be deleted once that is written."""
        self._entries: list[Entry] = []
        """What is in the page that is being filled."""
        self._waiting: deque[Entry] = deque(maxlen=WAITING_MAX)
        self._page = 0

    # ---- reading

    def load(self) -> Past:
        """Reads all pages. One that is damaged, or deleted meanwhile, costs what was in it."""
        names = [name for name in self._store.list(paths.HISTORY_FOLDER) if paths.is_history(name)]
        pages = {name: self._read(name) for name in names}
        self._adopt(pages)
        totals = [page.totals for page in pages.values()]
        newest = max(totals, key=lambda each: each.completed + each.aborted, default=Totals())
        return Past(
            tuple(entry.info for page in pages.values() for entry in page.entries),
            newest,
            tuple(name for name, page in pages.items() if page.damaged),
        )

    def _read(self, name: str) -> Page:
        try:
            return decode(self._store.read(name), name)
        except CheckpointCorrupt:
            return Page(Totals(), (), damaged=1)

    def _adopt(self, pages: dict[str, Page]) -> None:
        """The newest pages, as long as they fill no more than half of one together."""
        self._older = list(pages)
        size = 0
        for name, page in reversed(pages.items()):
            size += sum(len(entry.line) for entry in page.entries)
            if size > PAGE_BYTES_MAX // 2:
                break
            self._entries[:0] = page.entries
            self._adopted.append(name)
            self._older.remove(name)

    # ---- writing

    def add(self, attempt: AttemptId, infos: Iterable[CheckpointInfo], totals: Totals) -> None:
        """Writes down what ended. What a failed call was given is written by the next one."""
        for info in infos:
            with suppress(InvariantBroken):  # what JSON cannot say is not worth a failure
                self._waiting.append(make_entry(info))
        self._fill()
        self._write(attempt, totals)
        while self._waiting:
            self._turn(attempt)
            self._fill()
            self._write(attempt, totals)
        self._prune(paths.history(attempt, self._page))

    def _fill(self) -> None:
        size = sum(len(entry.line) for entry in self._entries)
        while self._waiting:
            size += len(self._waiting[0].line)
            if self._entries and size > PAGE_BYTES_MAX:
                return
            self._entries.append(self._waiting.popleft())

    def _turn(self, attempt: AttemptId) -> None:
        self._older.append(paths.history(attempt, self._page))
        self._page += 1
        self._entries = []

    def _write(self, attempt: AttemptId, totals: Totals) -> None:
        self._store.write(paths.history(attempt, self._page), encode(totals, self._entries))

    def _prune(self, current: str) -> None:
        while self._adopted:
            if self._adopted[-1] != current:
                self._store.delete(self._adopted[-1])
            self._adopted.pop()
        while len(self._older) >= PAGES_MAX:
            self._store.delete(self._older[0])
            del self._older[0]
