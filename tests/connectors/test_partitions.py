"""`FileSink(partition_by=...)`: folders as Hive names them, and exactly once as without."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock.connectors.base import SinkContext, SinkWriter
from penstock.connectors.sinks import FileSink
from penstock.connectors.sinks.folder import LocalFolder
from penstock.connectors.sinks.partitions import partition_name
from penstock.errors import CommitError, ConfigError, DataError, SchemaError
from penstock.protocol.snapshot import Plain
from penstock.testing import simulate, sink_conformance

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("day", pa.date32())])
PLACES = pa.schema([("country", pa.string()), ("day", pa.date32())])
JANUARY, MAY = dt.date(2026, 1, 31), dt.date(2026, 5, 1)


def context(schema: pa.Schema = SCHEMA, attempt: int = 1) -> SinkContext:
    return SinkContext("job", "out", 0, 1, attempt, schema, lambda item: None)


def rows(*values: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = zip(*values, strict=True)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema)], schema=schema)


def settled(writer: SinkWriter, checkpoint: int = 1) -> Plain:
    made = writer.prepare(checkpoint)
    return made() if callable(made) else made


def seen(folder: Path, places: pa.Schema = PLACES) -> list[tuple[Any, ...]]:
    """What a plain reader sees, partitions included."""
    if not folder.exists():
        return []
    data = ds.dataset(folder, format="parquet", partitioning=ds.partitioning(places, flavor="hive"))
    table = data.to_table()
    names = [name for name in ("id", *places.names) if name in table.column_names]
    return sorted(zip(*(table[name].to_pylist() for name in names)), key=repr)


ORDERS = [(1, "NO", JANUARY), (2, "SE", JANUARY), (3, "NO", MAY), (4, "NO", JANUARY)]


def test_every_partition_has_a_folder_and_its_columns_are_not_in_the_files(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path), partition_by=["country", "day"])
    sink.check(SCHEMA)
    writer, committer = sink.writer(context()), sink.committer(context())
    writer.write(rows(*ORDERS[:3]))
    writer.write(rows(ORDERS[3]))
    transaction = settled(writer)
    assert seen(tmp_path) == []
    committer.commit(transaction)
    found = sorted(str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("part-*.parquet"))
    assert found == [
        "country=NO/day=2026-01-31",
        "country=NO/day=2026-05-01",
        "country=SE/day=2026-01-31",
    ]
    assert all(pq.read_schema(p).names == ["id"] for p in tmp_path.rglob("part-*.parquet"))
    assert seen(tmp_path) == ORDERS
    query = f"select id, country, day from read_parquet('{tmp_path}/*/*/*.parquet') order by id"
    assert duckdb.sql(query).fetchall() == ORDERS


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_other_formats_have_partitions_too(tmp_path: Path, kind: Any) -> None:
    sink = FileSink(str(tmp_path), kind, partition_by="country")
    writer = sink.writer(context())
    writer.write(rows(*ORDERS))
    sink.committer(context()).commit(settled(writer))
    names = {str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("part-*")}
    assert names == {"country=NO", "country=SE"}
    assert "country" not in next(tmp_path.rglob("part-*")).read_text()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("plain", "plain"),
        ("a b,ü~é", "a b,ü~é"),
        ("a/b", "a%2Fb"),
        ("../x", "..%2Fx"),
        ("50%", "50%25"),
        ("a=b:c", "a%3Db%3Ac"),
        ("\n\x00\x7f", "%0A%00%7F"),
        ("\"#'*?\\{[]^", "%22%23%27%2A%3F%5C%7B%5B%5D%5E"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_values_are_escaped_as_spark_does(value: str, name: str) -> None:
    assert partition_name("c", value) == f"c={name}"


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    """A null and an empty text are one partition, which reads back as null: so does Spark."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("flag", pa.bool_())])
    texts = ["a/b", "../x", "50%", "x=y", " ", "é", "\n", None, ""]
    sink = FileSink(str(tmp_path), partition_by=["text", "flag"])
    writer = sink.writer(context(schema))
    writer.write(rows(*((n, text, n > 3) for n, text in enumerate(texts)), schema=schema))
    sink.committer(context(schema)).commit(settled(writer))
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    found = dict(zip(table["id"].to_pylist(), table["text"].to_pylist()))
    assert found == {n: text or None for n, text in enumerate(texts)}
    assert set(table["flag"].to_pylist()) == {"true", "false"}


