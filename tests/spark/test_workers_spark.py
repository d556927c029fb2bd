"""Workers as Spark tasks: they come, they are lost and come back, and they leave without a trace."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from penstock.errors import LaunchError
from penstock.ports.control import Joined, LaunchEnded, Left, Received
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.messages import Drop, Dropped, SnapshotKind, SnapshotOrder, Trigger
from penstock.shells.spark.session import check_session
from penstock.shells.spark.versions import versions
from penstock.shells.spark.workers import SparkWorkers
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S, Events, on_another_machine, until

pytestmark = pytest.mark.spark
Start = Callable[..., SparkWorkers]
ASK = Trigger(AttemptId(1), SnapshotOrder(CheckpointId(1), SnapshotKind.CHECKPOINT))


def launch(workers: SparkWorkers, *launches: int) -> tuple[Events, dict[int, Joined]]:
    events = Events(workers)
    for number in launches:
        workers.launch(number, f"worker {number + 1} of {len(launches)}")
    return events, {number: events.take(Joined, launch=number) for number in launches}


def test_workers_join_and_answer(start: Start) -> None:
    workers = start()
    events, joined = launch(workers, 0, 1)
    for worker in joined.values():
        workers.send(worker.worker, Drop(AttemptId(3)))
    answers = {events.take(Received).worker for _ in joined}
    assert answers == {worker.worker for worker in joined.values()}
    assert "6 cores" in workers.capacity() and "2 of them workers of this job" in workers.capacity()


def test_workers_join_over_encrypted_tcp(start: Start) -> None:
    workers = start(force_tcp=True)
    events, joined = launch(workers, 0)
    workers.send(joined[0].worker, Drop(AttemptId(3)))
    assert events.take(Received).message == Dropped(AttemptId(3))


def test_a_killed_worker_is_left_at_once_and_replaced_while_the_others_stay(start: Start) -> None:
    """R1, bug-I1: the others keep their processes; the lost one comes back under another id."""
    workers = start()
    events, joined = launch(workers, 0, 1)
    os.kill(joined[0].pid, signal.SIGKILL)
    assert events.take(Left).worker == joined[0].worker
    again = events.take(Joined)
    assert again.launch == 0 and again.worker != joined[0].worker and again.pid != joined[0].pid
    workers.send(joined[1].worker, Drop(AttemptId(3)))
    assert events.take(Received).worker == joined[1].worker
    assert psutil.pid_exists(joined[1].pid)


def test_a_launch_that_spark_gave_up_can_be_launched_again(start: Start) -> None:
    workers = start()
    events, joined = launch(workers, 0)
    workers.cancel(0)
    assert events.take(Left).worker == joined[0].worker
    assert not events.take(LaunchEnded, launch=0).fatal
    _, again = launch(workers, 7)
    assert again[7].pid != joined[0].pid


def test_a_stopped_process_is_ended_and_spark_brings_another(start: Start) -> None:
    """R1: a process that stands still is lost, though no connection broke. Spark alone would wait for it."""
    workers = start()
    events, joined = launch(workers, 0)
    os.kill(joined[0].pid, signal.SIGSTOP)
    assert "stood still" in events.take(Left).reason
    again = events.take(Joined)
    assert again.launch == 0 and again.pid != joined[0].pid
    until(lambda: not psutil.pid_exists(joined[0].pid))


def test_a_stopped_process_that_the_driver_cannot_reach_is_left_and_killed_by_spark(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: on another machine a process number says nothing; the launch is given up as a whole."""
    on_another_machine(monkeypatch)
    workers = start()
    events, joined = launch(workers, 0)
    os.kill(joined[0].pid, signal.SIGSTOP)
    events.take(Left)
    assert psutil.Process(joined[0].pid).status() == psutil.STATUS_STOPPED
    workers.cancel(0)
    events.take(LaunchEnded, launch=0)
    until(lambda: not psutil.pid_exists(joined[0].pid))


