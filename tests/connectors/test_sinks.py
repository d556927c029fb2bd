"""Sinks: what a reader of the folder sees, what is refused, and what the errors say."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
import pickle
import threading
from pathlib import Path

import duckdb
import fsspec.implementations.arrow
import pandas as pd
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from penstock.connectors.base import SinkContext, SinkWriter, SourceContext
from penstock.connectors.sinks import BlackholeSink, CollectSink, FileSink, folder
from penstock.connectors.sinks.blackhole import BlackholeWriter
from penstock.connectors.sinks.files import FileWriter, path_safe
from penstock.connectors.sinks.folder import RemoteFolder
from penstock.connectors.sinks.jsonlines import to_json_lines
from penstock.connectors.sources import FileSource
from penstock.errors import CommitError, ConfigError, DataError, SchemaError
from penstock.protocol.snapshot import Plain

SCHEMA = pa.schema([("id", pa.int64())])


def context(
    schema: pa.Schema = SCHEMA, *, job: str = "job", operator: str = "out", attempt: int = 1
) -> SinkContext:
    return SinkContext(job, operator, 0, 1, attempt, schema, lambda item: None)


def rows(*ids: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=SCHEMA)


def settled(writer: SinkWriter, checkpoint: int) -> Plain:
    """What the engine does: the part that takes long is done before the description counts."""
    made = writer.prepare(checkpoint)
    return made() if callable(made) else made


def prepared(writer: SinkWriter, *ids: int) -> dict[str, Plain]:
    writer.write(rows(*ids))
    transaction = settled(writer, 1)
    assert isinstance(transaction, dict)
    return transaction


def test_plain_readers_see_the_committed_rows_and_nothing_else(tmp_path: Path) -> None:
    """I1, E4: DuckDB, pandas and pyarrow, while one transaction is open and another prepared."""
    sink = FileSink(str(tmp_path))
    writer, committer = sink.writer(context()), sink.committer(context())
    committer.commit(prepared(writer, 1, 2))
    prepared(writer, 3)
    writer.write(rows(4))
    query = f"select id from '{tmp_path}/*.parquet'"
    assert sorted(duckdb.sql(query).fetchall()) == [(1,), (2,)]
    assert sorted(pd.read_parquet(tmp_path)["id"]) == [1, 2]
    assert sorted(pq.read_table(tmp_path)["id"].to_pylist()) == [1, 2]


def test_the_files_of_a_sink_can_be_a_source(tmp_path: Path) -> None:
    """Also while the job that writes them still runs."""
    sink = FileSink(str(tmp_path), "csv")
    writer, committer = sink.writer(context()), sink.committer(context())
    committer.commit(prepared(writer, 1, 2))
    writer.write(rows(3))
    assert FileSource(str(tmp_path), "csv").schema == SCHEMA


def test_a_transaction_that_is_gone_is_an_error_that_names_both_files(tmp_path: Path) -> None:
    """E3, bug-F8: never skipped without a word."""
    sink = FileSink(str(tmp_path))
    transaction = prepared(sink.writer(context()), 1)
    (tmp_path / "_staging/job" / str(transaction["staged"])).unlink()
    with pytest.raises(CommitError) as caught:
        sink.committer(context()).commit(transaction)
    assert str(transaction["staged"]) in str(caught.value)
    assert str(transaction["final"]) in str(caught.value)


def test_a_staged_file_of_another_size_is_not_committed(tmp_path: Path) -> None:
    """bug-H6: a torn file stays invisible."""
    sink = FileSink(str(tmp_path))
    transaction = prepared(sink.writer(context()), 1)
    os.truncate(tmp_path / "_staging/job" / str(transaction["staged"]), 10)
    with pytest.raises(CommitError, match="has 10 bytes instead of"):
        sink.committer(context()).commit(transaction)
    assert list(tmp_path.glob("*.parquet")) == []


def test_a_rename_that_lies_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bug-H1: success is what can be seen, not what was answered."""
    sink = FileSink(str(tmp_path))
    transaction = prepared(sink.writer(context()), 1)
    monkeypatch.setattr(folder.LocalFolder, "move", lambda *_: None)
    with pytest.raises(CommitError, match="is not there"):
        sink.committer(context()).commit(transaction)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("staged", "../../etc/passwd"),
        ("staged", "out-0-1-1-0123abcd.parquet/../x"),
        ("final", "../part-out-0-1-1-0123abcd.parquet"),
        ("job", ".."),
        ("job", "a/b"),
        ("bytes", "many"),
    ],
)
def test_names_from_a_checkpoint_cannot_leave_the_folder(
    tmp_path: Path, key: str, value: str
) -> None:
    """Storage contents are not trusted."""
    sink = FileSink(str(tmp_path))
    transaction = prepared(sink.writer(context()), 1) | {key: value}
    with pytest.raises(CommitError, match="is not a transaction of a FileSink"):
        sink.committer(context()).commit(transaction)
    with pytest.raises(CommitError, match="is not a transaction of a FileSink"):
        sink.committer(context(attempt=2)).abort_others([transaction])


