"""What a store behind a URL must do beyond the conformance suite: what is there now, and no
failure that looks like an answer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from penstock.engine.checkpoints.ownership import Ownership
from penstock.errors import CheckpointCorrupt, JobFenced, StorageError
from penstock.protocol.ids import AttemptId
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import paths, records
from tests.storage.listings import remembered_listings

OTHERS = (PermissionError("not yours"), OSError(5, "Input/output error"), TimeoutError("no answer"))
URL, PLACE = "memory://bucket/chk/job", "/bucket/chk/job"


@pytest.fixture
def elsewhere() -> Iterator[MemoryFileSystem]:
    """The same store as another process sees it."""
    with remembered_listings() as other:
        yield other


def test_what_another_process_wrote_is_listed(elsewhere: MemoryFileSystem) -> None:
    """R5, I7: fsspec answers from what it has listed before, unless it is told to forget that."""
    store = FilesystemStore(URL)
    store.write("chk-1/_metadata", [b"x"])
    assert store.list() == ["chk-1/_metadata"]
    elsewhere.pipe_file(f"{PLACE}/chk-2/_metadata", b"x")
    elsewhere.pipe_file(f"{PLACE}/chk-1/0-1", b"x")
    elsewhere.rm_file(f"{PLACE}/chk-1/_metadata")
    assert store.list() == ["chk-1/0-1", "chk-2/_metadata"]
    assert store.list("chk-2") == ["chk-2/_metadata"]


def test_a_newer_owner_is_noticed(elsewhere: MemoryFileSystem) -> None:
    """R5, I18, bug-E15: with the listing of a moment ago two drivers would own one job."""
    old = Ownership(FilesystemStore(URL), "job", "driver-a", lambda: 0.0)
    old.take_next()
    old.check()
    record = records.OwnerRecord(AttemptId(2), "driver-b")
    elsewhere.pipe_file(f"{PLACE}/{paths.owner(AttemptId(2))}", records.encode_owner(record))
    with pytest.raises(JobFenced, match="driver-b"):
        old.check()


def test_a_file_that_another_process_replaced_is_read_whole(elsewhere: MemoryFileSystem) -> None:
    """I24: as long as it is now, not as long as it was when it was looked at."""
    store = FilesystemStore(URL)
    store.write("job.json", [b"short"])
    assert store.read("job.json") == b"short"
    elsewhere.pipe_file(f"{PLACE}/job.json", b"a longer one")
    assert store.read("job.json") == b"a longer one"


# ---- large files go in parts


class PartsFile(AbstractBufferedFile):
    """As object stores do it: parts are sent, and put together at the end."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []
        Parts.uploads.append(self)

    def _upload_chunk(self, final: bool = False) -> bool:
        self.parts.append(self.buffer.getvalue())
        Parts.check()
        if final:
            self.fs.pipe_file(self.path, b"".join(self.parts))
            Parts.uploads.remove(self)
        return True

    def discard(self) -> None:
        if self in Parts.uploads:
            Parts.uploads.remove(self)


class Parts(MemoryFileSystem):
    """Any file that is opened is sent in parts of ten bytes."""

    protocol = "gs"
    uploads: ClassVar[list[PartsFile]] = []
    broken: ClassVar[bool] = False

    @classmethod
    def check(cls) -> None:
        if cls.broken:
            raise OSError(5, "Input/output error")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("gs://")))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "wb" or "data" in options:
            return super()._open(path, mode, **options)
        return PartsFile(self, path, mode, block_size=10)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesystemStore]:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "gs", Parts)
    monkeypatch.setattr(Parts, "uploads", [])
    yield FilesystemStore("gs://bucket/chk/job")
    MemoryFileSystem.store.clear()


def test_a_large_file_is_sent_while_it_is_made(parts: FilesystemStore) -> None:
    """T1, S4: a part is not kept when the store has it, and the file is there when it is whole."""
    begun = parts.begin("chk-1/0-1")
    for _ in range(10):
        begun.write(b"12345")
    (upload,) = Parts.uploads
    assert len(b"".join(upload.parts)) >= 40
    assert parts.list() == []
    assert begun.finish() == 50
    assert parts.read("chk-1/0-1") == b"12345" * 10
    assert Parts.uploads == []


