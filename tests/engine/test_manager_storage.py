"""The job manager and its directory: slow and broken clean-up, history that outlives the driver, damage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from penstock.engine.checkpoints.claiming import Claims
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.persisting import PERSIST_PAUSE_MS, unsettled
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.engine.driver.manager import END_PATIENCE_MS
from penstock.engine.serial import Serial
from penstock.engine.spec import JobSpec
from penstock.errors import CheckpointCorrupt, StorageError
from penstock.plan.physical import make_plan
from penstock.ports.control import LaunchEnded
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Abort, Ack
from penstock.protocol.phases import Outcome
from penstock.storage.memory import MemoryStore
from penstock.wire import manifest as manifests
from penstock.wire import paths
from tests.engine.kit import Do, HeldBackground, ListSink, NumberSource, pipeline
from tests.engine.whole_job import Job, metadata

FOREVER = 1_000_000
ROWS = 1_500


class Hangs(BaseException):
    """An operation of a store that never comes back; nothing may catch it."""


class Patient(HeldBackground):
    """Work that hangs neither ends nor fails, unless it is ended from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.hung: list[Callable] = []

    def end(self) -> None:
        for failed in self.hung:
            failed(StorageError("given up"))
        self.hung = []

    def submit(self, work: Callable, done: Callable, failed: Callable) -> None:
        def tried() -> object:
            try:
                return work()
            except Hangs as hung:
                return hung

        def told(result: object) -> None:
            if isinstance(result, Hangs):
                self.hung.append(failed)
            else:
                done(result)

        super().submit(tried, told, failed)


class Bad(MemoryStore):
    """Some operations on some names raise `error`."""

    def __init__(self, operation: str, folder: str, error: BaseException) -> None:
        super().__init__()
        self._bad = (operation, folder)
        self._error = error
        self.hits = 0
        self.good = False

    def _maybe(self, operation: str, name: str) -> None:
        if not self.good and self._bad[0] == operation and name.startswith(self._bad[1]):
            self.hits += 1
            raise self._error

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        self._maybe("write", name)
        return super().write(name, chunks)

    def list(self, prefix: str = "") -> list[str]:
        self._maybe("list", prefix)
        return super().list(prefix)

    def delete(self, name: str) -> None:
        self._maybe("delete", name)
        super().delete(name)


# ---- clean-up and history hold nothing up


@pytest.mark.parametrize("error", [Hangs("for ever"), StorageError("no"), OSError("no")], ids=repr)
@pytest.mark.parametrize(
    ("operation", "folder"), [("delete", "chk-"), ("write", "history"), ("list", "history")]
)
def test_slow_or_broken_clean_up_and_history_never_hold_up_a_checkpoint(
    operation: str, folder: str, error: BaseException
) -> None:
    """C4, C5, C6, I25: the next checkpoints complete, their rows are committed, and the job ends."""
    store = Bad(operation, folder, error)
    job = Job(NumberSource(FOREVER), ListSink(), store=store, background=Patient())
    job.until(job.completed(12), steps=400)
    assert store.hits, "it was really tried"
    assert not job.errors
    job.manager.request_stop()
    job.until(lambda: job.manager.outcome is not None)
    job.clock.now_ms += END_PATIENCE_MS
    assert job.run() is Outcome.STOPPED
    assert job.sink.numbers == list(range(len(job.sink.numbers)))


def test_the_end_waits_for_a_store_that_is_slow_but_not_for_one_that_hangs() -> None:
    """I13, I25."""
    store = Bad("delete", "chk-", Hangs())
    job = Job(NumberSource(FOREVER), ListSink(), store=store, background=Patient())
    job.until(job.completed(3))
    job.manager.request_stop()
    job.until(lambda: job.manager.outcome is not None)
    for _ in range(500):
        job.step()
    assert not job.manager.ended
    job.clock.now_ms += END_PATIENCE_MS
    assert job.manager.ended


