"""The past of a job: what is told, what is written down, what is left of it after damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.engine.history import files as history_files
from penstock.engine.history.files import PAGES_MAX, HistoryFiles
from penstock.engine.history.history import CHECKPOINTS_KEPT, History
from penstock.engine.history.pages import decode, encode, make_entry
from penstock.engine.history.records import CheckpointInfo, ExceptionInfo, SubtaskInfo, Totals
from penstock.engine.history.summary import spread
from penstock.errors import StorageError
from penstock.plan.physical import make_plan
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator import Aborted, Completed, Reason
from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import SubtaskSnapshot, Timings
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from tests.engine.kit import ListSink, NumberSource, two_tasks
from tests.wire.examples import UNALIGNED

GOLDEN = Path(__file__).parents[1] / "wire" / "golden" / "history-1.jsonl"
KIND = SnapshotKind.CHECKPOINT
SUBTASK = SubtaskInfo(("numbers", "work"), 0, 1.5, 0.25, 7.0, 100, 40, 3)


def info(number: int, status: str = "completed", size: int = 100) -> CheckpointInfo:
    failure = None if status == "completed" else "did not complete within the timeout: 10 ms"
    path = f"/chk/job/chk-{number}" if status == "completed" else None
    return CheckpointInfo(
        number, "checkpoint", status, 1e12, 12.5, size, size, 40, path, failure, (SUBTASK,)
    )


def history() -> History:
    return History(make_plan(two_tasks(NumberSource(1), ListSink()), 1, 8))


def complete(past: History, number: int, **timings: float) -> None:
    checkpoint = CheckpointId(number)
    past.triggered(checkpoint, KIND, 1e12)
    acks = {
        SubtaskId(task, 0): SubtaskSnapshot(SubtaskId(task, 0), {}, timings=Timings(**timings))  # type: ignore[arg-type]
        for task in (0, 1)
    }
    past.completed(Completed(CommitPermit(AttemptId(1), checkpoint), KIND, 100.0, 130.0, acks), "p")


def abort(past: History, number: int) -> None:
    checkpoint = CheckpointId(number)
    past.triggered(checkpoint, KIND, 1e12)
    past.aborted(
        Aborted(
            checkpoint, KIND, 100.0, 160.0, Reason.TIMEOUT, "60 ms", frozenset({SubtaskId(1, 0)})
        )
    )


# ---- what is told


def test_a_checkpoint_is_told_with_the_times_and_sizes_of_each_subtask() -> None:
    """C6."""
    past = history()
    complete(
        past, 1, alignment_ms=4.0, sync_ms=0.5, async_ms=9.0, bytes_written=50, inflight_bytes=7
    )
    (told,) = past.checkpoints
    assert (told.id, told.kind, told.status, told.trigger_ms) == (
        1,
        "checkpoint",
        "completed",
        1e12,
    )
    assert (told.duration_ms, told.bytes_full, told.inflight_bytes) == (30.0, 100, 14)
    assert [part.operators for part in told.subtasks] == [("numbers",), ("work", "out")]
    first = told.subtasks[0]
    assert (first.alignment_ms, first.sync_ms, first.async_ms) == (4.0, 0.5, 9.0)


def snapshot(task: int, **timings: float) -> SubtaskSnapshot:
    return SubtaskSnapshot(SubtaskId(task, 0), {}, timings=Timings(**timings))  # type: ignore[arg-type]


def test_a_pending_checkpoint_tells_who_has_acknowledged_it_and_who_owes_that() -> None:
    """C6: as acknowledgements come."""
    past = history()
    past.triggered(CheckpointId(1), KIND, 1e12, "aligned")
    (told,) = past.checkpoints
    assert (told.acknowledged, told.owed, told.owing) == (0, 2, ("numbers", "work", "out"))
    first = {SubtaskId(0, 0): snapshot(0, bytes_written=50)}
    past.acked(CheckpointId(1), first, 20.0)
    (told,) = past.checkpoints
    assert (told.status, told.mode, told.bytes_full) == ("pending", "aligned", 50)
    assert (told.acknowledged, told.owed, told.owing) == (1, 1, ("work", "out"))
    assert [part.operators for part in told.subtasks] == [("numbers",)]
    assert repr(told) == (
        "<CheckpointInfo 1: pending, aligned, 1 of 2 acknowledged, owed by work, out>"
    )
    complete_rest = {**first, SubtaskId(1, 0): snapshot(1)}
    past.acked(CheckpointId(1), complete_rest, 30.0)
    (told,) = past.checkpoints
    assert (told.acknowledged, told.owed, told.owing) == (2, 0, ())


def test_a_failed_checkpoint_tells_who_had_acknowledged_it() -> None:
    """C6: what kept it waiting is what people want to know."""
    past = history()
    past.triggered(CheckpointId(1), KIND, 1e12)
    past.acked(CheckpointId(1), {SubtaskId(0, 0): snapshot(0)}, 20.0)
    owed = frozenset({SubtaskId(1, 0)})
    past.aborted(Aborted(CheckpointId(1), KIND, 0.0, 60.0, Reason.TIMEOUT, "60 ms", owed))
    (told,) = past.checkpoints
    assert (told.acknowledged, told.owed, told.owing) == (1, 1, ("work", "out"))


@pytest.mark.parametrize(("arrived_ms", "delay_ms"), [(100.0, 86.5), (13.5, 0.0), (5.0, 0.0)])
def test_what_a_subtask_did_not_spend_itself_is_its_start_delay(
    arrived_ms: float, delay_ms: float
) -> None:
    """C6: never below zero, whatever the clocks of two hosts say."""
    past = history()
    past.triggered(CheckpointId(1), KIND, 1e12)
    acks = {SubtaskId(1, 0): snapshot(1, alignment_ms=4.0, sync_ms=0.5, async_ms=9.0)}
    past.acked(CheckpointId(1), acks, arrived_ms)
    past.acked(CheckpointId(1), acks, arrived_ms + 1_000)
    (told,) = past.checkpoints
    assert [part.start_delay_ms for part in told.subtasks] == [delay_ms], "of its first coming"


def test_the_summary_has_the_longest_start_delay_of_each_checkpoint() -> None:
    """C6: one that is known from its manifest alone does not count."""
    past = history()
    for number, arrived_ms in ((1, 10.0), (2, 30.0)):
        past.triggered(CheckpointId(number), KIND, 1e12)
        past.acked(CheckpointId(number), {SubtaskId(0, 0): snapshot(0)}, 1.0)
        acks = {SubtaskId(task, 0): snapshot(task) for task in (0, 1)}
        past.acked(CheckpointId(number), acks, arrived_ms)
        permit = CommitPermit(AttemptId(1), CheckpointId(number))
        past.completed(Completed(permit, KIND, 0.0, 50.0, acks), "p")
    past.remember([info(0)], Totals(1))
    assert past.summary().start_delay_ms == spread([10.0, 30.0])


def test_a_checkpoint_that_became_unaligned_is_told_as_expedited() -> None:
    """B8, C6."""
    past = history()
    past.triggered(CheckpointId(1), KIND, 1e12, "aligned")
    past.expedited(CheckpointId(1))
    past.expedited(CheckpointId(2))
    (told,) = past.checkpoints
    assert (told.kind, told.mode) == ("checkpoint", "expedited")


def test_records_are_short_to_read() -> None:
    """C6: rounded, and without what is long."""
    third = 100.0 / 3
    part = replace(SUBTASK, alignment_ms=third, start_delay_ms=third)
    assert repr(part) == (
        "<SubtaskInfo numbers > work [0]: start delay 33.3 ms, alignment 33.3 ms, sync 0.2 ms, async 7.0 ms, "
        "100 bytes>"
    )
    whole = replace(info(7, size=12_345), duration_ms=third, mode="unaligned", kind="final")
    assert repr(whole) == "<CheckpointInfo 7 (final): completed, unaligned, 33.3 ms, 12,345 bytes>"
    past = history()
    past.remember([whole], Totals(1, 2, 3))
    assert repr(past.summary()) == (
        "<CheckpointSummary 1 completed, 2 aborted, 0 pending, went on from one 3 times, took 33.3 ms on "
        "average, 33.3 ms at most>"
    )
    assert repr(spread([third])) == (
        "<Spread min=33.3 avg=33.3 max=33.3 p50=33.3 p90=33.3 p99=33.3>"
    )
    failure = ExceptionInfo(1e12 / 3, 2, "ValueError", f"no\n{'x' * 500}", "work", "Traceback ...")
    assert repr(failure) == "<ExceptionInfo attempt 2: ValueError in 'work': no>"
    assert len(repr(replace(failure, message="y" * 500))) < 200


def test_a_failed_checkpoint_is_told_with_its_reason() -> None:
    """C6."""
    past = history()
    abort(past, 1)
    (told,) = past.checkpoints
    assert (told.status, told.duration_ms) == ("aborted", 60.0)
    assert told.failure == "did not complete within the timeout: 60 ms"


def test_the_summary_counts_everything_and_measures_what_completed() -> None:
    """C6: min, average, max and percentiles."""
    past = history()
    for number in (1, 2, 3):
        complete(past, number, alignment_ms=float(number), bytes_written=number)
    abort(past, 4)
    past.triggered(CheckpointId(5), KIND, 1e12)
    past.restored("/chk/job/chk-2")
    told = past.summary()
    assert (told.completed, told.aborted, told.pending) == (3, 1, 1)
    assert (told.restored, told.restored_from) == (1, "/chk/job/chk-2")
    assert told.bytes_full == spread([2, 4, 6])
    assert told.alignment_ms == spread([1, 2, 3])
    assert told.duration_ms is not None and told.duration_ms.avg == 30.0


def test_a_spread_has_the_percentiles_of_its_numbers() -> None:
    """C6."""
    told = spread(range(1, 101))
    assert told is not None
    assert (told.min, told.avg, told.max) == (1.0, 50.5, 100.0)
    assert (told.p50, told.p90, told.p99) == (50.0, 90.0, 99.0)
    assert spread([]) is None
    assert spread([3.0]) == replace(told, min=3, avg=3, max=3, p50=3, p90=3, p99=3)


def test_what_earlier_drivers_saw_is_below_what_this_one_sees() -> None:
    """C6: also when it is read late, and each checkpoint once."""
    past = history()
    complete(past, 105)
    past.remember([info(2), info(3, "aborted"), info(105)], Totals(40, 7, 2, "/old"))
    assert [each.id for each in past.checkpoints] == [105, 3, 2]
    assert past.checkpoints[0].duration_ms == 30.0, "what this driver saw itself"
    assert past.totals == Totals(41, 7, 2, "/old")
    assert past.completed_total == 1


def test_the_totals_are_no_less_than_what_is_known() -> None:
    """C6: the page with the newest totals may be damaged; a line may be in two pages."""
    past = history()
    past.remember([info(2), info(3), info(3), info(4, "aborted")], Totals(1))
    assert (past.totals.completed, past.totals.aborted) == (2, 1)


def test_a_checkpoint_that_is_older_than_the_history_is_not_counted_again() -> None:
    """C6: one in between was lost with its driver, one before all of it was counted when it completed."""
    past = history()
    past.remember([info(6), info(9)], Totals(40))
    for number in (3, 7, 9):
        past.add_missing(replace(UNALIGNED, checkpoint=CheckpointId(number)), "p")
    assert [each.id for each in past.checkpoints] == [9, 7, 6]
    assert past.totals.completed == 41
    assert past.checkpoints[1].subtasks[0].start_delay_ms is None
    assert past.checkpoints[1].subtasks[1].operators == ("totals", "out")
    assert past.checkpoints[1].mode == "unaligned", "rows were in flight"


def test_the_history_is_bounded() -> None:
    """C6."""
    past = history()
    past.remember([info(n) for n in range(1, CHECKPOINTS_KEPT + 50)], Totals())
    complete(past, 5_000)
    assert len(past.checkpoints) == CHECKPOINTS_KEPT
    assert past.checkpoints[0].id == 5_000


# ---- pages


def test_a_page_says_what_was_put_into_it() -> None:
    """C6, S9: as lines of JSON."""
    infos = [info(1), info(2, "aborted")]
    data = b"".join(encode(Totals(1, 1), [make_entry(each) for each in infos]))
    page = decode(data, "p")
    assert ([entry.info for entry in page.entries], page.totals) == (infos, Totals(1, 1))
    assert page.damaged == 0
    assert len(data.splitlines()) == 3


def test_damage_of_a_page_costs_the_lines_it_hits_and_nothing_else() -> None:
    """C6, I24: every single byte."""
    lines = encode(Totals(2), [make_entry(info(1)), make_entry(info(2))])
    data = b"".join(lines)
    for at in range(0, len(data), 7):
        broken = bytearray(data)
        broken[at] ^= 1
        page = decode(bytes(broken), "p")
        assert page.damaged >= 1, f"byte {at}"
        assert len(page.entries) + (page.totals == Totals(2)) >= 1
        assert all(entry.info in (info(1), info(2)) for entry in page.entries)
    assert decode(b"", "p").entries == decode(b"\x00\xff" * 100, "p").entries == ()


def test_a_page_is_spelled_as_it_always_was() -> None:
    """C6: it says how a checkpoint was taken, who owed it and how long it took to reach a subtask."""
    data = GOLDEN.read_bytes()
    page = decode(data, "p")
    assert page.totals == Totals(5, 1, 2, "/chk/job/chk-3")
    part = replace(SUBTASK, start_delay_ms=2.5)
    whole = replace(info(7), mode="expedited", subtasks=(part,))
    late = replace(info(8, "aborted"), mode="aligned", subtasks=(part,), owed=1, owing=("out",))
    assert ([entry.info for entry in page.entries], page.damaged) == ([whole, late], 0)
    assert b"".join(encode(page.totals, [make_entry(each) for each in (whole, late)])) == data


# ---- files


def driver(store: MemoryStore, attempt: int = 1) -> tuple[HistoryFiles, AttemptId]:
    files = HistoryFiles(store)
    files.load()
    return files, AttemptId(attempt)


def ids(store: MemoryStore) -> list[int]:
    return [each.id for each in HistoryFiles(store).load().checkpoints]


def test_one_driver_after_the_other_adds_to_the_same_history() -> None:
    """C6: small pages are put together, so that many restarts do not make many files."""
    store = MemoryStore()
    for attempt in range(1, 60):
        files, who = driver(store, attempt)
        files.add(who, [info(attempt)], Totals(attempt))
    assert ids(store) == list(range(1, 60))
    assert store.list() == [paths.history(AttemptId(59), 0)]
    assert HistoryFiles(store).load().totals == Totals(59)


def test_a_page_that_is_full_is_followed_by_another_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C6: bounded."""
    monkeypatch.setattr(history_files, "PAGE_BYTES_MAX", 3_000)
    store = MemoryStore()
    files, who = driver(store)
    for number in range(1, 500):
        files.add(who, [info(number)], Totals(number))
    assert len(store.list()) == PAGES_MAX
    assert sum(len(store.read(name)) for name in store.list()) < PAGES_MAX * 4_000
    told = ids(store)
    assert told == list(range(told[0], 500)), "no gap"
    assert HistoryFiles(store).load().totals == Totals(499)


