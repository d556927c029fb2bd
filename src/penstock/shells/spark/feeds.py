"""The driver's part in reading DataFrames: they are staged before the job starts, streams go on being staged while it
runs, and what no checkpoint needs any more is removed.

Each source has a feed with a thread of its own. The manager's loop tells it which rows are behind every checkpoint that
may still be restored, and hears from it what went wrong.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock.api.steps import make_source_operator
from penstock.connectors.sources.staged import StagedSource
from penstock.errors import ConfigError, PenstockError
from penstock.plan.graph import LogicalGraph, Node
from penstock.ports.feed import Positions, Trouble
from penstock.protocol.restart import Never, Strategy
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.dataframes import DataFrameSource
from penstock.shells.spark.staging import Place, folders, place_for, settle
from penstock.shells.spark.stream_query import StreamQuery
from penstock.wire import paths
from penstock.wire.staging import decode_batch

LOOK_EVERY_S = 0.2
ENDING_S = 60.0
"""How long the end of a job waits for Spark's query to end."""

log = logging.getLogger("penstock")


class StagedFeed:
    def __init__(self, source: StagedSource, place: Place, query: StreamQuery | None) -> None:
        self._source = source
        self._place = place
        self._query = query
        self._troubles: deque[Trouble] = deque()
        self._over = threading.Event()
        self._changed = threading.Event()
        self._needed: tuple[str, int] | None = None
        """The set and the batch that the oldest checkpoint goes on with: what lies before it can go."""
        self._remains: list[str] = []
        """Folders of rows without a list that another driver may still be writing."""
        self._thread: threading.Thread | None = None
        self.wake: Callable[[], None] = lambda: None
        """Interrupts the manager's wait."""

    # ---- from the manager's loop

    def begin(self, restored: Positions) -> None:
        if self._thread is None:
            work = partial(self._run, _first(restored) or (self._source.name, 0))
            name = f"penstock-feed-{self._place.operator}"
            self._thread = threading.Thread(target=work, name=name, daemon=True)
            self._thread.start()

    def retained(self, positions: Sequence[Positions]) -> None:
        firsts = [first for each in positions if (first := _first(each)) is not None]
        if not firsts or len(firsts) < len(positions):
            return
        self._needed = firsts[0]
        if self._query is not None:
            self._query.behind(firsts[-1][1])
        self._changed.set()

    def troubles(self) -> Sequence[Trouble]:
        found = []
        while self._troubles:
            found.append(self._troubles.popleft())
        return found

    # ---- its own thread

    def _run(self, first: tuple[str, int]) -> None:
        try:
            self._find_remains(first[0])
            while not self._over.is_set():
                self._step(first)
                self._changed.wait(LOOK_EVERY_S)
        except Exception as error:
            self._tell(Trouble(f"{type(error).__name__}: {error}", fatal=True))
        finally:
            if self._query is not None:
                self._query.stop()

    def _step(self, first: tuple[str, int]) -> None:
        query, trouble = self._query, None
        if query is not None and not query.opened:
            trouble = query.open(*first)
        if query is None or query.opened:
            if self._changed.is_set():
                self._changed.clear()
                self._clean()
            trouble = query.step() if query is not None else None
        if trouble is not None:
            self._tell(trouble)

    def _find_remains(self, name: str) -> None:
        """Rows that a driver was writing when it was killed: no list has them. It may live on, unheard, and yet make
        the list; so they go when every checkpoint has their batch behind it, whoever made its list."""
        with self._cleaning():
            store = self._place.store
            names = store.list(paths.staged_set_folder(name))
            listed = [file for file in names if paths.staged_batch_of(file) is not None]
            kept = {decode_batch(store.read(file), file).folder for file in listed}
            there = {"/".join(file.split("/")[1:3]) for file in names if "/rows/" in file}
            self._remains = sorted(there - kept)

    def _remove_remains(self, name: str, before: int) -> None:
        for folder in [each for each in self._remains if _batch_of(each) < before]:
            self._place.remove(f"{name}/{folder}")
            self._remains.remove(folder)

    def _tell(self, trouble: Trouble) -> None:
        self._troubles.append(trouble)
        self.wake()

    def _clean(self) -> None:
        """What lies before the oldest retained checkpoint goes. What cannot be removed now is removed another time."""
        if self._needed is None:
            return
        name, batch = self._needed
        with self._cleaning():
            for old in (each for each in folders(self._place) if each < name):
                self._place.store.delete(paths.staged_set(old))
                self._place.remove(old)
            for gone in self._query.forget(batch) if self._query is not None else ():
                self._place.store.delete(paths.staged_batch(name, gone.batch))
                self._place.remove(f"{name}/{gone.folder}")
            self._remove_remains(name, batch)

    @contextmanager
    def _cleaning(self) -> Iterator[None]:
        try:
            yield
        except (OSError, PenstockError) as error:
            log.info("job %s: clean-up of staged rows: %s", self._place.job, error)

    # ---- the end

    def close(self) -> None:
        self._over.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(ENDING_S)

    def finished(self) -> None:
        """All rows are read and committed: only the lists of them stay, for a job that is started again. Rows of other
        sets go too: those that a killed driver did not complete, or that it began with."""
        with self._cleaning():
            for name in folders(self._place):
                self._place.remove(f"{name}/rows")

    def remove(self) -> None:
        with self._cleaning():
            self._place.remove()


