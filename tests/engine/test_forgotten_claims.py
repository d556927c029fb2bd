"""Records of claims are deleted when a newer one says what they said: no decision changes by that.

"Forgotten" is the folder after `forget_claims`; "remembered" the same one with every record that ever was.
"""

from __future__ import annotations

import pytest

from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.errors import CheckpointCorrupt, JobFenced, StorageError
from penstock.ports.control import Received
from penstock.protocol import restart
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.messages import Failed
from penstock.protocol.phases import Outcome
from penstock.protocol.recovery import IDS_RESERVED
from penstock.storage.memory import MemoryStore
from penstock.wire import manifest as manifests
from penstock.wire import paths
from tests.engine.kit import ListSink, NumberSource
from tests.engine.test_checkpoint_files import (
    FOREIGN,
    adopted,
    claim,
    driver,
    flip,
    manifest,
    origin_store,
)
from tests.engine.whole_job import Job

NEVER = restart.Never("no")


def owners(store: MemoryStore) -> list[str]:
    return store.list(paths.OWNER_FOLDER)


def late(store: MemoryStore, checkpoint: int, attempt: int) -> None:
    """A driver that slept for long writes the metadata that it was about to write; it looks at owners afterwards."""
    name = paths.metadata(CheckpointId(checkpoint))
    store.create(name, manifests.encode(manifest(checkpoint, attempt)))


# ---- what stays


def test_only_the_newest_claim_stays() -> None:
    store = MemoryStore()
    for name in ("a", "b", "c"):
        files = driver(store, name)
        point = claim(files)
        files.forget_claims(point.attempt)
    assert owners(store) == ["owner/0000000003", "owner/0000000003-restored"]


def test_a_job_that_fails_again_and_again_leaves_two_records() -> None:
    """I13, I26: and every claim reads one."""
    job = Job(NumberSource(10**9), ListSink())
    for attempt in range(1, 4):
        job.until(job.completed(2 * attempt))
        failed = Failed(AttemptId(attempt), "ValueError", "no")
        job.workers.events.append(Received(next(iter(job.workers.workers)), failed))
        job.until(lambda: job.manager.status == "restarting")
    job.until(job.completed(8))
    assert job.manager.machine.attempts == 4
    assert owners(job.store) == ["owner/0000000004", "owner/0000000004-restored"]
    job.manager.request_stop()
    assert job.run() is Outcome.STOPPED


def test_a_claim_reads_one_record_however_many_are_left() -> None:
    class Counting(MemoryStore):
        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            asked.append(name)
            return super().read(name, offset, length)

    asked: list[str] = []
    store = Counting()
    for name in "abcdef":
        claim(driver(store, name))
    asked.clear()
    claim(driver(store, "g"))
    assert asked == [paths.restored(AttemptId(6))]


def test_claims_are_forgotten_when_the_new_one_is_recorded_and_no_sooner() -> None:
    """R5, C7: whoever is interrupted before that leaves all that the next one needs."""

    class Breaks(MemoryStore):
        def create(self, name: str, data: bytes) -> bool:
            if paths.restored_of(name) == 2:
                raise StorageError("the store is down")
            return super().create(name, data)

    job = Job(NumberSource(10**9), ListSink(), store=Breaks(), strategy=NEVER)
    job.until(job.completed(2))
    ids_until = job.manager.coordinator.ids_until
    second = Job(NumberSource(10**9), job.sink, store=job.store, driver="b", strategy=NEVER)
    assert second.run() is Outcome.FAILED
    assert paths.restored(AttemptId(1)) in owners(job.store)
    third = claim(driver(job.store, "c"))
    assert (third.attempt, third.first_id) == (3, ids_until)


# ---- numbers and ids are never used twice


def test_numbers_go_on_and_ids_stay_above_all_that_were_reserved() -> None:
    """C1, C7, I7, bug-E18: what a forgotten claim had reserved nobody else uses."""
    store = MemoryStore()
    first = driver(store)
    claim(first)
    second = driver(store, "b")
    point = claim(second)
    assert point.first_id == 1 + IDS_RESERVED
    second.forget_claims(point.attempt)
    third = claim(driver(store, "c"))
    assert third.attempt == 3
    assert third.first_id == 1 + 2 * IDS_RESERVED


def test_a_driver_whose_first_claim_failed_late_does_not_fall_behind_what_others_reserved() -> None:
    """C7: it has recorded its claim, and never heard that; it knows of no id that it used itself."""
    store = MemoryStore()
    claim(driver(store))
    files = driver(store, "b")
    first = claim(files)
    files.forget_claims(first.attempt)
    assert claim(files).first_id == first.first_id > IDS_RESERVED


def test_who_takes_a_number_that_is_free_again_finds_a_newer_one_and_records_nothing() -> None:
    """I18: he looked which numbers are taken, slept, and took one that others have taken and forgotten since."""

    class Sleepy(MemoryStore):
        def create(self, name: str, data: bytes) -> bool:
            if asleep and name == paths.owner(AttemptId(1)):
                asleep.clear()
                for each in ("b", "c"):
                    files = driver(self, each)
                    files.forget_claims(claim(files).attempt)
            return super().create(name, data)

    asleep = [True]
    store = Sleepy()
    with pytest.raises(JobFenced, match=r"another driver \(c\) with attempt 2"):
        claim(driver(store, "a"))
    assert paths.restored(AttemptId(1)) not in owners(store)


# ---- what was void stays void


