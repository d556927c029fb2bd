"""`simulate` tells pipelines that are right from ones that have a bug, and says what is wrong."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.testing import Outside, Report, SimulationFailed, last_per, simulate
from tests.testing.shop import (
    ORDERS,
    Numbers,
    RemembersInSelf,
    RemembersInState,
    ShopSink,
    UpsertSink,
    numbered,
    orders,
    shop,
    shown,
    staged,
)

SEEDS = range(60)


def report_of(*args: Any, **options: Any) -> Report:
    with pytest.raises(SimulationFailed) as failed:
        simulate(*args, seeds=SEEDS, **options)
    assert isinstance(failed.value.report, Report), str(failed.value)
    return failed.value.report


# ---- pipelines that are right


def test_a_sink_that_commits_once_passes_every_schedule() -> None:
    """E2, I1, I10, I11: crashes, lost answers and restarts, and every order is in the shop once."""
    report = simulate(shop(), seeds=SEEDS, read=shown, staged=staged)
    assert report.ok
    assert report.schedules == len(SEEDS)
    assert report.rows == len(ORDERS)
    assert report.attempts > report.schedules * 1.5, "too few restarts: the schedules prove little"
    assert report.checkpoints > report.schedules, "too few checkpoints: the schedules prove little"
    assert report.faults > report.schedules
    assert "no rule was broken" in str(report)


def test_a_source_and_a_function_that_keep_what_they_must_pass() -> None:
    """R1, E1, I2: own positions and own state go back in time with the job."""
    assert simulate(pen.from_source(Numbers()), seeds=SEEDS).ok
    assert simulate(numbered(RemembersInState()), seeds=range(30)).ok


def test_a_sink_behind_a_broadcast_has_each_row_once_per_subtask() -> None:
    """B7: as the guide says. Crashes make it neither more nor fewer."""
    counts: set[int] = set()

    def count(rows: list[Any]) -> int:
        counts.add(len(rows))
        return len(rows)

    copies = pen.from_rows([(n,) for n in range(10)], "n BIGINT").broadcast().select("n")
    assert simulate(copies, compare=count, parallelism=3, seeds=range(20)).ok
    assert counts == {30}


def test_a_running_aggregate_is_compared_by_the_last_row_of_each_key() -> None:
    """R1: which rows it emits depends on the batches; its totals do not."""
    totals = orders().key_by("customer").agg(n=pen.count(), total=pen.sum("amount"))
    assert simulate(totals, seeds=range(30)).ok
    doubled = totals.map_batches(lambda batch: batch)
    assert simulate(doubled, seeds=range(10), compare=last_per("customer")).ok


def test_an_upsert_that_comes_twice_does_no_harm() -> None:
    """E4: a sink that writes at once and by key is exactly once in what it shows."""
    assert simulate(orders().to(UpsertSink()), seeds=SEEDS, read=shown).ok


def test_shipped_sinks_are_replaced_and_leave_no_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pipeline = pen.Pipeline(orders().to(pen.FileSink(str(out))), orders().to(pen.BlackholeSink()))
    assert simulate(pipeline, seeds=range(10)).ok
    assert not out.exists() or not list(out.iterdir())


def test_a_sink_that_derives_from_a_shipped_one_is_the_users_own(tmp_path: Path) -> None:
    """Its rows go to the driver, so the driver is spared; all else may happen."""

    class Mine(pen.CollectSink):
        def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
            (folder / f"committer {len(list(folder.iterdir()))}").touch()
            return super().committer(context)

    folder = tmp_path
    report = simulate(orders().to(Mine()), seeds=range(20))
    assert len(list(folder.iterdir())) > report.attempts, "its own code ran"


def test_several_sinks_are_each_read_in_their_own_way() -> None:
    rows = orders()
    pipeline = pen.Pipeline(
        rows.to(ShopSink(), name="one"),
        rows.to(UpsertSink(), name="two"),
        rows.to(ShopSink("commits twice"), name="three"),
    )
    readers = {"one": shown, "two": shown, "three": shown}
    report = report_of(pipeline, read=readers)
    assert report.finding is not None
    assert "'three'" in report.finding.what


def test_rows_may_come_twice_where_only_at_least_once_was_promised() -> None:
    """B4: repeated rows are no finding, lost ones are."""
    config = pen.CheckpointConfig("unused", mode="at_least_once")
    assert simulate(orders().rebalance(), seeds=range(30), checkpoint=config).ok
    report = report_of(pen.from_source(Numbers(shift=1)), checkpoint=config)
    assert report.finding is not None
    assert "rows lost" in report.finding.what


# ---- pipelines that have a bug

SINK_BUGS = {
    "commits twice": ("I10", "commit() of this sink. It is called again"),
    "commits half": ("I10", "failed half-way"),
    "never aborts": ("I11", "abort_others()"),
    "aborts committed rows": ("I10", "took away rows"),
    "writes at once": ("I1", "without waiting for a commit"),
}


@pytest.mark.parametrize("bug", sorted(SINK_BUGS))
def test_a_sink_with_a_bug_is_found_and_the_report_says_where_to_look(bug: str) -> None:
    """E2, E3, I9-I11: each of these sinks is right on a quiet day."""
    rule, look_at = SINK_BUGS[bug]
    report = report_of(shop(bug), read=shown, staged=staged if bug == "never aborts" else None)
    assert report.finding is not None
    assert report.minimal is not None
    assert report.finding.rule.startswith(f"{rule},")
    assert look_at in report.finding.look_at
    assert "'shop'" in report.finding.what
    assert f"seeds=[{report.minimal.seed}]" in str(report)


BROKEN_AT_ONCE = {
    "commits nothing": "rows lost",
    "shows what is prepared": "I9, nothing is seen before its checkpoint is complete",
    "describes with objects": "cannot be kept in a checkpoint",
}


@pytest.mark.parametrize("bug", sorted(BROKEN_AT_ONCE))
def test_a_sink_that_is_wrong_without_any_fault_is_told_so(bug: str) -> None:
    with pytest.raises(SimulationFailed, match="fails without any fault") as failed:
        simulate(shop(bug), seeds=SEEDS, read=shown)
    assert BROKEN_AT_ONCE[bug] in str(failed.value)


def test_an_append_that_calls_itself_idempotent_is_found() -> None:
    """E4, I17: what it shows has rows twice."""
    report = report_of(orders().to(UpsertSink(appends=True)), read=shown)
    assert report.finding is not None
    assert "upsert" in report.finding.look_at


def test_positions_that_are_one_row_behind_are_found() -> None:
    """E1, I1: rows come twice after a restart."""
    report = report_of(pen.from_source(Numbers(shift=-1)))
    assert report.finding is not None
    assert "rows too many" in report.finding.what
    assert "source_conformance" in report.finding.look_at


def test_a_function_that_remembers_in_self_is_found() -> None:
    """I2, S9: what is not in state does not go back in time."""
    report = report_of(numbered(RemembersInSelf()))
    assert report.finding is not None
    assert "ctx.value_state" in report.finding.look_at


# ---- the report


def test_the_schedule_is_made_small_and_told_call_by_call() -> None:
    report = report_of(shop("commits half"), read=shown)
    found, finding = report.minimal, report.finding
    assert found is not None
    assert finding is not None
    assert found.faults == ("commit_error",)
    assert found.parallelism == 1
    assert [call.what.split("(")[0] for call in found.calls][:2] == ["prepare", "commit"]
    assert "simulated failure of 'the second half' in commit" in str(report)
    assert set(found.story) <= set(found.trace)


def test_a_seed_gives_the_same_report_again() -> None:
    """I28: the seed that is printed is all that is needed."""
    first = report_of(shop("commits twice"), read=shown)
    assert first.minimal is not None
    with pytest.raises(SimulationFailed) as failed:
        simulate(shop("commits twice"), seeds=[first.minimal.seed], read=shown)
    again = failed.value.report
    assert isinstance(again, Report)
    assert again.minimal == first.minimal
    assert again.finding == first.finding


def test_each_schedule_starts_with_a_fresh_world() -> None:
    """What one schedule left behind would be seen as too many rows by the next."""
    sink = ShopSink()
    simulate(orders().to(sink), seeds=range(5), read=shown)
    assert sink.table.rows == [], "the user's own table is only copied"


def test_a_function_gets_an_empty_folder_for_each_schedule() -> None:
    folders: list[Path] = []

    def build(folder: Path) -> pen.Pipeline:
        assert list(folder.iterdir()) == []
        (folder / "something").touch()
        folders.append(folder)
        return shop()

    simulate(build, seeds=range(5), read=shown)
    assert len(set(folders)) == len(folders)
    assert len(folders) == 8, "one to look at, two undisturbed runs, five schedules"
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize(
    "build", [lambda bug="commits twice": shop(bug), partial(shop, bug="commits twice")]
)
def test_what_a_function_may_be_called_without_is_not_the_folder(build: Any) -> None:
    """A pipeline that is built with another argument than it says has not been tested."""
    with pytest.raises(SimulationFailed, match="I10"):
        simulate(build, seeds=SEEDS, read=shown)


def test_a_notebook_shows_the_report_as_text() -> None:
    class Printer:
        def text(self, shown: str) -> None:
            self.shown = shown

    report, printer = simulate(orders(), seeds=range(2)), Printer()
    report._repr_pretty_(printer, False)
    assert printer.shown == str(report)


def test_a_failure_crosses_processes() -> None:
    with pytest.raises(SimulationFailed) as failed:
        simulate(shop("commits twice"), seeds=SEEDS, read=shown)
    copy = pickle.loads(pickle.dumps(failed.value))
    assert str(copy) == str(failed.value)
    assert copy.report == failed.value.report
    assert isinstance(copy, AssertionError)
    assert isinstance(copy, pen.PenstockError)


def test_user_code_that_can_never_go_on_is_shown_with_what_it_raised() -> None:
    """I25: nothing fails any more and the job still does not end."""
    report = report_of(lambda: numbered(CannotStartAgain()), faults=["user_error"])
    assert report.finding is not None
    assert report.finding.rule.startswith(("I25", "I27"))
    assert "never again" in report.finding.seen[0]


class Starts(Outside):
    count = 0


class CannotStartAgain(RemembersInState):
    def __init__(self) -> None:
        self.starts = Starts()

    def open(self, ctx: Any) -> None:
        self.starts.count += 1
        if self.starts.count > 3:
            raise RuntimeError("never again")
        super().open(ctx)
