"""The job manager with real workers in the same thread: one slot, messages by hand, storage in memory."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.spec import Mode
from penstock.errors import StorageError
from penstock.ports.control import LaunchEnded, Received
from penstock.protocol import restart
from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId, WorkerId
from penstock.protocol.messages import (
    Ack,
    Deploy,
    Drop,
    Failed,
    Notify,
    SnapshotOrder,
    Sync,
    Trigger,
)
from penstock.protocol.phases import Ending, Outcome
from penstock.protocol.recovery import IDS_RESERVED
from penstock.protocol.snapshot import Segment, SubtaskSnapshot
from penstock.state.frozen import Out
from penstock.state.segments import GROUP_COLUMN
from penstock.storage.memory import MemoryStore
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from tests.engine.kit import Do, ListSink, NumberSource
from tests.engine.whole_job import Job, metadata

# ---- whole lives


def test_a_job_whose_input_ends_finishes_with_every_row_committed() -> None:
    """R1, B10, C3, I27."""
    job = Job(NumberSource(100), ListSink())
    assert job.run() is Outcome.FINISHED
    assert job.sink.numbers == list(range(100))
    newest = manifests.decode(
        job.store.read(f"chk-{max(metadata(job.store))}/_metadata"), "manifest"
    )
    assert newest.kind == "final"
    assert len(metadata(job.store)) <= 2, "C5: as many as are kept"


def test_nobody_hears_of_a_checkpoint_before_its_metadata_is_there() -> None:
    """C3, I9."""
    job = Job(NumberSource(1_000_000), ListSink())
    told: set[int] = set()
    for _ in range(300):
        job.step()
        new = {m.checkpoint for m in job.workers.sent if isinstance(m, Notify)} - told
        assert new <= set(metadata(job.store))
        told |= new
    assert told


def test_an_exception_in_user_code_costs_no_row_and_repeats_none() -> None:
    """R1, I1."""
    failures = iter([True])

    def once(batch: pa.RecordBatch) -> None:
        if 50 in batch.column(0).to_pylist() and next(failures, False):
            raise ValueError("bad row")

    job = Job(NumberSource(200), ListSink(), operator=lambda: Do(once))
    assert job.run() is Outcome.FINISHED
    assert job.sink.numbers == list(range(200))
    (failure,) = job.manager.history.exceptions
    assert (failure.error, failure.operator, failure.attempt) == ("ValueError", "work", 1)
    assert "bad row" in failure.message


def test_a_lost_worker_is_replaced_and_costs_no_row() -> None:
    """R1, bug-I1."""
    job = Job(NumberSource(2_000), ListSink())
    job.until(job.completed(2))
    job.workers.kill(WorkerId("w0"))
    job.workers.events.append(LaunchEnded(0, "killed"))
    assert job.run() is Outcome.FINISHED
    assert job.sink.numbers == list(range(2_000))
    (lost,) = job.manager.history.exceptions
    assert lost.error == "WorkerLost"
    assert lost.message == "the worker of slot 0 (pid 4000 on host): killed"


def test_a_deployment_that_hangs_fails_its_attempt_and_the_next_one_runs() -> None:
    """R1: who kept it waiting is told, with its process."""
    job = Job(NumberSource(100), ListSink(), deploy_timeout_ms=50)
    job.workers.lose = Deploy
    job.until(lambda: bool(job.manager.history.exceptions))
    job.workers.lose = None
    (late,) = job.manager.history.exceptions
    assert (late.error, late.attempt) == ("DeployTimeout", 1)
    assert "not ready within 0.05 s" in late.message
    assert "the worker of slot 0 (pid 4000 on host)" in late.message
    assert len(job.manager.machine.failures_ms) == 1
    assert job.run() is Outcome.FINISHED
    assert job.sink.numbers == list(range(100))


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "aligned"),
        ({"unaligned": True}, "unaligned"),
        ({"aligned_timeout_ms": 0.0}, "unaligned"),
        ({"mode": Mode.AT_LEAST_ONCE}, "at least once"),
    ],
)
def test_every_checkpoint_says_how_it_was_taken(options: dict, mode: str) -> None:
    """B5, B7, C6."""
    job = Job(NumberSource(1_000_000), ListSink(), **options)
    job.until(job.completed(2))
    done = [info for info in job.manager.history.checkpoints if info.status == "completed"]
    assert {info.mode for info in done} == {mode}
    assert all(info.owed == 0 and info.acknowledged for info in done)


def test_a_checkpoint_that_nobody_acknowledges_in_time_is_told_as_expedited() -> None:
    """B8, C6: and with the time that it took to reach the subtask."""
    job = Job(NumberSource(1_000_000), ListSink(), aligned_timeout_ms=5.0)
    job.workers.lose = Trigger | Sync  # type: ignore[assignment]
    job.until(lambda: any(info.mode == "expedited" for info in job.manager.history.checkpoints))
    (told,) = job.manager.history.checkpoints
    assert (told.status, told.acknowledged, told.owed) == ("pending", 0, 1)
    assert told.owing == ("numbers", "work", "out")
    job.workers.lose = None
    job.until(job.completed(1))
    done = job.manager.history.checkpoints[-1]
    assert (done.mode, done.owed, done.owing) == ("expedited", 0, ())
    delay_ms = done.subtasks[0].start_delay_ms
    assert delay_ms is not None and done.duration_ms is not None
    assert 5.0 <= delay_ms <= done.duration_ms


def test_an_acknowledgement_is_told_as_soon_as_it_has_come() -> None:
    """C6: while the metadata is being written; what that takes is no delay of the subtask."""
    job = Job(NumberSource(1_000_000), ListSink())
    job.workers.lose = Trigger | Sync  # type: ignore[assignment]
    job.until(lambda: bool(job.manager.history.checkpoints))
    job.background.held = True
    parts = (SubtaskSnapshot(SubtaskId(0, 0), {}),)
    ack = Ack(AttemptId(1), CheckpointId(job.manager.history.checkpoints[0].id), parts)
    job.workers.events.append(Received(WorkerId("w0"), ack))
    job.manager.step()
    (told,) = job.manager.history.checkpoints
    assert (told.status, told.acknowledged, told.owed) == ("pending", 1, 0)
    job.clock.now_ms += 300
    job.background.held = False
    job.until(job.completed(1))
    done = job.manager.history.checkpoints[-1]
    delay_ms, took_ms = done.subtasks[0].start_delay_ms, done.duration_ms
    assert delay_ms is not None and took_ms is not None
    assert delay_ms < 300 <= took_ms


def test_what_an_attempt_records_reserves_ids_for_all_failures_that_are_tolerated() -> None:
    """B6, C7: in the claim and in every manifest, so that the next driver begins above them."""
    job = Job(NumberSource(1_000_000), ListSink(), tolerable_failures=400)
    job.until(job.completed(2))
    claim = records.decode_restored(job.store.read(paths.restored(AttemptId(1))), "claim")
    assert claim.ids_until == claim.first_id + IDS_RESERVED + 400
    newest = max(metadata(job.store))
    manifest = manifests.decode(job.store.read(f"chk-{newest}/_metadata"), "manifest")
    assert manifest.ids_until == newest + IDS_RESERVED + 400
    assert job.manager.coordinator.ids_until == manifest.ids_until


def test_a_cancelled_worker_is_replaced_and_no_restart_is_counted() -> None:
    """R1, R2: somebody cancelled its Spark job; the history says so, and nothing else happened."""
    job = Job(NumberSource(2_000), ListSink(), strategy=restart.Never())
    job.until(job.completed(2))
    job.workers.events.append(LaunchEnded(0, "its Spark job was cancelled", cancelled=True))
    job.workers.kill(WorkerId("w0"))
    job.manager.step()
    assert job.manager.status == "restarting"
    assert job.run() is Outcome.FINISHED
    assert job.sink.numbers == list(range(2_000))
    (told,) = job.manager.history.exceptions
    assert told.error == "WorkerCancelled" and "no restart is counted" in told.message


def test_the_strategy_ends_the_job_with_the_first_cause() -> None:
    """R2, B5."""

    def always(batch: pa.RecordBatch) -> None:
        raise ValueError("bad row")

    job = Job(NumberSource(10), ListSink(), operator=lambda: Do(always), strategy=restart.Never())
    assert job.run() is Outcome.FAILED
    assert "ValueError in operator 'work'" in job.manager.reason
    assert "bad row" in job.manager.reason
    assert job.sink.numbers == []


def test_without_checkpoints_rows_are_committed_and_never_replayed() -> None:
    """B5: at most once."""
    failures = iter([True])

    def once(batch: pa.RecordBatch) -> None:
        if 150 in batch.column(0).to_pylist() and next(failures, False):
            raise ValueError("bad row")

    job = Job(
        NumberSource(200),
        ListSink(),
        operator=lambda: Do(once),
        strategy=restart.Never(),
        durable=False,
    )
    assert job.run() is Outcome.FAILED
    assert job.sink.numbers == list(range(len(job.sink.numbers)))
    assert len(job.sink.numbers) < 200


def test_a_second_driver_goes_on_where_the_first_was_killed() -> None:
    """R5, C7: with ids above all of the first one's."""
    store, sink = MemoryStore(), ListSink()
    first = Job(NumberSource(500), sink, store=store)
    first.until(first.completed(3))
    second = Job(NumberSource(500), sink, store=store, driver="driver-b")
    assert second.run() is Outcome.FINISHED
    assert sink.numbers == list(range(500))
    used = [message.order.id for message in first.workers.sent if isinstance(message, Trigger)]
    new = [message.order.id for message in second.workers.sent if isinstance(message, Trigger)]
    assert min(new) > max(used)