def test_what_a_hanging_clean_up_left_is_swept_by_the_next_driver() -> None:
    """I13."""
    store = Bad("delete", "chk-", Hangs())
    job = Job(NumberSource(ROWS), ListSink(), store=store, background=Patient())
    job.until(job.completed(5))
    assert len(metadata(store)) >= 5
    store.good = True
    again = Job(NumberSource(ROWS), job.sink, store=store, driver="b")
    assert again.run() is Outcome.FINISHED
    assert len(metadata(store)) == 2


FULL = "cannot create /disk/chk-9/_metadata: No space left on device (ENOSPC); the disk is full"


class Refuses(MemoryStore):
    """While `down`, no metadata is written."""

    down = False
    refused = 0

    def create(self, name: str, data: bytes) -> bool:
        if self.down and paths.metadata_of(name) is not None:
            self.refused += 1
            raise StorageError(FULL)
        return super().create(name, data)


def test_a_job_that_ends_with_a_checkpoint_it_restored_keeps_no_more_than_it_should() -> None:
    """I13, C5: its predecessor could not delete what was too much."""
    store = Bad("delete", "chk-", StorageError("no"))
    job = Job(NumberSource(ROWS), ListSink(), store=store)
    assert job.run() is Outcome.FINISHED
    before = metadata(store)
    assert len(before) > 2
    store.good = True
    again = Job(NumberSource(ROWS), job.sink, store=store, driver="b")
    assert again.run() is Outcome.FINISHED
    assert metadata(store) == sorted(before)[-2:]


def test_a_job_that_is_cancelled_before_it_has_proved_its_checkpoint_keeps_all_others() -> None:
    """I12: the one it went on from may turn out to be damaged."""
    store = Bad("delete", "chk-", StorageError("no"))
    job = Job(NumberSource(FOREVER), ListSink(), store=store)
    job.until(job.completed(5))
    before = metadata(store)
    store.good = True
    again = Job(NumberSource(FOREVER), job.sink, store=store, driver="b", every_ms=None)
    again.until(lambda: again.manager.status == "running")
    again.manager.request_cancel()
    assert again.run() is Outcome.CANCELLED
    assert metadata(store) == before


# ---- what was given up goes at once


def with_a_file_of_a_snapshot_that_nobody_answers() -> tuple[Job, str]:
    job = Job(NumberSource(FOREVER), ListSink(), tolerable_failures=5)
    job.until(job.completed(1))
    job.workers.miss = Ack
    job.until(lambda: bool(job.manager.coordinator.live()))
    checkpoint = job.manager.coordinator.live()[0].id
    file = paths.worker_file(checkpoint, SlotId(0), AttemptId(1))
    job.store.write(file, [b"state"])
    return job, file


def test_the_files_of_a_snapshot_that_was_given_up_go_while_the_job_runs() -> None:
    """I8, C4, bug-A1: a job may run for months before its last sweep."""
    job, file = with_a_file_of_a_snapshot_that_nobody_answers()
    job.until(lambda: any(isinstance(message, Abort) for message in job.workers.sent))
    job.until(lambda: file not in job.store.list())
    assert job.manager.status == "running"


def test_the_files_that_a_late_answer_names_go_while_the_job_runs() -> None:
    """I8, bug-A1: the snapshot stays given up."""
    job, file = with_a_file_of_a_snapshot_that_nobody_answers()
    job.until(lambda: file not in job.store.list())
    job.store.write(file, [b"late"])
    job.workers.events.append(job.workers.missed[0])
    job.until(lambda: file not in job.store.list())
    assert job.manager.status == "running"
    assert paths.checkpoint_of(file) not in metadata(job.store)


def test_metadata_is_not_tried_again_behind_the_deletion_of_everything() -> None:
    """I12, T3: it would come to exist alone, and the next job of this name would begin in the middle."""
    store = Refuses()
    job = Job(NumberSource(FOREVER), ListSink(), store=store, retain="delete_on_cancel")
    job.until(job.completed(2))
    store.down = True
    job.until(lambda: bool(unsettled(job.manager.coordinator)))
    job.step()
    store.down = False
    job.manager.request_cancel()
    assert job.run() is Outcome.CANCELLED
    assert store.list() == []
    again = Job(NumberSource(ROWS), ListSink(), store=store, driver="b")
    assert again.run() is Outcome.FINISHED
    assert again.sink.numbers == list(range(ROWS))


