"""Leases: whoever reads a checkpoint keeps its files, however they come between each other, the job and its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from penstock.engine.checkpoints.files import LOOKED_AGAIN_MAX, CheckpointFiles
from penstock.engine.checkpoints.leases import LEASE_MS, LEASE_MS_MAX, Borrower, take
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.reading.borrowing import Borrowed, borrow
from penstock.engine.reading.stored import TRIES_MAX
from penstock.errors import ConfigError, StorageError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.state.aggregates import count
from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore
from penstock.wire import paths, records
from tests.engine.reading_kit import NOW_MS, borrower, checkpoint, fed, numbered, request

ROWS = 500


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A job's folder with the checkpoints 1, 2 and 3, with state in files."""
    made = LocalStore(str(tmp_path / "job"))
    for number in (1, 2, 3):
        put(made, number)
    return made


def put(store: LocalStore | MemoryStore, number: int) -> None:
    subtasks = fed(partial(RunningAggregate, ("k",), {"n": count()}), numbered(ROWS), ["k"], 2, 8)
    frozen = [each.freeze(SnapshotOrder(CheckpointId(number))) for each in subtasks]
    checkpoint(store, {"totals": frozen}, number=number, max_parallelism=8)


def driver(
    store: LocalStore | MemoryStore, clock: Callable[[], float], name: str = "a"
) -> CheckpointFiles:
    files = CheckpointFiles(store, "job", name, clock)
    files.claim(RestoreWish(), may_fall_back=False, damaged={})
    return files


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def rows(borrowed: Borrowed, store: LocalStore | MemoryStore) -> int:
    return sum(len(batch) for batch in borrowed.read(store, borrower()))


def read_by(store: LocalStore | MemoryStore, clock: Callable[[], float], **wanted: str) -> Borrowed:
    return borrow(store, request(**wanted), Borrower("host/1", clock, borrower().unique))


# ---- one after the other


def test_a_checkpoint_that_is_deleted_while_it_is_read_can_be_read_to_its_end(
    store: LocalStore, clock: Clock
) -> None:
    """P5, I12: with its metadata it is gone for everybody else; its files go when they have been read."""
    files = driver(store, clock)
    borrowed = read_by(store, clock, checkpoint="1")
    files.delete_checkpoint(n(1))
    with pytest.raises(ConfigError, match="no checkpoint 1; there are checkpoints 2, 3"):
        read_by(store, clock, checkpoint="1")
    assert rows(borrowed, store) == ROWS
    files.delete_checkpoint(n(2))
    assert rows(borrowed, store) == ROWS, "still there"
    borrowed.give_back(store)
    put(store, 4)
    files.delete_checkpoint(n(3))
    assert {paths.checkpoint_of(name) for name in store.list()} == {None, 4}


def test_a_reader_that_died_keeps_a_checkpoint_until_its_lease_expires(
    store: LocalStore, clock: Clock
) -> None:
    """I13."""
    files = driver(store, clock)
    read_by(store, clock, checkpoint="1")
    files.delete_checkpoint(n(1))
    clock.now_ms += LEASE_MS - 1
    files.delete_checkpoint(n(2))
    assert len(store.list("chk-1")) == 3
    clock.now_ms += 1
    files.delete_checkpoint(n(3))
    assert store.list("chk-1") == []


def test_a_reader_that_is_slow_renews_its_lease(store: LocalStore, clock: Clock) -> None:
    """P5: it may take as long as it likes between two batches, up to the length of a lease."""
    files = driver(store, clock)
    me = Borrower("host/1", clock, borrower().unique)
    batches = borrow(store, request(checkpoint="1"), me).read(store, me)
    seen = len(next(batches))
    files.delete_checkpoint(n(1))
    for number in (2, 3):
        clock.now_ms += LEASE_MS * 0.9
        seen += len(next(batches, ()))
        files.delete_checkpoint(n(number))
    assert seen == ROWS
    assert len(store.list("chk-1")) == 3, "more than a lease's time after it was taken"


