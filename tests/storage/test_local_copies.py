"""Second copies: what is read is what was written, whatever becomes of a copy, and no disk of theirs fails anybody."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CheckpointCorrupt, StorageError
from penstock.storage.local import LocalStore
from penstock.storage.local_copies import CopiedStore, LocalCopies
from penstock.storage.memory import MemoryStore
from tests.storage.small_disk import small_disk

NAME, OTHER = "chk-1/0-1", "shared/1-0-1-state"


class Failing(MemoryStore):
    """Every operation of these names raises."""

    def __init__(self, *fails: str) -> None:
        super().__init__()
        self.fails = set(fails)

    def _maybe(self, what: str) -> None:
        if what in self.fails:
            raise StorageError(f"simulated: {what}")

    def begin(self, name: str) -> Any:
        self._maybe("begin")
        inner = super().begin(name)
        outer = self

        class Writing:
            def write(self, chunk: bytes | memoryview) -> None:
                outer._maybe("write")
                inner.write(chunk)

            def finish(self) -> int:
                outer._maybe("finish")
                return inner.finish()

            def discard(self) -> None:
                inner.discard()

        return Writing()

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._maybe("read")
        return super().read(name, offset, length)

    def list(self, prefix: str = "") -> list[str]:
        self._maybe("list")
        return super().list(prefix)

    def delete(self, name: str) -> None:
        self._maybe("delete")
        super().delete(name)


def put(store: CopiedStore, name: str, *pieces: bytes) -> None:
    file = store.begin(name)
    for piece in pieces:
        file.write(piece)
    assert file.finish() == sum(map(len, pieces))


def both() -> tuple[MemoryStore, MemoryStore, CopiedStore]:
    primary, disk = MemoryStore(), MemoryStore()
    return primary, disk, CopiedStore(primary, LocalCopies(disk))


def test_a_file_and_its_copy_are_the_same_and_the_copy_is_read() -> None:
    """R4."""
    primary, disk, store = both()
    put(store, NAME, b"abc", b"def")
    assert primary.read(NAME) == disk.read(NAME) == b"abcdef"
    primary.delete(NAME)
    assert store.read(NAME, 2, 3, lambda data: data == b"cde") == b"cde"
    assert (store.local_bytes, store.primary_bytes, store.copies_lost) == (3, 0, 0)


def test_without_copies_everything_is_the_stores_own() -> None:
    primary = MemoryStore()
    store = CopiedStore(primary)
    put(store, NAME, b"abc")
    assert store.read(NAME, 0, 3, lambda data: False) == b"abc", (
        "the caller judges what the store has"
    )
    assert (store.local_bytes, store.primary_bytes, store.copies_lost) == (0, 3, None)


@given(
    data=st.binary(min_size=1, max_size=60),
    becomes=st.none() | st.binary(max_size=60),
    reads=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=6),
)
def test_whatever_becomes_of_a_copy_what_is_read_is_what_was_written(
    data: bytes, becomes: bytes | None, reads: list[tuple[int, int]]
) -> None:
    """R4, bug-E8, I23: missing, short, longer, other bytes; and what is not right is thrown away."""
    primary, disk, store = both()
    put(store, NAME, data)
    if becomes is None:
        disk.delete(NAME)
    else:
        disk.write(NAME, [becomes])
    for first, second in reads:
        at, end = sorted((min(first, len(data)), min(second, len(data))))
        wanted = data[at:end]
        was_right = NAME in disk.list() and (becomes or b"")[at:end] == wanted
        was_right = was_right and end <= len(becomes or b"")
        assert (
            store.read(NAME, at, end - at, lambda found, wanted=wanted: found == wanted) == wanted
        )
        assert (NAME in disk.list()) == was_right
    assert primary.read(NAME) == data


def test_there_is_no_copy_before_the_file_itself_is_there() -> None:
    """R4: a copy of something that does not exist would be believed when the name is used."""
    disk = MemoryStore()

    class Watched(Failing):
        def begin(self, name: str) -> Any:
            file = super().begin(name)
            inside = file.finish

            def finish() -> int:
                assert disk.list() == []
                return int(inside())

            file.finish = finish
            return file

    store = CopiedStore(Watched(), LocalCopies(disk))
    put(store, NAME, b"abc")
    assert disk.list() == [NAME]


def test_of_a_file_that_is_not_written_there_is_no_copy() -> None:
    """R4: whether the store fails or the snapshot is given up."""
    for fails in ("write", "finish"):
        disk = MemoryStore()
        store = CopiedStore(Failing(fails), LocalCopies(disk))
        file = store.begin(NAME)
        with pytest.raises(StorageError, match=fails):
            file.write(b"abc")
            file.finish()
        file.discard()
        assert disk.list() == []


@pytest.mark.parametrize("fails", ["begin", "write", "finish"])
def test_a_copy_that_cannot_be_written_costs_the_copy_alone(
    caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    """R4: said once and counted each time."""
    primary, disk = MemoryStore(), Failing(fails)
    store = CopiedStore(primary, LocalCopies(disk))
    with caplog.at_level(logging.WARNING):
        put(store, NAME, b"abc", b"def")
        put(store, OTHER, b"xyz")
    assert (primary.read(NAME), primary.read(OTHER), disk.list()) == (b"abcdef", b"xyz", [])
    assert store.copies_lost == 2
    assert len(caplog.records) == 1 and f"simulated: {fails}" in caplog.text
    assert store.read(NAME, 0, 3, lambda data: True) == b"abc"
    assert store.primary_bytes == 3


def test_a_disk_that_neither_reads_nor_deletes_nor_lists_is_done_without() -> None:
    """R4."""
    primary, disk = MemoryStore(), Failing()
    copies = LocalCopies(disk)
    store = CopiedStore(primary, copies)
    put(store, NAME, b"abc")
    disk.fails = {"read", "delete", "list"}
    assert store.read(NAME, 0, 3, lambda data: True) == b"abc"
    copies.delete(NAME)
    assert copies.list() == []


def test_a_damaged_copy_is_counted_and_an_error_of_the_store_is_the_stores() -> None:
    """R4, I24."""
    primary, disk, store = both()
    put(store, NAME, b"abc")
    disk.write(NAME, [b"abx"])
    primary.delete(NAME)
    with pytest.raises(CheckpointCorrupt):
        store.read(NAME, 0, 3, lambda data: data == b"abc")
    assert (store.copies_lost, disk.list()) == (1, [])
    assert CopiedStore(primary, store._copies).copies_lost == 0, "each attempt counts its own"


def test_a_full_disk_is_noticed_in_the_middle_of_a_copy(tmp_path: Path) -> None:
    """R4: nothing of the copy stays."""
    disk = LocalStore(str(tmp_path), durable=False)
    primary = MemoryStore()
    store = CopiedStore(primary, LocalCopies(disk))
    with small_disk(100_000):
        put(store, NAME, bytes(90_000), bytes(90_000))
    assert len(primary.read(NAME)) == 180_000
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    put(store, OTHER, bytes(1_000))
    assert store.copies_lost == 1 and disk.list() == [OTHER]