def test_a_driver_that_was_replaced_stops_and_commits_nothing_more() -> None:
    """R5, I18, bug-E15."""
    store, sink = MemoryStore(), ListSink()
    first = Job(NumberSource(1_000_000), sink, store=store)
    first.until(first.completed(2))
    second = Job(NumberSource(1_000_000), sink, store=store, driver="driver-b")
    second.until(second.completed(1))
    told = len([m for m in first.workers.sent if isinstance(m, Notify)])
    assert first.run() is Outcome.FAILED
    assert "taken over by another driver (driver-b)" in first.manager.reason
    assert len([m for m in first.workers.sent if isinstance(m, Notify)]) <= told + 1
    second.until(second.completed(3))


# ---- stopping, cancelling


def test_a_stopped_job_has_everything_committed_and_goes_on_later() -> None:
    """C3: nothing is lost, nothing comes twice."""
    store, sink = MemoryStore(), ListSink()
    job = Job(NumberSource(3_000), sink, store=store)
    job.until(job.completed(1))
    job.manager.request_stop()
    assert job.run() is Outcome.STOPPED
    stopped_at = len(sink.numbers)
    assert sink.numbers == list(range(stopped_at))
    assert 0 < stopped_at < 3_000
    again = Job(NumberSource(3_000), sink, store=store, driver="driver-b")
    assert again.run() is Outcome.FINISHED
    assert sink.numbers == list(range(3_000))