def test_an_attempt_waits_until_it_is_known_whether_a_checkpoint_exists() -> None:
    """R1, I7: it may be the very one to go on from."""
    store = Refuses()
    job = Job(NumberSource(FOREVER), ListSink(), store=store)
    job.until(job.completed(2))
    store.down = True
    job.until(lambda: bool(unsettled(job.manager.coordinator)))
    (open_one,) = unsettled(job.manager.coordinator)
    kill_a_worker(job)
    for _ in range(50):
        job.step()
    assert job.manager.machine.attempts == 1
    store.down = False
    job.until(lambda: job.manager.machine.attempts == 2 and job.manager.status == "running")
    assert job.manager.coordinator.newest_completed >= open_one


def test_a_store_that_takes_no_metadata_for_long_is_told_of() -> None:
    """C6: the job goes on and waits, and says so, ever less often."""
    store = Refuses()
    job = Job(NumberSource(FOREVER), ListSink(), store=store)
    job.until(job.completed(2))
    store.down = True
    for _ in range(300):
        job.clock.now_ms += PERSIST_PAUSE_MS
        job.step()
    assert job.manager.status == "running"
    told = [info.message for info in job.manager.history.exceptions]
    assert 3 <= len(told) <= 8
    assert all(each.startswith(FULL) for each in told), "the cause goes first"
    assert "could not be written in 2 tries" in told[-1], "and early"
    store.down = False
    job.until(job.completed(5))


@pytest.mark.parametrize("tries", [1, 2])
def test_a_store_that_takes_no_metadata_for_a_moment_is_not_told_of(tries: int) -> None:
    """C6: a try that failed is nothing to talk about, two in a row are told at once."""
    store = Refuses()
    job = Job(NumberSource(FOREVER), ListSink(), store=store)
    job.until(job.completed(2))
    store.down = True
    job.until(lambda: store.refused >= 2 * tries)  # the metadata, and that it will never be
    store.down = False
    job.until(job.completed(4))
    assert len(job.manager.history.exceptions) == tries - 1


class Nearly(MemoryStore):
    """A disk with so little room left that only the smallest files fit."""

    full = False

    def create(self, name: str, data: bytes) -> bool:
        if self.full and len(data) > 100:
            raise StorageError(FULL)
        return super().create(name, data)


def test_a_checkpoint_whose_metadata_did_not_fit_says_why() -> None:
    """C4, C6: also where there is room for the word that it will never be."""
    store = Nearly()
    job = Job(NumberSource(FOREVER), ListSink(), store=store, tolerable_failures=0)
    job.until(job.completed(2))
    store.full = True
    job.until(lambda: bool(job.manager.history.exceptions))
    (told,) = job.manager.history.exceptions
    assert told.error == "CheckpointFailed"
    assert f"its metadata could not be written ({FULL})" in told.message


# ---- history


def pages(store: MemoryStore) -> list[str]:
    return store.list(paths.HISTORY_FOLDER)


class Forgetful(MemoryStore):
    """So many times metadata is not written."""

    forget = 0

    def create(self, name: str, data: bytes) -> bool:
        if self.forget and paths.metadata_of(name) is not None:
            self.forget -= 1
            raise StorageError("simulated")
        return super().create(name, data)


