"""What every checkpoint store must do. A new store only has to be added to `STORES`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import fsspec
import pytest

from penstock.errors import CheckpointCorrupt, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import AttemptId
from penstock.storage.filesystem import FilesystemStore
from penstock.storage.memory import MemoryStore
from penstock.wire import paths, records

STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "memory": lambda _: MemoryStore(),
    "local": lambda folder: FilesystemStore(str(folder / "job")),
    "file-url": lambda folder: FilesystemStore(f"file://{folder}/job"),
    "fsspec": lambda _: FilesystemStore(f"memory://{uuid4().hex}/job"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    yield STORES[request.param](tmp_path)
    fsspec.filesystem("memory").store.clear()


def test_what_was_written_is_read_back(store: CheckpointStore) -> None:
    """T1: chunks of bytes and of views become one file."""
    size = store.write("chk-1/0-1", [b"ab", memoryview(b"cdef")[1:3], b""])
    assert size == 4
    assert store.read("chk-1/0-1") == b"abde"


def test_an_empty_file_is_a_file(store: CheckpointStore) -> None:
    assert store.write("chk-1/0-1", []) == 0
    assert store.read("chk-1/0-1") == b""
    assert store.list() == ["chk-1/0-1"]


def test_any_range_of_a_file_can_be_read(store: CheckpointStore) -> None:
    store.write("shared/a", [b"0123456789"])
    assert store.read("shared/a", 3, 4) == b"3456"
    assert store.read("shared/a", 7) == b"789"
    assert store.read("shared/a", 10) == b""
    assert store.read("shared/a", 10, 0) == b""


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (8, 3), (11, 0), (11, None), (5, 1 << 60)])
def test_reading_beyond_the_end_says_that_the_file_is_damaged(
    store: CheckpointStore, offset: int, length: int | None
) -> None:
    """I24: a file that was cut off is never taken for a whole one (bug-E6, bug-H6)."""
    store.write("shared/a", [b"0123456789"])
    with pytest.raises(CheckpointCorrupt, match=r"shared/a has 10 bytes and should have \d+"):
        store.read("shared/a", offset, length)


def test_a_missing_file_is_reported_by_name(store: CheckpointStore) -> None:
    """I24: the loss of a file is a typed error."""
    store.write("chk-1/0-1", [b"x"])
    for name in ("chk-1/1-1", "chk-2/0-1", "chk-1"):
        with pytest.raises(CheckpointCorrupt, match=name):
            store.read(name)


def test_a_second_write_replaces_the_first(store: CheckpointStore) -> None:
    store.write("shared/a", [b"long content"])
    store.write("shared/a", [b"short"])
    assert store.read("shared/a") == b"short"


def test_create_leaves_an_existing_file_alone(store: CheckpointStore) -> None:
    assert store.create("owner/0000000001", b"first") is True
    assert store.create("owner/0000000001", b"second") is False
    assert store.read("owner/0000000001") == b"first"
    store.delete("owner/0000000001")
    assert store.create("owner/0000000001", b"third") is True


def test_one_of_eight_racing_drivers_wins_and_the_file_is_always_whole(
    store: CheckpointStore,
) -> None:
    """bug-H3, I18: 8 threads claim the same attempts while another one reads them all the time."""
    rounds, writers = 12, 8
    start = Barrier(writers)

    def claim(driver: int) -> list[bool]:
        wins = []
        for number in range(rounds):
            record = records.OwnerRecord(AttemptId(number), f"driver-{driver}" * 500)
            data = records.encode_owner(record)
            start.wait(180)
            wins.append(store.create(paths.owner(AttemptId(number)), data))
            name = paths.owner(AttemptId(number))
            assert records.decode_owner(store.read(name), name).attempt == number
        return wins

    with ThreadPoolExecutor(writers) as pool:
        wins = list(pool.map(claim, range(writers)))
    assert [sum(column) for column in zip(*wins)] == [1] * rounds
    assert store.list() == [paths.owner(AttemptId(number)) for number in range(rounds)]


def test_eight_writers_of_one_name_never_mix(store: CheckpointStore) -> None:
    """bug-H3: whoever reads sees one writer's file, whole."""
    start = Barrier(8)

    def write(letter: int) -> None:
        start.wait(180)
        for _ in range(5):
            store.write("shared/a", [bytes([letter]) * 5000] * 4)
            found = store.read("shared/a")
            assert len(found) == 20000
            assert len(set(found)) == 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(65, 73)))
    assert store.list() == ["shared/a"]


