"""The commit protocol of the file sink: once, whatever happened before, and nobody else's files."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.connectors.base import SinkCommitter, SinkContext, SinkWriter
from penstock.connectors.sinks import FileSink, folder
from penstock.connectors.sinks.folder import LocalFolder, RemoteFolder
from penstock.engine.operators.connect import SinkOperator
from penstock.engine.worker.committing import Commits
from penstock.errors import CommitError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import Plain
from tests.engine.kit import HeldBackground, ManualClock
from tests.storage.small_disk import small_disk

SCHEMA = pa.schema([("id", pa.int64())])


def context(
    job: str = "job", operator: str = "out", index: int = 0, attempt: int = 1
) -> SinkContext:
    return SinkContext(job, operator, index, 1, attempt, SCHEMA, lambda item: None)


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids)}, schema=SCHEMA)


def promised(writer: SinkWriter, *ids: int) -> dict[str, Plain]:
    """A transaction that a completed checkpoint holds."""
    writer.write(rows(*ids))
    seal = writer.prepare(1)
    assert callable(seal)
    transaction = seal()
    assert isinstance(transaction, dict)
    return transaction


class Place:
    """A folder behind one kind of file system, and what a reader and a janitor see in it."""

    def __init__(self, path: str, kind: type[Any]) -> None:
        self.sink = FileSink(path)
        self.kind = kind
        self._fs, self._root = fsspec.core.url_to_fs(path)

    def committer(self, **who: Any) -> SinkCommitter:
        """As another process has it."""
        sink: FileSink = pickle.loads(pickle.dumps(self.sink))
        return sink.committer(context(**who))

    def seen(self) -> list[int]:
        files = [name for name in self._fs.find(self._root) if "/_staging/" not in name]
        tables = [pq.read_table(self._fs.open(name, "rb")) for name in files]
        return sorted(number for table in tables for number in table["id"].to_pylist())

    def staged(self) -> list[str]:
        found = self._fs.find(f"{self._root}/_staging")
        return sorted(name.rpartition("/")[2] for name in found)


@pytest.fixture(params=["local", "remote"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        yield Place(str(tmp_path / "out"), LocalFolder)
        return
    yield Place("memory://commits/out", RemoteFolder)
    fsspec.filesystem("memory").store.clear()


def broken_once(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], method: str, around: Callable[..., None]
) -> None:
    """Calls `around` with the real method instead of the method, the first time."""
    real = getattr(owner, method)
    calls = iter([around])

    def instead(self: Any, *arguments: Any) -> Any:
        broken = next(calls, None)
        return real(self, *arguments) if broken is None else broken(real, self, *arguments)

    monkeypatch.setattr(owner, method, instead)


def test_a_commit_may_be_repeated_any_number_of_times(place: Place) -> None:
    """E2, I10: by the same process and by others, of this attempt and of later ones."""
    transaction = promised(place.sink.writer(context()), 1, 2)
    for attempt in (1, 1, 2, 3):
        place.committer(attempt=attempt).commit(transaction)
        assert place.seen() == [1, 2]
    assert place.staged() == []


def test_a_commit_whose_answer_was_lost_is_repeated_and_right(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3, I10, bug-F8: the move happened, and nobody was told."""
    transaction = promised(place.sink.writer(context()), 1)

    def move_and_lose(real: Any, *arguments: Any) -> None:
        real(*arguments)
        raise TimeoutError("no answer")

    broken_once(monkeypatch, place.kind, "move", move_and_lose)
    committer = place.committer()
    with pytest.raises(TimeoutError):
        committer.commit(transaction)
    committer.commit(transaction)
    assert place.seen() == [1]
    assert place.staged() == []