def test_a_commit_that_fails_after_the_stop_is_repeated_and_then_the_job_stops() -> None:
    """bug-A16: never from an older checkpoint."""
    sink = ListSink()
    job = Job(NumberSource(1_000_000), sink)
    job.until(job.completed(1))
    job.manager.request_stop()
    sink.fail_commits = 7
    assert job.run() is Outcome.STOPPED
    assert sink.numbers == list(range(len(sink.numbers)))
    assert "CommitError" in job.errors


@pytest.mark.parametrize(
    ("retain", "stays"), [("retain_on_cancel", True), ("delete_on_cancel", False)]
)
def test_what_stays_after_a_cancel_is_what_was_asked_for(retain: str, stays: bool) -> None:
    """T3."""
    job = Job(NumberSource(1_000_000), ListSink(), retain=retain)
    job.until(job.completed(2))
    job.manager.request_cancel()
    assert job.run() is Outcome.CANCELLED
    assert bool(metadata(job.store)) is stays
    assert bool(job.store.list()) is stays


@pytest.mark.parametrize(("retain", "stays"), [("delete_on_cancel", True), ("never_retain", False)])
def test_what_stays_after_a_failure_is_what_was_asked_for(retain: str, stays: bool) -> None:
    """T3."""

    def late(batch: pa.RecordBatch) -> None:
        if 400 in batch.column(0).to_pylist():
            raise ValueError("bad row")

    job = Job(NumberSource(1_000), ListSink(), operator=lambda: Do(late), retain=retain)
    assert job.run() is Outcome.FAILED
    assert bool(metadata(job.store)) is stays


class Big(Do):
    """Has state that is too large for the metadata."""

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        return FrozenOperator((BigTable(),))