def test_two_lives_of_one_job_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """bug-F4, bug-D16: the same job, operator, attempt and checkpoint once more, with other rows."""
    sink = FileSink(str(tmp_path))
    for number in (1, 2):
        sink.committer(context()).commit(prepared(sink.writer(context()), number))
    assert sorted(pq.read_table(tmp_path)["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    ("first", "second"),
    [("a b", "a_b"), ("a/b", "a_b"), ("ä", "ö"), ("..", "__"), ("x" * 200, "x" * 201), ("", "_")],
)
def test_different_names_stay_different_in_paths(first: str, second: str) -> None:
    """bug-F4."""
    assert path_safe(first) != path_safe(second)
    for name in (path_safe(first), path_safe(second)):
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name) <= 100


@pytest.mark.parametrize("name", ["my job: totals/2024", "..", "-rf", "größe", "a-1-2-3"])
def test_any_name_of_a_job_and_an_operator_works(tmp_path: Path, name: str) -> None:
    """I11: and is found again by the clean-up."""
    sink = FileSink(str(tmp_path / "out"))
    first = context(job=name, operator=name)
    sink.committer(first).commit(prepared(sink.writer(first), 1))
    prepared(sink.writer(first), 2)
    sink.committer(context(job=name, operator=name, attempt=2)).abort_others([])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".parquet"]


def test_output_files_have_the_usual_permissions(tmp_path: Path) -> None:
    """Others must be able to read them."""
    mask = os.umask(0o022)
    try:
        sink = FileSink(str(tmp_path))
        sink.committer(context()).commit(prepared(sink.writer(context()), 1))
    finally:
        os.umask(mask)
    (path,) = tmp_path.glob("*.parquet")
    assert path.stat().st_mode & 0o777 == 0o644


def test_closing_gives_the_open_transaction_up(tmp_path: Path) -> None:
    """I11, bug-F10: nothing stays behind, not even the folder."""
    sink = FileSink(str(tmp_path))
    writer = sink.writer(context())
    writer.write(rows(1))
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_closing_closes_the_file_that_was_open(tmp_path: Path) -> None:
    """I26: also where its rows cannot be written any more."""

    class Full:
        def finish(self) -> None:
            raise OSError("no space left")

    for is_full in (False, True):
        writer = FileSink(str(tmp_path)).writer(context())
        writer.write(rows(1))
        assert isinstance(writer, FileWriter)
        (staged,) = writer._staged.values()
        handle = staged.handle
        if is_full:
            staged.encoder = Full()  # type: ignore[assignment]
        writer.close()
        assert handle.closed
        assert list(tmp_path.iterdir()) == []


