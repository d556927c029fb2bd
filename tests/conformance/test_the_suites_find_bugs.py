"""The suites themselves: each of these connectors has one bug, and the suite says which."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.base import (
    END,
    EndOfInput,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
)
from penstock.protocol.snapshot import Plain
from penstock.testing.conformance import sink_conformance, source_conformance

SCHEMA = pa.schema([("id", pa.int64())])


class Counting(Source):
    """Lane l holds the numbers l * 10 .. l * 10 + 9 of the first eight lanes. `bug` names what is wrong."""

    def __init__(self, bug: str = "") -> None:
        self.bug = bug

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        return CountingReader(self.bug, context, positions)


class CountingReader(SourceReader):
    def __init__(self, bug: str, context: SourceContext, positions: Mapping[int, Plain]) -> None:
        self.bug = bug
        lanes = range(8) if bug == "reads the lanes of others" else context.lanes
        self.next: dict[int, Any] = {lane: positions.get(lane, 0) for lane in lanes if lane < 8}
        if bug == "keeps positions by subtask":
            self.next = {lane: positions.get(context.index, 0) for lane in self.next}

    def poll(self, max_rows: int) -> pa.RecordBatch | EndOfInput:
        for lane, start in self.next.items():
            count = min(10 - start, max_rows)
            if count:
                self.next[lane] = start + count
                first = lane * 10 + start
                extra = 1 if self.bug == "returns too many rows" and max_rows < 10 - start else 0
                rows = list(range(first, first + count + extra))
                return pa.RecordBatch.from_arrays([pa.array(rows, pa.int64())], schema=SCHEMA)
        return END

    def positions(self) -> Mapping[int, Plain]:
        if self.bug == "position one too far":
            return {lane: min(10, at + 1) for lane, at in self.next.items()}
        if self.bug == "position one too early":
            return {lane: max(0, at - 1) for lane, at in self.next.items()}
        if self.bug == "forgets finished lanes":
            return {lane: at for lane, at in self.next.items() if at < 10}
        return self.next if self.bug == "gives its own dict away" else dict(self.next)


SOURCE_BUGS = {
    "position one too far": "cut behind batch .* rows lost",
    "position one too early": "cut behind batch .* rows too many",
    "forgets finished lanes": "cut behind batch .* rows too many",
    "gives its own dict away": "has changed since",
    "reads the lanes of others": "lanes .* belong to other subtasks",
    "returns too many rows": r"poll\(\d+\) returned",
    "keeps positions by subtask": "rows (lost|too many)",
}


@pytest.mark.parametrize(("bug", "finding"), SOURCE_BUGS.items())
def test_a_source_with_a_bug_is_found(bug: str, finding: str) -> None:
    """E1: the suite can fail, and says how."""
    with pytest.raises(AssertionError, match=finding):
        source_conformance(lambda: Counting(bug), max_parallelism=16, rows_max=6)


def test_a_source_without_a_bug_passes() -> None:
    """E1."""
    assert source_conformance(Counting, rows_max=6).num_rows == 80


class Notes(Sink):
    """A folder of text files; `.staged` until they are committed. `bug` names what is wrong."""

    def __init__(self, folder: Path, bug: str = "") -> None:
        self.folder = folder
        self.bug = bug
        folder.mkdir()

    def writer(self, context: SinkContext) -> SinkWriter:
        return NotesWriter(self, context)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return NotesCommitter(self, context)


class NotesWriter(SinkWriter):
    def __init__(self, sink: Notes, context: SinkContext) -> None:
        self.sink = sink
        self.context = context
        self.rows: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column("id").to_pylist()
        if self.sink.bug == "writes in the open":
            (self.sink.folder / "open.txt").write_text("\n".join(map(str, self.rows)))

    def prepare(self, checkpoint: int) -> Plain:
        if not self.rows and self.sink.bug != "repeats the last transaction when empty":
            return None
        context = self.context
        name = f"{context.job}+{context.operator}+{context.index}+{context.attempt}"
        count = len(list(self.sink.folder.iterdir()))
        ending = "txt" if self.sink.bug == "visible when prepared" else "staged"
        path = self.sink.folder / f"{name}+{checkpoint}+{count}.{ending}"
        path.write_text("\n".join(map(str, self.rows)))
        if self.sink.bug != "repeats the last transaction when empty":
            self.rows = []
        return path.stem


class NotesCommitter(SinkCommitter):
    def __init__(self, sink: Notes, context: SinkContext) -> None:
        self.sink = sink
        self.context = context

    def commit(self, transaction: Plain) -> None:
        staged = self.sink.folder / f"{transaction}.staged"
        final = self.sink.folder / f"{transaction}.txt"
        if self.sink.bug == "appends on every commit":
            with (self.sink.folder / "all.txt").open("a") as handle:
                handle.write(staged.read_text() + "\n")
            return
        if final.exists() and self.sink.bug != "fails on the second commit":
            return
        staged.rename(final)

    def abort_others(self, keep: Sequence[Plain]) -> None:
        if self.sink.bug == "aborts nothing":
            return
        for path in self.sink.folder.glob("*.staged"):
            job, operator, index, attempt = path.stem.split("+")[:4]
            mine = (
                job == self.context.job
                and operator == self.context.operator
                and int(index) % self.context.parallelism == self.context.index
                and int(attempt) < self.context.attempt
            )
            if self.sink.bug == "forgets downscaled subtasks":
                mine = mine and int(index) == self.context.index
            kept = path.stem in keep and self.sink.bug != "aborts what it should keep"
            if (mine or self.sink.bug == "aborts everything") and not kept:
                path.unlink()


SINK_BUGS = {
    "writes in the open": "only written",
    "visible when prepared": "before the commit",
    "repeats the last transaction when empty": "rows too many",
    "appends on every commit": "second time",
    "aborts nothing": "leftovers|abort_others left",
    "aborts everything": "must leave alone what was staged by subtask 1 of the same sink; .*FileNotFound",
    "aborts what it should keep": "staged by this subtask, which is in `keep`; .*FileNotFound",
}


def check_notes(root: Path, bug: str) -> None:
    fresh = (root / str(number) for number in itertools.count())

    def read(sink: Sink) -> pa.Table:
        assert isinstance(sink, Notes)
        texts = [path.read_text().split() for path in sink.folder.glob("*.txt")]
        rows = [int(each) for text in texts for each in text]
        return pa.table({"id": pa.array(rows, pa.int64())})

    def staged(sink: Sink) -> int:
        assert isinstance(sink, Notes)
        return len(list(sink.folder.glob("*.staged")))

    sink_conformance(
        lambda: Notes(next(fresh), bug),
        read,
        schema=SCHEMA,
        make_rows=lambda start, n: pa.RecordBatch.from_arrays(
            [pa.array(range(start, start + n), pa.int64())], schema=SCHEMA
        ),
        count_staged=staged,
    )


@pytest.mark.parametrize(("bug", "finding"), SINK_BUGS.items())
def test_a_sink_with_a_bug_is_found(tmp_path: Path, bug: str, finding: str) -> None:
    """E2, I10, I11, bug-F17: the suite can fail, and says how."""
    with pytest.raises(AssertionError, match=finding):
        check_notes(tmp_path, bug)


def test_a_sink_that_loses_a_transaction_is_found(tmp_path: Path) -> None:
    """E2, I10: a commit that must succeed and does not."""
    with pytest.raises(AssertionError, match="FileNotFoundError"):
        check_notes(tmp_path, "fails on the second commit")


def test_a_sink_that_forgets_downscaled_subtasks_is_found(tmp_path: Path) -> None:
    """bug-F2: with fewer subtasks, nobody cleans up for those that are gone."""
    with pytest.raises(AssertionError, match="two subtasks recovered for four"):
        check_notes(tmp_path, "forgets downscaled subtasks")


def test_a_sink_without_a_bug_passes(tmp_path: Path) -> None:
    """E2."""
    check_notes(tmp_path, "")