class BigTable:
    def write(self, out: Out) -> tuple[Segment, ...]:
        rows = {GROUP_COLUMN: pa.array([0], pa.uint16()), "bytes": [bytes(20_000)]}
        batch = pa.RecordBatch.from_pydict(rows)
        return (out.put("big", batch.schema, [batch]),)

    def release(self) -> None:
        """Holds nothing."""


class Unclear(MemoryStore):
    """While `unclear` nobody can tell whether metadata was written."""

    unclear = False

    def create(self, name: str, data: bytes) -> bool:
        if self.unclear and paths.metadata_of(name) is not None:
            raise StorageError("simulated: no answer")
        return super().create(name, data)


def test_a_cancel_while_metadata_is_written_leaves_a_whole_checkpoint_or_none() -> None:
    """I12: the last clean-up leaves the files of what may yet come to exist."""
    store = Unclear()
    job = Job(NumberSource(1_000_000), ListSink(), operator=Big, store=store)
    job.until(job.completed(1))
    store.unclear = True
    job.until(lambda: not job.manager._later.idle)
    job.manager.request_cancel()
    job.until(lambda: job.manager.outcome is not None)
    store.unclear = False
    assert job.run() is Outcome.CANCELLED
    for checkpoint in metadata(store):
        name = f"chk-{checkpoint}/_metadata"
        whole = manifests.decode(store.read(name), name)
        assert whole.files, "the state lies in files"
        assert set(whole.files) <= set(store.list())


def test_a_store_that_fails_at_the_end_is_swept_all_the_same() -> None:
    """I13."""

    class Stubborn(MemoryStore):
        refuses = 10_000

        def delete(self, name: str) -> None:
            if self.refuses:
                self.refuses -= 1
                raise StorageError("simulated: cannot delete")
            super().delete(name)

    store = Stubborn()
    job = Job(NumberSource(300), ListSink(), store=store)
    job.until(lambda: job.manager.outcome is not None)
    assert len(metadata(store)) > 2
    store.refuses = 3
    assert job.run() is Outcome.FINISHED
    assert len(metadata(store)) == 2


# ---- restore points


def test_another_jobs_checkpoint_is_the_start_until_there_is_an_own_one() -> None:
    """R1: after a failure the job goes on from its own checkpoint, not from the beginning again."""
    origin, sink = MemoryStore(), ListSink()
    first = Job(NumberSource(100_000), ListSink(), store=origin)
    first.until(first.completed(2))
    name = f"chk-{max(metadata(origin))}/_metadata"
    restored = manifests.decode(origin.read(name), name)
    begin = next(
        part.operators["numbers"].lanes[0] for part in restored.snapshots if part.operators
    )
    without = tuple(
        dataclasses.replace(
            part,
            operators={
                key: dataclasses.replace(value, transactions=())
                for key, value in part.operators.items()
            },
        )
        for part in restored.snapshots
    )
    wish = RestoreWish(
        manifest=dataclasses.replace(restored, snapshots=without), origin="/elsewhere"
    )
    failures = iter([True])

    def once(batch: pa.RecordBatch) -> None:
        ready = job.manager.history.completed_total >= 2
        if ready and next(failures, False):
            raise ValueError("once")

    job = Job(NumberSource(100_000), sink, operator=lambda: Do(once), wish=wish)
    job.until(lambda: len(job.manager.history.exceptions) == 1)
    job.until(job.completed(5))
    assert sink.numbers == list(range(begin, begin + len(sink.numbers)))  # type: ignore[operator, arg-type]


def test_a_driver_killed_before_its_first_own_checkpoint_begins_with_the_other_jobs_again() -> None:
    """R5, I1: the job was begun with another job's checkpoint; nobody needs to name it a second time."""
    origin, store, sink = MemoryStore(), MemoryStore(), ListSink()
    first = Job(NumberSource(400), sink, store=origin)
    first.until(first.completed(3))
    name = f"chk-{max(metadata(origin))}/_metadata"
    wish = RestoreWish(manifest=manifests.decode(origin.read(name), name), origin="/elsewhere")
    taken_over = {"store": store, "origin": origin}
    killed = Job(NumberSource(400), sink, **taken_over, wish=wish, driver="b", every_ms=None)
    killed.until(lambda: killed.manager.status == "running")
    assert not metadata(store)
    again = Job(NumberSource(400), sink, **taken_over, driver="c")
    assert again.run() is Outcome.FINISHED
    assert sink.numbers == list(range(400))