def test_subtasks_that_make_and_remove_the_staging_folder_do_not_collide(tmp_path: Path) -> None:
    """Two threads open and close transactions as fast as they can."""
    sink = FileSink(str(tmp_path))
    problems: list[Exception] = []

    def work(operator: str) -> None:
        try:
            for _ in range(100):
                writer = sink.writer(context(operator=operator))
                writer.write(rows(1))
                writer.close()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_small_batches_become_one_large_row_group(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path))
    writer = sink.writer(context())
    for number in range(500):
        writer.write(rows(*range(number, number + 100)))
    sink.committer(context()).commit(settled(writer, 1))
    (path,) = tmp_path.glob("*.parquet")
    assert pq.read_metadata(path).num_row_groups == 1
    assert pq.read_metadata(path).num_rows == 50_000


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("csv", pa.field("a", pa.list_(pa.int64()))),
        ("csv", pa.field("a", pa.struct([("x", pa.int64())]))),
        ("json", pa.field("a", pa.binary())),
        ("json", pa.field("a", pa.list_(pa.binary()))),
        ("json", pa.field("a", pa.duration("us"))),
        ("parquet", pa.field("a", pa.struct([]))),
    ],
)
def test_a_column_that_a_format_cannot_hold_is_refused_with_the_plan(
    kind: str, column: pa.Field
) -> None:
    with pytest.raises(SchemaError, match=f"{kind} cannot hold column 'a'"):
        FileSink("out", kind).check(pa.schema([pa.field("ok", pa.int64()), column]))


def test_ordinary_columns_are_accepted_by_every_format() -> None:
    kinds = [pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.date32(), pa.decimal128(10, 2)]
    schema = pa.schema([(str(kind), kind) for kind in (*kinds, pa.timestamp("us", "UTC"))])
    for format_ in ("parquet", "csv", "json"):
        FileSink("out", format_).check(schema)


def test_an_unknown_format_and_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="parquet, csv, json, not 'orc'"):
        FileSink("out", "orc")
    with pytest.raises(SchemaError, match="two columns are called 'a'"):
        FileSink("out").check(pa.schema([("a", pa.int64()), ("a", pa.string())]))


def test_a_csv_row_that_readers_would_pass_over_is_refused(tmp_path: Path) -> None:
    """I1: a lone null is an empty line."""
    writer = FileSink(str(tmp_path), "csv").writer(context())
    with pytest.raises(DataError, match="'id', the only column"):
        writer.write(rows(1, None))
    writer.close()


def test_json_says_every_value_as_python_would() -> None:
    """Escapes, nulls, numbers at their limits; also in a slice of a batch."""
    values = {
        "s": ['a"b', "back\\slash", "line\nbreak\x01", "ünï", None, ""],
        "i": [2**63 - 1, -(2**63), 0, None, 1, 2],
        "f": [0.1, 1e300, -0.0, None, 5e-324, 1.0],
        "b": [True, False, None, True, True, False],
        "l": [[1, None], [], None, [2], [3], [4]],
        "m": [{"x": 'q"'}, None, {"x": None}, {"x": "a"}, {"x": "b"}, {"x": "c"}],
    }
    batch = pa.record_batch(values)
    for part in (batch, batch.slice(2, 3), batch.slice(6)):
        parsed = [json.loads(line) for line in to_json_lines(part).decode().split("\n")[:-1]]
        assert parsed == part.to_pylist()


def test_json_says_times_and_unusual_numbers_as_spark_does() -> None:
    batch = pa.record_batch(
        {
            "t": pa.array([1_704_164_645_000_006], pa.timestamp("us", "UTC")),
            "n": pa.array([1_704_153_600_000_000], pa.timestamp("us")),
            "d": pa.array([dt.date(2024, 1, 2)]),
            "x": pa.array([decimal.Decimal("1.20")]),
            "f": pa.array([math.nan]),
            "g": pa.array([-math.inf]),
            "c": pa.array(["a"]).dictionary_encode(),
        }
    )
    assert to_json_lines(batch).decode() == (
        '{"t": "2024-01-02T03:04:05.000006Z", "n": "2024-01-02T00:00:00.000000",'
        ' "d": "2024-01-02", "x": 1.20, "f": "NaN", "g": "-Infinity", "c": "a"}\n'
    )


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_what_a_sink_writes_a_source_reads_back(tmp_path: Path, kind: str) -> None:
    batch = pa.record_batch(
        {
            "i": pa.array([1, None, -5]),
            "s": pa.array(['q"uote', "", None]),
            "f": pa.array([0.1, None, 1e20]),
            "t": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
            "d": pa.array([0, None, 19_000], pa.date32()),
            "x": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-0.01")]).cast(
                pa.decimal128(10, 2)
            ),
            "b": pa.array([True, False, None]),
        }
    )
    sink = FileSink(str(tmp_path), kind)
    writer = sink.writer(context(batch.schema))
    writer.write(batch)
    sink.committer(context(batch.schema)).commit(settled(writer, 1))
    path = next(tmp_path.glob(f"*.{kind}"))
    reader = FileSource(str(path), kind, batch.schema).reader(
        SourceContext("in", 0, 1, 128, lambda: 0.0), {}
    )
    read = reader.poll(10)
    assert isinstance(read, pa.RecordBatch)
    assert read.to_pylist() == batch.to_pylist()


