"""Tables of the latest row per key: what is seen, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock.connectors.sinks import folder, formats
from penstock.connectors.sinks.folder import LocalFolder
from penstock.connectors.tables import names, rows
from penstock.connectors.tables.files import RowsFile
from penstock.connectors.tables.names import SOURCES_MAX, TableFile
from penstock.connectors.tables.sink import KEPT_BATCHES_MAX, KEPT_ROWS_MIN, LatestRows
from penstock.errors import CommitError, ConfigError, DataError, SchemaError
from tests.connectors.table_kit import SCHEMA, Place, merge_often, users

DAY = dt.datetime(2026, 1, 31, 12, 30, 15, tzinfo=dt.UTC)


# ---- what is seen


def test_the_latest_committed_row_of_each_key_is_seen(tmp_path: Path) -> None:
    """E7, E2, I9: nothing before the commit, then one row for each key: the last one, also of one batch."""
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    assert place.seen() == {}
    subtask.write(("ada", 1), ("bob", 1), ("ada", 2))
    subtask.write(("ada", 3), ("eve", 1))
    first = subtask.prepare()
    assert place.seen() == {}
    subtask.write(("ada", 4), ("fay", 1))
    subtask.committer.commit(first)
    assert place.seen() == {"ada": 3, "bob": 1, "eve": 1}
    subtask.commit()
    assert place.seen() == {"ada": 4, "bob": 1, "eve": 1, "fay": 1}
    assert subtask.prepare() is None
    subtask.close()
    assert place.staged() == []


def test_whoever_reads_parquet_files_does_not_take_updates_for_rows(tmp_path: Path) -> None:
    """E7: the files are in a folder that plain readers pass over."""
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1))
    assert ds.dataset(place.path, format="parquet").files == []


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-1, 7]),
        (pa.int32(), [-1, 7]),
        (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
        (pa.uint64(), [0, (1 << 64) - 1]),
        (pa.bool_(), [True, False]),
        (pa.string(), ["", "a text that is longer than fifteen bytes" * 9]),
        (pa.large_string(), ["é", "e"]),
        (pa.binary(), [b"", b"\0"]),
        (pa.large_binary(), [b"\0\0", b"\0"]),
        (pa.date32(), [dt.date(2026, 1, 31), dt.date(1969, 1, 1)]),
        (pa.date64(), [dt.date(2026, 1, 31), dt.date(1969, 1, 1)]),
        (pa.time32("s"), [dt.time(1, 2, 3), dt.time(3, 2, 1)]),
        (pa.time64("us"), [dt.time(1, 2, 3, 4), dt.time(3, 2, 1)]),
        (pa.timestamp("s"), [DAY.replace(tzinfo=None), dt.datetime(1969, 1, 1)]),  # noqa: DTZ001
        (pa.timestamp("us", "UTC"), [DAY, DAY + dt.timedelta(microseconds=1)]),
        (pa.duration("us"), [dt.timedelta(1), dt.timedelta(-1)]),
        (pa.decimal128(10, 2), [Decimal("0.10"), Decimal("-99999999.99")]),
    ],
)
def test_every_type_that_a_key_can_have_is_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, values: list[Any]
) -> None:
    """E7: and null is a key of its own; before and after files are merged, and asked for by its value."""
    merge_often(monkeypatch)
    schema = pa.schema([("k", kind), ("n", pa.int64())])
    place = Place(tmp_path / "table", "k", schema)
    subtask = place.subtask()
    for n in range(1, 6):
        subtask.commit(*((value, n + at) for at, value in enumerate([*values, None])))
    subtask.commit((values[0], 100))
    first, second = values
    assert place.seen() == {first: 100, second: 6, None: 7}
    assert any(file.sources for file in place.files())
    for value, n in place.seen().items():
        found = pen.read_table(place.path, where={"k": value})
        assert found.to_pylist() == [{"k": value, "n": n}]
        assert found.schema == schema
    subtask.commit((None, 8))
    assert place.seen()[None] == 8


def test_a_key_may_have_several_columns(tmp_path: Path) -> None:
    schema = pa.schema([("user", pa.string()), ("day", pa.int64()), ("n", pa.int64())])
    place = Place(tmp_path / "table", ["user", "day"], schema)
    subtask = place.subtask()
    subtask.commit(("ada", 1, 1), ("ada", 2, 1), (None, 1, 1), ("bob", 1, 1))
    subtask.commit(("ada", 2, 2), (None, 1, 2))
    seen = {(row["user"], row["day"]): row["n"] for row in pen.read_table(place.path).to_pylist()}
    assert seen == {("ada", 1): 1, ("ada", 2): 2, (None, 1): 2, ("bob", 1): 1}

    def n(**where: Any) -> list[int]:
        return sorted(pen.read_table(place.path, where=where, columns=["n"])["n"].to_pylist())

    assert n(user="ada") == [1, 2]
    assert n(day=2, user="ada") == [2]
    assert n(user=None) == [2]
    assert n(user="nobody", day=1) == []


def test_values_of_any_type_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested ones, too, and columns with dots in their names."""
    merge_often(monkeypatch)
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("list", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))),
            ("k.list", pa.map_(pa.string(), pa.float64())),
        ]
    )
    place = Place(tmp_path / "table", "k", schema)
    subtask = place.subtask()
    for n in range(4):
        subtask.commit((1, [{"a": n, "b": "x"}], [("y", 0.5)]), (n + 2, None, None))
    (found,) = pen.read_table(place.path, where={"k": 1}).to_pylist()
    assert found == {"k": 1, "list": [{"a": 3, "b": "x"}], "k.list": [("y", 0.5)]}
    assert pen.read_table(place.path, columns=["k.list"]).num_rows == 5


