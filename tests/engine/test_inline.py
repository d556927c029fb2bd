"""A first look at a stream: the same operators, right here."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.operators.connect import SourceOperator
from penstock.engine.worker.inline import run_inline
from penstock.plan.graph import Forward, Hash, Input, LogicalGraph, Node
from tests.engine.kit import SCHEMA, Do, HeldBackground, ManualClock, NumberSource


class CreepingClock(ManualClock):
    """Every look at it takes a millisecond."""

    def monotonic_ms(self) -> float:
        self.now_ms += 1
        return self.now_ms


def graph(source: NumberSource, operator: Do) -> LogicalGraph:
    return LogicalGraph(
        (
            Node("numbers", "source", lambda: SourceOperator(source), (), SCHEMA, "source"),
            Node("work", "map", lambda: operator, (Input("numbers", Hash(("n",))),), SCHEMA),
            Node("more", "map", Do, (Input("work", Forward()),), SCHEMA),
        )
    )


def take(source: NumberSource, limit: int, operator: Do | None = None) -> list[int]:
    made = operator or Do()
    table = run_inline(graph(source, made), limit, CreepingClock(), HeldBackground())
    assert made.closed == 1
    return table.column("n").to_pylist()


def test_it_stops_at_the_limit() -> None:
    assert take(NumberSource(1_000_000), 5) == [0, 1, 2, 3, 4]


def test_it_stops_at_the_end_of_the_input() -> None:
    assert take(NumberSource(3), 100) == [0, 1, 2]


def test_it_does_not_wait_for_ever_for_rows_that_do_not_come() -> None:
    assert take(NumberSource(100, ready=4), 50) == [0, 1, 2, 3]


def test_an_exception_reaches_the_caller_as_it_is_and_everything_is_closed() -> None:
    def fail(batch: pa.RecordBatch) -> None:
        raise KeyError("amount")

    operator = Do(fail)
    with pytest.raises(KeyError, match="amount"):
        take(NumberSource(10), 5, operator)
    assert operator.closed == 1