def test_a_process_that_was_cut_off_and_wakes_up_comes_back_with_nothing_of_what_it_did(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: to the driver it is a new worker; no process had to be started."""
    on_another_machine(monkeypatch)
    workers = start()
    events, joined = launch(workers, 0)
    workers.send(joined[0].worker, Drop(AttemptId(3)))
    events.take(Received)
    os.kill(joined[0].pid, signal.SIGSTOP)
    events.take(Left)
    os.kill(joined[0].pid, signal.SIGCONT)
    again = events.take(Joined)
    assert again.pid == joined[0].pid and again.worker != joined[0].worker
    workers.send(again.worker, Drop(AttemptId(4)))
    assert events.take(Received, worker=again.worker).message == Dropped(AttemptId(4))


def test_a_driver_that_cancels_all_jobs_only_loses_workers(spark: Any, start: Start) -> None:
    """Ctrl-C in a notebook: reported as ended, not fatal, and a new launch works at once."""
    workers = start()
    events, joined = launch(workers, 0, 1)
    spark.sparkContext.cancelAllJobs()
    for number in (0, 1):
        ended = events.take(LaunchEnded, launch=number)
        assert ended.cancelled and not ended.fatal
        assert ended.reason.startswith("its Spark job was cancelled (Job ")
        assert "SQLSTATE" not in ended.reason
    left = {events.take(Left).worker for _ in joined}
    assert left == {worker.worker for worker in joined.values()}
    _, again = launch(workers, 10, 11)
    assert {worker.pid for worker in again.values()}.isdisjoint(w.pid for w in joined.values())
    until(lambda: not any(psutil.pid_exists(worker.pid) for worker in joined.values()))


def test_an_interrupt_of_the_program_does_not_reach_the_worker_processes(start: Start) -> None:
    """SIGINT in the driver runs Spark's handler, which cancels all jobs: workers are lost, not more."""
    workers = start()
    events, _ = launch(workers, 0)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(PATIENCE_S)
    ended = events.take(LaunchEnded, launch=0)
    assert ended.cancelled and not ended.fatal
    launch(workers, 1)


def test_a_cancelled_launch_is_told_before_its_worker_has_left(spark: Any, start: Start) -> None:
    """R2: also when the driver looks only after the process is gone."""
    workers = start()
    _, joined = launch(workers, 0)
    spark.sparkContext.cancelAllJobs()
    until(lambda: not workers._ended.empty())
    os.kill(joined[0].pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(joined[0].pid))
    told = [type(event) for event in workers.receive()]
    assert told == [LaunchEnded, Left]


def test_a_worker_that_fails_by_itself_was_not_cancelled(spark: Any, start: Start) -> None:
    """R2: neither one that is told to leave nor one whose text speaks of cancelling."""
    workers = start()
    events, _ = launch(workers, 0)
    workers._server.forget(0, "it was told to leave")
    assert not events.take(LaunchEnded, launch=0).cancelled
    told = workers._launcher._explain(1, ValueError("the user cancelled the order"))
    assert not told.cancelled and "the user cancelled the order" in told.reason


def test_a_users_job_group_is_not_ours(spark: Any, start: Start) -> None:
    """A user who cancels their own job group does not hit our workers."""
    context = spark.sparkContext
    context.setJobGroup("users", "a user's group", interruptOnCancel=True)
    try:
        workers = start()
        events, joined = launch(workers, 0)
        tracker = context.statusTracker()
        assert len(tracker.getActiveJobsIds()) == 1
        assert list(tracker.getJobIdsForGroup("users")) == []
        context.cancelJobGroup("users")
        workers.send(joined[0].worker, Drop(AttemptId(1)))
        assert events.take(Received).worker == joined[0].worker
        assert not [event for event in events.seen if isinstance(event, Left)]
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def test_sparks_jobs_carry_our_tag_and_say_what_they_are(spark: Any, start: Start) -> None:
    """U3: Spark's own pages show each job under its name."""
    workers = start()
    launch(workers, 0)
    scala = spark.sparkContext._jsc.sc()
    found = scala.statusStore().jobsList(None)
    jobs = [found.apply(i) for i in range(found.size())]
    ours = [job for job in jobs if str(job.status()) == "RUNNING"]
    texts = [job.description().get() for job in ours]
    assert texts == ["Penstock test job: worker 1 of 1, runs until the job ends"]
    assert ours[0].jobTags().contains("penstock-test")


def test_a_worker_process_is_not_kept_for_other_tasks(spark: Any, start: Start) -> None:
    """bug-I7: Spark reuses Python workers; ours end with their task and carry nothing over."""
    workers = start()
    events, joined = launch(workers, 0)
    workers.cancel(0)
    events.take(LaunchEnded)
    pids = set(spark.sparkContext.parallelize(range(6), 6).map(lambda _: os.getpid()).collect())
    assert joined[0].pid not in pids
    until(lambda: not psutil.pid_exists(joined[0].pid))


def test_another_version_ends_the_launch(start: Start) -> None:
    """A mismatch is fatal and says both versions."""
    workers = start(versions=versions() | {"penstock": "9.9.9"})
    workers.launch(0, "worker 1 of 1")
    ended = Events(workers).take(LaunchEnded)
    assert ended.fatal and "the driver has 9.9.9" in ended.reason


def test_a_module_that_is_missing_on_the_workers_ends_the_launch(spark: Any) -> None:
    """A missing package is fatal and named: no restart can bring it."""
    workers = SparkWorkers(spark, "test", "test job", b"", 1, body="no_such_package.at_all:Worker")
    try:
        workers.launch(0, "worker 1 of 1")
        ended = Events(workers).take(LaunchEnded)
        assert ended.fatal and "no_such_package" in ended.reason
    finally:
        workers.close()


def test_a_worker_whose_code_fails_says_why_before_it_leaves(start: Start) -> None:
    """R1: the reason is in the event, not only in Spark's log; Spark's own retry brings it back."""
    workers = start("Broken")
    events, joined = launch(workers, 0)
    workers.send(joined[0].worker, ASK)
    left = events.take(Left)
    assert left.reason == "its process failed: ZeroDivisionError: division by zero"
    assert events.take(Joined).worker != left.worker


def test_a_worker_stuck_in_user_code_leaves_by_its_watchdog(start: Start, tmp_path: Any) -> None:
    """bug-I2: cancelling is bounded even when a worker never looks at its messages."""
    pid_file = tmp_path / "pid"
    workers = start("Stuck", str(pid_file).encode())
    launch(workers, 0)
    until(lambda: pid_file.exists() and pid_file.read_text() != "")
    pid = int(pid_file.read_text())
    workers.cancel(0)
    Events(workers).take(LaunchEnded)
    until(lambda: not psutil.pid_exists(pid))


def test_with_too_few_slots_the_others_join_and_close_is_bounded(start: Start) -> None:
    """bug-I4, bug-I2: one worker never gets a core; closing takes bounded time and frees all."""
    workers = start()
    events, joined = launch(workers, 0, 1, 2, 3, 4, 5)
    workers.launch(6, "worker 7 of 7")
    workers.wait(300)
    assert not [event for event in [*events.seen, *workers.receive()] if isinstance(event, Joined)]
    assert "6 cores on 1 executor" in workers.capacity()
    workers.close()
    assert workers._launcher.running() == []
    until(lambda: not any(psutil.pid_exists(worker.pid) for worker in joined.values()))


def test_after_close_nothing_is_left(spark: Any, start: Start) -> None:
    """I26, bug-I5: no process, thread, socket or directory stays behind."""

    def once() -> list[int]:
        workers = start()
        _, joined = launch(workers, 0, 1)
        workers.close()
        return [worker.pid for worker in joined.values()]

    def threads() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith("penstock")}

    once()
    files = len(os.listdir("/proc/self/fd"))
    directories = set(jobs.abandoned())
    pids = [pid for _ in range(3) for pid in once()]
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    until(lambda: not threads())
    until(lambda: not set(jobs.abandoned()) - directories)
    until(lambda: len(os.listdir("/proc/self/fd")) <= files + 6)


def test_a_session_that_kills_idle_workers_is_refused(spark: Any) -> None:
    class Configured:
        """The session with two settings changed, which Spark itself does not allow while it runs."""

        def __init__(self, settings: dict[str, str]) -> None:
            self.sparkContext = self
            self._jsc = spark.sparkContext._jsc
            self._settings = settings

        def getConf(self) -> dict[str, str]:
            return self._settings

    kill = {"spark.python.worker.killOnIdleTimeout": "true"}
    check_session(Configured({}))
    check_session(Configured(kill))
    with pytest.raises(LaunchError, match="killOnIdleTimeout"):
        check_session(Configured(kill | {"spark.python.worker.idleTimeoutSeconds": "60"}))