def test_columns_that_are_never_null_are_so_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_often(monkeypatch)
    schema = pa.schema([pa.field(field.name, field.type, nullable=False) for field in SCHEMA])
    place = Place(tmp_path / "table", "user", schema)
    subtask = place.subtask()
    for n in range(3):
        subtask.commit(("ada", n), (f"user {n}", n))
    found = pen.read_table(place.path)
    assert found.num_rows == 4 and found.schema.equals(schema)


def test_only_the_columns_that_are_wanted_are_returned(tmp_path: Path) -> None:
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1))
    assert pen.read_table(place.path, columns=["n"]).to_pylist() == [{"n": 1}]
    assert pen.read_table(place.path, columns=["n"], where={"user": "ada"}).to_pylist() == [
        {"n": 1}
    ]
    assert pen.read_table(place.path, columns=["n", "user"]).column_names == ["n", "user"]


def test_memory_is_for_the_keys_of_a_transaction_and_not_for_its_rows() -> None:
    """E7: a hundred times as many rows as keys, in large batches and in tiny ones."""
    latest = LatestRows(SCHEMA, ["user"])
    batch = pa.RecordBatch.from_pylist(
        [{"user": f"{n % 50}", "n": n} for n in range(5_000)], SCHEMA
    )
    for _ in range(100):
        latest.add(batch)
        assert latest._rows < KEPT_ROWS_MIN + batch.num_rows
    for n in range(2 * KEPT_BATCHES_MAX):
        latest.add(batch.slice(n, 1))
        assert len(latest._batches) < KEPT_BATCHES_MAX
    assert latest.table().num_rows == 50