def test_a_read_without_a_lease_says_what_became_of_the_checkpoint(
    store: LocalStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: where a reader may not write."""

    def refuse(*_: object) -> bool:
        raise StorageError("read-only")

    files = driver(store, clock)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "create", refuse)
        borrowed = read_by(store, clock, checkpoint="1")
    assert borrowed.lease is None
    assert rows(borrowed, store) == ROWS
    files.delete_checkpoint(n(1))
    with pytest.raises(StorageError, match=r"checkpoint 1 was deleted before it was read.*keep="):
        rows(borrowed, store)


@pytest.mark.parametrize(
    "lease",
    [
        b"{}",
        records.encode_lease(records.LeaseRecord(n(1), NOW_MS - 1)),
        records.encode_lease(records.LeaseRecord(n(1), NOW_MS + 2 * LEASE_MS_MAX)),
        records.encode_lease(records.LeaseRecord(n(1), 1e300)),
    ],
    ids=["damaged", "expired", "for too long", "for ever"],
)
def test_what_is_no_lease_keeps_nothing(store: LocalStore, clock: Clock, lease: bytes) -> None:
    """I13: storage is not trusted."""
    store.write(paths.lease(n(1), "0" * 32), [lease])
    driver(store, clock).delete_checkpoint(n(1))
    assert store.list("chk-1") == []


def test_a_lease_that_is_renewed_while_it_is_looked_at_counts(clock: Clock) -> None:
    """I12: a store that is asked for its length first may find it of another length then."""

    class Renewing(MemoryStore):
        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            data = super().read(name, offset, length)
            if paths.lease_of(name) and renewals:
                renewals.pop()
                return data[:-1]
            return data

    renewals = [1]
    store = Renewing()
    put(store, 1)
    put(store, 2)
    take(store, n(1), borrower(), LEASE_MS)
    driver(store, clock).delete_checkpoint(n(1))
    assert not renewals and len(store.list("chk-1")) == 3


def test_the_next_driver_takes_care_of_what_somebody_read(store: LocalStore, clock: Clock) -> None:
    """I13: it finds it when it claims the job."""
    read_by(store, clock, checkpoint="1")
    driver(store, clock).delete_checkpoint(n(1))
    successor = driver(store, clock, "b")
    clock.now_ms += LEASE_MS
    successor.delete_checkpoint(n(2))
    assert store.list("chk-1") == []


def test_a_sweep_spares_what_is_read_and_the_next_one_does_not(
    store: LocalStore, clock: Clock
) -> None:
    """I12, I13: also a lease that nothing else is left of."""
    files = driver(store, clock)
    take(store, n(1), borrower(), LEASE_MS)
    store.write(paths.lease(n(9), "0" * 32), [b"of a reader that came too late"])
    files.sweep([n(3)], n(10))
    assert [name for name in store.list() if name.startswith("chk-")] == [
        "chk-1/0-1",
        "chk-1/1-1",
        f"chk-1/lease-{0:032x}",
        "chk-3/0-1",
        "chk-3/1-1",
        "chk-3/_metadata",
    ]
    clock.now_ms += LEASE_MS
    files.sweep([n(3)], n(10))
    assert {paths.checkpoint_of(name) for name in store.list()} == {None, 3}


def test_whoever_wants_nothing_kept_waits_for_nobody(store: LocalStore, clock: Clock) -> None:
    """T3: `retain` says that all goes, readers or not."""
    files = driver(store, clock)
    read_by(store, clock, checkpoint="1")
    files.delete_everything()
    assert store.list() == []


def test_many_readers_cost_each_deletion_a_few_looks(clock: Clock) -> None:
    """bug-H9: and all are looked at in turn."""
    store = Counting()
    for number in range(1, 12):
        put(store, number)
    files = driver(store, clock)
    for number in range(1, 10):
        take(store, n(number), Borrower("r", clock, lambda i=number: f"{i:032x}"), LEASE_MS)  # type: ignore[misc]
        files.delete_checkpoint(n(number))
    clock.now_ms += LEASE_MS
    store.asked.clear()
    files.delete_checkpoint(n(10))
    assert store.asked.count("list") == 2 + LOOKED_AGAIN_MAX
    for number in range(12, 16):
        put(store, number)
        files.delete_checkpoint(n(number))
    assert not [name for name in store.list() if paths.lease_of(name)]


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def list(self, prefix: str = "") -> list[str]:
        self.asked.append("list")
        return super().list(prefix)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.asked.append("read")
        return super().read(name, offset, length)

    def delete(self, name: str) -> None:
        self.asked.append("delete")
        super().delete(name)


def test_without_readers_a_deletion_costs_what_it_always_did(clock: Clock) -> None:
    """bug-H9: who owns the job, the metadata, what else there is, and that."""
    store = Counting()
    put(store, 1)
    put(store, 2)
    files = driver(store, clock)
    store.asked.clear()
    files.delete_checkpoint(n(1))
    assert store.asked == ["list", "read", "delete", "list", "delete", "delete"]


# ---- between each other


class Interrupted(MemoryStore):
    """Before operation number `at` of a kind that changes or lists something, something else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.at = -1
        self.act: Callable[[], None] = lambda: None
        self.operations = 0

    def _count(self) -> None:
        self.operations += 1
        if self.operations == self.at:
            self.at = -1
            self.act()

    def create(self, name: str, data: bytes) -> bool:
        self._count()
        return super().create(name, data)

    def list(self, prefix: str = "") -> list[str]:
        self._count()
        return super().list(prefix)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._count()
        return super().read(name, offset, length)


def interruptions() -> Iterable[int]:
    return range(1, 30)


@pytest.mark.parametrize("how", ["delete", "sweep"])
def test_a_reader_that_comes_at_any_point_of_a_deletion_reads_everything_or_another_checkpoint(
    clock: Clock, how: str
) -> None:
    """I12: a lease, then a look at the metadata; the metadata, then a look for leases."""
    outcomes = set()
    for at in interruptions():
        store = Interrupted()
        put(store, 1)
        put(store, 2)
        files = driver(store, clock)
        found: list[Borrowed] = []

        def read(store: Interrupted = store, found: list[Borrowed] = found) -> None:
            try:
                found.append(read_by(store, clock, checkpoint="1"))
            except ConfigError:
                found.append(read_by(store, clock))

        store.operations, store.at, store.act = 0, at, read
        if how == "delete":
            files.delete_checkpoint(n(1))
        else:
            files.sweep([n(2)], n(3))
        if found:
            assert rows(found[0], store) == ROWS, f"interrupted at {at}"
            outcomes.add(found[0].checkpoint)
    assert outcomes == {1, 2}, "both came to pass"


def test_a_deletion_that_comes_at_any_point_of_a_reader_s_way_in_harms_nobody(clock: Clock) -> None:
    """I12: it gets the one that it found, or a newer one."""
    outcomes = set()
    for at in interruptions():
        store = Interrupted()
        put(store, 1)
        files = driver(store, clock)

        def delete(store: Interrupted = store, files: CheckpointFiles = files) -> None:
            put(store, 2)
            files.delete_checkpoint(n(1))

        store.operations, store.at, store.act = 0, at, delete
        borrowed = read_by(store, clock)
        assert rows(borrowed, store) == ROWS, f"interrupted at {at}"
        outcomes.add(borrowed.checkpoint)
        borrowed.give_back(store)
        assert not [name for name in store.list() if paths.lease_of(name)], "none is forgotten"
    assert outcomes == {1, 2}, "both came to pass"


def test_checkpoints_that_go_too_fast_are_an_error_and_not_a_loop(clock: Clock) -> None:
    class Racing(MemoryStore):
        """Whatever is leased is deleted at once."""

        def create(self, name: str, data: bytes) -> bool:
            created = super().create(name, data)
            leased = paths.lease_of(name)
            if leased is not None:
                put(self, leased + 1)
                self.delete(paths.metadata(leased))
            return created

    store = Racing()
    put(store, 1)
    with pytest.raises(StorageError, match="come and go faster than they can be read; raise keep="):
        read_by(store, clock)
    assert store.list(paths.checkpoint_folder(n(TRIES_MAX + 1)))