def test_state_of_an_operator_that_is_not_there_any_more_is_refused() -> None:
    """R8: lists both sides and the likeliest match."""
    store = MemoryStore()
    first = Job(NumberSource(1_000_000), ListSink(), store=store)
    first.until(first.completed(1))
    name = f"chk-{max(metadata(store))}/_metadata"
    taken = manifests.decode(store.read(name), name)
    renamed = dataclasses.replace(
        taken,
        operators=tuple(
            dataclasses.replace(entry, name="number") if entry.name == "numbers" else entry
            for entry in taken.operators
        ),
        snapshots=tuple(
            dataclasses.replace(
                part,
                operators={
                    ("number" if key == "numbers" else key): value
                    for key, value in part.operators.items()
                },
            )
            for part in taken.snapshots
        ),
    )
    wish = RestoreWish(manifest=renamed, origin="/elsewhere")
    job = Job(NumberSource(10), ListSink(), wish=wish)
    assert job.run() is Outcome.FAILED
    assert "'number' (did you mean 'numbers'?)" in job.manager.reason
    assert "'numbers', 'work', 'out'" in job.manager.reason


def test_another_max_parallelism_is_refused() -> None:
    store = MemoryStore()
    first = Job(NumberSource(1_000_000), ListSink(), store=store)
    first.until(first.completed(1))
    name = f"chk-{max(metadata(store))}/_metadata"
    taken = dataclasses.replace(manifests.decode(store.read(name), name), max_parallelism=64)
    job = Job(NumberSource(10), ListSink(), wish=RestoreWish(manifest=taken, origin="/x"))
    assert job.run() is Outcome.FAILED
    assert "start it with max_parallelism=64" in job.manager.reason


# ---- odd moments


def test_two_failures_in_one_tick_are_one_restart() -> None:
    """bug-A13."""
    job = Job(NumberSource(1_000_000), ListSink())
    job.until(job.completed(1))
    failed = Failed(AttemptId(1), "ValueError", "no")
    worker = next(iter(job.workers.workers))
    job.workers.events += [Received(worker, failed), Received(worker, failed)]
    job.step()
    assert len([m for m in job.workers.sent if isinstance(m, Drop)]) == 1
    job.until(lambda: job.manager.machine.attempts == 2)
    job.until(job.completed(3))
    assert job.manager.machine.attempts == 2


@pytest.mark.parametrize("fatal", [False, True])
@pytest.mark.parametrize("error", ["ValueError", "CheckpointCorrupt"])
def test_a_late_failure_of_an_older_attempt_is_no_failure_of_the_present_one(
    error: str, fatal: bool
) -> None:
    """R1, I25: it neither ends the job nor the attempt, and says nothing about the checkpoint that this one has."""
    job = Job(NumberSource(1_000_000), ListSink())
    job.until(job.completed(1))
    job.workers.kill(next(iter(job.workers.workers)))
    job.workers.events.append(LaunchEnded(0, "killed"))
    job.until(lambda: job.manager.machine.attempts == 2 and job.manager.status == "running")
    told = len(job.manager.history.exceptions)
    late = Failed(AttemptId(1), error, "long ago", fatal=fatal)
    job.workers.events.append(Received(next(iter(job.workers.workers)), late))
    job.until(job.completed(3))
    assert (job.manager.machine.attempts, job.manager.outcome) == (2, None)
    assert len(job.manager.history.exceptions) == told
    job.workers.kill(next(iter(job.workers.workers)))
    job.workers.events.append(LaunchEnded(1, "killed"))
    job.until(lambda: job.manager.machine.attempts == 3 and job.manager.status == "running")
    assert job.manager.coordinator.newest_completed >= 3, "it goes on from the newest one"


@pytest.mark.parametrize("lost", [Notify, Drop])
def test_messages_that_get_lost_do_not_hold_the_job_up(lost: type) -> None:
    """I25."""
    job = Job(NumberSource(300), ListSink())
    job.workers.lose = lost
    job.until(lambda: any(isinstance(m, lost) for m in job.workers.sent) or job.manager.ended)
    job.workers.lose = None
    assert job.run() is Outcome.FINISHED
    assert job.sink.numbers == list(range(300))


def test_too_few_workers_end_the_job_in_time() -> None:
    """bug-I4."""
    job = Job(NumberSource(10), ListSink(), slot_timeout_ms=50)
    job.workers.workers.clear()
    job.workers.events.clear()
    job.until(lambda: job.manager.outcome is not None)
    assert job.manager.outcome is Outcome.FAILED
    assert "needs 1 workers" in job.manager.reason
    assert job.manager.reason.endswith("slot_timeout=...); Spark has no free core.")