def test_one_key_costs_one_part_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: files are sorted by key group, and say in their footers which groups a part has."""
    monkeypatch.setattr(formats, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr("penstock.connectors.tables.files.BATCH_ROWS", 10)
    place = Place(tmp_path / "table")
    place.subtask().commit(*users(range(200), 1))
    (file,) = place.files()
    assert pq.ParquetFile(Path(place.path, file.path)).num_row_groups == 20
    read: list[int] = []
    real = RowsFile._read
    monkeypatch.setattr(RowsFile, "_read", lambda self, at: read.append(at) or real(self, at))
    assert pen.read_table(place.path, where={"user": "user 77"}).num_rows == 1
    assert len(read) <= 2
    read.clear()
    assert pen.read_table(place.path).num_rows == 200
    assert read == list(range(20))


# ---- versions


def test_a_job_that_begins_anew_writes_over_what_it_wrote_before(tmp_path: Path) -> None:
    """E7: checkpoints are counted from one again where there are none, where they are in another directory, or where
    the job has another name. A higher number of the first life must not win for ever."""
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1), ("bob", 1), checkpoint=500)
    for n, job in enumerate(("job", "another"), start=2):
        again = place.subtask(job=job)
        again.commit(("ada", n), checkpoint=1)
        assert place.seen() == {"ada": n, "bob": 1}
        again.commit(("ada", n + 10), checkpoint=2)
        assert place.seen() == {"ada": n + 10, "bob": 1}


def test_what_is_promised_and_not_committed_yet_counts_as_older(tmp_path: Path) -> None:
    """E7, R6: another subtask may be about to commit it when this one opens, also for a job of another name."""
    place = Place(tmp_path / "table")
    promised = place.subtask(1, of=2).prepare(("ada", 1), checkpoint=500)
    heir = place.subtask(0, of=1, attempt=1, job="renamed")
    heir.commit(("ada", 2), checkpoint=1)
    place.subtask(job="renamed").committer.commit(promised)
    assert place.seen() == {"ada": 2}


def test_rows_are_on_the_disk_before_they_are_promised_and_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3, E2, E3: the file with its folder when it is promised, its new name when it is committed or merged."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    synced: list[Path] = []
    real = folder._sync
    monkeypatch.setattr(folder, "_sync", lambda path: synced.append(path) or real(path))
    promised = subtask.prepare(("ada", 2))
    assert isinstance(promised, dict)
    staging = tmp_path / "table/_staging/job"
    assert {staging / str(promised["staged"]), staging} <= set(synced)
    synced.clear()
    subtask.committer.commit(promised)
    merged = [path for path in synced if path.parent == staging]
    assert len(merged) == 1, "the file of the merge"
    assert synced.count(tmp_path / "table/_rows") >= 2, "the commit and the merge"


def test_the_number_of_the_checkpoint_is_in_the_name_of_the_file(tmp_path: Path) -> None:
    place = Place(tmp_path / "table")
    place.subtask(3, of=4, attempt=9).commit(("ada", 1), checkpoint=77)
    (file,) = place.files()
    assert (file.lowest, file.highest, file.index, file.attempt, file.rows) == (77, 77, 3, 9, 1)


def test_a_key_that_moves_to_another_subtask_shows_its_later_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7, R6: the old owner's merged file has newer rows of other keys, and an older one of this key."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    before = place.subtask()
    before.commit(("ada", 1), ("bob", 1))
    first, second = (place.subtask(index, of=2, attempt=2) for index in (0, 1))
    second.commit(("ada", 2), checkpoint=2)
    for checkpoint in range(3, 8):
        first.commit(("bob", checkpoint), checkpoint=checkpoint)
    (merged,) = [file for file in place.live() if file.sources]
    assert merged.lowest == 1 and merged.highest > 2
    assert place.seen() == {"ada": 2, "bob": 7}


# ---- committing again


def test_a_transaction_whose_file_was_merged_and_is_gone_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2, E3, R8: an old checkpoint is restored long after; what it promised is committed again, by anybody."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    promised = [subtask.commit((f"user {n % 3}", n)) for n in range(30)]
    place.now_ms = 1e9
    subtask.commit(("user 0", 30))
    place.now_ms = 2e9
    subtask.commit(("user 0", 31))
    names_there = {file.name for file in place.files()}
    assert not names_there & {each["final"] for each in promised if isinstance(each, dict)}
    before = place.seen()
    heir = place.subtask(attempt=2)
    for transaction in promised:
        heir.committer.commit(transaction)
    assert place.seen() == before


def test_a_transaction_that_was_aborted_is_not_taken_for_a_merged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3, I10: also one between two that were merged."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    lost = subtask.prepare(("ada", 2))
    for n in range(3, 9):
        subtask.commit(("ada", n))
    place.subtask(attempt=2).committer.abort_others([])
    with pytest.raises(CommitError, match="Was the folder cleaned up"):
        place.subtask(attempt=3).committer.commit(lost)


def test_a_transaction_of_another_kind_of_sink_is_refused(tmp_path: Path) -> None:
    committer = Place(tmp_path / "table").subtask().committer
    for strange in (
        {"job": "job", "staged": "../../x", "final": "part-0", "bytes": 1},
        {
            "job": "job",
            "staged": "out-0-1-1-00000000.parquet",
            "final": "../rows-1-1-0-1-1-0000000000000000.parquet",
            "bytes": 1,
            "writer": "w",
            "number": 1,
        },
        "a text",
    ):
        with pytest.raises(CommitError, match="another kind of sink"):
            committer.commit(strange)


# ---- schemas


WIDER = pa.schema([("user", pa.string()), ("extra", pa.float64()), ("n", pa.int64())])


def test_a_column_may_be_added_and_is_null_in_older_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: also if it can never be null in the rows that come, and in files that an older program merges."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    old = place.subtask()
    old.commit(("ada", 1), ("bob", 1))
    schema = WIDER.set(1, pa.field("extra", pa.float64(), nullable=False))
    new = place.subtask(attempt=2, schema=schema)
    new.commit(("ada", 0.5, 2), checkpoint=2)
    old.committer._aside.wanted()
    expected = {"ada": (2, 0.5), "bob": (1, None)}
    assert place.seen() == expected
    assert any(file.sources for file in place.files())
    assert pen.read_table(place.path).schema.names == ["user", "n", "extra"]
    new.commit(("bob", 1.5, 2), checkpoint=3)
    assert place.seen() == {**expected, "bob": (2, 1.5)}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([("user", pa.string())]), "column 'n' is not there any more"),
        (pa.schema([("user", pa.string()), ("n", pa.float64())]), "'n' is DOUBLE, and was BIGINT"),
    ],
)
def test_a_column_that_is_gone_or_changed_is_refused(
    tmp_path: Path, schema: pa.Schema, said: str
) -> None:
    """E7: by the driver before anything runs, and by the workers where they alone see the folder."""
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1))
    sink = pen.UpsertFileSink(place.path, "user")
    sink.check(schema)
    for ask in (sink.check_access, lambda: place.subtask(attempt=2, schema=schema)):
        with pytest.raises(SchemaError, match=f"{said}.*another folder, or delete this one"):
            ask()


# ---- what is refused


def test_a_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1))
    with pytest.raises(ConfigError, match="a table with the key 'user', and the sink has 'n'"):
        Place(tmp_path / "table", "n").sink.check_access()
    (tmp_path / "files/k=1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no table and holds 'k=1'"):
        Place(tmp_path / "files").sink.check_access()
    (tmp_path / "table/_penstock_table.json").unlink()
    with pytest.raises(ConfigError, match="no _penstock_table.json that says what they are"):
        place.subtask(attempt=2)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/_SUCCESS").touch()
    (tmp_path / "hidden/.DS_Store").touch()
    Place(tmp_path / "hidden").subtask().commit(("ada", 1))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pen.UpsertFileSink("out", "user", format="csv"), "format='csv' cannot be"),
        (lambda: pen.UpsertFileSink("out", []), "is no column"),
        (lambda: pen.UpsertFileSink("out", [3]), "is no column"),
        (lambda: pen.UpsertFileSink("out", ["a", "a"]), "has 'a' twice"),
        (lambda: pen.UpsertFileSink("s3://bucket/out?x=1", "a"), "storage_options"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("key", "schema", "said"),
    [
        ("usr", SCHEMA, "did you mean 'user'"),
        ("f", pa.schema([("f", pa.float64())]), "cannot be a key"),
        ("u", pa.schema([("u", pa.int64()), (rows.HIDDEN[0], pa.int64())]), "of its own; rename"),
        ("u", pa.schema([("u", pa.int64()), ("x", pa.month_day_nano_interval())]), "cannot hold"),
    ],
)
def test_rows_that_cannot_be_in_a_table_are_refused_where_the_pipeline_is_written(
    key: str, schema: pa.Schema, said: str
) -> None:
    with pytest.raises(SchemaError, match=f"UpsertFileSink.*{said}"):
        pen.from_rows([], schema).to(pen.UpsertFileSink("out", key))


def test_what_a_reader_gets_wrong_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1))
    with pytest.raises(ConfigError, match="is no table: it has no _penstock_table.json"):
        pen.read_table(str(tmp_path))
    with pytest.raises(SchemaError, match="did you mean 'user'"):
        pen.read_table(place.path, columns=["usr"])
    with pytest.raises(ConfigError, match=r"write \['user'\]"):
        pen.read_table(place.path, columns="user")
    with pytest.raises(SchemaError, match="takes only columns of the key, user"):
        pen.read_table(place.path, where={"n": 1})
    with pytest.raises(SchemaError, match="has 3 for 'user', which is STRING"):
        pen.read_table(place.path, where={"user": 3})


def test_a_damaged_table_says_so(tmp_path: Path) -> None:
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1))
    (file,) = place.files()
    path = Path(place.path, file.path)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    overwritten = whole[:footer] + b"\xff" * 16 + whole[footer + 16 :]
    for damaged in (whole[:-3], overwritten, b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not a whole Parquet file"):
            pen.read_table(place.path)
    path.unlink()
    Path(place.path, TableFile(1, 1, 0, 1, 2, file.id).path).write_bytes(whole)
    with pytest.raises(DataError, match="has 1 rows: it is another file"):
        pen.read_table(place.path)
    marker = tmp_path / "table/_penstock_table.json"
    document = json.loads(marker.read_text())
    document["body"]["key"] = ["n"]
    marker.write_text(json.dumps(document))
    with pytest.raises(DataError, match="does not say what the table is"):
        pen.read_table(place.path)


# ---- names and listings


def test_the_longest_name_is_one_that_disks_take_and_reads_back() -> None:
    sources = tuple(names.new_id() for _ in range(SOURCES_MAX))
    file = TableFile(10**13, 10**13, 32_767, 10**9, 10**12 - 1, names.new_id(), sources)
    assert len(file.name) <= 255
    assert names.parse(file.name) == file


@pytest.mark.parametrize(
    "name",
    ["part-0.parquet", "rows-1-1-0-1-1-0123456789abcdef.parquet.crc", "rows-01-1-0-1-1-", ""],
)
def test_a_strange_file_is_not_taken_for_one_of_the_table(tmp_path: Path, name: str) -> None:
    assert names.parse(name) is None


def test_a_listing_that_missed_a_file_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7, I1: files appear while a folder is listed. One that shows the third transaction of a subtask and not the
    second would be a state that never was."""
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    for n in (1, 2, 3):
        subtask.commit((f"user {n}", n))
    real = LocalFolder.list
    missed = iter([(2, 3), (2,), (2,), ()])

    def partly(self: LocalFolder, folder: str) -> list[str]:
        found = real(self, folder)
        without = next(missed, ())
        return [name for name in found if names.parse(name).highest not in without]  # type: ignore[union-attr]

    monkeypatch.setattr(LocalFolder, "list", partly)
    assert place.seen() == {"user 1": 1}, "the second listing found the third and not the second"
    assert len(place.seen()) == 3, "the first listing did, so the second has it"


# ---- elsewhere


def test_a_table_behind_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7, T1: as a FileSink there: a commit is a copy that appears whole."""
    merge_often(monkeypatch)
    place = Place("memory://tables/out")
    try:
        subtask = place.subtask()
        for n in range(20):
            subtask.commit((f"user {n % 3}", n))
        subtask.close()
        expected = {"user 0": 18, "user 1": 19, "user 2": 17}
        assert place.seen() == expected
        place.subtask(attempt=2).commit(("user 0", 100))
        assert place.seen() == {**expected, "user 0": 100}
        with pytest.raises(ConfigError, match="a table with the key 'user'"):
            Place("memory://tables/out", "n").sink.check_access()
        with pytest.raises(ConfigError, match="is no table and holds 'out'"):
            Place("memory://tables").sink.check_access()
    finally:
        fsspec.filesystem("memory").store.clear()
