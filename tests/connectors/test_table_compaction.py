"""Merging the files of a table: it is right at every moment, whoever does it and wherever it breaks off."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.base import SinkContext
from penstock.connectors.sinks.folder import LocalFolder
from penstock.connectors.tables import compaction, files, merging
from penstock.connectors.tables.compaction import GRACE_MS, Compaction, InThread, due, tier
from penstock.connectors.tables.files import RowsFile
from penstock.connectors.tables.ledger import has, one, united
from penstock.connectors.tables.names import TableFile, new_id
from penstock.connectors.tables.reader import Table
from penstock.connectors.tables.sink import UpsertFileSink
from penstock.errors import DataError
from tests.connectors.table_kit import SCHEMA, Place, merge_often, users

CHANGES = ("create", "seal", "move", "delete")


# ---- few files, few writes


def test_files_stay_few_and_rows_are_written_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: with the logarithm of the table, not with the number of commits."""
    monkeypatch.setattr(compaction, "TIER_ROWS", 4)
    monkeypatch.setattr("penstock.connectors.sinks.folder._sync", lambda path: None)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    written = 0
    real = files.write

    def counted(*arguments: Any) -> tuple[int, int]:
        nonlocal written
        rows, size = real(*arguments)
        written += rows
        return rows, size

    monkeypatch.setattr(files, "write", counted)
    commits = 200
    for n in range(commits):
        subtask.commit(*users(range(3 * n, 3 * n + 3), n), ("the same", n))
    tiers = tier(3 * commits) + 1
    assert len(place.live()) <= 7 * tiers
    assert written <= 4 * commits * (tiers + 1)
    assert len(place.seen()) == 3 * commits + 1


def test_a_small_table_stays_one_of_few_files_however_often_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: rows that were overwritten are gone with the first merge."""
    monkeypatch.setattr("penstock.connectors.sinks.folder._sync", lambda path: None)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    for n in range(100):
        place.now_ms += GRACE_MS / 10
        subtask.commit(("ada", n), ("bob", n))
    assert len(place.live()) <= 8
    assert len(place.files()) <= 8 + 2 * 11, "those of the last minutes are still there"
    assert place.seen() == {"ada": 99, "bob": 99}


def file(rows: int, version: int = 1) -> TableFile:
    return TableFile(version, version, 0, 1, rows, new_id())


def test_files_of_about_the_same_size_are_merged_oldest_first() -> None:
    small = [file(5, version) for version in range(9, 0, -1)]
    large = [file(10_000_000 + n) for n in range(7)]
    assert due([*small[:7], *large]) == []
    assert [each.highest for each in due([*large, *small])] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(due([*large, file(11_000_000)])) == 8
    assert [tier(rows) for rows in (0, 4_095, 4_096, 8 * 4_096, 64 * 4_096)] == [0, 0, 1, 2, 3]


# ---- what readers see meanwhile


def test_superseded_files_stay_for_a_while_and_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: a reader that has listed them reads on."""
    merge_often(monkeypatch, 4)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    for n in range(3):
        subtask.commit((f"user {n}", n))
    table = Table(place.path)
    before = table.look()
    subtask.commit(("user 0", 100))
    assert {each.id for each in before} <= {each.id for each in place.files()}
    assert len(place.live()) == 1
    old = table.read(table.schema, {}, files=before)
    assert sorted(old["n"].to_pylist()) == [0, 1, 2], "the table as it was when it was looked at"
    place.now_ms += GRACE_MS - 1
    subtask.committer._aside.wanted()
    assert len(place.files()) == 5
    place.now_ms += 1
    subtask.committer._aside.wanted()
    assert len(place.files()) == 1
    gone = table.read(table.schema, {}, files=before)
    assert sorted(gone["n"].to_pylist()) == [1, 2, 100], "and as it is, where that is gone"