def test_a_job_that_fails_for_want_of_slots_says_what_holds_them_whatever_brought_it_to_light() -> (
    None
):
    """bug-I4: not only the clock makes it look; here it is a launch that fails when the time is over."""
    job = Job(NumberSource(10), ListSink(), slot_timeout_ms=50)
    job.workers.workers.clear()
    job.workers.events.clear()
    job.clock.now_ms += 60
    job.workers.events.append(LaunchEnded(0, "no core", fatal=False))
    job.manager.step()
    assert job.manager.outcome is Outcome.FAILED
    assert "Spark has no free core" in job.manager.reason


def test_a_job_that_has_run_waits_for_slots_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """R1, I25: in the log and among its exceptions, with what holds the cores; then it goes on."""
    job = Job(NumberSource(400), ListSink(), slot_timeout_ms=50, strategy=restart.Fixed(1, 5))
    job.until(job.completed(1))
    job.workers.launches = False
    job.workers.kill(next(iter(job.workers.workers)))
    job.until(lambda: job.errors.count("SlotsMissing") == 3)
    assert job.manager.status == "restarting"
    newest = job.manager.history.exceptions[0]
    assert "only 0 are there" in newest.message
    assert "Spark has no free core." in newest.message
    assert newest.message in caplog.text
    job.workers.launches = True
    job.workers.launch(max(job.manager.machine.launches), "")
    assert job.run() is Outcome.FINISHED
    assert job.sink.numbers == list(range(400))


def test_a_job_that_never_ran_does_not_say_that_it_runs_while_it_ends() -> None:
    job = Job(NumberSource(10), ListSink())
    job.workers.lose = Deploy
    job.until(lambda: job.manager.machine.attempts == 1)
    job.manager.request_cancel()
    assert isinstance(job.manager.machine.phase, Ending)
    assert job.manager.status == "starting"


def test_a_job_that_ends_between_two_attempts_says_that_it_was_restarting() -> None:
    job = Job(NumberSource(1_000_000), ListSink(), strategy=restart.Fixed(3, 60_000))
    job.until(job.completed(1))
    worker = next(iter(job.workers.workers))
    job.workers.events.append(Received(worker, Failed(AttemptId(1), "ValueError", "no")))
    job.step()
    job.manager.request_cancel()
    assert isinstance(job.manager.machine.phase, Ending)
    assert job.manager.status == "restarting"


def test_a_launch_that_can_never_work_says_what_spark_knows() -> None:
    job = Job(NumberSource(10), ListSink())
    job.workers.workers.clear()
    job.workers.events.clear()
    job.workers.events.append(LaunchEnded(0, "another Python.", fatal=True))
    assert job.run() is Outcome.FAILED
    assert job.manager.reason == "another Python. Spark has no free core."


def test_a_checkpoint_can_be_asked_for() -> None:
    """C1."""
    job = Job(NumberSource(1_000_000), ListSink(), every_ms=None)
    job.until(lambda: job.manager.status == "running")
    for _ in range(100):
        job.step()
    assert job.manager.history.checkpoints == ()
    job.manager.request_checkpoint()
    job.until(job.completed(1))


def test_a_checkpoint_that_is_asked_for_before_the_job_runs_is_taken_when_it_does() -> None:
    """C1: who asks while it restarts would wait for ever, where none is taken by itself."""
    job = Job(NumberSource(1_000_000), ListSink(), every_ms=None)
    assert job.manager.status == "starting"
    job.manager.request_checkpoint()
    job.until(job.completed(1))


def test_everyone_who_asks_for_a_checkpoint_is_told_which_is_theirs() -> None:
    """C1: two at once, and one under way that was triggered before they asked."""
    job = Job(NumberSource(1_000_000), ListSink(), every_ms=None)
    told: list[tuple[str, int]] = []
    job.manager.request_checkpoint()
    job.until(lambda: bool(job.manager.coordinator.live()))
    for who in ("a", "b"):
        job.manager.request_checkpoint(lambda checkpoint, who=who: told.append((who, checkpoint)))
    assert told == []
    job.until(job.completed(3))
    assert told == [("a", 2), ("b", 3)]