def _first(positions: Positions) -> tuple[str, int] | None:
    """The batch that the hindmost lane goes on with."""
    found = [(str(p[0]), int(p[1])) for p in positions.values() if isinstance(p, list)]  # type: ignore[arg-type]
    return min(found, default=None)


def _batch_of(rows: str) -> int:
    """Of a folder `rows/<n>-<token>`; what is not one of ours stays for ever."""
    number = rows.removeprefix("rows/").partition("-")[0]
    return int(number) if number.isdecimal() else sys.maxsize


# ---- all feeds of a job


@dataclass
class Feeds:
    """`graph` is the job's, with staged rows in the place of every DataFrame."""

    graph: LogicalGraph
    by_operator: dict[str, StagedFeed] = field(default_factory=dict)
    folder: str = ""
    """A folder for this run only."""

    def wake_with(self, wake: Callable[[], None]) -> None:
        for feed in self.by_operator.values():
            feed.wake = wake

    def close(self, *, finished: bool = False, retained: bool = True) -> None:
        for feed in self.by_operator.values():
            feed.close()
            if not retained:
                feed.remove()
            elif finished:
                feed.finished()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def dataframes(graph: LogicalGraph) -> list[DataFrameSource]:
    return [node.connector for node in graph.nodes if isinstance(node.connector, DataFrameSource)]


def make_feeds(
    graph: LogicalGraph,
    job: str,
    root: str,
    options: dict[str, Any],
    strategy: Strategy,
    *,
    fresh: bool = False,
    begun: bool = False,
) -> Feeds:
    """Stages what is to be staged before the job starts. Without a `root` it is for this run only."""
    if not dataframes(graph):
        return Feeds(graph)
    feeds = Feeds(graph, folder="" if root else tempfile.mkdtemp(prefix="penstock-staged-"))
    try:
        nodes = []
        for node in graph.nodes:
            if isinstance(node.connector, DataFrameSource):
                place = place_for(job, node.name, root or feeds.folder, options)
                staged = settle(node.connector, place, fresh=fresh, begun=begun)
                query = None
                if not node.connector.bounded:
                    query = StreamQuery(node.connector, place, strategy, RealClock().monotonic_ms)
                feeds.by_operator[node.name] = StagedFeed(staged, place, query)
                node = _reading(node, staged)
            nodes.append(node)
        feeds.graph = replace(graph, nodes=tuple(nodes))
    except BaseException:
        feeds.close()
        raise
    return feeds


def without_dataframes(graph: LogicalGraph) -> LogicalGraph:
    """The same graph with nothing staged yet: what can be wrong with it is found before Spark is put to work."""
    nodes = []
    for node in graph.nodes:
        if isinstance(node.connector, DataFrameSource):
            place = place_for("", node.name, "", {})
            empty = StagedSource(place.staged, "", node.schema, bounded=node.connector.bounded)
            node = _reading(node, empty)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _reading(node: Node, staged: StagedSource) -> Node:
    return replace(node, create=partial(make_source_operator, staged), connector=staged)


def for_a_look(graph: LogicalGraph) -> Feeds:
    """For `take` and `show`, which end long before a stream does."""
    for source in dataframes(graph):
        if not source.bounded:
            raise ConfigError(
                "take and show: a streaming DataFrame gets rows only while a job runs; look at a batch DataFrame of the"
                " same rows (spark.read instead of spark.readStream), or start the job with pen.CollectSink()"
            )
    return make_feeds(graph, "take", "", {}, Never())
