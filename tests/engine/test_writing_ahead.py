"""A worker that writes state ahead of checkpoints: when, into which files, and what becomes of what fails."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engine.spec import Changelogs
from penstock.engine.worker.kept_copies import KeptCopies
from penstock.engine.worker.writing_ahead import LOOK_EVERY_MS, RETRY_MS
from penstock.ports.control import LaunchEnded
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Ack, Decline, SnapshotOrder
from penstock.protocol.phases import Outcome
from penstock.protocol.snapshot import Segment
from penstock.storage.local_copies import LocalCopies
from penstock.storage.memory import MemoryStore
from penstock.wire import manifest as manifests
from penstock.wire import paths
from tests.engine.kit import Bench, HeldBackground, ListSink, NumberSource
from tests.engine.log_kit import NEVER_MS, Counts, Failing, bench, counts, expected
from tests.engine.whole_job import Job

NUMBERS = 2_000
EAGER = Changelogs(NEVER_MS, ahead_bytes=1)
NO_CUTS = 1 << 40


class Worker:
    """One attempt, to which numbers come as a test says."""

    def __init__(self, limits: Changelogs, **options: Any) -> None:
        self.source = NumberSource(NUMBERS, ready=0)
        self.store = Failing()
        self.bench: Bench = bench(self.source, ListSink(), limits, store=self.store, **options)
        self.base = self.newest = 0

    def take(self, numbers: int) -> None:
        """So many more, and the loop has looked what there is to write."""
        self.source.ready += numbers
        self.source.step = numbers
        self.bench.step(12)
        self.look()

    def look(self, later_ms: float = LOOK_EVERY_MS) -> None:
        self.bench.clock.now_ms += later_ms
        self.bench.step(2)

    def trigger(self) -> int:
        self.newest += 1
        order = SnapshotOrder(CheckpointId(self.newest), base=CheckpointId(self.base))
        self.bench.attempt.trigger(order)
        return self.newest

    def checkpoint(self) -> tuple[Segment, ...]:
        """Complete: the next one builds on it. It has what came so far."""
        number = self.trigger()
        self.bench.step(2)
        chain = self.acked(number)
        self.base = number
        assert counts(self.store, chain) == expected(self.source.ready)
        return chain

    def acked(self, number: int) -> tuple[Segment, ...]:
        assert not self.bench.said(Decline)
        (ack,) = [each for each in self.bench.said(Ack) if each.checkpoint == number]
        self.written = sum(part.timings.bytes_written for part in ack.snapshots)
        return tuple(x for part in ack.snapshots for x in part.segments if x.state == "counts")

    def files(self, word: str) -> list[str]:
        return [name for name in self.store.list() if word in name]

    def metric(self, written: str) -> float:
        name = f'penstock_changelog_bytes_total{{written="{written}"}}'
        return dict(self.bench.attempt.status().metrics)[name]


def test_what_changed_is_durable_before_the_barrier_comes() -> None:
    """S7: the checkpoint refers to it, and writes only what came after it."""
    worker = Worker(EAGER)
    worker.take(100)
    (first,) = worker.files("-log-")
    assert first == "shared/1-0-1-log-0-1"
    chain = worker.checkpoint()
    assert [segment.file for segment in chain] == ["", first]
    assert worker.written == 0, "nothing came after it"
    assert worker.metric("ahead") == sum(segment.bytes_total for segment in chain) > 0


def test_little_is_left_to_the_checkpoint() -> None:
    """S7: a file for every few rows would be no gain."""
    worker = Worker(Changelogs(NEVER_MS, ahead_bytes=1 << 20))
    worker.take(200)
    assert worker.files("-log-") == []
    worker.checkpoint()
    assert worker.written > 0


def test_a_snapshot_waits_for_what_is_being_written_ahead() -> None:
    """S7: to write the same rows once more would take longer."""
    worker = Worker(EAGER)
    worker.bench.background.held = True
    worker.take(100)
    number = worker.trigger()
    worker.bench.step(2)
    assert len(worker.bench.background.waiting) == 1, "the cut alone"
    worker.bench.background.held = False
    worker.bench.step(3)
    chain = worker.acked(number)
    assert [segment.file for segment in chain if segment.file] == worker.files("-log-")
    assert counts(worker.store, chain) == expected(100)


def test_a_write_ahead_that_fails_costs_the_checkpoint_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S7, bug-D6: it writes these rows itself; and later they are written ahead again."""
    worker = Worker(EAGER)
    worker.store.words = {"-log-"}
    worker.take(100)
    assert "shared/1-0-1-log-0-1 was not written in the background" in caplog.text
    chain = worker.checkpoint()
    assert [segment.file for segment in chain] == ["shared/1-0-1-state"]
    worker.store.words = set()
    worker.take(100)
    assert worker.files("-log-") == [], "not at once"
    worker.look(RETRY_MS)
    assert len(worker.files("-log-")) == 1
    worker.checkpoint()


def test_all_rows_are_written_beside_the_checkpoints_when_it_is_time() -> None:
    """S7: the next checkpoint begins with them; nothing is written where nothing has changed."""
    worker = Worker(Changelogs(60_000, ahead_bytes=NO_CUTS))
    for numbers in (60, 10, 10):
        worker.take(numbers)
        worker.checkpoint()
    assert worker.files("-base-") == []
    worker.bench.background.held = True
    worker.look(60_000)
    worker.take(10)
    worker.bench.background.held = False
    worker.bench.step(2)
    (base,) = worker.files("-base-")
    chain = worker.checkpoint()
    assert chain[0].file == base
    assert len(chain) == 2
    assert worker.metric("materialized") == chain[0].bytes_total
    worker.checkpoint()
    worker.look(60_000)
    assert len(worker.files("-base-")) == 2, "there was a delta"
    worker.checkpoint()
    worker.look(60_000)
    assert len(worker.files("-base-")) == 2, "nothing has come since"


