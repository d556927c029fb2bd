"""The job manager's side of storage: claims, restore points, metadata that exists whole or never, clean-up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pytest

from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.restore_points import ClaimRefused, RestorePoint, RestoreWish
from penstock.errors import CheckpointCorrupt, JobFenced, StorageError
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.recovery import IDS_RESERVED
from penstock.protocol.snapshot import OperatorSnapshot, Segment, SubtaskSnapshot
from penstock.storage.memory import MemoryStore
from penstock.wire import manifest as manifests
from penstock.wire import paths
from penstock.wire.manifest import Manifest, ManifestOperator
from penstock.wire.tombstones import tombstone


class Flaky(MemoryStore):
    """Raises before (`refuse`) or after (`lie`) operations whose name contains a word, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.refuse: list[str] = []
        self.lie: list[str] = []

    def _maybe(self, what: list[str], operation: str) -> None:
        for word in list(what):
            if word in operation:
                what.remove(word)
                raise StorageError(f"simulated: {operation}")

    def create(self, name: str, data: bytes) -> bool:
        self._maybe(self.refuse, f"create {name}")
        created = super().create(name, data)
        self._maybe(self.lie, f"create {name}")
        return created

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._maybe(self.refuse, f"read {name}")
        return super().read(name, offset, length)


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def driver(store: MemoryStore, name: str = "driver-a") -> CheckpointFiles:
    return CheckpointFiles(store, "job", name, lambda: 0.0)


def claim(files: CheckpointFiles, wish: RestoreWish | None = None, **kw: object) -> RestorePoint:
    given = {"may_fall_back": False, "damaged": {}, **kw}
    return files.claim(wish or RestoreWish(), **given)  # type: ignore[arg-type]


def manifest(checkpoint: int, attempt: int = 1, file: str = "") -> Manifest:
    segments = (Segment("s", b"", (), file=file),) if file else ()
    part = SubtaskSnapshot(SubtaskId(0, 0), {"op": OperatorSnapshot(segments)})
    return Manifest(
        "job",
        n(checkpoint),
        AttemptId(attempt),
        SnapshotKind.CHECKPOINT,
        0.0,
        1.0,
        1,
        8,
        (ManifestOperator("op", "map"),),
        (part,),
        n(checkpoint + IDS_RESERVED),
    )


