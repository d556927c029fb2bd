"""Folders behind a URL whose store remembers listings: what others do meanwhile is seen all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.connectors.base import SinkContext, SourceContext, SourceReader
from penstock.connectors.sinks import FileSink
from penstock.connectors.sources import FileSource
from penstock.errors import DataError
from penstock.protocol.snapshot import Plain
from tests.storage.listings import remembered_listings

SCHEMA = pa.schema([("id", pa.int64())])
OUT, IN = "/bucket/out", "/bucket/in"


@pytest.fixture
def elsewhere() -> Iterator[MemoryFileSystem]:
    """The same store as another process sees it."""
    with remembered_listings() as other:
        yield other


def context(attempt: int = 1) -> SinkContext:
    return SinkContext("job", "out", 0, 1, attempt, SCHEMA, lambda item: None)


def promised(sink: FileSink) -> dict[str, Plain]:
    writer = sink.writer(context())
    writer.write(pa.record_batch({"id": [1]}, schema=SCHEMA))
    seal = writer.prepare(1)
    assert callable(seal)
    transaction = seal()
    assert isinstance(transaction, dict)
    return transaction


def test_what_another_worker_has_committed_is_committed(elsewhere: MemoryFileSystem) -> None:
    """E3, I10, bug-F13: one that was taken for dead commits while this one looks."""
    sink = FileSink(f"memory:/{OUT}", "json")
    transaction = promised(sink)
    folder = sink._folder()
    assert folder.size(str(transaction["final"])) is None
    staged = f"{OUT}/_staging/job/{transaction['staged']}"
    elsewhere.mv(staged, f"{OUT}/{transaction['final']}")
    assert folder.size(str(transaction["final"])) == transaction["bytes"]
    sink.committer(context(attempt=2)).commit(transaction)
    assert elsewhere.find(OUT) == [f"{OUT}/{transaction['final']}"]


def test_what_another_worker_has_staged_is_aborted(elsewhere: MemoryFileSystem) -> None:
    """E2, I11: the listing is older than the file."""
    sink = FileSink(f"memory:/{OUT}", "json")
    promised(sink)
    committer = sink.committer(context(attempt=3))
    left = sink._folder().list("_staging/job")
    late = left[0].replace("out-0-1-", "out-0-2-")
    elsewhere.pipe_file(f"{OUT}/_staging/job/{late}", b"{}")
    committer.abort_others([])
    assert elsewhere.find(OUT) == []


class Watch:
    def __init__(self) -> None:
        self.now_ms = 0.0

    def reader(self) -> SourceReader:
        source = FileSource(f"memory:/{IN}", "csv", "id BIGINT", watch=True)
        return source.reader(SourceContext("in", 0, 1, 8, lambda: self.now_ms), {})


def rest(reader: SourceReader) -> list[int]:
    found: list[int] = []
    while isinstance(batch := reader.poll(100), pa.RecordBatch):
        found += batch.column(0).to_pylist()
    return found


def test_new_files_in_a_watched_folder_are_found(elsewhere: MemoryFileSystem) -> None:
    """E1, I22."""
    elsewhere.pipe_file(f"{IN}/a.csv", b"id\n1\n")
    watch = Watch()
    reader = watch.reader()
    assert rest(reader) == [1]
    elsewhere.pipe_file(f"{IN}/b.csv", b"id\n2\n")
    elsewhere.pipe_file(f"{IN}/deep/c.csv", b"id\n3\n")
    watch.now_ms += 10_000
    assert rest(reader) == [2, 3]


def test_a_file_that_changed_while_it_was_read_is_an_error(elsewhere: MemoryFileSystem) -> None:
    """I22: its size of now counts, not that of the listing."""
    elsewhere.pipe_file(f"{IN}/a.csv", b"id\n1\n2\n3\n")
    reader = Watch().reader()
    elsewhere.pipe_file(f"{IN}/a.csv", b"id\n1\n2\n3\n4\n")
    with pytest.raises(DataError, match="the file had 9 bytes when it was listed and has 11"):
        rest(reader)