def test_all_rows_that_could_not_be_written_are_tried_again_later() -> None:
    """S7: and checkpoints go on meanwhile."""
    worker = Worker(Changelogs(60_000, ahead_bytes=NO_CUTS))
    worker.take(200)
    worker.checkpoint()
    worker.take(20)
    worker.checkpoint()
    worker.store.words = {"-base-"}
    worker.look(60_000)
    worker.store.words = set()
    worker.look()
    worker.checkpoint()
    assert worker.files("-base-") == []
    worker.look(RETRY_MS)
    (base,) = worker.files("-base-")
    assert worker.checkpoint()[0].file == base


def test_an_attempt_that_ends_drops_what_it_was_writing() -> None:
    """S7, I13, bug-D7: it leaves no file, and waits for nothing."""
    worker = Worker(EAGER)
    worker.bench.background.held = True
    worker.take(100)
    worker.trigger()
    worker.bench.step()
    worker.bench.attempt.close()
    worker.bench.background.held = False
    worker.bench.background.poll()
    assert worker.store.list() == []
    assert not worker.bench.said(Ack)


def test_files_are_named_by_the_newest_checkpoint_that_the_table_knows() -> None:
    """S7, I12: `protocol.retention` keeps a file of the log as long as a snapshot with such a base may come."""
    worker = Worker(EAGER)
    worker.take(60)
    worker.checkpoint()
    worker.trigger()
    worker.take(60)
    logs = paths.shared_among(worker.files("-log-"))
    assert sorted(file.checkpoint for file in logs) == [1, 2]


def test_copies_of_what_no_checkpoint_refers_to_yet_stay() -> None:
    """S7, R4: all rows that are being written may be needed after the next checkpoint."""
    disk, background = MemoryStore(), HeldBackground()
    for name in ("shared/1-0-1-base-0-5", "shared/1-0-1-base-0-3"):
        disk.write(name, [b"rows"])
    kept = KeptCopies(LocalCopies(disk), SlotId(0), AttemptId(1), background)
    kept.acked(CheckpointId(2), ())
    kept.completed(CheckpointId(2), held={"shared/1-0-1-base-0-5"})
    background.poll()
    assert disk.list() == ["shared/1-0-1-base-0-5"]


# ---- whole jobs

SETTINGS: dict[str, dict[str, Any]] = {
    "heap": {"incremental": False},
    "heap, incremental": {"incremental": True},
    "changelog": {"incremental": True, "changelog": Changelogs(20.0, ahead_bytes=1)},
}


def job_with(setting: str, store: MemoryStore, sink: ListSink, **options: Any) -> Job:
    source = options.pop("source", None) or NumberSource(NUMBERS)
    given = {"inline_bytes_max": 0, **SETTINGS[setting], **options}
    return Job(source, sink, operator=Counts, store=store, **given)


def state_of(store: MemoryStore, job: Job) -> dict[int, int]:
    """What the newest checkpoint has."""
    newest = max(job.manager.coordinator.completed)
    name = paths.metadata(newest)
    manifest = manifests.decode(store.read(name), name)
    segments = [x for part in manifest.snapshots for x in part.segments if x.state == "counts"]
    return counts(store, segments)


@pytest.mark.parametrize("after", SETTINGS)
@pytest.mark.parametrize("before", SETTINGS)
def test_it_can_be_switched_on_and_off_between_restarts(before: str, after: str) -> None:
    """S7, bug-D22, T4: every setting goes on from every other's checkpoints, and back."""
    store, sink = MemoryStore(), ListSink()
    for number, setting in enumerate((before, after, before)):
        job = job_with(setting, store, sink, driver=f"driver-{number}")
        job.until(job.completed(6))
        last = number == 2
        if not last:
            job.manager.request_stop()
        assert job.run() is (Outcome.FINISHED if last else Outcome.STOPPED)
    assert sink.numbers == list(range(NUMBERS))
    assert state_of(store, job) == expected(NUMBERS)
    needed = {file for n in job.manager.coordinator.completed for file in _files(store, n)}
    assert {name for name in store.list() if name.startswith("shared/")} <= needed


def _files(store: MemoryStore, checkpoint: CheckpointId) -> tuple[str, ...]:
    name = paths.metadata(checkpoint)
    return manifests.decode(store.read(name), name).files


def test_a_job_with_a_changelog_goes_on_after_its_worker_is_lost() -> None:
    """S7, R1, I1, I13: and keeps only the files that its checkpoints need."""
    store, sink = MemoryStore(), ListSink()
    job = job_with("changelog", store, sink)
    for launch, count in enumerate((5, 10, 15)):
        job.until(job.completed(count))
        job.workers.kill(next(iter(job.workers.workers)))
        job.workers.events.append(LaunchEnded(launch, "killed"))
    assert job.run() is Outcome.FINISHED
    assert sink.numbers == list(range(NUMBERS))
    assert state_of(store, job) == expected(NUMBERS)
    needed = {file for n in job.manager.coordinator.completed for file in _files(store, n)}
    assert {name for name in store.list() if name.startswith("shared/")} <= needed


def test_files_that_nobody_needs_go_while_the_job_runs() -> None:
    """S7, I13: log files that all rows came after, and all rows that later ones came after."""
    store, sink = MemoryStore(), ListSink()
    job = job_with("changelog", store, sink)
    most = 0
    for count in range(10, 60, 5):
        job.until(job.completed(count))
        most = max(most, len(store.list("shared")))
    assert most < 40