def test_list_is_sorted_and_goes_to_the_bottom(store: CheckpointStore) -> None:
    names = ["chk-1/0-1", "chk-1/_metadata", "chk-10/0-1", "job.json", "taskowned/a/b/c"]
    for name in reversed(names):
        store.write(name, [b"x"])
    assert store.list() == names
    assert store.list("chk-1") == store.list("chk-1/") == names[:2]
    assert store.list("taskowned/a") == ["taskowned/a/b/c"]
    assert store.list("chk-2") == []


def test_a_new_store_is_empty(store: CheckpointStore) -> None:
    assert store.list() == []


def test_delete_removes_one_file_and_is_no_error_when_it_is_gone(store: CheckpointStore) -> None:
    store.write("chk-1/0-1", [b"x"])
    store.write("chk-1/1-1", [b"x"])
    store.delete("chk-1/0-1")
    store.delete("chk-1/0-1")
    store.delete("chk-7/never")
    assert store.list() == ["chk-1/1-1"]


def test_a_deleted_folder_can_be_written_again_while_others_delete(store: CheckpointStore) -> None:
    """A folder that is pruned at the moment of a write is made again."""

    def work(slot: int) -> None:
        for _ in range(15):
            store.write(f"chk-1/{slot}-1", [b"x"])
            assert store.read(f"chk-1/{slot}-1") == b"x"
            store.delete(f"chk-1/{slot}-1")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.list() == []


@pytest.mark.parametrize(
    "name",
    ["", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/.", "./a", "a\\..\\b", "a\0b", "a/\n",
     "a/", "shared/.tmp-1", "x" * 1001],
)  # fmt: skip
def test_a_name_that_could_lead_elsewhere_is_refused(store: CheckpointStore, name: str) -> None:
    for act in (
        lambda: store.write(name, [b"x"]),
        lambda: store.begin(name),
        lambda: store.create(name, b"x"),
        lambda: store.read(name),
        lambda: store.list(f"{name}/.."),
    ):
        with pytest.raises(StorageError, match="is not a storage name"):
            act()


def test_deleting_a_name_that_could_lead_elsewhere_is_refused(store: CheckpointStore) -> None:
    for name in ("", "../x", "/x", "a/../b"):
        with pytest.raises(StorageError, match="is not a storage name"):
            store.delete(name)


def test_negative_ranges_are_refused(store: CheckpointStore) -> None:
    store.write("shared/a", [b"0123456789"])
    for offset, length in ((-1, None), (0, -1)):
        with pytest.raises(StorageError, match="must be >= 0"):
            store.read("shared/a", offset, length)


def test_chunks_that_fail_leave_nothing_behind(store: CheckpointStore) -> None:
    """bug-D6: a writer that raises halfway leaves no file, not even a temporary one."""

    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("encoding failed")

    store.write("chk-1/0-1", [b"old"])
    with pytest.raises(RuntimeError, match="encoding failed"):
        store.write("chk-1/0-1", chunks())
    assert store.read("chk-1/0-1") == b"old"
    assert store.list() == ["chk-1/0-1"]
    if isinstance(store, FilesystemStore):
        assert store.leftovers(older_than_s=-60) == []


def test_a_file_that_is_made_piece_by_piece_is_there_when_it_is_finished(
    store: CheckpointStore,
) -> None:
    """T1, S4: two at once, and nothing of either before."""
    store.write("shared/a", [b"old"])
    one, two = store.begin("shared/a"), store.begin("shared/b")
    for piece in (b"12", memoryview(b"345")[:2], b""):
        one.write(piece)
        two.write(piece)
    assert store.read("shared/a") == b"old"
    assert store.list() == ["shared/a"]
    assert (one.finish(), two.finish()) == (4, 4)
    assert store.read("shared/a") == store.read("shared/b") == b"1234"
    one.discard()
    assert store.list() == ["shared/a", "shared/b"], "it is too late to give it up"


def test_a_file_that_is_given_up_half_way_leaves_nothing_behind(store: CheckpointStore) -> None:
    """C4, bug-D6."""
    store.write("chk-1/0-1", [b"old"])
    for name in ("chk-1/0-1", "chk-2/0-1"):
        begun = store.begin(name)
        begun.write(b"half")
        begun.discard()
        begun.discard()
    assert store.read("chk-1/0-1") == b"old"
    assert store.list() == ["chk-1/0-1"]
    if isinstance(store, FilesystemStore):
        assert store.leftovers(older_than_s=-60) == []


def test_the_process_works_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = FilesystemStore("relative/chk")
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    store.write("shared/a", [b"x"])
    assert (tmp_path / "relative/chk/shared/a").read_bytes() == b"x"