def test_without_a_clock_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_often(monkeypatch)
    monkeypatch.setattr(compaction, "GRACE_MS", 0.001)
    sink = UpsertFileSink(str(tmp_path / "table"), "user")
    context = SinkContext("job", "out", 0, 1, 1, SCHEMA, lambda _: None)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    subtask.commit(("ada", 2))
    sink.writer(context)
    merging_ = Compaction(LocalFolder(tmp_path / "table"), ("user",), context, "table")
    merging_.step()
    merging_.step()
    assert len(place.files()) == 3


def test_a_reader_that_always_comes_too_late_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "table")
    place.subtask().commit(("ada", 1))

    def gone(self: LocalFolder, name: str) -> Any:
        raise FileNotFoundError(name)

    table = Table(place.path)
    monkeypatch.setattr(LocalFolder, "open", gone)
    with pytest.raises(DataError, match="went away 5 times"):
        table.read(table.schema, {})


def test_readers_beside_a_compaction_see_the_table_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7, I1: before and after each change of the folder there is the same table, also while old files go."""
    merge_often(monkeypatch, 4)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.merges_only_when_told()
    looks: list[str] = []

    def watched(name: str) -> Any:
        real = getattr(LocalFolder, name)

        def change(self: LocalFolder, *arguments: Any) -> Any:
            before = place.seen()
            answer = real(self, *arguments)
            looks.append(name)
            assert place.seen() == before
            return answer

        return change

    for n in range(12):
        place.now_ms += GRACE_MS / 3
        subtask.commit((f"user {n % 3}", n), ("ada", n))
        with monkeypatch.context() as patched:
            for name in CHANGES:
                patched.setattr(LocalFolder, name, watched(name))
            subtask.committer._compaction.step()
    assert set(looks) == set(CHANGES)
    assert len(place.files()) < 12


# ---- breaking off


class Crash(BaseException):
    """The process is gone."""


class CrashingFolder:
    """The process dies at a change of the folder, before it or when it is done."""

    def __init__(self, inside: LocalFolder, at: int, after: bool) -> None:
        self._inside = inside
        self._left = at
        self._after = after
        self.crashed = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inside, name)
        return self._change(real) if name in CHANGES else real

    def _change(self, real: Any) -> Any:
        def change(*arguments: Any) -> Any:
            self._left -= 1
            if self.crashed or (self._left == 0 and not self._after):
                self._crash()
            answer = real(*arguments)
            if self._left == 0:
                self._crash()
            return answer

        return change

    def _crash(self) -> None:
        self.crashed = True
        raise Crash


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_leaves_a_right_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """E7, E2, R1: the next attempt finds it, removes what was staged, and merges on."""
    merge_often(monkeypatch)
    monkeypatch.setattr("penstock.connectors.sinks.folder._sync", lambda path: None)
    at = 0
    while True:
        at += 1
        place = Place(tmp_path / f"{at}")
        subtask = place.subtask()
        subtask.merges_only_when_told()
        for n in range(8):
            subtask.commit((f"user {n % 5}", n), ("ada", n))
        expected = place.seen()
        folder = CrashingFolder(LocalFolder(Path(place.path)), at, after)
        step = subtask.committer._compaction
        step._folder = folder
        try:
            step.step()
            place.now_ms += GRACE_MS
            step.step()
        except Crash:
            assert place.seen() == expected
        heir = place.subtask(attempt=2)
        heir.committer.abort_others([])
        heir.committer._aside.wanted()
        assert place.seen() == expected
        heir.commit(("ada", 100), checkpoint=9)
        assert place.seen() == {**expected, "ada": 100}
        place.now_ms += GRACE_MS
        heir.committer._aside.wanted()
        heir.close()
        assert place.seen() == {**expected, "ada": 100}
        assert place.staged() == []
        if not folder.crashed:
            break
    assert at > 20, "every step of seven merges and the deletions behind them"


def test_a_merge_that_is_stopped_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11, I26: closing does not wait for a large merge to end."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    subtask.committer._compaction.stop()
    subtask.commit(("ada", 2))
    subtask.close()
    assert len(place.files()) == 2 and place.staged() == []
    assert place.seen() == {"ada": 2}


def test_a_copy_that_did_not_end_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7, bug-F16: where a move is a copy, the merged file may be there by halves when the process dies."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    subtask.commit(("bob", 2))
    (merged,) = place.live()
    path = Path(place.path, merged.path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for _ in range(2):
        place.now_ms += GRACE_MS
        subtask.committer._aside.wanted()
    assert len(place.files()) == 3
    path.write_bytes(whole)
    subtask.committer._aside.wanted()
    assert [each.name for each in place.files()] == [merged.name]


def test_a_name_that_may_not_be_durable_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3, E7: the merged file was renamed, and the disk failed before its folder was synced. A power cut must not find
    its sources deleted and its own name gone."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    subtask.merges_only_when_told()
    subtask.commit(("bob", 2))
    step = subtask.committer._compaction.step

    def fail(path: Path) -> None:
        if path.name == "_rows":
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("penstock.connectors.sinks.folder._sync", fail)
        for _ in range(3):
            step()
            place.now_ms += GRACE_MS
        assert len(place.live()) == 1 and len(place.files()) == 3
    step()
    assert len(place.files()) == 1 and place.staged() == []


def test_a_merge_that_cannot_be_shown_leaves_nothing_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I11: or a disk that fails fills up with every commit; and it is told once."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    subtask.merges_only_when_told()
    subtask.commit(("ada", 2))

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalFolder, "move", fail)
    for _ in range(3):
        subtask.committer._compaction.step()
    assert place.staged() == [] and len(place.files()) == 2
    assert caplog.text.count("could not be merged") == 1


def test_a_merge_that_fails_is_told_and_fails_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E3: a disk that is full for merges has rows that are committed; the next commit tries again."""
    merge_often(monkeypatch)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    subtask.commit(("ada", 1))
    real = LocalFolder.create
    monkeypatch.setattr(compaction, "merged", lambda *_: _full_disk())
    with caplog.at_level(logging.WARNING, "penstock"):
        subtask.commit(("ada", 2))
    assert "files could not be merged, for now: OSError" in caplog.text
    assert place.seen() == {"ada": 2} and place.staged() == []
    monkeypatch.undo()
    assert LocalFolder.create is real
    merge_often(monkeypatch)
    subtask.commit(("ada", 3))
    assert len(place.live()) < 3 and place.seen() == {"ada": 3}


