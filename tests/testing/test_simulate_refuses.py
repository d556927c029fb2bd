"""What `simulate` says to arguments and pipelines that it cannot work with."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing import FAULTS, Faults, SimulationFailed, last_per, simulate
from penstock.testing.schedule import undisturbed
from penstock.testing.stage import Stage
from penstock.testing.swarm import chooser
from tests.testing.shop import orders, shop, shown


def test_a_number_is_neither_one_seed_nor_many() -> None:
    with pytest.raises(pen.ConfigError, match=r"seeds=range\(5\) for that many, or seeds=\[5\]"):
        simulate(orders(), seeds=5)  # type: ignore[arg-type]


def test_an_unknown_fault_is_told_with_the_likeliest() -> None:
    with pytest.raises(pen.ConfigError, match="did you mean 'crash'"):
        simulate(orders(), faults=["crush"])


def test_a_sink_that_nobody_can_read_is_refused() -> None:
    """A simulation that cannot see what the sink shows would prove nothing."""
    with pytest.raises(pen.ConfigError, match="Give read="):
        simulate(shop())


def test_read_that_returns_something_else_is_told_so() -> None:
    with pytest.raises(SimulationFailed, match="did not return rows of the sink's schema"):
        simulate(shop(), read=lambda sink: [("only one value",)], seeds=range(2))


def test_a_source_that_never_ends_is_refused() -> None:
    endless = pen.GeneratorSource(make_numbers, schema="n BIGINT")
    with pytest.raises(pen.ConfigError, match="never ends"):
        simulate(pen.from_source(endless))


def test_a_source_with_too_many_rows_is_refused() -> None:
    large = pen.GeneratorSource(make_numbers, schema="n BIGINT", rows=1_000_000)
    with pytest.raises(pen.ConfigError, match="more than 20000 rows"):
        simulate(pen.from_source(large))


def make_numbers(start: int, n: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + n), pa.int64())})


def test_something_that_is_no_pipeline_is_refused() -> None:
    with pytest.raises(pen.ConfigError, match="is no pipeline"):
        simulate(lambda: 7)  # type: ignore[arg-type, return-value]


def test_user_code_that_always_raises_is_shown_as_it_is() -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError("a mistake of mine")

    with pytest.raises(SimulationFailed, match="without any fault: ZeroDivisionError") as failed:
        simulate(orders().map_batches(fails))
    assert "a mistake of mine" in str(failed.value)
    assert "in fails" in str(failed.value)


def test_an_error_that_takes_other_workers_along_is_shown_and_not_theirs() -> None:
    """A worker that fails closes its channels; what the others say about that is no cause."""

    def as_dictionary(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(0, "customer", batch["customer"].dictionary_encode())

    def build() -> pen.Stream:
        stream = orders().map_batches(as_dictionary).rebalance()
        return stream.map_batches(lambda batch: batch).rebalance().map_batches(lambda batch: batch)

    for seed in range(1, 13):
        stage = Stage(build, chooser(()), 2, None, None, None, None)
        with pytest.raises(SimulationFailed, match="without any fault: SchemaError in 'map_"):
            undisturbed(stage, seed)


def test_rows_without_a_single_right_answer_are_refused_with_a_way_out() -> None:
    def drawn(batch: pa.RecordBatch) -> pa.RecordBatch:
        column = pa.array([random.getrandbits(40) for _ in range(batch.num_rows)], pa.int64())
        return batch.set_column(1, "amount", column)

    with pytest.raises(
        SimulationFailed, match="two undisturbed runs gave different rows"
    ) as failed:
        simulate(orders().map_batches(drawn))
    assert "last_per" in str(failed.value)


@pytest.mark.parametrize("compare", [last_per("nobody"), "last per key", 7])
def test_a_comparison_that_cannot_be_made_is_refused(compare: Any) -> None:
    with pytest.raises(pen.ConfigError, match="compare"):
        simulate(orders(), compare=compare, seeds=range(1))


def test_last_per_wants_columns() -> None:
    with pytest.raises(pen.ConfigError, match="key columns"):
        last_per()


def test_a_comparison_of_ones_own_sees_the_rows() -> None:
    total = lambda rows: sum(row["amount"] for row in rows)
    assert simulate(orders(), compare=total, seeds=range(5)).ok
    by_sink = {"shop": lambda rows: len(rows)}
    assert simulate(shop(), compare=by_sink, read=shown, seeds=range(5)).ok


def test_parallelism_and_faults_can_be_fixed() -> None:
    report = simulate(orders(), parallelism=1, faults=Faults(crash=0.01), seeds=range(20))
    assert report.attempts > 20, "workers died"
    assert simulate(orders(), faults=(), seeds=range(3)).faults == 0
    assert "damage" not in FAULTS


def test_no_workers_warnings_are_written_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    simulate(orders(), faults=["crash"], seeds=range(5))
    assert caplog.records == []
