"""Files as a source: what is read, what is refused, and what the errors say."""

from __future__ import annotations

import datetime as dt
import errno
import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from penstock.connectors.base import EndOfInput, SourceContext, SourceReader, Wait
from penstock.connectors.sources import FileSource, lines, parquet
from penstock.connectors.sources.files import lane_of
from penstock.connectors.sources.listing import Listing
from penstock.errors import ConfigError, DataError, SchemaError
from penstock.protocol.snapshot import Plain


class Clock:
    def __init__(self) -> None:
        self.ms = 0.0

    def now_ms(self) -> float:
        return self.ms


def open_reader(
    source: FileSource, positions: Mapping[int, Plain] | None = None, clock: Clock | None = None
) -> SourceReader:
    context = SourceContext("files", 0, 1, 128, (clock or Clock()).now_ms)
    return source.reader(context, positions or {})


def rest(reader: SourceReader, max_rows: int = 10_000) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    while isinstance(batch := reader.poll(max_rows), pa.RecordBatch):
        rows += batch.to_pylist()
    return rows


def read(source: FileSource) -> list[dict[str, object]]:
    return rest(open_reader(source))


def test_schema_and_rows_come_from_the_first_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name,at\n1,x,2024-01-01 10:00:00\n2,,2024-01-02 10:00:00\n")
    source = FileSource(str(tmp_path), "csv")
    assert source.schema == pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us"))]
    )
    assert [row["name"] for row in read(source)] == ["x", None]