def test_the_next_driver_tells_what_the_killed_one_saw() -> None:
    """C6: completed and failed ones, with reasons, times and totals."""
    store, sink = Forgetful(), ListSink()
    first = Job(NumberSource(FOREVER), sink, store=store)
    first.until(first.completed(2))
    store.forget = 1
    first.until(lambda: first.manager.history.aborted_total > 0)
    first.until(first.completed(4))
    first.clock.now_ms += 2_000
    first.until(lambda: not first.manager.history.has_unsaved)
    first.step()
    seen = {info.id: info for info in first.manager.history.checkpoints if info.status != "pending"}
    totals = first.manager.history.totals
    assert (totals.completed, totals.aborted) == (len(seen) - 1, 1)

    second = Job(NumberSource(FOREVER), sink, store=store, driver="b")
    second.until(lambda: second.manager.status == "running")
    told = second.manager.history
    assert {info.id: info for info in told.checkpoints} == seen
    (failed,) = [info for info in told.checkpoints if info.status == "aborted"]
    assert "its metadata could not be written" in str(failed.failure)
    assert (told.totals.completed, told.totals.aborted) == (totals.completed, totals.aborted)
    assert told.totals.restored == totals.restored + 1
    assert told.summary().duration_ms is not None
    assert told.completed_total == 0, "its own"


def test_a_checkpoint_that_its_driver_had_no_time_to_write_down_is_told_all_the_same() -> None:
    """C6: what is restored is known, and what is kept beside it."""
    store = MemoryStore()
    first = Job(NumberSource(FOREVER), ListSink(), store=store)
    first.until(first.completed(5))
    there = sorted(metadata(store), reverse=True)
    for name in pages(store):
        store.delete(name)
    second = Job(NumberSource(FOREVER), first.sink, store=store, driver="b")
    second.until(lambda: second.manager.status == "running")
    assert [info.id for info in second.manager.history.checkpoints] == there
    told = second.manager.history.checkpoints[0]
    (seen,) = [info for info in first.manager.history.checkpoints if info.id == told.id]
    assert (told.status, told.kind) == ("completed", "checkpoint")
    assert told.subtasks == tuple(replace(part, start_delay_ms=None) for part in seen.subtasks)
    assert second.manager.history.totals.completed == len(there) > 1


def test_what_was_written_down_and_what_was_not_are_counted_once_each() -> None:
    """C6: the page lags behind the newest checkpoints of a driver that is killed."""
    store = MemoryStore()
    first = Job(NumberSource(FOREVER), ListSink(), store=store)
    first.until(first.completed(3))
    first.clock.now_ms += 2_000
    first.until(lambda: bool(pages(store)) and not first.manager.history.has_unsaved)
    first.until(first.completed(first.manager.history.completed_total + 2))
    second = Job(NumberSource(FOREVER), first.sink, store=store, driver="b")
    second.until(lambda: second.manager.status == "running")
    told = second.manager.history
    assert max(metadata(store)) == told.checkpoints[0].id
    assert told.totals.completed == first.manager.history.completed_total
    third = Job(NumberSource(FOREVER), first.sink, store=store, driver="c")
    third.until(lambda: third.manager.status == "running")
    assert third.manager.history.totals.completed >= told.totals.completed


def test_a_damaged_history_warns_and_hinders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """C6."""
    store, sink = MemoryStore(), ListSink()
    first = Job(NumberSource(ROWS), sink, store=store)
    first.until(first.completed(3))
    for name in pages(store):
        store.write(name, [b"\x00\x01"])
    store.write(paths.history(AttemptId(77), 3), [b""])
    second = Job(NumberSource(ROWS), sink, store=store, driver="b")
    assert second.run() is Outcome.FINISHED
    assert sink.numbers == list(range(ROWS))
    assert "history/0000000001-0000000000 is damaged" in caplog.text
    assert second.manager.history.checkpoints


def test_a_job_that_leaves_nothing_leaves_no_history() -> None:
    """C6, T3."""
    job = Job(NumberSource(FOREVER), ListSink(), retain="delete_on_cancel")
    job.until(job.completed(3))
    assert pages(job.store)
    job.manager.request_cancel()
    assert job.run() is Outcome.CANCELLED
    assert job.store.list() == []


def test_the_last_checkpoint_of_a_job_is_in_its_history() -> None:
    """C6."""
    job = Job(NumberSource(100), ListSink())
    assert job.run() is Outcome.FINISHED
    again = Job(NumberSource(100), job.sink, store=job.store, driver="b")
    again.until(lambda: bool(again.manager.history.checkpoints))
    assert again.manager.history.checkpoints[0].kind == "final"