def test_a_commit_that_never_happened_is_repeated_and_right(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3, bug-F8: the same answer, the other truth."""
    transaction = promised(place.sink.writer(context()), 1)

    def lose(*_: Any) -> None:
        raise TimeoutError("no answer")

    broken_once(monkeypatch, place.kind, "move", lose)
    committer = place.committer()
    with pytest.raises(TimeoutError):
        committer.commit(transaction)
    assert place.seen() == []
    committer.commit(transaction)
    assert place.seen() == [1]


def test_the_engine_repeats_a_commit_whose_answer_was_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: after a pause, without a restart."""
    operator = SinkOperator(place.sink)
    operator._writer = place.sink.writer(context())
    operator._committer = place.committer()
    operator._writer.write(rows(1))
    operator.freeze(SnapshotOrder(CheckpointId(1)))

    def move_and_lose(real: Any, *arguments: Any) -> None:
        real(*arguments)
        raise TimeoutError("no answer")

    broken_once(monkeypatch, place.kind, "move", move_and_lose)
    background, clock = HeldBackground(), ManualClock()
    commits = Commits([("out", operator)], background, clock, lambda _: None)
    commits.wanted(CheckpointId(1))
    background.poll()
    assert commits.committed == 0
    clock.now_ms = commits.wake_ms() or 0.0
    commits.step()
    background.poll()
    commits.step()
    assert commits.committed == 1
    assert commits.failure is None
    assert place.seen() == [1]


def test_two_that_commit_the_same_at_once_make_it_visible_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bug-F13, bug-F20: a worker that was taken for dead moves the file right before its successor does."""
    transaction = promised(place.sink.writer(context()), 1)

    def overtaken(real: Any, *arguments: Any) -> None:
        real(*arguments)
        real(*arguments)

    broken_once(monkeypatch, place.kind, "move", overtaken)
    place.committer(attempt=2).commit(transaction)
    assert place.seen() == [1]
    assert place.staged() == []


def test_a_copy_that_did_not_end_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """bug-F16: where a move is a copy, and the store shows the half of it."""
    place = Place("memory://commits/half", RemoteFolder)
    transaction = promised(place.sink.writer(context()), 1)
    place._fs.pipe(f"{place._root}/{transaction['final']}", b"PAR1")
    place.committer().commit(transaction)
    assert place.seen() == [1]
    fsspec.filesystem("memory").store.clear()


def test_a_copy_whose_original_was_not_removed_is_tidied_up(place: Place) -> None:
    """I11: the crash came between the copy and the removal."""
    transaction = promised(place.sink.writer(context()), 1)
    staged = f"{place._root}/_staging/job/{transaction['staged']}"
    place._fs.copy(staged, f"{place._root}/{transaction['final']}")
    place.committer().commit(transaction)
    assert place.seen() == [1]
    assert place.staged() == []


def test_a_repeated_commit_makes_the_name_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: the first one renamed the file, and the disk failed before the folder was synced. A commit that just finds
    the file would let a power cut undo a rename that everybody relies on."""
    place = Place(str(tmp_path), LocalFolder)
    transaction = promised(place.sink.writer(context()), 1)
    synced: list[Path] = []

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(folder, "_sync", fail)
    with pytest.raises(OSError, match="Input/output"):
        place.committer().commit(transaction)
    assert place.seen() == [1], "it is renamed, but perhaps not for ever"
    monkeypatch.setattr(folder, "_sync", synced.append)
    place.committer(attempt=2).commit(transaction)
    assert tmp_path in synced


def test_what_was_promised_is_committed_by_the_next_attempt_and_the_rest_is_gone(
    place: Place,
) -> None:
    """E2, R1, bug-F2: restored from a checkpoint that holds one transaction; another was prepared behind it."""
    writer = place.sink.writer(context())
    kept = promised(writer, 1)
    promised(writer, 2)
    committer = place.committer(attempt=2)
    committer.commit(kept)
    committer.abort_others([kept])
    assert place.seen() == [1]
    assert place.staged() == []


def test_what_was_promised_and_not_yet_committed_is_not_aborted(place: Place) -> None:
    """E2, I10: another subtask may be the one that commits it."""
    kept = promised(place.sink.writer(context()), 1)
    place.committer(attempt=2).abort_others([kept])
    place.committer(attempt=2).commit(kept)
    assert place.seen() == [1]


OTHERS = {
    "another job": {"job": "other"},
    "a job whose name begins the same": {"job": "job-2"},
    "a job whose name is the beginning": {"job": "jo"},
    "another sink of this job": {"operator": "out2"},
    "a sink whose name ends with a number": {"operator": "out-0"},
    "a sink whose name is the end": {"operator": "ut"},
    "a later attempt": {"attempt": 5},
    "the same attempt": {"attempt": 2},
}


@pytest.mark.parametrize("who", OTHERS)
def test_aborting_leaves_the_files_of_others_alone(place: Place, who: str) -> None:
    """E2, I11, bug-F4: of another job, another sink, an attempt that is not over."""
    theirs = promised(place.sink.writer(context(**OTHERS[who])), 7)
    promised(place.sink.writer(context()), 1)
    place.committer(attempt=2).abort_others([])
    assert place.staged() == [theirs["staged"]]
    place.committer(**OTHERS[who]).commit(theirs)
    assert place.seen() == [7]


def test_aborting_leaves_files_alone_that_no_sink_has_staged(tmp_path: Path) -> None:
    """I11: only names that a sink can have written are deleted."""
    place = Place(str(tmp_path), LocalFolder)
    promised(place.sink.writer(context()), 1)
    strangers = ["notes.txt", "out-0-1.parquet", "out-0-1-1-XYZ.parquet", "out-0-1-1-0123abcd"]
    for name in strangers:
        (tmp_path / "_staging/job" / name).write_text("mine")
    place.committer(attempt=2).abort_others([])
    assert place.staged() == sorted(strangers)


def test_after_a_rescale_every_leftover_has_one_subtask_that_aborts_it(tmp_path: Path) -> None:
    """E2, R6, bug-F2: four subtasks left files, two go on; each takes its own share and no other."""
    place = Place(str(tmp_path), LocalFolder)
    for index in range(4):
        promised(place.sink.writer(context(index=index)), index)
    after = [
        place.sink.committer(SinkContext("job", "out", index, 2, 2, SCHEMA, lambda item: None))
        for index in range(2)
    ]
    after[0].abort_others([])
    assert [name.split("-")[1] for name in place.staged()] == ["1", "3"]
    after[1].abort_others([])
    assert place.staged() == []


def test_a_promise_of_another_job_is_kept_where_it_was_made(place: Place) -> None:
    """E2, bug-F14: restored under another name, the job commits what the old one had staged, once."""
    kept = promised(place.sink.writer(context(job="old")), 1)
    committer = place.committer(job="new", attempt=1)
    for _ in range(2):
        committer.commit(kept)
        committer.abort_others([kept])
    assert place.seen() == [1]


def test_a_staged_file_that_was_changed_is_refused_and_stays(place: Place) -> None:
    """E3, bug-F8, bug-H6: the job fails rather than skip it or show the wrong rows, however often it is tried."""
    transaction = promised(place.sink.writer(context()), 1)
    staged = f"{place._root}/_staging/job/{transaction['staged']}"
    place._fs.pipe(staged, b"changed")
    for attempt in (1, 2):
        with pytest.raises(CommitError, match="has 7 bytes instead of"):
            place.committer(attempt=attempt).commit(transaction)
    assert place.staged() == [transaction["staged"]]


def test_every_new_folder_is_durable_in_its_parent_before_rows_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3, E2: a power cut that takes a folder away takes the synced file in it along."""
    synced: list[str] = []
    real = folder._sync

    def sync(path: Path) -> None:
        synced.append(path.relative_to(tmp_path).as_posix())
        real(path)

    monkeypatch.setattr(folder, "_sync", sync)
    sink = FileSink(str(tmp_path / "deep/out"))
    sink.check_access()
    assert set(synced) == {".", "deep"}
    synced.clear()
    writer = sink.writer(context())
    writer.write(rows(1))
    assert set(synced) == {"deep/out", "deep/out/_staging"}
    synced.clear()
    seal = writer.prepare(1)
    assert callable(seal)
    seal()
    assert synced[-1] == "deep/out/_staging/job"


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_rows_that_a_full_disk_cut_short_are_an_error(tmp_path: Path, kind: str) -> None:
    """C3, bug-F7: the disk takes the first part of them; what is promised must be all."""
    writer = FileSink(str(tmp_path), kind).writer(context())
    with small_disk(100_001), pytest.raises(OSError, match="File too large"):
        for start in range(0, 400_000, 1_000):
            writer.write(rows(*range(start * 7_919, (start + 1_000) * 7_919, 7_919)))
        writer.prepare(1)
    writer.close()
    assert list(tmp_path.iterdir()) == [], "and nothing stays"


def test_rows_that_the_store_cut_short_are_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3, bug-F7, bug-H6: it answered as if all were well, and has fewer bytes than were written."""
    writer = place.sink.writer(context())
    writer.write(rows(1))
    seal = writer.prepare(1)
    assert callable(seal)
    (staged,) = place.staged()
    path = f"{place._root}/_staging/job/{staged}"
    whole = place._fs.cat_file(path)
    place._fs.pipe_file(path, whole[:-1])
    with pytest.raises(OSError, match=f"{len(whole)} bytes were written and {len(whole) - 1} are"):
        seal()


EIO = OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("ask", "local", "remote"),
    [
        (lambda folder: folder.size("a"), (Path, "stat"), "info"),
        (lambda folder: folder.list("_staging"), (os, "scandir"), "ls"),
        (lambda folder: folder.delete("a"), (Path, "unlink"), "rm_file"),
    ],
)
def test_what_a_folder_could_not_tell_or_do_is_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, ask: Any, local: tuple[Any, str], remote: str
) -> None:
    """E3, I11: a disk that fails for a moment has neither lost a transaction nor removed one."""

    def fail(*_: Any, **__: Any) -> None:
        raise EIO

    made = place.sink._folder()
    assert isinstance(made, place.kind)
    assert not ask(made), "one that is not there is none"
    owner, name = local if place.kind is LocalFolder else (MemoryFileSystem, remote)
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(OSError, match="Input/output error"):
        ask(made)