def _full_disk() -> Iterator[pa.Table]:
    raise OSError(28, "No space left on device")
    yield


# ---- by anybody, in any order


def test_merging_any_files_in_any_order_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7, R6: rescaled and restarted jobs, workers that were taken for dead, two that merge the same files at once."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    draw = random.Random(seed)
    monkeypatch.setattr("penstock.connectors.sinks.folder._sync", lambda path: None)
    monkeypatch.setattr(merging, "PIECE_ROWS", 3)
    place = Place(tmp_path / "table")
    quiet = place.subtask(attempt=99).committer._compaction
    expected: dict[str, int] = {}
    checkpoint = 0
    for attempt in range(1, 7):
        of = draw.choice((1, 2, 3))
        subtasks = [place.subtask(index, of, attempt) for index in range(of)]
        for each in subtasks:
            each.merges_only_when_told()
        for _ in range(draw.randrange(1, 5)):
            checkpoint += 1
            for index, subtask in enumerate(subtasks):
                keys = [key for key in range(12) if (key * 7 + 1) % of == index]
                rows = [(f"user {key}", draw.randrange(1000)) for key in draw.sample(keys, 3)]
                subtask.commit(*rows, checkpoint=checkpoint)
                expected.update(rows)
            assert place.seen() == expected
            for _ in range(draw.randrange(3)):
                there = place.files()
                quiet._merge(draw.sample(there, min(len(there), draw.randrange(1, 5))))
                assert place.seen() == expected
            for superseded in set(place.files()) - set(place.live()):
                if draw.random() < 0.5:
                    Path(place.path, superseded.path).unlink()
            assert place.seen() == expected