# ---- what cannot be partitioned by


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["contry"], r"no column 'contry'; did you mean 'country'"),
        (["price"], r"'price', which is DOUBLE; .*\.cast\("),
        (["time"], r'\'time\', which is TIMESTAMP.*cast\("DATE"\)'),
        (["country", "price", "time"], "which is"),
    ],
)
def test_a_column_that_makes_no_folder_is_refused_while_the_plan_is_made(
    columns: list[str], message: str
) -> None:
    stream = pen.from_rows([], "country STRING, price DOUBLE, time TIMESTAMP")
    with pytest.raises(SchemaError, match=message):
        stream.to(FileSink("unused", partition_by=columns))


def test_something_must_be_left_to_write() -> None:
    with pytest.raises(SchemaError, match="nothing left to write"):
        pen.from_rows([], "country STRING").to(FileSink("unused", partition_by="country"))


@pytest.mark.parametrize("given", [3, [3], ["a", "a"], ["_hidden"], [".hidden"], [""]])
def test_what_is_no_list_of_columns_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="FileSink: partition_by="):
        FileSink("unused", partition_by=given)
    with pytest.raises(ConfigError, match="max_partitions=0"):
        FileSink("unused", max_partitions=0)


def test_too_many_partitions_in_a_transaction_are_an_error_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    """The limit is for a transaction: the next one begins anew."""
    sink = FileSink(str(tmp_path), partition_by="country", max_partitions=3)
    writer = sink.writer(context())
    for start in (0, 3):
        writer.write(rows(*((n, str(n), MAY) for n in range(start, start + 3))))
        sink.committer(context()).commit(settled(writer))
    writer.write(rows(*((n, str(n), MAY) for n in range(3))))
    with pytest.raises(DataError, match=r"more than 3 partitions.*country=3.*max_partitions"):
        writer.write(rows((9, "3", MAY)))
    writer.close()
    assert len(seen(tmp_path)) == 6
    assert not (tmp_path / "_staging").exists()


def test_a_value_that_is_too_long_for_a_folder_is_told(tmp_path: Path) -> None:
    writer = FileSink(str(tmp_path), partition_by="country").writer(context())
    with pytest.raises(DataError, match=r"'country': 'xxxx.*has 300 characters"):
        writer.write(rows((1, "x" * 300, MAY)))


# ---- exactly once


class Places:
    """Fresh folders, local or not, and what a plain reader sees in them."""

    SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])

    def __init__(self, url: str) -> None:
        self._fresh = (f"{url}/place-{number}" for number in itertools.count())
        self._paths: dict[int, str] = {}
        self._kept: list[FileSink] = []
        self._fs = fsspec.core.url_to_fs(url)[0]

    def make(self) -> FileSink:
        path = next(self._fresh)
        sink = FileSink(path, partition_by=["text"])
        self._kept.append(sink)
        self._paths[id(sink)] = self._fs._strip_protocol(path)
        return sink

    def read(self, sink: Any) -> list[tuple[int, str]]:
        found = []
        for name in self._fs.glob(f"{self._paths[id(sink)]}/*=*/*.parquet"):
            text = name.split("/")[-2].removeprefix("text=")
            with self._fs.open(name) as file:
                found += [(number, text) for number in pq.read_table(file)["id"].to_pylist()]
        return found

    def staged(self, sink: Any) -> int:
        folder = f"{self._paths[id(sink)]}/_staging"
        return len(self._fs.find(folder)) if self._fs.exists(folder) else 0


@pytest.mark.parametrize("store", ["local", "memory"])
def test_partitions_appear_exactly_once(tmp_path: Path, store: str) -> None:
    """E2, E4, I10, I11, bug-F2, bug-F4: the whole suite, with several files in a transaction."""
    places = Places(str(tmp_path) if store == "local" else "memory://partitions")

    def make_rows(start: int, n: int) -> pa.RecordBatch:
        ids = list(range(start, start + n))
        texts = [f"t{number % 3}" for number in ids]
        return pa.record_batch([ids, texts], schema=Places.SCHEMA)

    sink_conformance(
        places.make,
        places.read,
        schema=Places.SCHEMA,
        make_rows=make_rows,
        count_staged=places.staged,
    )


