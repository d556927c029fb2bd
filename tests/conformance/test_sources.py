"""Every shipped source against the source suite."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.base import Source
from penstock.connectors.sources import FileSource, GeneratorSource, RowsSource, lines, parquet
from penstock.testing.conformance import source_conformance

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def numbered(start: int, count: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count)
    texts = pa.array([f"text {each}" for each in ids])
    return pa.RecordBatch.from_arrays([pa.array(ids), texts], schema=SCHEMA)


def write_parquet(path: Path, batch: pa.RecordBatch) -> None:
    pq.write_table(pa.table(batch), path, row_group_size=13)


def write_csv(path: Path, batch: pa.RecordBatch) -> None:
    lines = [f"{row['id']},{row['text']}" for row in batch.to_pylist()]
    path.write_text("\n".join(["id,text", *lines, ""]))


def write_json(path: Path, batch: pa.RecordBatch) -> None:
    path.write_text("\n".join(json.dumps(row) for row in batch.to_pylist()))


WRITERS: dict[str, Callable[[Path, pa.RecordBatch], None]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "json": write_json,
}


def fill(folder: Path, kind: str) -> int:
    """Seven files of different length, one of them in a folder of its own."""
    start = 0
    (folder / "deeper").mkdir()
    for number, rows in enumerate((40, 1, 17, 30, 5, 29, 11)):
        name = f"deeper/{number}.{kind}" if number == 3 else f"file-{number}.{kind}"
        WRITERS[kind](folder / name, numbered(start, rows))
        start += rows
    return start


@pytest.mark.parametrize("rows", [0, 1, 7, 100, 301])
def test_rows_can_be_cut_and_shared_out_anywhere(rows: int) -> None:
    """E1, bug-G5: also without any row, and cut at the first and the last."""
    data = [(number, f"text {number}") for number in range(rows)]
    read = source_conformance(lambda: RowsSource(data, SCHEMA), rows_max=20)
    assert read.column("id").to_pylist() == list(range(rows))


@pytest.mark.parametrize(("rows", "rate"), [(0, None), (3, None), (400, None), (60, 500.0)])
def test_a_generator_can_be_cut_and_shared_out_anywhere(rows: int, rate: float | None) -> None:
    """E1, bug-G5: replays from any position, with and without a rate."""
    read = source_conformance(lambda: GeneratorSource(numbered, SCHEMA, rows, rate), rows_max=40)
    assert read.num_rows == rows


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_can_be_cut_and_shared_out_anywhere(tmp_path: Path, kind: str, watch: bool) -> None:
    """E1, bug-G5, I22: every file is read by one subtask, from any row on."""
    rows = fill(tmp_path, kind)
    read = source_conformance(
        lambda: FileSource(str(tmp_path), kind, SCHEMA, watch), max_parallelism=8, rows_max=9
    )
    assert read.num_rows == rows


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_large_files_can_be_cut_inside_of_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """E1: parts are made small here, so that a file has many of them."""
    monkeypatch.setattr(parquet, "BATCH_ROWS", 5)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    WRITERS[kind](tmp_path / "data", numbered(0, 60))
    read = source_conformance(lambda: FileSource(str(tmp_path), kind, SCHEMA), rows_max=9)
    assert read.column("id").to_pylist() == list(range(60))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_bad_lines_have_their_place_too(tmp_path: Path, kind: str) -> None:
    """E1: a cut among bad lines loses and repeats none."""
    good = {"csv": "{0},text", "json": '{{"id": {0}, "text": "text"}}'}[kind]
    texts = [f"broken {n}" if n % 5 == 0 else good.format(n) for n in range(60)]
    (tmp_path / "data").write_text("\n".join((["id,text"] if kind == "csv" else []) + texts))
    read = source_conformance(
        lambda: FileSource(str(tmp_path), kind, SCHEMA, bad_records="column"), rows_max=7
    )
    assert read.column("_bad_record").to_pylist() == [
        line if line.startswith("broken") else None for line in texts
    ]


def test_packed_csv_can_be_cut_anywhere(tmp_path: Path) -> None:
    """E1: a .gz file is unpacked on the way."""
    text = "\n".join(["id,text", *(f"{n},text" for n in range(50))])
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    read = source_conformance(lambda: FileSource(str(tmp_path), "csv", SCHEMA), rows_max=9)
    assert read.column("id").to_pylist() == list(range(50))


def test_files_behind_a_url_are_read_by_the_same_code() -> None:
    """E1, T1: any fsspec file system."""
    memory = fsspec.filesystem("memory")
    for number in range(3):
        with memory.open(f"/conformance-source/{number}.parquet", "wb") as handle:
            pq.write_table(pa.table(numbered(number * 20, 20)), handle, row_group_size=6)

    def make() -> Source:
        return FileSource("memory://conformance-source", "parquet")

    assert source_conformance(make, rows_max=9).num_rows == 60
