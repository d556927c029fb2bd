"""Sources and sinks that fail by script: at the place that was named, once, before or after it took effect."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.base import SinkContext, SourceContext
from penstock.connectors.sources.rows import RowsSource
from penstock.testing import (
    FaultySink,
    FaultySource,
    SimulatedFault,
    SimulationFailed,
    fail_after,
    fail_before,
    simulate,
)
from penstock.testing.copies import Template
from penstock.testing.tally import Tally
from tests.testing.shop import ORDERS, SCHEMA, ShopSink, shown

BATCH = RowsSource(ORDERS, SCHEMA)._batch


def sink_context(attempt: int = 1) -> SinkContext:
    return SinkContext("job", "shop", 0, 1, attempt, BATCH.schema, lambda item: None)


def read_shop(sink: FaultySink) -> object:
    assert isinstance(sink.inside, ShopSink)
    return shown(sink.inside)


# ---- the scripts


def test_a_commit_that_fails_before_it_did_nothing() -> None:
    sink = FaultySink(ShopSink(), [fail_before("commit", 2)])
    writer, committer = sink.writer(sink_context()), sink.committer(sink_context())
    writer.write(BATCH.slice(0, 2))
    first = writer.prepare(1)
    committer.commit(first)
    writer.write(BATCH.slice(2, 2))
    second = writer.prepare(2)
    with pytest.raises(SimulatedFault, match="commit 2 fails"):
        committer.commit(second)
    assert len(read_shop(sink)) == 2  # type: ignore[arg-type]
    committer.commit(second)
    assert len(read_shop(sink)) == 4  # type: ignore[arg-type]


def test_a_commit_that_fails_after_it_took_effect() -> None:
    sink = FaultySink(ShopSink(), [fail_after("commit")])
    writer, committer = sink.writer(sink_context()), sink.committer(sink_context())
    writer.write(BATCH.slice(0, 2))
    name = writer.prepare(1)
    with pytest.raises(SimulatedFault, match="commit 1 is done and fails"):
        committer.commit(name)
    assert len(read_shop(sink)) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["open", "write", "prepare", "abort", "recover"])
def test_every_call_of_a_sink_can_fail(call: str) -> None:
    sink = FaultySink(ShopSink(), [fail_before(call)])

    def use() -> None:
        committer = sink.committer(sink_context(attempt=2))
        committer.abort_others([])
        writer = sink.writer(sink_context(attempt=2))
        writer.write(BATCH.slice(0, 1))
        writer.prepare(1)

    with pytest.raises(SimulatedFault, match=f"{call} 1 fails"):
        use()
    use()


def test_a_read_and_a_recovery_of_a_source_can_fail() -> None:
    source = FaultySource(
        RowsSource(ORDERS, SCHEMA), [fail_before("read", 2), fail_before("recover")]
    )
    context = SourceContext("orders", 0, 1, 8, lambda: 0.0)
    reader = source.reader(context, {})
    assert isinstance(reader.poll(5), pa.RecordBatch)
    before = reader.positions()
    with pytest.raises(SimulatedFault, match="read 2 fails"):
        reader.poll(5)
    assert reader.positions() == before
    with pytest.raises(SimulatedFault, match="recover 1 fails"):
        source.reader(context, before)
    assert isinstance(source.reader(context, before).poll(5), pa.RecordBatch)


def test_calls_are_counted_over_all_copies() -> None:
    """A copy in the same process and one in another process count on with the others."""
    tally = Tally()
    assert [tally.next("commit"), deepcopy(tally).next("commit")] == [1, 2]
    other = pickle.loads(pickle.dumps(tally))
    assert [other.next("commit"), tally.next("commit"), tally.next("write")] == [3, 4, 1]


def test_another_world_counts_from_the_beginning() -> None:
    tally = Tally()
    tally.next("commit")
    pickle.dumps(tally)
    other = Template(tally, new_world=True).copy()
    assert [other.next("commit"), tally.next("commit")] == [1, 2]


def test_a_script_with_a_mistake_is_refused() -> None:
    with pytest.raises(pen.ConfigError, match="did you mean 'commit'"):
        FaultySink(ShopSink(), [fail_before("comit")])
    with pytest.raises(pen.ConfigError, match="no failure"):
        FaultySource(RowsSource(ORDERS, SCHEMA), ["read"])  # type: ignore[list-item]
    with pytest.raises(pen.ConfigError, match="number"):
        fail_after("commit", 0)


# ---- in a simulation


def test_a_script_alone_breaks_a_sink_that_is_not_idempotent() -> None:
    """E3, I10: the second call of a commit whose answer was lost."""
    orders = pen.from_rows(ORDERS, SCHEMA)
    good = FaultySink(ShopSink(), [fail_after("commit")])
    assert simulate(orders.to(good), faults=(), seeds=range(5), read=read_shop).ok
    bad = FaultySink(ShopSink("commits twice"), [fail_after("commit")])
    with pytest.raises(SimulationFailed, match="I10"):
        simulate(orders.to(bad), faults=(), seeds=range(5), read=read_shop)


def test_a_scripted_source_and_a_shipped_sink_are_simulated_together() -> None:
    """R1: each schedule has the failures of the script, and starts to count anew."""
    source = FaultySource(
        RowsSource(ORDERS, SCHEMA), [fail_before("read", 2), fail_after("read", 5)]
    )
    sink = FaultySink(pen.CollectSink(), [fail_before("prepare", 2), fail_after("commit", 2)])
    report = simulate(pen.from_source(source).to(sink), faults=(), seeds=range(8))
    assert report.faults == 0
    assert report.attempts >= 3 * report.schedules, "every schedule met at least two failures"