@pytest.mark.parametrize("moves", range(4))
def test_a_commit_that_breaks_off_between_two_files_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """E3, I10, bug-F8: by any later attempt; what was renamed stays, what was not is renamed then."""
    sink = FileSink(str(tmp_path), partition_by=["country", "day"])
    writer = sink.writer(context())
    writer.write(rows(*ORDERS))
    transaction = settled(writer)
    real, left = LocalFolder.move, iter(range(moves))

    def move(self: LocalFolder, name: str, target: str) -> None:
        if next(left, None) is None:
            raise TimeoutError("the disk is gone")
        real(self, name, target)

    monkeypatch.setattr(LocalFolder, "move", move)
    if moves < 3:
        with pytest.raises(TimeoutError):
            sink.committer(context()).commit(transaction)
    monkeypatch.setattr(LocalFolder, "move", real)
    again: FileSink = pickle.loads(pickle.dumps(sink))
    committer = again.committer(context(attempt=2))
    committer.abort_others([transaction])
    for _ in range(2):
        committer.commit(transaction)
    assert seen(tmp_path) == ORDERS
    committer.close()
    assert not (tmp_path / "_staging").exists()


def test_a_promised_file_that_is_gone_fails_the_commit(tmp_path: Path) -> None:
    """E3, bug-F8: one of several."""
    sink = FileSink(str(tmp_path), partition_by="country")
    writer = sink.writer(context())
    writer.write(rows(*ORDERS))
    transaction: Any = settled(writer)
    (tmp_path / "_staging/job" / transaction["files"][1]["staged"]).unlink()
    with pytest.raises(CommitError, match=r"promises country=SE/part-.*is gone"):
        sink.committer(context()).commit(transaction)


@pytest.mark.parametrize("folder", ["..", "../x=1", "/x=1", "x=1/..", "x", "x=1//y=2", "_x=1", 3])
def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path, folder: Any) -> None:
    """The description comes from a file that others may have touched."""
    sink = FileSink(str(tmp_path / "out"), partition_by="country")
    writer = sink.writer(context())
    writer.write(rows(ORDERS[0]))
    transaction: Any = settled(writer)
    with pytest.raises(CommitError, match="is not the folder of a partition"):
        sink.committer(context()).commit({**transaction, "folder": folder})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_the_folders_of_a_partition_are_durable_before_the_commit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2, E3: also those that somebody else made, who may not have got as far as that."""
    sink = FileSink(str(tmp_path), partition_by=["country", "day"])
    synced: list[str] = []
    real = os.fsync

    def sync(handle: int) -> None:
        synced.append(str(Path(os.readlink(f"/proc/self/fd/{handle}")).relative_to(tmp_path)))
        real(handle)

    for checkpoint in (1, 2):
        writer = sink.writer(context())
        writer.write(rows(ORDERS[0]))
        transaction = settled(writer, checkpoint)
        for _ in range(2):
            synced.clear()
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", sync)
                sink.committer(context()).commit(transaction)
            assert {"country=NO/day=2026-01-31", "country=NO", "."} <= set(synced)


class OwnFiles(FileSink):
    """Simulations have a stand-in for a `FileSink`; one of the user's own is run as it is."""


def test_partitions_hold_in_every_schedule_of_a_simulation() -> None:
    """I1, I10, I11: crashes, lost answers and rescales, with real files."""
    orders = [(n, f"c{n % 5}") for n in range(60)]

    def pipeline(folder: Path) -> pen.Pipeline:
        sink = OwnFiles(str(folder / "out"), partition_by="country")
        return pen.from_rows(orders, "id BIGINT, country STRING").to(sink, name="files")

    places = pa.schema([("country", pa.string())])

    def read(sink: Any) -> list[tuple[Any, ...]]:
        return seen(Path(sink._path), places)

    def staged(sink: Any) -> int:
        return sum(1 for path in Path(sink._path).glob("_staging/*/*"))

    report = simulate(pipeline, read=read, staged=staged, seeds=range(40))
    assert report.ok
    assert report.attempts > 40