def flip(store: MemoryStore, name: str) -> None:
    data = bytearray(store.read(name))
    data[len(data) // 2] ^= 1
    store.write(name, [bytes(data)])


def metadata(store: MemoryStore) -> list[int]:
    return [i for name in store.list() if (i := paths.metadata_of(name)) is not None]


# ---- claiming


def test_a_fresh_job_begins_with_attempt_one_and_id_one() -> None:
    point = claim(driver(MemoryStore()))
    assert (point.attempt, point.restored, point.first_id, point.manifest) == (1, 0, 1, None)


def test_the_newest_checkpoint_is_found_and_ids_go_on_above_what_was_reserved() -> None:
    """R1, C1, C7."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    for i in (1, 2):
        assert files.persist(manifest(i))
    point = claim(driver(store, "driver-b"))
    assert (point.attempt, point.restored, point.kept) == (2, 2, (1, 2))
    assert point.manifest == manifest(2)
    assert point.first_id == 2 + IDS_RESERVED


def test_a_driver_that_was_overtaken_while_it_claimed_gets_nothing() -> None:
    """R5, I18, bug-E15: another one claims after it has looked, and before it has written down what it goes on from.
    That one cannot see the ids that this one is about to use."""

    class Overtaken(MemoryStore):
        faster: CheckpointFiles | None = None

        def create(self, name: str, data: bytes) -> bool:
            faster, self.faster = self.faster, None
            if faster is not None and paths.restored_of(name) is not None:
                claim(faster)
            elif faster is not None:
                self.faster = faster
            return super().create(name, data)

    store = Overtaken()
    store.faster = driver(store, "driver-b")
    with pytest.raises(JobFenced, match="driver-b"):
        claim(driver(store))
    assert claim(driver(store, "driver-c")).attempt == 3


def test_a_driver_that_goes_on_leaves_no_gap_in_its_ids() -> None:
    """C7: it knows which ones it has used; others see what it reserves anew."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    assert files.persist(manifest(1))
    point = files.claim(RestoreWish(), may_fall_back=False, damaged={}, next_id=CheckpointId(5))
    assert (point.restored, point.first_id) == (1, 5)
    assert claim(driver(store, "driver-b")).first_id == 5 + IDS_RESERVED


def test_two_drivers_that_claim_at_once_get_different_attempts_and_the_later_one_wins() -> None:
    """R5, I18, bug-E15: one directory, two drivers."""
    store = MemoryStore()
    first, second = driver(store, "a"), driver(store, "b")
    assert claim(first).attempt == 1
    assert claim(second).attempt == 2
    with pytest.raises(JobFenced, match=r"taken over by another driver \(b\) with attempt 2"):
        claim(first)


def test_a_claim_race_is_won_by_one() -> None:
    """R5: the name that both wanted goes to whoever creates it; the other takes the next."""
    store = MemoryStore()

    class Slow(MemoryStore):
        raced = False

        def create(self, name: str, data: bytes) -> bool:
            if not self.raced and name == paths.owner(AttemptId(1)):
                self.raced = True
                claim(driver(store, "quick"))
            return store.create(name, data)

        def list(self, prefix: str = "") -> list[str]:
            return store.list(prefix)

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            return store.read(name, offset, length)

    assert claim(driver(Slow(), "slow")).attempt == 2


def test_what_a_driver_restored_makes_later_metadata_of_its_predecessor_void() -> None:
    """R5, I18."""
    store = MemoryStore()
    old, new = driver(store, "old"), driver(store, "new")
    claim(old)
    old.persist(manifest(1))
    assert claim(new).restored == 1
    with pytest.raises(JobFenced):
        old.persist(manifest(2))
    assert metadata(store) == [1, 2], "it came to exist, and nobody was told"
    assert claim(new).restored == 1


def test_a_void_checkpoint_without_its_files_is_no_damage() -> None:
    """R5: its successor has swept them away."""
    store = MemoryStore()
    old, new = driver(store, "old"), driver(store, "new")
    claim(old)
    claim(new)
    with pytest.raises(JobFenced):
        old.persist(manifest(7, file=paths.worker_file(n(7), 0, AttemptId(1))))  # type: ignore[arg-type]
    assert claim(new).restored == 0


def test_what_an_attempt_may_fall_back_to_is_what_was_not_left_behind() -> None:
    """C5, R5: a checkpoint that a person went back behind is not one of those that are kept, or it would push a good
    one out."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    for i in (5, 6):
        files.persist(manifest(i))
    back = claim(driver(store, "b"), RestoreWish(manifest=manifest(5)))
    newest = back.first_id
    third = driver(store, "c")
    store.write(paths.metadata(newest), [manifests.encode(manifest(newest, attempt=back.attempt))])
    point = claim(third)
    assert (point.restored, point.kept) == (newest, (5, newest))
    assert [older.checkpoint for older in point.older] == [5], "below the one that is restored"


def test_ids_are_above_every_file_also_of_snapshots_that_were_never_completed() -> None:
    """C7, bug-E18: a late writer of that snapshot would write into a later one."""
    store = MemoryStore()
    store.write(paths.worker_file(n(500), SlotId(0), AttemptId(1)), [b"late"])
    assert claim(driver(store)).first_id == 501


# ---- metadata


def test_metadata_appears_whole_and_is_never_written_over() -> None:
    """C3."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    assert files.persist(manifest(1))
    assert files.persist(manifest(1)), "asking again is fine"
    assert manifests.decode(store.read("chk-1/_metadata"), "chk-1/_metadata") == manifest(1)


def test_a_write_that_failed_leaves_a_tombstone_so_that_it_never_comes_to_be() -> None:
    """C3, C4, bug-H1: the outcome is settled by creating, not by believing."""
    store = Flaky()
    files = driver(store)
    claim(files)
    store.refuse = ["chk-1/_metadata"]
    assert files.persist(manifest(1)) is False
    assert store.read("chk-1/_metadata") == tombstone(CheckpointId(1))
    assert files.persist(manifest(1)) is False, "a late second try does not resurrect it"
    assert claim(files).restored == 0


def test_a_driver_that_lost_its_job_leaves_no_tombstone() -> None:
    """I18: its successor may have deleted that checkpoint, or be going on from it."""
    store = Flaky()
    old, new = driver(store, "old"), driver(store, "new")
    claim(old)
    claim(new)
    store.refuse = ["chk-1/_metadata"]
    with pytest.raises(JobFenced):
        old.persist(manifest(1))
    assert state_files(store) == []


def test_a_write_that_only_seemed_to_fail_counts() -> None:
    """C3: timeout with success."""
    store = Flaky()
    files = driver(store)
    claim(files)
    store.lie = ["chk-1/_metadata"]
    assert files.persist(manifest(1)) is True
    assert claim(files).restored == 1


def test_when_nobody_knows_it_says_so_and_can_be_asked_again() -> None:
    store = Flaky()
    files = driver(store)
    claim(files)
    store.lie = ["chk-1/_metadata"]
    store.refuse = ["read chk-1/_metadata"]
    with pytest.raises(StorageError):
        files.persist(manifest(1))
    assert files.persist(manifest(1)) is True


def test_metadata_that_is_damaged_before_anybody_is_told_of_it_is_written_again() -> None:
    """I24: it must not stand in the way of the next start, and no checkpoint is lost."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(1))
    flip(store, "chk-1/_metadata")
    with pytest.raises(StorageError, match="not what had been written") as told:
        files.persist(manifest(1))
    assert type(told.value) is StorageError, "so it is asked again"
    assert files.persist(manifest(1), again=True)
    assert claim(files).restored == 1


def test_a_driver_that_lost_its_job_takes_no_damaged_metadata_away() -> None:
    """I18: it is its successor's to say what becomes of it."""
    store = MemoryStore()
    old, new = driver(store, "old"), driver(store, "new")
    claim(old)
    old.persist(manifest(1))
    claim(new)
    flip(store, "chk-1/_metadata")
    with pytest.raises(JobFenced):
        old.persist(manifest(1))
    assert state_files(store) == ["chk-1/_metadata"]


# ---- damage


def test_a_damaged_newest_checkpoint_is_refused() -> None:
    """T5, I17, I24, bug-E2: rows would come twice."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(1))
    files.persist(manifest(2))
    flip(store, "chk-2/_metadata")
    with pytest.raises(CheckpointCorrupt, match=r"checkpoint 2.*checkpoint 1 is readable"):
        claim(files)


def test_a_damaged_newest_checkpoint_is_passed_over_where_no_sink_minds() -> None:
    """T5, I17, bug-E2, bug-E3: with a warning."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(1))
    files.persist(manifest(2))
    flip(store, "chk-2/_metadata")
    point = claim(files, may_fall_back=True)
    assert point.restored == 1
    assert "checkpoint 2 cannot be used" in point.warnings[0]
    store.write("chk-2/_metadata", [manifests.encode(manifest(2))])
    assert claim(files).restored == 1, "what was passed over stays void, even if it is repaired"


def test_a_checkpoint_whose_file_is_gone_is_damaged() -> None:
    """T5, I24."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(1, file="chk-1/0-1"))
    with pytest.raises(CheckpointCorrupt, match=r"chk-1/0-1 is gone"):
        claim(files)


def test_what_workers_found_damaged_is_not_used_again() -> None:
    """T5, bug-E3: recovery ends."""
    files = driver(MemoryStore())
    claim(files)
    files.persist(manifest(1))
    files.persist(manifest(2))
    assert claim(files, may_fall_back=True, damaged={n(2): "bad block"}).restored == 1


def test_a_damaged_claim_is_an_error_and_not_a_fresh_start() -> None:
    """I24."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    flip(store, paths.restored(AttemptId(1)))
    with pytest.raises(CheckpointCorrupt, match=r"owner/0000000001-restored.*put the file back"):
        claim(files)


@pytest.mark.parametrize("restored", [0, 1])
def test_damage_that_a_person_went_back_behind_holds_up_no_later_attempt(restored: int) -> None:
    """I17: whoever did what the refusal advises must not be refused again at the next failure."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(1))
    files.persist(manifest(2))
    flip(store, "chk-2/_metadata")
    second = driver(store, "b")
    wish = RestoreWish(manifest=manifest(1)) if restored else RestoreWish(fresh=True)
    assert claim(second, wish).restored == restored
    assert claim(second).restored == restored, "the same driver, after a failure"
    third = claim(driver(store, "c"))
    assert (third.restored, third.warnings) == (restored, ()), "another driver"


# ---- another job's checkpoint


def origin_store(checkpoint: int = 7, file: str = "") -> MemoryStore:
    store = MemoryStore()
    store.write(f"chk-{checkpoint}/_metadata", [manifests.encode(manifest(checkpoint, file=file))])
    return store


def adopted(store: MemoryStore, origin: MemoryStore, name: str) -> CheckpointFiles:
    opened = {"/other/job": origin}
    return CheckpointFiles(store, "job", name, lambda: 0.0, opened.__getitem__)


FOREIGN = RestoreWish(manifest=manifest(7), origin="/other/job")


def test_auto_begins_again_with_what_the_job_was_begun_with() -> None:
    """R5: the driver was killed before the first own checkpoint; nothing of the origin's state is lost."""
    store, origin = MemoryStore(), origin_store()
    first = claim(adopted(store, origin, "a"), FOREIGN)
    again = claim(adopted(store, origin, "b"))
    assert (again.restored, again.origin, again.manifest) == (0, "/other/job", manifest(7))
    assert again.first_id >= first.ids_until, "C7: ids go on"
    assert claim(adopted(store, origin, "c")).manifest == manifest(7), "and again"


def test_an_own_checkpoint_or_a_fresh_start_ends_what_the_origin_began() -> None:
    """R5."""
    store, origin = MemoryStore(), origin_store()
    files = adopted(store, origin, "a")
    first = claim(files, FOREIGN)
    files.persist(manifest(first.first_id, attempt=first.attempt))
    own = claim(adopted(store, origin, "b"))
    assert (own.restored, own.origin) == (first.first_id, "")
    assert claim(adopted(store, origin, "c"), RestoreWish(fresh=True)).manifest is None
    assert claim(adopted(store, origin, "d")).manifest is None


@pytest.mark.parametrize("harm", ["deleted", "damaged", "without its file"])
def test_an_origin_that_is_gone_is_an_error_and_not_a_fresh_start(harm: str) -> None:
    """I24: says which checkpoint, and what can be done."""
    store, origin = MemoryStore(), origin_store()
    claim(adopted(store, origin, "a"), FOREIGN)
    if harm == "deleted":
        origin.delete("chk-7/_metadata")
    elif harm == "damaged":
        flip(origin, "chk-7/_metadata")
    else:
        origin = origin_store(file="chk-7/0-1")
    with pytest.raises(ClaimRefused, match=r"/other/job/chk-7.*cannot be read.*restore="):
        claim(adopted(store, origin, "b"))


def test_another_jobs_checkpoint_without_its_files_is_refused_before_anything_is_recorded() -> None:
    """I24: the claim would make this job's own checkpoints void."""
    store, origin = MemoryStore(), origin_store(file="chk-7/0-1")
    first = adopted(store, origin, "a")
    claim(first)
    first.persist(manifest(1))
    wish = RestoreWish(manifest=manifest(7, file="chk-7/0-1"), origin="/other/job")
    with pytest.raises(ClaimRefused, match=r"chk-7/0-1 is gone.*Put the file back"):
        claim(adopted(store, origin, "b"), wish)
    assert claim(adopted(store, origin, "c")).restored == 1


def test_an_origin_that_workers_cannot_read_ends_the_job() -> None:
    """bug-E2: it is not tried for ever."""
    files = adopted(MemoryStore(), origin_store(), "a")
    claim(files, FOREIGN)
    with pytest.raises(ClaimRefused, match=r"checkpoint 7 of /other/job.*a block is broken"):
        claim(files, FOREIGN, damaged={n(0): "a block is broken"})
    with pytest.raises(ClaimRefused, match=r"checkpoint 7 of /other/job"):
        claim(files, damaged={n(0): "a block is broken"})


def test_the_password_in_an_origins_address_is_not_recorded() -> None:
    """Secrets never reach storage; then the path has to be named again."""
    store = MemoryStore()
    url = "s3://me:hush-hush@bucket/job"
    claim(driver(store), RestoreWish(manifest=manifest(7), origin=url))
    assert not any(b"hush-hush" in store.read(name) for name in store.list())
    with pytest.raises(ClaimRefused, match="without its password"):
        claim(driver(store, "b"))


# ---- wishes


def test_a_fresh_start_forgets_the_old_checkpoints_and_not_the_ids() -> None:
    """C7."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(5))
    point = claim(driver(store, "b"), RestoreWish(fresh=True))
    assert (point.restored, point.manifest, point.kept) == (0, None, ())
    assert point.first_id > 5


def test_another_jobs_checkpoint_is_restored_under_own_ids() -> None:
    files = driver(MemoryStore())
    wish = RestoreWish(manifest=manifest(77), origin="/elsewhere/job")
    point = claim(files, wish)
    assert (point.restored, point.origin, point.manifest) == (0, "/elsewhere/job", manifest(77))
    assert point.kind is None, "its being another job's last snapshot means nothing here"


def test_an_older_own_checkpoint_makes_the_newer_ones_void() -> None:
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(1))
    files.persist(manifest(2))
    other = driver(store, "b")
    assert claim(other, RestoreWish(manifest=manifest(1))).kept == (1,)
    assert claim(other).restored == 1


# ---- clean-up


def put(store: MemoryStore, *names: str) -> None:
    for name in names:
        store.write(name, [b"x"])


def state_files(store: MemoryStore) -> Iterable[str]:
    return [name for name in store.list() if name.startswith("chk-")]


def test_a_checkpoint_goes_metadata_first() -> None:
    """I12: it never exists by halves."""
    deleted: list[str] = []

    class Watched(MemoryStore):
        def delete(self, name: str) -> None:
            deleted.append(name)
            super().delete(name)

    store = Watched()
    put(store, "chk-1/0-1", "chk-1/_metadata", "chk-1/1-1", "chk-2/0-1")
    driver(store).delete_checkpoint(n(1))
    assert deleted[0] == "chk-1/_metadata"
    assert state_files(store) == ["chk-2/0-1"]


def test_discarding_leaves_a_tombstone_where_it_is() -> None:
    """C4."""
    store = MemoryStore()
    put(store, "chk-1/0-1")
    store.write("chk-1/_metadata", [tombstone(CheckpointId(1))])
    driver(store).discard(n(1))
    assert state_files(store) == ["chk-1/_metadata"]


def test_discarding_leaves_a_checkpoint_that_exists_alone() -> None:
    """I12, bug-A1: an answer that comes late, for a checkpoint whose own deletion has failed, does not leave it by
    halves."""
    store = MemoryStore()
    put(store, "chk-1/0-1", "chk-1/_metadata")
    driver(store).discard(n(1))
    assert state_files(store) == ["chk-1/0-1", "chk-1/_metadata"]
    driver(store).delete_checkpoint(n(1))
    assert state_files(store) == []


def test_a_sweep_keeps_what_is_kept_and_what_is_not_its_own_yet() -> None:
    """I12, I13, bug-A1: what late writers left behind goes, and what is left of one whose metadata has gone."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    put(store, "chk-1/0-1", "chk-2/0-1", "chk-2/_metadata", "chk-3/0-1", "chk-9/0-1")
    files.sweep([n(2), n(3)], n(5))
    assert state_files(store) == ["chk-2/0-1", "chk-2/_metadata", "chk-9/0-1"]


def test_one_file_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    """I13: of its own checkpoint all that it can still stand for is gone."""

    class Stuck(MemoryStore):
        def delete(self, name: str) -> None:
            if name == "chk-2/0-1":
                raise StorageError("no")
            super().delete(name)

    store = Stuck()
    files = driver(store)
    claim(files)
    put(store, *(f"chk-{i}/{part}" for i in (1, 2, 3) for part in ("0-1", "_metadata")))
    with pytest.raises(StorageError):
        files.sweep([], n(5))
    assert state_files(store) == ["chk-2/0-1"]


@pytest.mark.parametrize("how", ["sweep", "delete_everything", "delete_checkpoint"])
def test_a_driver_that_lost_its_job_deletes_nothing(how: str) -> None:
    """I12, I18: another one goes on from those files."""
    store = MemoryStore()
    old, new = driver(store, "old"), driver(store, "new")
    claim(old)
    old.persist(manifest(1))
    claim(new)
    before = store.list()
    with pytest.raises(JobFenced):
        {
            "sweep": lambda: old.sweep([], n(5)),
            "delete_everything": old.delete_everything,
            "delete_checkpoint": lambda: old.delete_checkpoint(n(1)),
        }[how]()
    assert store.list() == before


def test_deleting_everything_leaves_foreign_files_alone() -> None:
    """T3: only what this job can have written."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    put(store, "chk-1/0-1", "notes/readme.txt")
    files.delete_everything()
    assert store.list() == ["notes/readme.txt"]


def test_a_start_that_is_refused_leaves_the_checkpoints_as_they_were() -> None:
    """R8: the next start goes on from the newest one, not from what the refused one wanted."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    for i in (1, 2):
        assert files.persist(manifest(i))
    wish = RestoreWish(manifest=manifest(77), origin="/elsewhere/job")
    with pytest.raises(ClaimRefused, match="does not fit"):
        claim(driver(store, "b"), wish, misfit=lambda _: "does not fit")
    assert claim(driver(store, "c")).restored == 2


def test_everything_goes_and_the_sign_on_the_door_goes_last() -> None:
    """T3: whoever is interrupted leaves a folder that is still known to be a job's."""
    store = Recorder()
    store.create(paths.JOB, b"x")
    files = driver(store)
    claim(files)
    assert files.persist(manifest(1))
    files.delete_everything()
    assert store.list() == []
    assert store.deleted[-1] == paths.JOB


def test_deleting_everything_ends_no_checkpoint_by_halves() -> None:
    """I12, T3: whoever is interrupted at any point leaves a job that can be started."""
    for deletions in range(8):
        store = Stops(deletions)
        store.create(paths.JOB, b"x")
        files = driver(store)
        claim(files)
        put(store, "chk-1/0-1", "chk-2/0-1")
        for i in (1, 2):
            files.persist(manifest(i, file=f"chk-{i}/0-1"))
        with contextlib.suppress(StorageError):
            files.delete_everything()
        assert bool(store.list()) == (deletions < 7), "there were seven files"
        claim(driver(store, "another"))


class Stops(MemoryStore):
    """Deletes so many files, and no more."""

    def __init__(self, deletions: int) -> None:
        super().__init__()
        self.deletions_left = deletions

    def delete(self, name: str) -> None:
        if not self.deletions_left:
            raise StorageError("no more")
        self.deletions_left -= 1
        super().delete(name)


def test_a_driver_whose_directory_was_deleted_is_fenced_also_when_others_count_up_to_it() -> None:
    """I18: a second try to delete everything hits no job that has begun in the meantime."""
    store = MemoryStore()
    old, second, third = (driver(store, name) for name in ("old", "second", "third"))
    claim(old)
    claim(second)
    second.delete_everything()
    with pytest.raises(JobFenced, match="deleted"):
        old.persist(manifest(1), again=True)
    claim(third)
    third.persist(manifest(1))
    before = store.list()
    for clean_up in (old.delete_everything, lambda: old.delete_checkpoint(n(1))):
        with pytest.raises(JobFenced):
            clean_up()
    assert store.list() == before


def test_what_a_person_asks_for_is_looked_at_before_it_makes_newer_ones_void() -> None:
    """I12, I24: a file of it is gone; the start is refused, and all is as it was."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    for i in (1, 2):
        put(store, f"chk-{i}/0-1")
        files.persist(manifest(i, file=f"chk-{i}/0-1"))
    store.delete("chk-1/0-1")
    wish = RestoreWish(manifest=manifest(1, file="chk-1/0-1"))
    with pytest.raises(ClaimRefused, match="chk-1/0-1 is gone"):
        claim(driver(store, "b"), wish)
    assert claim(driver(store, "c")).restored == 2


def test_a_second_try_to_write_metadata_looks_first_who_owns_the_job() -> None:
    """I18: the new owner may have deleted that checkpoint long ago."""
    store = MemoryStore()
    old = driver(store, "old")
    claim(old)
    claim(driver(store, "new"))
    with pytest.raises(JobFenced):
        old.persist(manifest(1), again=True)
    assert metadata(store) == []


class Recorder(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        super().delete(name)


def test_completing_a_checkpoint_costs_the_store_two_operations() -> None:
    """Bug-H9: the metadata, and a look at who owns the job."""
    asked: list[str] = []

    class Counting(MemoryStore):
        def create(self, name: str, data: bytes) -> bool:
            asked.append(f"create {name}")
            return super().create(name, data)

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            asked.append(f"read {name}")
            return super().read(name, offset, length)

        def list(self, prefix: str = "") -> list[str]:
            asked.append(f"list {prefix}")
            return super().list(prefix)

    files = driver(Counting())
    claim(files)
    asked.clear()
    files.persist(manifest(1))
    assert asked == ["create chk-1/_metadata", "list owner"]


def test_the_tombstone_of_one_checkpoint_in_the_place_of_another_is_damage() -> None:
    """I24, I17: taken for a snapshot that never was, its rows would be written a second time."""
    store = MemoryStore()
    files = driver(store)
    claim(files)
    files.persist(manifest(2))
    store.write("chk-2/_metadata", [tombstone(n(1))])
    with pytest.raises(CheckpointCorrupt, match="chk-2/_metadata"):
        claim(driver(store, "driver-b"))
