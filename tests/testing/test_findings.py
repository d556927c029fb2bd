"""What `simulate` says is what is wrong: no bug is passed over, no good sink is blamed, and the place is right."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing import Report, SimulationFailed, last_per, may_fail, simulate
from tests.testing.shop import (
    ORDERS,
    Numbers,
    NumbersReader,
    ShopCommitter,
    ShopSink,
    ShopWriter,
    UpsertSink,
    UpsertWriter,
    numbered,
    orders,
    shown,
    staged,
)

SEEDS = range(60)


def failure(pipeline: Any, **options: Any) -> str:
    with pytest.raises(SimulationFailed) as failed:
        simulate(pipeline, **{"seeds": SEEDS, "read": shown, **options})
    return str(failed.value)


def report_of(pipeline: Any, **options: Any) -> Report:
    with pytest.raises(SimulationFailed) as failed:
        simulate(pipeline, **{"seeds": SEEDS, "read": shown, **options})
    assert isinstance(failed.value.report, Report), str(failed.value)
    return failed.value.report


def sink_with(prepare: Callable[[Any, int], Any], **attributes: Any) -> pen.Pipeline:
    """The shop's sink with another `prepare`."""

    class Writer(ShopWriter):
        def prepare(self, checkpoint: int) -> Any:
            return prepare(self, checkpoint)

    class Mine(ShopSink):
        def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
            return Writer(self.table, context, "")

    for name, value in attributes.items():
        setattr(Mine, name, value)
    return orders().to(Mine(), name="shop")


# ---- rows that a sink loses


def drops_all(writer: Any, checkpoint: int) -> None:
    writer.rows = []


def drops_few(writer: Any, checkpoint: int) -> Any:
    if len(writer.rows) < 9:
        writer.rows = []
    return ShopWriter.prepare(writer, checkpoint)


def holds_back(writer: Any, checkpoint: int) -> Any:
    return ShopWriter.prepare(writer, checkpoint) if len(writer.rows) >= 9 else None


def drops_later(writer: Any, checkpoint: int) -> Any:
    made = ShopWriter.prepare(writer, checkpoint)
    return (lambda: None) if made is not None else None


@pytest.mark.parametrize("prepare", [drops_all, drops_few, holds_back, drops_later])
def test_rows_that_prepare_leaves_out_are_lost_also_when_nothing_fails(prepare: Any) -> None:
    """The undisturbed run loses the same rows, so there is nothing else to compare with."""
    told = failure(sink_with(prepare))
    assert "fails without any fault" in told
    assert "returned None although" in told
    assert "lost" in told
    assert "-> None, with" in told, "the call is shown"
    assert "prepare() of this sink" in told


def test_a_sink_that_shows_nothing_at_all_is_found_whatever_it_calls_itself() -> None:
    assert "returned None although" in failure(sink_with(drops_all, idempotent=True))
    by_length = failure(sink_with(drops_all), compare=len)
    assert "returned None although" in by_length
    unseen = sink_with(ShopWriter.prepare, idempotent=True)
    assert "40 rows were written and none is visible" in failure(unseen, read=lambda sink: [])


def test_keys_whose_last_row_is_left_out_are_lost() -> None:
    totals = orders().key_by("customer").agg(n=pen.count())

    class Writer(ShopWriter):
        def prepare(self, checkpoint: int) -> Any:
            return drops_few(self, checkpoint)

    class Mine(ShopSink):
        def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
            return Writer(self.table, context, "")

    assert "returned None although" in failure(totals.to(Mine()))


def swallows_an_error(writer: Any, checkpoint: int) -> Any:
    try:
        may_fail("the disk")
    except Exception:
        writer.rows = []
        return None
    return ShopWriter.prepare(writer, checkpoint)


def test_a_prepare_that_swallows_an_error_is_found_and_shown() -> None:
    report = report_of(sink_with(swallows_an_error))
    assert report.finding is not None
    assert report.minimal is not None
    assert "returned None although" in report.finding.what
    assert "an `except` that returns None loses rows" in report.finding.look_at
    assert "without waiting for a commit" not in report.finding.look_at
    assert "-> None, with" in report.minimal.calls[-1].what
    assert "written since the last one" in str(report)


# ---- sinks that are right, and leave rows out of their transactions


class ByCustomer(pen.Sink):
    """Overwrites by key, at once, and does not call itself idempotent."""

    def __init__(self) -> None:
        self.table = UpsertSink().table

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return ByCustomerWriter(self.table, False)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return UpsertSink().committer(context)