def test_a_collect_sink_is_empty_before_anything_arrived() -> None:
    sink = CollectSink()
    sink.check(SCHEMA)
    assert sink.to_table().schema == SCHEMA
    assert sink.to_pylist() == []


def test_collected_rows_are_not_sent_to_the_workers() -> None:
    sink = CollectSink()
    sink.check(SCHEMA)
    sink.receive(prepared(sink.writer(context()), 1, 2))
    copy = pickle.loads(pickle.dumps(sink))
    assert sink.to_pylist() == [{"id": 1}, {"id": 2}]
    assert copy.to_pylist() == []
    assert copy.to_table().schema == SCHEMA


def test_collected_rows_are_in_the_order_of_their_checkpoints() -> None:
    sink = CollectSink()
    writer = sink.writer(context(job="a/b"))
    transactions = []
    for checkpoint in (9, 10, 11):
        writer.write(rows(checkpoint))
        transactions.append(settled(writer, checkpoint))
    for transaction in reversed(transactions):
        sink.receive(transaction)
    assert [row["id"] for row in sink.to_pylist()] == [9, 10, 11]


def test_two_runs_into_one_collect_sink_keep_the_rows_of_both() -> None:
    """The second run of a job starts its numbers anew; its rows are not taken for repetitions."""
    sink = CollectSink()
    for _ in range(2):
        sink.receive(prepared(sink.writer(context()), 1))
    assert len(sink.to_pylist()) == 2


def test_rows_that_arrive_again_take_no_room() -> None:
    """I10."""
    sink = CollectSink(limit_bytes=1000)
    transaction = prepared(sink.writer(context()), *range(60))
    for _ in range(5):
        sink.receive(transaction)
    assert sink.to_table().num_rows == 60


def test_more_rows_than_a_collect_sink_may_hold_are_an_error_that_names_another_sink() -> None:
    sink = CollectSink(limit_bytes=1000)
    with pytest.raises(ConfigError, match=r"more than 1000 bytes .*FileSink"):
        sink.writer(context()).write(rows(*range(200)))
    for _ in range(3):
        sink.receive(prepared(sink.writer(context()), *range(60)))
    with pytest.raises(ConfigError, match="FileSink"):
        sink.to_table()


def test_a_transaction_of_another_sink_is_refused() -> None:
    with pytest.raises(CommitError, match="another kind of sink"):
        CollectSink().committer(context()).commit({"staged": "x"})
    with pytest.raises(CommitError, match="another kind of sink"):
        BlackholeSink().committer(context()).commit({"staged": "x"})


def test_a_blackhole_counts_and_commits_nothing() -> None:
    writer = BlackholeSink().writer(context())
    writer.write(rows(1, 2, 3))
    assert isinstance(writer, BlackholeWriter)
    assert writer.rows == 3
    assert writer.prepare(1) is None


def test_tidying_up_on_a_remote_store_never_removes_a_folder_with_files(tmp_path: Path) -> None:
    """E2: some file systems delete a folder with all that is in it, staged rows of others included."""
    fs = fsspec.implementations.arrow.ArrowFSWrapper(pa.fs.LocalFileSystem())
    folder = RemoteFolder(fs, str(tmp_path))
    (tmp_path / "_staging").mkdir()
    (tmp_path / "_staging/promised").write_text("rows")
    folder.prune("_staging")
    assert (tmp_path / "_staging/promised").exists()