# ---- damaged checkpoints


def stopped(sink: ListSink) -> tuple[MemoryStore, int]:
    """The directory of a job with two checkpoints, and the newest of them."""
    store = MemoryStore()
    job = Job(NumberSource(ROWS), sink, store=store)
    job.until(job.completed(3))
    job.manager.request_stop()
    assert job.run() is Outcome.STOPPED
    assert len(metadata(store)) == 2
    return store, max(metadata(store))


def damage(store: MemoryStore, name: str) -> None:
    data = bytearray(store.read(name))
    data[len(data) // 3] ^= 4
    store.write(name, [bytes(data)])


def kill_a_worker(job: Job) -> None:
    job.workers.kill(next(iter(job.workers.workers)))
    job.workers.events.append(LaunchEnded(0, "killed"))


def test_a_damaged_newest_checkpoint_fails_the_start_where_rows_would_come_twice() -> None:
    """I17, T5, I24, bug-E2: says which file, and what to do; nothing is written a second time."""
    sink = ListSink()
    store, newest = stopped(sink)
    before = sink.numbers
    damage(store, f"chk-{newest}/_metadata")
    job = Job(NumberSource(ROWS), sink, store=store, driver="b")
    assert job.run() is Outcome.FAILED
    assert job.manager.reason.startswith("CheckpointCorrupt: job 'job'")
    assert f"chk-{newest}/_metadata" in job.manager.reason
    assert "Repair or put back the damaged files, or start with restore=" in job.manager.reason
    assert sink.numbers == before
    assert job.errors == ["CheckpointCorrupt"]


def test_a_damaged_newest_checkpoint_is_passed_over_where_no_sink_minds() -> None:
    """I17, T5, bug-E3: with a warning among the job's exceptions."""
    sink = ListSink(idempotent=True)
    store, newest = stopped(sink)
    older = min(metadata(store))
    damage(store, f"chk-{newest}/_metadata")
    job = Job(NumberSource(ROWS), sink, store=store, driver="b")
    assert job.run() is Outcome.FINISHED
    assert sorted(set(sink.numbers)) == list(range(ROWS)), "some come twice, none is missing"
    (warning,) = job.manager.history.exceptions
    assert warning.error == "CheckpointCorrupt"
    assert f"checkpoint {newest} cannot be used" in warning.message
    assert f"going on from {older}" in warning.message


@pytest.mark.parametrize("minds", [[False], [False, False], [True, False], [False, True]])
def test_a_job_falls_back_only_where_none_of_its_sinks_minds(minds: list[bool]) -> None:
    """I17: one sink that takes rows twice does not make up for another that does not."""
    store, newest = stopped(ListSink())
    damage(store, f"chk-{newest}/_metadata")
    files = CheckpointFiles(store, "job", "driver-b", lambda: 0.0)
    spec = JobSpec("job", make_plan(pipeline(NumberSource(ROWS), ListSink()), 1, 8))
    sinks = [ListSink(idempotent=not each) for each in minds]
    background, claimed, failed = HeldBackground(), [], []
    claims = Claims(spec, RestoreWish(), files, Serial(background), sinks)
    claims.take(CheckpointId(1), frozenset(), claimed.append, failed.append)
    background.poll()
    if any(minds):
        assert not claimed and "sinks have already committed" in str(failed[0])
    else:
        assert not failed and claimed[0].restored < newest


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_checkpoint_that_only_workers_find_damaged_is_not_tried_again(idempotent: bool) -> None:
    """T5, I17, bug-E3: the job goes back where it may, and fails where it may not; it does not fail for ever."""
    sink = ListSink(idempotent)
    store, newest = stopped(sink)
    failures = iter([CheckpointCorrupt("a block is broken")])

    def unreadable() -> Do:
        made = Do()
        if (error := next(failures, None)) is not None:
            made.at["open"] = error
        return made

    job = Job(NumberSource(ROWS), sink, store=store, driver="b", operator=unreadable)
    outcome = job.run()
    restored = [info.message for info in job.manager.history.exceptions]
    assert any(f"checkpoint {newest}" in each and "a block is broken" in each for each in restored)
    assert outcome is (Outcome.FINISHED if idempotent else Outcome.FAILED)
    assert job.manager.machine.attempts == (2 if idempotent else 1)


def test_a_wish_with_a_password_counts_until_the_job_has_a_checkpoint_of_its_own() -> None:
    """R5: what is recorded of it has no password, so nobody could begin with that again."""
    origin, _ = stopped(ListSink())
    newest = max(metadata(origin))
    name = f"chk-{newest}/_metadata"
    place = "memory://me:hunter2@host/other"
    files = CheckpointFiles(MemoryStore(), "job", "driver-b", lambda: 0.0, {place: origin}.get)  # type: ignore[arg-type]
    spec = JobSpec("job", make_plan(pipeline(NumberSource(ROWS), ListSink()), 1, 8))
    wish = RestoreWish(manifest=manifests.decode(origin.read(name), name), origin=place)
    background, points, failed = HeldBackground(), [], []
    claims = Claims(spec, wish, files, Serial(background), [ListSink()])
    for number in (1, 2):
        claims.take(CheckpointId(1), frozenset(), points.append, failed.append)
        background.poll()
        assert (failed, len(points)) == ([], number)
        claims.accept(points[-1])
    assert points[1].manifest == wish.manifest


def test_a_checkpoint_that_the_job_went_back_to_is_deleted_no_more() -> None:
    """I12, I17: it was to go, behind a deletion that took long; then its successor turned out to be damaged."""
    sink, store, background = ListSink(idempotent=True), Bad("delete", "chk-1/", Hangs()), Patient()
    job = Job(NumberSource(FOREVER), sink, store=store, background=background, keep=1)
    job.until(job.completed(3))
    newest = max(metadata(store))
    assert metadata(store) == [1, 2, newest], "the deletion of 2 waits for that of 1"
    damage(store, f"chk-{newest}/_metadata")
    kill_a_worker(job)
    job.until(lambda: job.manager.machine.attempts == 2 and job.manager.status == "running")
    assert job.manager.coordinator.completed == [2], "1 is being deleted: nothing to go on from"
    background.end()
    job.step()
    assert 2 in metadata(store)
    job.until(job.completed(4))
    job.until(lambda: 2 not in metadata(store))


def test_an_older_checkpoint_that_leads_nowhere_costs_nobody_the_newer_one() -> None:
    """I12: somebody goes back, the job fails before its first checkpoint, and he goes forward again."""
    sink = ListSink()
    store, newest = stopped(sink)
    name = f"chk-{min(metadata(store))}/_metadata"

    def unreadable() -> Do:
        made = Do()
        made.at["open"] = CheckpointCorrupt("only a worker can see this")
        return made

    wish = RestoreWish(manifest=manifests.decode(store.read(name), name))
    job = Job(NumberSource(ROWS), sink, store=store, driver="b", wish=wish, operator=unreadable)
    assert job.run() is Outcome.FAILED
    assert newest in metadata(store)


def test_whoever_names_the_older_checkpoint_goes_on_from_it_also_after_a_failure() -> None:
    """I17: what the refusal advises works, and works again when a worker is lost before the next checkpoint."""
    sink = ListSink()
    store, newest = stopped(sink)
    name = f"chk-{min(metadata(store))}/_metadata"
    damage(store, f"chk-{newest}/_metadata")
    wish = RestoreWish(manifest=manifests.decode(store.read(name), name))
    job = Job(NumberSource(ROWS), sink, store=store, driver="b", wish=wish, every_ms=None)
    job.until(lambda: job.manager.status == "running")
    kill_a_worker(job)
    job.until(lambda: job.manager.machine.attempts == 2)
    assert job.run() is Outcome.FINISHED
    assert sorted(set(sink.numbers)) == list(range(ROWS))