def test_a_file_that_is_gone_before_it_was_sealed_is_not_promised(place: Place) -> None:
    """C3, bug-F7."""
    writer = place.sink.writer(context())
    writer.write(rows(1))
    seal = writer.prepare(1)
    assert callable(seal)
    place._fs.rm_file(f"{place._root}/_staging/job/{place.staged()[0]}")
    with pytest.raises(FileNotFoundError):
        seal()


def test_folders_in_a_folder_are_not_listed_as_files(place: Place) -> None:
    made = place.sink._folder()
    place._fs.makedirs(f"{place._root}/_staging/job/deep")
    place._fs.pipe_file(f"{place._root}/_staging/job/a", b"x")
    assert made.list("_staging/job") == ["a"]


def test_a_file_whose_folders_cannot_be_made_durable_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I26, C3: and nothing is written into it."""
    opened: list[Any] = []
    real = pa.OSFile

    def noting(*arguments: Any) -> Any:
        opened.append(real(*arguments))
        return opened[-1]

    def fail(path: Path) -> None:
        raise EIO

    made = LocalFolder(tmp_path)
    monkeypatch.setattr(folder.pa, "OSFile", noting)
    monkeypatch.setattr(folder, "_sync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        made.create("_staging/job/a")
    assert [handle.closed for handle in opened] == [True]


def test_a_commit_is_one_rename_of_a_durable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3, E2: the rows are on the disk before the checkpoint counts, the name is before the commit does."""
    steps: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def sync(handle: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).relative_to(tmp_path)}")
        real_sync(handle)

    def rename(self: Path, target: Path) -> Path:
        steps.append("rename")
        return real_rename(self, target)

    writer = FileSink(str(tmp_path)).writer(context())
    writer.write(rows(1))
    seal = writer.prepare(1)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    assert callable(seal)
    transaction: Any = seal()
    assert steps == [f"sync _staging/job/{transaction['staged']}", "sync _staging/job"]
    FileSink(str(tmp_path)).committer(context()).commit(transaction)
    assert steps[2:] == ["rename", "sync .", "sync _staging/job"]