class ByCustomerWriter(UpsertWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            others = [r for r in self.table.rows if r["customer"] != row["customer"]]
            self.table.rows[:] = [*others, row]


class IdempotentByCustomer(ByCustomer):
    idempotent = True


def test_a_sink_that_overwrites_by_key_is_not_blamed() -> None:
    totals = orders().key_by("customer").agg(n=pen.count())
    assert simulate(totals.to(ByCustomer()), seeds=range(20), read=shown).ok
    same = totals.map_batches(lambda batch: batch)
    by_key = last_per("customer")
    assert simulate(same.to(ByCustomer()), seeds=range(20), read=shown, compare=by_key).ok
    assert simulate(same.to(IdempotentByCustomer()), seeds=range(20), read=shown).ok


class HoldsBack(ShopWriter):
    """Has one transaction, when all orders are there. That is lost in a crash, and right without one."""

    def prepare(self, checkpoint: int) -> Any:
        return super().prepare(checkpoint) if len(self.rows) == len(ORDERS) else None


def test_rows_that_are_held_back_and_come_later_are_not_lost() -> None:
    class Mine(ShopSink):
        def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
            return HoldsBack(self.table, context, "")

    calm: dict[str, Any] = {"read": shown, "faults": (), "parallelism": 1}
    assert simulate(orders().to(Mine()), seeds=range(10), **calm).ok


# ---- nothing was shown


@pytest.mark.parametrize("seeds", [[], range(0), iter(())])
def test_no_seeds_are_refused(seeds: Any) -> None:
    with pytest.raises(pen.ConfigError, match="there are none"):
        simulate(orders(), seeds=seeds)


def test_an_input_of_which_nothing_comes_out_is_told_loudly() -> None:
    nothing = orders().filter(pen.col("amount") > 1000)
    with pytest.warns(UserWarning, match="no row came out when nothing failed") as told:
        report = simulate(nothing, seeds=range(2))
    assert told[0].filename == __file__
    assert "NO ROW CAME OUT OF" in str(report)
    both = pen.Pipeline(nothing.to(ShopSink(), name="none"), orders().to(ShopSink(), name="all"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = simulate(both, seeds=range(2), read=shown)
    assert report.silent == ("none",), "a side output may be empty"


# ---- what is no plain data

NOT_PLAIN: list[tuple[Any, str]] = [
    ((1, 2), "tuple"),
    ({"a": [np.int64(3)]}, "a[0]: int64"),
    ({"when": dt.date(2024, 1, 1)}, "when: date"),
    ({1: "a"}, "a key"),
    (b"abc", "bytes"),
    ({"set"}, "set"),
]


@pytest.mark.parametrize(("value", "told"), NOT_PLAIN)
def test_what_no_checkpoint_can_keep_is_told_in_words_of_the_sink(value: Any, told: str) -> None:
    """A tuple comes back as a list: it must not pass here and kill every worker on Spark."""

    def prepare(writer: Any, checkpoint: int) -> Any:
        return None if ShopWriter.prepare(writer, checkpoint) is None else value

    for made in (prepare, lambda w, c: None if not w.rows else lambda: prepare(w, c)):
        message = failure(sink_with(made))
        assert "sink 'shop', what prepare() returned: " in message
        assert told in message
        assert "t.isoformat()" in message
        assert "Traceback" not in message


class OddPositions(Numbers):
    def __init__(self, odd: Callable[[Mapping[int, Any]], Any]) -> None:
        super().__init__()
        self.odd = odd

    def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> pen.SourceReader:
        odd = self.odd

        class Reader(NumbersReader):
            def positions(self) -> Any:
                return odd(super().positions())

        return Reader(context, positions, 0)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (lambda p: {lane: np.int64(at) for lane, at in p.items()}, "lanes[0]: int64 is not"),
        (lambda p: {lane: (at,) for lane, at in p.items()}, "lanes[0]: tuple is not"),
        (lambda p: {str(lane): at for lane, at in p.items()}, "expected an integer, got str"),
        (lambda p: list(p.values()), "no dict of lanes"),
    ],
)
def test_positions_that_no_checkpoint_can_keep_are_told(odd: Any, told: str) -> None:
    message = failure(pen.from_source(OddPositions(odd), name="log"), read=None, parallelism=1)
    assert "source log [0], what positions() returned: " in message
    assert told in message
    assert "t.isoformat()" in message
    assert "I27" not in message


# ---- the place that a report points to


class Remembers:
    def __init__(self) -> None:
        self.rows = 0

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.rows += 1
            yield (row.customer, self.rows)


def test_two_undisturbed_runs_that_differ_are_both_right() -> None:
    """Neither has lost anything; and who compares by key already needs no such advice."""
    told = failure(numbered(Remembers()), read=None)
    assert "only in the first: " in told
    assert "only in the second: " in told
    assert "lost" not in told
    for cause in ("in self", "global", "random", "the clock", "last_per"):
        assert cause in told
    told = failure(numbered(Remembers()), read=None, compare=last_per("customer"))
    assert "in self" in told
    assert "last row of each customer" in told
    assert "last_per" not in told


def test_two_undisturbed_runs_are_compared_by_what_a_sink_shows_at_once() -> None:
    told = failure(numbered(Remembers()).to(UpsertSink()))
    assert "two undisturbed runs" in told


class FlushesLate(UpsertWriter):
    """Shows rows when there are enough of them, and forgets the rest."""

    def __init__(self, table: Any, enough: int) -> None:
        super().__init__(table, False)
        self.enough = enough
        self.rows: list[Any] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()
        if len(self.rows) >= self.enough:
            self.table.rows += self.rows
            self.rows = []


def test_a_sink_that_shows_other_rows_of_the_same_ones_is_blamed_itself() -> None:
    """How batches are cut decides what the sink shows: with some size of its buffer two undisturbed runs differ."""

    class Mine(UpsertSink):
        def __init__(self, enough: int) -> None:
            super().__init__()
            self.enough = enough

        def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
            return FlushesLate(self.table, self.enough)

    found = (failure(orders().to(Mine(enough))) for enough in range(3, 15))
    told = next(text for text in found if "The same rows were written to it in both runs" in text)
    assert "flush what is buffered" in told
    assert "in self" not in told


def test_a_fake_that_each_process_has_a_copy_of_is_a_reason_that_is_told() -> None:
    class Table:
        def __init__(self) -> None:
            self.rows: list[Any] = []
            self.staged: dict[str, Any] = {}
            self.published: set[str] = set()

    class Mine(ShopSink):
        def __init__(self) -> None:
            self.table, self.bug = Table(), ""  # type: ignore[assignment]

        def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
            return Forgiving(self.table, context, "")

    assert "must derive from penstock.testing.Outside" in failure(orders().to(Mine()))


class Forgiving(ShopCommitter):
    def commit(self, transaction: Any) -> None:
        self.table.rows += self.table.staged.pop(transaction, [])


class Copies(ShopCommitter):
    """Publishes, and leaves what it published where it was."""

    def commit(self, transaction: Any) -> None:
        if transaction not in self.table.published:
            self.table.rows += self.table.staged[transaction]
            self.table.published.add(transaction)


def test_a_commit_that_takes_nothing_away_is_blamed_and_not_the_abort() -> None:
    class Mine(ShopSink):
        def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
            return Copies(self.table, context, "")

    told = failure(orders().to(Mine()), staged=staged)
    assert "fails without any fault: I11" in told
    assert "commit() of this sink" in told
    assert "abort_others" not in told


def shares_its_buffer(writer: Any, checkpoint: int) -> Any:
    rows = writer.rows
    name = ShopWriter.prepare(writer, checkpoint)
    writer.rows = rows
    return name


def test_a_buffer_that_is_shared_with_prepare_is_a_reason_that_is_told() -> None:
    assert "share one list" in failure(sink_with(shares_its_buffer))


class Endless(Numbers):
    def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> pen.SourceReader:
        class Reader(NumbersReader):
            def poll(self, max_rows: int) -> Any:
                rows = super().poll(max_rows)
                return pen.Wait(context.now_ms() + 5) if rows is pen.END else rows

        return Reader(context, positions, 0)


def test_a_source_that_never_says_that_it_is_over_is_blamed() -> None:
    told = failure(pen.from_source(Endless(), name="log"), read=None)
    assert re.search(r"the source log \[\d\] was asked \d+ times for rows", told)
    assert "did not return END" in told
    assert "report it" not in told


def test_staged_must_be_a_number() -> None:
    with pytest.raises(pen.ConfigError, match=r"staged, for sink 'shop', returned .*len\(...\)"):
        simulate(
            sink_with(ShopWriter.prepare), read=shown, staged=lambda sink: sink.table.published
        )


# ---- a long story


class InMemory(ShopSink):
    """Keeps what is staged in the process that wrote it."""

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        made, mine = ShopWriter(self.table, context, ""), self.mine
        prepare = made.prepare

        def keeps(checkpoint: int) -> Any:
            name = prepare(checkpoint)
            if name is not None:
                mine[name] = made.table.staged.pop(name)
            return name

        made.prepare = keeps  # type: ignore[method-assign]
        return made

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        mine = self.mine

        class Committer(ShopCommitter):
            def commit(self, transaction: Any) -> None:
                if transaction in mine:
                    self.table.staged[transaction] = mine.pop(transaction)
                super().commit(transaction)

        return Committer(self.table, context, "")

    def __init__(self) -> None:
        super().__init__()
        self.mine: dict[str, Any] = {}


def test_what_happens_again_and_again_is_told_once() -> None:
    report = report_of(orders().to(InMemory(), name="shop"), faults=["crash"])
    assert report.finding is not None
    assert report.minimal is not None
    assert report.finding.rule.startswith("I25")
    told = str(report)
    assert "driver 0 starts" in told, "the beginning is there"
    assert "not in memory" in told
    assert "and this repeats" in told
    assert "What the sink was asked for shop/" in told
    assert len(report.minimal.story) > 100 > len(told.splitlines())


# ---- faults


def test_damaged_checkpoints_are_left_out_and_it_is_told_why() -> None:
    with pytest.raises(pen.ConfigError, match="'damage' is left out here"):
        simulate(orders(), faults=["damage"])


# ---- patience


def test_a_large_input_is_told_before_the_time_is_spent() -> None:
    rows = pen.from_rows([(i,) for i in range(1200)], "a BIGINT")
    with pytest.warns(UserWarning, match="1,200 rows in .* batches") as told:
        simulate(rows, seeds=range(1))
    assert "some forty rows" in str(told[0].message)