def test_a_single_file_and_a_pattern_work_like_a_folder(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.txt"):
        (tmp_path / name).write_text(f"id\n{ord(name[0])}\n")
    assert len(read(FileSource(str(tmp_path / "a.csv"), "csv"))) == 1
    assert [row["id"] for row in read(FileSource(str(tmp_path / "*.csv"), "csv"))] == [97, 98]
    assert len(read(FileSource(f"file://{tmp_path}", "csv"))) == 3


def test_a_reader_says_how_many_files_are_left(tmp_path: Path) -> None:
    """U2: one that was begun is still left."""
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text("id\n1\n2\n")
    reader = open_reader(FileSource(str(tmp_path), "csv"))
    left = [reader.lag()["files"]]
    while isinstance(reader.poll(1), pa.RecordBatch):
        left.append(reader.lag()["files"])
    assert left[0] == 3 and left[1] == 3
    assert left == sorted(left, reverse=True)
    assert reader.lag() == {"files": 0}


def test_hidden_and_empty_files_do_not_count(tmp_path: Path) -> None:
    for name in ("_SUCCESS", ".a.csv", "_staging/x.csv", "deep/.tmp/x.csv", "deep/_x.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("id\n1\n")
    (tmp_path / "empty.csv").touch()
    assert read(FileSource(str(tmp_path), "csv", "id BIGINT")) == []


def test_an_empty_folder_needs_a_schema(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"no file in .* give it a schema"):
        _ = FileSource(str(tmp_path), "csv").schema
    assert read(FileSource(str(tmp_path), "csv", "id BIGINT")) == []


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: there is no such file or folder"):
        read(FileSource(str(tmp_path / "nowhere"), "csv", "id BIGINT"))


def test_watched_files_are_read_once_when_they_appear(tmp_path: Path) -> None:
    """I22: names in any order, also ones that sort before those that were read."""
    clock = Clock()
    source = FileSource(str(tmp_path), "csv", "id BIGINT", watch=True)
    reader = open_reader(source, clock=clock)
    assert reader.poll(10) == Wait(1000.0)
    (tmp_path / "m.csv").write_text("id\n1\n")
    assert isinstance(reader.poll(10), Wait), "the folder is listed once a second at most"
    clock.ms = 1000.0
    assert rest(reader) == [{"id": 1}]
    (tmp_path / "a.csv").write_text("id\n2\n")
    clock.ms = 3000.0
    assert rest(reader) == [{"id": 2}]
    restored = open_reader(source, reader.positions(), clock)
    (tmp_path / "z.csv").write_text("id\n3\n")
    clock.ms = 5000.0
    assert rest(restored) == [{"id": 3}]


def test_positions_stay_small_with_many_files(tmp_path: Path) -> None:
    """A finished file costs 16 characters, however long its name is."""
    for number in range(300):
        (tmp_path / f"{'a-rather-long-name-' * 5}{number}.csv").write_text("id\n1\n")
    reader = open_reader(FileSource(str(tmp_path), "csv", "id BIGINT"))
    assert len(rest(reader)) == 300
    assert len(json.dumps(dict(reader.positions()))) < 300 * 16 + 128 * 45


def test_the_lane_of_a_file_never_changes() -> None:
    """I15: golden values."""
    assert [lane_of(name, 128) for name in ("a.csv", "dir/b.parquet", "ü.json")] == [83, 53, 54]


@pytest.mark.parametrize("pattern", ["", "/*", "/**/*.csv"])
def test_hidden_folders_behind_a_url_do_not_count_either(pattern: str) -> None:
    """E2: a folder that a sink writes to can be read while its staged files lie in it."""
    memory = MemoryFileSystem()
    for name in ("_staging/job/x.csv", "deep/_staging/x.csv", "deep/.tmp/x.csv", "_x.csv"):
        memory.pipe_file(f"/hidden/{name}", b"id\n1\n")
    memory.pipe_file("/hidden/deep/seen.csv", b"id\n2\n")
    memory.pipe_file("/hidden/seen.csv", b"id\n2\n")
    found = read(FileSource(f"memory://hidden{pattern}", "csv", "id BIGINT"))
    assert {row["id"] for row in found} == {2}
    memory.store.clear()


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    """One file would be read by two names, and one outside the folder by any."""
    outside, folder = tmp_path / "outside", tmp_path / "in"
    for place in (outside, folder):
        place.mkdir()
        (place / "a.csv").write_text("id\n1\n")
    (folder / "again.csv").symlink_to(folder / "a.csv")
    (folder / "deep").symlink_to(outside)
    assert read(FileSource(str(folder), "csv", "id BIGINT")) == [{"id": 1}]


def test_a_size_that_cannot_be_told_for_a_moment_is_no_file_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I22: that would end the job for good, with advice that does not help."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    memory = MemoryFileSystem()
    memory.pipe_file("/moment/a.csv", b"id\n1\n")
    reader = open_reader(FileSource("memory://moment", "csv", "id BIGINT"))
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "info", fail)
        with pytest.raises(OSError, match="Input/output error"):
            reader.poll(10)
    memory.store.clear()


class Sparing:
    """A stream that gives a few bytes at a time, as a network does."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def read(self, size: int) -> Any:
        return self._handle.read(min(size, 5))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_short_reads_of_an_input_file_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """I22: fewer bytes than were asked for are not the end of the file."""
    texts = {"csv": "id\n1\n22\n333\n", "json": '{"id": 1}\n{"id": 22}\n{"id": 333}\n'}
    (tmp_path / f"a.{kind}").write_text(texts[kind])
    real = Listing.open_bytes
    monkeypatch.setattr(Listing, "open_bytes", lambda self, name: Sparing(real(self, name)))
    monkeypatch.setattr(lines, "BLOCK_BYTES", 12)
    source = FileSource(str(tmp_path), kind, "id BIGINT")
    assert [row["id"] for row in read(source)] == [1, 22, 333]


def test_large_row_groups_are_read_to_their_end_from_every_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I22, bug-G5: a row group comes in several batches; the last of them is its end, and a position may be in any."""
    monkeypatch.setattr(parquet, "BATCH_ROWS", 10)
    ids = list(range(70))
    pq.write_table(pa.table({"id": ids}), tmp_path / "a.parquet", row_group_size=35)
    source = FileSource(str(tmp_path), "parquet", "id BIGINT")
    reader = open_reader(source)
    seen = 0
    while isinstance(batch := reader.poll(7), pa.RecordBatch):
        seen += batch.num_rows
        again = open_reader(
            source, json.loads(json.dumps(reader.positions()), object_hook=numbered)
        )
        assert [row["id"] for row in rest(again)] == ids[seen:]
    assert seen == len(ids)


def numbered(position: dict[str, Any]) -> dict[Any, Any]:
    return {int(key) if key.isdigit() else key: value for key, value in position.items()}


def test_a_source_that_watches_from_now_on_is_not_bound_to_what_was_there(tmp_path: Path) -> None:
    """E1, R5: a job that read a folder once goes on watching it, and later reads what is there once again."""
    (tmp_path / "a.csv").write_text("id\n1\n")
    once = FileSource(str(tmp_path), "csv", "id BIGINT")
    reader = open_reader(once)
    assert len(rest(reader)) == 1
    watching = FileSource(str(tmp_path), "csv", "id BIGINT", watch=True)
    (tmp_path / "b.csv").write_text("id\n2\n")
    watcher = open_reader(watching, reader.positions())
    assert rest(watcher) == [{"id": 2}]
    (tmp_path / "c.csv").write_text("id\n3\n")
    assert rest(open_reader(once, watcher.positions())) == [{"id": 3}]


class Patchy(MemoryFileSystem):
    """A store that lists folder by folder, as most do; some folders cannot be listed."""

    protocol = "patchy"
    find = AbstractFileSystem.find
    broken: ClassVar[dict[str, int]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.removeprefix("patchy://"))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        code = self.broken.get(self._strip_protocol(path))
        if code is not None:
            raise OSError(code, os.strerror(code))
        return super().ls(path, detail, **options)


@pytest.mark.parametrize("path", ["patchy://in", "patchy://in/*/*.csv", "patchy://in/**/*.csv"])
def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """I22: a disk or network that fails for a moment, in the middle of the search: the files there would never be
    read."""
    fsspec.register_implementation("patchy", Patchy, clobber=True)
    memory = MemoryFileSystem()
    for name in ("a/1.csv", "b/2.csv"):
        memory.pipe_file(f"/in/{name}", f"id\n{name[2]}\n".encode())
    source = FileSource(path, "csv", "id BIGINT")
    for code, error in ((errno.EIO, OSError), (errno.EACCES, ConfigError)):
        monkeypatch.setattr(Patchy, "broken", {"/in/b": code})
        with pytest.raises(error, match="Input/output error|give the user .* the right"):
            read(source)
    monkeypatch.setattr(Patchy, "broken", {"/in/b": errno.ENOENT})
    assert [row["id"] for row in read(source)] == [1], "it went away meanwhile"
    monkeypatch.setattr(Patchy, "broken", {})
    assert sorted(row["id"] for row in read(source)) == [1, 2]
    memory.store.clear()


@pytest.mark.parametrize("change", ["gone", "shorter", "longer"])
def test_a_file_that_changed_after_it_was_begun_is_an_error(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id\n" + "".join(f"{n}\n" for n in range(100)))
    source = FileSource(str(tmp_path), "csv", "id BIGINT")
    reader = open_reader(source)
    reader.poll(10)
    positions = reader.positions()
    reader.close()
    if change == "gone":
        path.unlink()
    else:
        path.write_text("id\n0\n" if change == "shorter" else path.read_text() + "100\n")
    with pytest.raises(DataError, match=r"a\.csv: the file had 293 bytes .* (is gone|bytes now)"):
        rest(open_reader(source, positions))


@pytest.mark.parametrize("text", ["id\n123456789\n", "id\n1\n2345678\n"])
def test_a_file_that_has_fewer_rows_than_were_read_is_an_error(tmp_path: Path, text: str) -> None:
    """I22: of the same size, and shorter than the position in it: its rows are not those that were there."""
    path = tmp_path / "a.csv"
    path.write_text("id\n1\n2\n3\n4\n5\n")
    source = FileSource(str(tmp_path), "csv", "id BIGINT")
    reader = open_reader(source)
    assert len(reader.poll(3)) == 3  # type: ignore[arg-type]
    positions = reader.positions()
    reader.close()
    path.write_text(text)
    gone = 3 - (text.count("\n") - 1)
    with pytest.raises(DataError, match=rf"13 bytes now with {gone} rows less than were read"):
        rest(open_reader(source, positions))


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Otherwise its last rows would be missing without a word."""
    path = tmp_path / "a.csv"
    path.write_text("id\n" + "1234567\n" * 400_000)
    reader = open_reader(FileSource(str(tmp_path), "csv", "id BIGINT"))
    reader.poll(10)
    os.truncate(path, 1_600_003)
    with pytest.raises(DataError, match="has 1600003 bytes now"):
        rest(reader)


def test_a_file_that_is_gone_after_it_was_read_is_fine(tmp_path: Path) -> None:
    """bug-G5: the position right behind a file's last row needs the file no more."""
    source = FileSource(str(tmp_path), "csv", "id BIGINT")
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    reader = open_reader(source)
    reader.poll(2)
    (tmp_path / "a.csv").unlink()
    assert isinstance(open_reader(source, reader.positions()).poll(1), EndOfInput)


CSV_ERRORS = {
    "1,a\nx,b\n": r"a\.csv, line 3: .*int64.*'x,b'",
    "1,a\n2\n": r"a\.csv, line 3: .*Expected 2 columns, got 1",
    "1,a\n\n\n2,b,c\n": r"a\.csv, line 5: .*Expected 2 columns, got 3",
    '1,"a\nb"\n': r"a\.csv, line 2: a value goes on over the end of the line",
    '1,a\n2,"b\n': r"a\.csv, line 3: .*a quote is not closed",
    "1,a\r2,b\n": r"a\.csv, line 2: a value goes on over the end",
}


@pytest.mark.parametrize(("text", "error"), CSV_ERRORS.items())
def test_a_bad_csv_line_is_named(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n" + text.encode())
    with pytest.raises(DataError, match=error) as caught:
        read(FileSource(str(tmp_path), "csv", "id BIGINT, name STRING"))
    assert 'bad_records="column"' in str(caught.value)


JSON_ERRORS = {
    b'{"id": 1}\n{"id": "x"}\n': r"a\.json, line 2: .*number to string",
    b'{"id": 1}\nnull\n': r"a\.json, line 2: a JSON object in braces is expected",
    b'{"id": 1}\n\n[2]\n': r"a\.json, line 3: a JSON object",
    b'{"id": 1}{"id": 2}\n': r"a\.json, line 1: not one JSON object per line",
    b'{"id":\n1}\n': r"a\.json, line 1: ",
    b'{"id": 1}\n{"name": "\xff"}\n': r"a\.json, line 2: not UTF-8",
    b'{"id": 1.5}\n': r"a\.json, line 1: .*1\.5",
    b'{"id": 1, "day": "2024-13-01"}\n': r"a\.json, line 1: column 'day'",
}


@pytest.mark.parametrize(("data", "error"), JSON_ERRORS.items())
def test_a_bad_json_line_is_named(tmp_path: Path, data: bytes, error: str) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(DataError, match=error):
        read(FileSource(str(tmp_path), "json", "id BIGINT, name STRING, day DATE"))


def test_one_bad_line_among_many_is_found(tmp_path: Path) -> None:
    """Line numbers are right behind the first block, too."""
    text = ["id,name", *(f"{n},{'x' * 50}" for n in range(50_000))]
    text[40_000] = "broken"
    (tmp_path / "a.csv").write_text("\n".join(text))
    with pytest.raises(DataError, match=r"a\.csv, line 40001: "):
        read(FileSource(str(tmp_path), "csv", "id BIGINT, name STRING"))


def test_bad_lines_can_become_rows_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"id": 1}\nnull\n{"id": "\xff"}\n{"id": 2}')
    source = FileSource(str(tmp_path), "json", "id BIGINT NOT NULL", bad_records="column")
    assert source.schema.names == ["id", "_bad_record"]
    assert read(source) == [
        {"id": 1, "_bad_record": None},
        {"id": None, "_bad_record": "null"},
        {"id": None, "_bad_record": '{"id": "\ufffd"}'},
        {"id": 2, "_bad_record": None},
    ]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 3 << 20)
    (tmp_path / "a.json").write_bytes(b"x" * (5 << 20))
    with pytest.raises(DataError, match="line 1: longer than 3145728 bytes"):
        read(FileSource(str(tmp_path), "json", "id BIGINT"))


def test_csv_headers_delimiters_and_marks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf"name";id\r\n"";1\r\n;2\r\n')
    source = FileSource(str(tmp_path), "csv", "id INT, name STRING", delimiter=";")
    assert read(source) == [{"id": 1, "name": ""}, {"id": 2, "name": None}]
    (tmp_path / "a.csv").write_text("1,x\n")
    assert read(FileSource(str(tmp_path), "csv", "id INT, name STRING", header=False)) == [
        {"id": 1, "name": "x"}
    ]


def test_a_missing_csv_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,nme\n1,x\n")
    with pytest.raises(DataError, match=r"a\.csv, line 1: there is no column 'name'.*id, nme"):
        read(FileSource(str(tmp_path), "csv", "id BIGINT, name STRING"))


def test_timestamps_in_csv_may_have_a_zone_or_not(tmp_path: Path) -> None:
    """Without one they are UTC; both may be in one file."""
    (tmp_path / "a.csv").write_text(
        "at\n2024-01-01T10:00:00Z\n2024-01-01 10:00:00\n2024-01-01 11:00:00+0100\n"
    )
    rows = read(FileSource(str(tmp_path), "csv", "at TIMESTAMP"))
    assert {row["at"] for row in rows} == {dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)}