@pytest.mark.parametrize("forgets", [True, False])
def test_a_late_checkpoint_of_long_ago_stays_void(forgets: bool) -> None:
    """R5, I18: the claim that voided it is gone, and it is older than what the newest claim restored."""
    store = MemoryStore()
    claim(driver(store, "a"))
    second = driver(store, "b")
    claim(second)
    second.persist(manifest(101, attempt=2))
    third = driver(store, "c")
    point = claim(third)
    if forgets:
        third.forget_claims(point.attempt)
    late(store, 6, attempt=1)
    flip(store, "chk-101/_metadata")
    fallback = claim(driver(store, "d"), may_fall_back=True)
    assert (fallback.restored, fallback.kept) == (0, ()), "checkpoint 6 has aborted transactions"


@pytest.mark.parametrize("forgets", [True, False])
def test_what_a_person_went_back_behind_stays_void_and_what_he_kept_stays_good(
    forgets: bool,
) -> None:
    store = MemoryStore()
    files = driver(store, "a")
    claim(files)
    for number in (1, 2, 3):
        files.persist(manifest(number))
    second = driver(store, "b")
    back = claim(second, RestoreWish(manifest=manifest(2)))
    second.persist(manifest(back.first_id, attempt=2))
    third = driver(store, "c")
    point = claim(third)
    assert point.kept == (1, 2, back.first_id)
    if forgets:
        third.forget_claims(point.attempt)
    assert claim(driver(store, "d")).kept == (1, 2, back.first_id)
    assert claim(driver(store, "e"), RestoreWish(manifest=manifest(3))).kept == (1, 2, 3)
    assert claim(driver(store, "f")).restored == 3, "whoever goes on from it makes it good again"


@pytest.mark.parametrize("forgets", [True, False])
def test_damage_that_was_left_behind_long_ago_holds_nobody_up(forgets: bool) -> None:
    """I17."""
    store = MemoryStore()
    files = driver(store, "a")
    claim(files)
    for number in (1, 2):
        files.persist(manifest(number))
    flip(store, "chk-2/_metadata")
    second = driver(store, "b")
    claim(second, RestoreWish(manifest=manifest(1)))
    third = driver(store, "c")
    point = claim(third)
    if forgets:
        third.forget_claims(point.attempt)
    fourth = claim(driver(store, "d"))
    assert (fourth.restored, fourth.warnings) == (1, ())


def test_what_the_job_was_begun_with_is_not_forgotten() -> None:
    """R5, I17: where no sink minds, a job without a readable checkpoint of its own begins with the other job's."""
    store, origin = MemoryStore(), origin_store()
    files = adopted(store, origin, "a")
    first = claim(files, FOREIGN)
    files.persist(manifest(first.first_id, attempt=1))
    second = adopted(store, origin, "b")
    second.forget_claims(claim(second).attempt)
    flip(store, f"chk-{first.first_id}/_metadata")
    again = claim(adopted(store, origin, "c"), may_fall_back=True)
    assert (again.origin, again.manifest) == ("/other/job", manifest(7))


# ---- fencing


@pytest.mark.parametrize("how", ["persist", "again", "delete", "claim"])
def test_a_driver_that_wakes_up_late_finds_that_it_was_taken_over(how: str) -> None:
    """I18: its record is forgotten; the newest one names who has the job."""
    store = MemoryStore()
    old = driver(store, "old")
    claim(old)
    for name in ("b", "new"):
        files = driver(store, name)
        files.forget_claims(claim(files).attempt)
    before = owners(store)
    with pytest.raises(JobFenced, match=r"taken over by another driver \(new\) with attempt 3"):
        {
            "persist": lambda: old.persist(manifest(1)),
            "again": lambda: old.persist(manifest(1), again=True),
            "delete": lambda: old.delete_checkpoint(CheckpointId(1)),
            "claim": lambda: claim(old),
        }[how]()
    assert owners(store) == before


def test_a_record_that_goes_while_it_is_read_is_a_newer_owner_s_doing() -> None:
    """I18, bug-H10: between the list and the read a newer driver claims, and forgets what was listed."""

    class Busy(MemoryStore):
        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            if busy and name == paths.owner(AttemptId(2)):
                busy.clear()
                newest = driver(self, "newest")
                newest.forget_claims(claim(newest).attempt)
            return super().read(name, offset, length)

    busy: list[bool] = []
    store = Busy()
    old = driver(store, "old")
    claim(old)
    claim(driver(store, "b"))
    busy.append(True)
    with pytest.raises(JobFenced, match=r"another driver \(newest\) with attempt 3"):
        old.persist(manifest(1))


def test_a_claim_whose_record_is_forgotten_while_it_looks_is_fenced() -> None:
    """I18, bug-H10: and does not ask anybody to put a file back."""

    class Busy(MemoryStore):
        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            if busy and name == paths.restored(AttemptId(1)):
                busy.clear()
                newest = driver(self, "newest")
                newest.forget_claims(claim(newest).attempt)
            return super().read(name, offset, length)

    busy: list[bool] = []
    store = Busy()
    claim(driver(store, "a"))
    busy.append(True)
    with pytest.raises(JobFenced, match="newest"):
        claim(driver(store, "b"))


def test_a_damaged_record_of_an_owner_is_damage_and_no_owner() -> None:
    store = MemoryStore()
    old = driver(store, "old")
    claim(old)
    claim(driver(store, "new"))
    flip(store, paths.owner(AttemptId(2)))
    with pytest.raises(CheckpointCorrupt, match="owner/0000000002"):
        old.persist(manifest(1))
