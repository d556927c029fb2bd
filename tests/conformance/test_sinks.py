"""Every shipped sink against the sink suite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as pa_csv
from pyarrow import json as pa_json

from penstock.connectors.base import Sink
from penstock.connectors.sinks import CollectSink, FileSink
from penstock.connectors.tables import compaction
from penstock.connectors.tables.reader import read_table
from penstock.connectors.tables.sink import UpsertFileSink
from penstock.testing.conformance import sink_conformance
from tests.connectors.table_kit import TableSink, merge_often

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
READERS: dict[str, Callable[[str], pa.Table]] = {
    "parquet": pq.read_table,
    "csv": pa_csv.read_csv,
    "json": pa_json.read_json,
}


class Folders:
    """Fresh folders, and what a plain reader sees in them."""

    def __init__(self, root: Path, kind: str) -> None:
        self._kind = kind
        self._fresh = (root / f"place-{number}" for number in itertools.count())
        self._paths: dict[int, Path] = {}

    def make(self) -> Sink:
        path = next(self._fresh)
        sink = FileSink(str(path), self._kind)
        self._paths[id(sink)] = path
        return sink

    def read(self, sink: Sink) -> pa.Table:
        files = sorted(self._paths[id(sink)].glob(f"*.{self._kind}"))
        tables = [READERS[self._kind](str(file)) for file in files]
        return pa.concat_tables([SCHEMA.empty_table(), *tables])

    def staged(self, sink: Sink) -> int:
        return sum(1 for path in (self._paths[id(sink)] / "_staging").rglob("*"))


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_appear_exactly_once(tmp_path: Path, kind: str) -> None:
    """E2, E4, I10, I11, bug-F2, bug-F4, bug-F17: commit in any order, abort only one's own, crash anywhere."""
    folders = Folders(tmp_path, kind)
    sink_conformance(folders.make, folders.read, count_staged=folders.staged)


def test_files_behind_a_url_appear_exactly_once() -> None:
    """E2, T1: the same where a move is a copy and a removal."""
    memory = fsspec.filesystem("memory")
    fresh = (f"conformance-sink/{number}" for number in itertools.count())
    paths: dict[int, str] = {}
    sinks = []

    def make() -> Sink:
        path = next(fresh)
        sinks.append(FileSink(f"memory://{path}"))
        paths[id(sinks[-1])] = path
        return sinks[-1]

    def read(sink: Sink) -> pa.Table:
        files = memory.glob(f"/{paths[id(sink)]}/*.parquet")
        return pa.concat_tables(
            [SCHEMA.empty_table(), *(pq.read_table(memory.open(file)) for file in files)]
        )

    def staged(sink: Sink) -> int:
        folder = f"/{paths[id(sink)]}/_staging"
        return len(memory.find(folder)) if memory.exists(folder) else 0

    sink_conformance(make, read, count_staged=staged)


@pytest.mark.parametrize("url", ["", "memory://conformance-tables"])
@pytest.mark.parametrize("merges", [False, True])
def test_rows_of_tables_appear_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, merges: bool
) -> None:
    """E2, E4, E7, I10, I11: on a disk and behind a URL, and while files are merged and deleted all the time."""
    if merges:
        merge_often(monkeypatch)
        monkeypatch.setattr(compaction, "GRACE_MS", 0.0)
    kind = TableSink if merges else UpsertFileSink
    fresh = (f"{url or tmp_path}/{merges}/{number}" for number in itertools.count())
    made: list[tuple[Sink, str]] = []

    def make() -> Sink:
        path = next(fresh)
        made.append((kind(path, "id"), path))
        return made[-1][0]

    def path_of(sink: Sink) -> str:
        return next(path for each, path in made if each is sink)

    def read(sink: Sink) -> pa.Table:
        fs, root = fsspec.core.url_to_fs(path_of(sink))
        is_table = fs.exists(f"{root}/_penstock_table.json")
        return read_table(path_of(sink)) if is_table else SCHEMA.empty_table()

    def staged(sink: Sink) -> int:
        fs, root = fsspec.core.url_to_fs(path_of(sink))
        return len(fs.find(f"{root}/_staging")) if fs.exists(f"{root}/_staging") else 0

    sink_conformance(make, read, count_staged=staged)


def test_collected_rows_appear_exactly_once() -> None:
    """E2, I10, bug-F17: rows reach the driver by the commit, however often it is asked for."""

    def read(sink: Sink) -> pa.Table:
        assert isinstance(sink, CollectSink)
        return sink.to_table()

    sink_conformance(CollectSink, read)