def test_json_dates_nested_values_and_unknown_keys(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"d": "2024-02-03", "s": {"a": [1, 2]}, "z": 1}\n{}\n')
    source = FileSource(str(tmp_path), "json", "d DATE, s STRUCT<a: ARRAY<INT>>")
    assert read(source) == [
        {"d": dt.date(2024, 2, 3), "s": {"a": [1, 2]}},
        {"d": None, "s": None},
    ]


def test_parquet_columns_are_widened_and_picked_by_name(tmp_path: Path) -> None:
    table = pa.table(
        {
            "b": pa.array(["x"]).dictionary_encode(),
            "unused": pa.array([1]),
            "a": pa.array([1], pa.int32()),
            "t": pa.array([0], pa.timestamp("ms", "UTC")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    source = FileSource(str(tmp_path), "parquet", "a BIGINT, b STRING, t TIMESTAMP")
    assert read(source) == [{"a": 1, "b": "x", "t": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)}]


def test_the_timestamps_that_spark_writes_are_instants(tmp_path: Path) -> None:
    """Spark's INT96 has no zone in the file."""
    table = pa.table({"t": pa.array([1_000_000], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    source = FileSource(str(tmp_path))
    assert source.schema.field("t").type == pa.timestamp("us", "UTC")
    assert read(source) == [{"t": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)}]


def test_parquet_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": ["x"]}), path)
    with pytest.raises(DataError, match=r"a\.parquet: column 'a' is STRING, expected BIGINT"):
        read(FileSource(str(path), "parquet", "a BIGINT"))
    with pytest.raises(DataError, match=r"a\.parquet: there is no column 'b'; the file has a"):
        read(FileSource(str(path), "parquet", "b BIGINT"))
    pq.write_table(pa.table({"a": pa.array([1, None])}), path)
    with pytest.raises(DataError, match=r"a\.parquet: column 'a' is NOT NULL"):
        read(FileSource(str(path), "parquet", "a BIGINT NOT NULL"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as Parquet"):
        read(FileSource(str(path), "parquet", "a BIGINT"))


def test_a_parquet_file_that_is_cut_off_anywhere_is_named(tmp_path: Path) -> None:
    """Damaged input never goes on without a word."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    data = path.read_bytes()
    for cut in range(4, len(data), 97):
        path.write_bytes(data[:cut])
        with pytest.raises(DataError, match=r"a\.parquet"):
            read(FileSource(str(path), "parquet", "a BIGINT"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"format": "xml"},
        {"bad_records": "skip"},
        {"format": "parquet", "bad_records": "column"},
        {"delimiter": "::"},
        {"poll_interval_ms": 0},
    ],
)
def test_wrong_options_are_refused_at_once(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="FileSource: "):
        FileSource("in", **arguments)  # type: ignore[arg-type]


def test_a_bounded_folder_is_what_it_was_when_the_job_began(tmp_path: Path) -> None:
    """E1, R1: a file that comes later is not read, with a failure in between or without one."""
    write = lambda name, n: (tmp_path / name).write_text(f"n\n{n}\n")
    write("a.csv", 1)
    write("b.csv", 2)
    source = FileSource(str(tmp_path), "csv", "n BIGINT")
    place = SourceContext("source", 0, 1, 8, lambda: 0.0)
    first = source.reader(place, {})
    seen = [first.poll(10).column(0)[0].as_py()]
    positions = first.positions()
    write("c.csv", 3)
    again = source.reader(place, positions)
    while isinstance(batch := again.poll(10), pa.RecordBatch):
        seen += batch.column(0).to_pylist()
    assert sorted(seen) == [1, 2]
    (tmp_path / "b.csv").unlink()
    (tmp_path / "a.csv").unlink()
    with pytest.raises(DataError, match="1 files that were there when the job began"):
        source.reader(place, positions)


class Flaky:
    """A file whose disk or network fails while it is read."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.closed = False

    def __getattr__(self, name: str) -> object:
        if name in ("seek", "read", "tell", "size"):
            return self._fail
        raise AttributeError(name)

    def _fail(self, *_: object) -> None:
        raise self.error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
@pytest.mark.parametrize("error", [OSError(5, "I/O error"), TimeoutError(), ConnectionResetError()])
def test_a_disk_or_network_that_fails_is_not_taken_for_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: OSError
) -> None:
    """R1: the job is restarted and reads on, instead of failing for good."""
    (tmp_path / f"a.{kind}").write_text("x")
    monkeypatch.setattr(Listing, "_open", lambda *_: Flaky(error))
    with pytest.raises(type(error)):
        read(FileSource(str(tmp_path), kind, "id BIGINT"))


def test_a_damaged_packed_file_is_named(tmp_path: Path) -> None:
    """Cut off, changed inside, or not packed at all."""
    whole = gzip.compress(b"id\n" + b"1\n" * 100_000)
    middle = len(whole) // 2
    inside = [whole[:at] + b"\xff" * 20 + whole[at + 20 :] for at in (10, middle)]
    for data in (whole[:-20], *inside, b"id\n1\n"):
        (tmp_path / "a.csv.gz").write_bytes(data)
        with pytest.raises(DataError, match=r"a\.csv\.gz: cannot be read behind line"):
            read(FileSource(str(tmp_path), "csv", "id BIGINT"))


def test_a_file_whose_name_no_checkpoint_can_keep_is_refused_by_name(tmp_path: Path) -> None:
    """E1, S10: a name in another encoding than UTF-8, as old disks have them."""
    (tmp_path / os.fsdecode(b"a\xff.csv")).write_text("n\n1\n")
    with pytest.raises(DataError, match=r"the file 'a\\udcff.csv' is no valid UTF-8"):
        Listing(str(tmp_path), {}).files()
