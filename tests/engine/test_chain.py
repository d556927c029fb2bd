"""The operators of one task, run as one."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from penstock.engine.operators.base import Operator, OperatorContext
from penstock.engine.worker.chain import Chain
from penstock.errors import InvariantBroken
from penstock.plan.graph import Forward, Hash, Input, LogicalGraph, Node
from penstock.plan.physical import make_plan
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from tests.engine.kit import SCHEMA, Do, numbers, rows


class Twice(Do):
    """Gives every batch twice, and a last one."""

    def process(self, batch: pa.RecordBatch, port: int) -> tuple:
        return (batch, batch)

    def finish(self) -> tuple:
        return (rows(99),)


class Nothing(Do):
    def process(self, batch: pa.RecordBatch, port: int) -> tuple:
        return (batch.slice(0, 0),)


def chain_of(**operators: Operator) -> tuple[Chain, list]:
    """A chain in that order, whose rows leave by one edge."""
    names = list(operators)
    nodes = [Node(names[0], "map", lambda: operators[names[0]], (), SCHEMA)]
    for before, name in pairwise(names):
        nodes.append(
            Node(
                name, "map", lambda name=name: operators[name], (Input(before, Forward()),), SCHEMA
            )
        )
    nodes.append(Node("next", "map", Do, (Input(names[-1], Hash(("n",))),), SCHEMA))
    chain = Chain(make_plan(LogicalGraph(tuple(nodes)), 1, 8).tasks[0])
    left: list = []
    chain.emit = lambda edge, batch: left.append(numbers(batch))
    return chain, left


def test_rows_go_through_every_operator_in_order() -> None:
    chain, left = chain_of(first=Twice(), second=Do())
    chain.process(rows(1, 2), 0)
    assert left == [[1, 2], [1, 2]]
    assert chain.counts() == [("first", 2, 4), ("second", 4, 4)]


def test_last_rows_go_through_the_operators_behind() -> None:
    """B10."""
    chain, left = chain_of(first=Twice(), second=Twice())
    chain.finish()
    assert left == [[99], [99], [99]]


def test_empty_batches_go_nowhere() -> None:
    chain, left = chain_of(first=Nothing())
    chain.process(rows(1), 0)
    assert left == []


@pytest.mark.parametrize("moment", ["open", "freeze"])
def test_it_knows_which_operator_failed(moment: str) -> None:
    bad = Do()
    bad.at[moment] = ValueError("no")
    chain, _ = chain_of(good=Do(), bad=bad, later=Do())
    with pytest.raises(ValueError):
        if moment == "open":
            chain.open(lambda name: None)  # type: ignore[arg-type, return-value]
        else:
            chain.freeze(SnapshotOrder(CheckpointId(1)))
    assert chain.current == "bad"


def test_it_knows_which_operator_failed_on_rows() -> None:
    def fail(batch: pa.RecordBatch) -> None:
        raise ValueError("no")

    chain, _ = chain_of(good=Do(), bad=Do(fail), later=Do())
    with pytest.raises(ValueError):
        chain.process(rows(1), 0)
    assert chain.current == "bad"


def test_every_operator_is_closed_whatever_the_others_do() -> None:
    bad, good = Do(), Do()
    bad.at["close"] = RuntimeError("stuck")
    chain, _ = chain_of(bad=bad, good=good)
    chain.close()
    assert good.closed == 1


def test_rows_before_the_outputs_are_there_are_a_broken_rule() -> None:
    chain, _ = chain_of(first=Do())
    fresh = Chain(make_plan(LogicalGraph((Node("a", "map", Do, (), SCHEMA),)), 1, 8).tasks[0])
    assert chain.source is None
    with pytest.raises(InvariantBroken, match="before the outputs were connected"):
        fresh.emit(0, rows(1))


def test_a_context_tells_each_subtask_its_own_key_groups() -> None:
    """I15: the ranges partition all groups."""
    groups: list[int] = []
    for index in range(3):
        place = OperatorContext(
            job="job",
            operator="o",
            index=index,
            parallelism=3,
            max_parallelism=8,
            attempt=1,
            input_schemas=(),
            now_ms=lambda: 0.0,
            wall_ms=lambda: 0.0,
            restored=(),
            read_segments=lambda segments, wanted: (),
            to_driver=lambda item: None,
        )
        groups += place.key_groups
    assert groups == list(range(8))