@pytest.mark.parametrize("pieces", [1, 10])
def test_an_upload_that_is_given_up_is_never_put_together(
    parts: FilesystemStore, pieces: int
) -> None:
    """C4, bug-D6: fsspec finishes a file that is merely dropped."""
    begun = parts.begin("chk-1/0-1")
    for _ in range(pieces):
        begun.write(b"12345")
    begun.discard()
    del begun
    gc.collect()
    assert parts.list() == []
    assert Parts.uploads == []


@pytest.mark.parametrize("pieces", [1, 10])
def test_an_upload_that_the_store_refuses_is_an_error_and_leaves_no_parts(
    parts: FilesystemStore, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: also where it only fails at the end."""
    monkeypatch.setattr(Parts, "broken", True)
    begun = parts.begin("chk-1/0-1")
    with pytest.raises(StorageError, match="chk-1/0-1"):
        for _ in range(pieces):
            begun.write(b"12345")
        begun.finish()
    begun.discard()
    monkeypatch.setattr(Parts, "broken", False)
    assert parts.list() == []
    assert Parts.uploads == []


# ---- a store that fails says so


@pytest.fixture
def store() -> Iterator[FilesystemStore]:
    made = FilesystemStore(URL)
    made.write("chk-1/_metadata", [b"0123456789"])
    yield made
    MemoryFileSystem.store.clear()


@pytest.mark.parametrize("error", OTHERS, ids=repr)
@pytest.mark.parametrize(
    ("method", "act"),
    [
        ("find", lambda store: store.list()),
        ("find", lambda store: store.list("owner")),
        ("pipe_file", lambda store: store.create("owner/0000000001", b"x")),
        ("pipe_file", lambda store: store.write("chk-1/0-1", [b"x"])),
        ("rm_file", lambda store: store.delete("chk-1/_metadata")),
        ("info", lambda store: store.read("chk-1/_metadata")),
        ("cat_file", lambda store: store.read("chk-1/_metadata")),
    ],
)
def test_what_the_store_did_not_do_is_an_error(
    store: FilesystemStore,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    method: str,
    act: Callable[[FilesystemStore], object],
) -> None:
    """R5, I12, I18, I24: no empty list, no "somebody else was first", no file that counts as deleted or missing."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, method, fail)
    with pytest.raises(StorageError, match=type(error).__name__) as caught:
        act(store)
    assert not isinstance(caught.value, CheckpointCorrupt)


def test_a_store_that_answers_with_more_than_was_asked_for_is_not_believed(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I24: one that does not know ranges gives the whole file, and its first bytes would be taken for others."""
    whole = MemoryFileSystem.cat_file
    monkeypatch.setattr(
        MemoryFileSystem, "cat_file", lambda self, path, start=None, end=None: whole(self, path)
    )
    assert store.read("chk-1/_metadata") == b"0123456789"
    with pytest.raises(CheckpointCorrupt, match="chk-1/_metadata"):
        store.read("chk-1/_metadata", 3, 4)


def test_a_store_that_searches_by_the_beginning_of_names_shows_no_neighbours(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: with chk-1 goes nothing of chk-10."""
    store.write("chk-10/_metadata", [b"x"])

    def find(self: MemoryFileSystem, path: str, **_: Any) -> list[str]:
        return sorted(name for name in self.store if name.startswith(self._strip_protocol(path)))

    monkeypatch.setattr(MemoryFileSystem, "find", find)
    assert store.list("chk-1") == ["chk-1/_metadata"]
    assert store.list("chk-10") == ["chk-10/_metadata"]


def test_a_temporary_file_is_left_alone_until_it_is_old(store: FilesystemStore) -> None:
    """I13."""
    MemoryFileSystem().pipe_file(f"{PLACE}/chk-1/.tmp-1", b"half")
    assert store.list() == ["chk-1/_metadata"]
    assert store.leftovers(older_than_s=3_600) == []
    assert store.leftovers(older_than_s=-60) == ["chk-1/.tmp-1"]
    store.delete("chk-1/.tmp-1")
    assert store.leftovers(older_than_s=-60) == []
