"""Sinks that want all rows of a key in one subtask: the edge that leads to them."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as pen
from penstock.connectors.sinks.blackhole import BlackholeSink
from penstock.plan.graph import Forward, Hash, Partitioning
from penstock.testing import FaultySink


class ByUser(BlackholeSink):
    keys = ("user",)


class ByUserAndDay(BlackholeSink):
    keys = ("user", "day")


class Renames:
    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        return [("the same", row.n) for row in rows]


def orders() -> pen.Stream:
    return pen.from_rows([("ada", 1, 2)], "user STRING, day BIGINT, n BIGINT")


def totals(*keys: str) -> pen.Stream:
    return orders().key_by(*keys).agg(total=pen.sum("n"))


def edge(pipeline: pen.Pipeline) -> Partitioning:
    return pipeline.graph().nodes[-1].inputs[0].partitioning


@pytest.mark.parametrize(
    "stream",
    [
        orders(),
        orders().rebalance(),
        orders().select("user", "n"),
        totals("day", "user"),
        totals("user").rebalance(),
        totals("user").select(user=pen.lit("the same"), total="total"),
        orders().key_by("user").process(Renames(), "user STRING, n BIGINT"),
    ],
)
def test_rows_go_to_the_subtask_of_their_key(stream: pen.Stream) -> None:
    """E7: also where the rows come from a keyed operator that had another key, or may have changed it."""
    assert edge(stream.to(ByUser())) == Hash(("user",))


@pytest.mark.parametrize(
    ("stream", "sink"),
    [
        (totals("user"), ByUser()),
        (totals("user").named("totals"), ByUser()),
        (totals("day", "user"), ByUserAndDay()),
        (totals("user", "day"), ByUserAndDay()),
        (orders().key_by("user").agg(day=pen.max("day")), ByUserAndDay()),
    ],
)
def test_aggregates_stay_where_their_key_is(stream: pen.Stream, sink: pen.Sink) -> None:
    """E7: rows that agree in the sink's key agree in a part of it, and so come out of one subtask."""
    assert edge(stream.to(sink)) == Forward()


def test_a_sink_without_keys_takes_rows_as_they_come() -> None:
    assert edge(orders().to(BlackholeSink())) == Forward()


def test_a_sink_that_fails_by_script_has_the_keys_of_the_one_inside() -> None:
    assert edge(orders().to(FaultySink(ByUser(), []))) == Hash(("user",))


@pytest.mark.parametrize("stream", [orders().broadcast(), orders().broadcast().select("user")])
def test_copies_of_a_broadcast_are_refused(stream: pen.Stream) -> None:
    with pytest.raises(pen.PlanError, match="broadcast leads here.*Leave .broadcast"):
        stream.to(ByUser(), name="table")


class Wrong(BlackholeSink):
    def __init__(self, keys: Any, hold: pen.Hold | None = None) -> None:
        self.keys = keys
        self.hold = hold


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (Wrong(("usr",)), "did you mean 'user'"),
        (Wrong("user"), "must be a tuple of columns"),
        (Wrong(("user", "user")), "given twice"),
        (Wrong(("user",), pen.Hold(1, 1.0)), "either hold or keys"),
    ],
)
def test_keys_that_cannot_be_are_refused_where_the_sink_is_given(sink: pen.Sink, said: str) -> None:
    with pytest.raises(pen.PlanError, match=said):
        orders().to(sink)