def test_a_large_table_is_merged_and_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: never more than a piece in memory; each part of a file is read once."""
    merge_often(monkeypatch, 3)
    monkeypatch.setattr(merging, "PIECE_ROWS", 50)
    monkeypatch.setattr(files, "BATCH_ROWS", 20)
    monkeypatch.setattr("penstock.connectors.sinks.formats.ROW_GROUP_ROWS", 20)
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    read: list[tuple[str, int]] = []
    pieces: list[int] = []
    real, newest = RowsFile._read, merging.newest

    def counted(parts: Any, keys: Any) -> pa.Table:
        pieces.append(sum(part.num_rows for part in parts))
        return newest(parts, keys)

    monkeypatch.setattr(
        RowsFile, "_read", lambda self, at: read.append((self._name, at)) or real(self, at)
    )
    monkeypatch.setattr(merging, "newest", counted)
    for n in range(3):
        subtask.commit(*users(range(100 * n, 100 * n + 200), n))
    (merged,) = place.live()
    assert merged.rows == 400
    assert len(read) == len(set(read)) == 30
    assert len(pieces) > 10 and max(pieces) < 150
    assert place.seen() == dict(
        users(range(100), 0) + users(range(100, 200), 1) + users(range(200, 400), 2)
    )


def test_a_share_of_the_key_groups_is_read_by_itself(tmp_path: Path) -> None:
    """E7, P5: the shares are all rows, each once."""
    place = Place(tmp_path / "table")
    subtask = place.subtask()
    for n in range(5):
        subtask.commit(*users(range(n * 10, n * 10 + 30), n))
    table = Table(place.path)
    edges = [0, 100, 1_000, 1_001, 4_000, 4_096]
    shares = [table.read(table.schema, {}, range(start, end)) for start, end in pairwise(edges)]
    assert sum(1 for share in shares if share.num_rows) >= 3
    whole = pa.concat_tables(shares)
    assert sorted(whole["user"].to_pylist()) == sorted(place.seen())


# ---- the ledger


def test_a_ledger_has_what_was_noted_and_nothing_else() -> None:
    noted = united([one("a", 1), one("b", 7), one("a", 2), one("a", 4), one("b", 6)])
    assert noted == {"a": [(1, 2), (4, 4)], "b": [(6, 7)]}
    assert [n for n in range(9) if has(noted, "a", n)] == [1, 2, 4]
    assert not has(noted, "c", 1)
    assert united([noted, one("a", 3)])["a"] == [(1, 4)]


def test_a_ledger_forgets_the_oldest_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.connectors.tables.ledger.WRITERS_MAX", 2)
    assert list(united([one("a", 1), one("b", 1), one("a", 2), one("c", 1)])) == ["a", "c"]


# ---- beside the commits


def test_commits_do_not_wait_for_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: it has a thread of its own, one at a time, and closing waits for it."""
    merge_often(monkeypatch)
    begun, go_on = threading.Event(), threading.Event()
    real = merging.merged

    def held(*arguments: Any) -> Iterator[pa.Table]:
        begun.set()
        assert go_on.wait(60)
        yield from real(*arguments)

    monkeypatch.setattr(compaction, "merged", held)
    place = Place(tmp_path / "table", kind=UpsertFileSink)
    subtask = place.subtask()
    for n in range(5):
        subtask.commit(("ada", n))
    assert begun.wait(60)
    assert place.seen() == {"ada": 4} and not any(each.sources for each in place.files())
    aside = subtask.committer._aside
    assert isinstance(aside, InThread) and aside._thread is not None
    go_on.set()
    aside._thread.join(60)
    subtask.close()
    assert place.seen() == {"ada": 4} and len(place.live()) == 1
    assert place.staged() == []
    assert pen.read_table(place.path, columns=["n"]).num_rows == 1