def test_many_that_end_at_once_fill_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6."""
    monkeypatch.setattr(history_files, "PAGE_BYTES_MAX", 3_000)
    store = MemoryStore()
    files, who = driver(store)
    files.add(who, [info(number) for number in range(1, 41)], Totals(40))
    assert ids(store) == list(range(1, 41))
    assert len(store.list()) > 5


def test_what_a_failed_write_was_given_is_written_by_the_next() -> None:
    """C6."""

    class Moody(MemoryStore):
        broken = False

        def write(self, name: str, chunks: object) -> int:
            if self.broken:
                raise StorageError("simulated")
            return super().write(name, chunks)  # type: ignore[arg-type]

    store = Moody()
    files, who = driver(store)
    files.add(who, [info(1)], Totals(1))
    store.broken = True
    with pytest.raises(StorageError):
        files.add(who, [info(2)], Totals(2))
    store.broken = False
    files.add(who, [info(3)], Totals(3))
    assert ids(store) == [1, 2, 3]


def test_a_driver_that_was_replaced_writes_over_nothing() -> None:
    """C6, I18."""
    store = MemoryStore()
    old, first = driver(store, 1)
    old.add(first, [info(1)], Totals(1))
    new, second = driver(store, 2)
    new.add(second, [info(102)], Totals(2))
    old.add(first, [info(2, "aborted")], Totals(1, 1))
    new.add(second, [info(103)], Totals(3))
    assert sorted(set(ids(store))) == [1, 2, 102, 103]


def test_a_page_that_cannot_be_read_is_named_and_the_others_are_told() -> None:
    """C6."""
    store = MemoryStore()
    files, who = driver(store)
    files.add(who, [info(1)], Totals(1))
    store.write(paths.history(AttemptId(2), 0), [b"\x00" * 50])
    store.write("history/notes.txt", [b"mine"])
    past = HistoryFiles(store).load()
    assert [each.id for each in past.checkpoints] == [1]
    assert past.damaged == (paths.history(AttemptId(2), 0),)
    files, who = driver(store, 3)
    files.add(who, [info(2)], Totals(2))
    assert store.list() == ["history/0000000003-0000000000", "history/notes.txt"]
