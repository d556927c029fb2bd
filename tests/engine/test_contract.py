"""Sources and sinks of users that give the wrong thing: told as such, before the engine trips over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.connectors.base import Sink, Source, Wait
from penstock.engine.operators.connect import SinkOperator, SourceOperator
from penstock.errors import PlanError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from tests.engine.kit import NumberSource
from tests.engine.test_sink_promises import CommitLog, context


def source(**wrong: Callable[..., Any]) -> Source:
    made = NumberSource(4)
    for method, does in wrong.items():
        setattr(made, method, does)
    return made


def sink(**wrong: Callable[..., Any]) -> Sink:
    made = CommitLog()
    for method, does in wrong.items():
        setattr(made, method, does)
    return made


def nothing(*_: object) -> None:
    """What a method does that was forgotten to return something."""


@pytest.mark.parametrize(
    ("operator", "told"),
    [
        (SourceOperator(source(reader=nothing)), r"reader\(\) returned None .* a pen.SourceReader"),
        (SinkOperator(sink(writer=nothing)), r"writer\(\) returned None .* a pen.SinkWriter"),
        (SinkOperator(sink(committer=nothing)), r"committer\(\) .* a pen.SinkCommitter"),
        (SinkOperator(sink(committer=lambda _: 7)), r"7 \(int\), which has no commit\(\)"),
    ],
)
def test_a_source_or_sink_that_gives_nothing_to_work_with_is_refused(
    operator: SourceOperator | SinkOperator, told: str
) -> None:
    """E1: at the start, and for good."""
    with pytest.raises(PlanError, match=told):
        operator.open(context(0, 1))


@pytest.mark.parametrize("answer", [None, [], "rows", Wait(None)])  # type: ignore[arg-type]
def test_an_answer_of_poll_that_is_none_of_the_three_is_refused(answer: object) -> None:
    """E1."""
    operator = SourceOperator(source())
    operator.open(context(0, 1))
    assert operator._reader is not None
    operator._reader.poll = lambda _: answer  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(
        PlanError, match=r"poll\(\) returned .*(pen.Wait\(until_ms\).* pen.END|takes milliseconds)"
    ):
        operator.poll(10)


@pytest.mark.parametrize(
    ("positions", "told"),
    [
        (None, r"positions\(\) returned None .* a dict"),
        ([7], r"positions\(\) returned \[7\]"),
        ({9_999: 1}, r"the lane 9999 .* not one of this subtask's"),
        ({0: 1 << 70}, "lane 0 .* does not fit into 64 bits"),
        ({0: float("nan")}, "nan is no finite number"),
        ({0: {"file": "a\udcff"}}, r"'a\\udcff' is no valid text"),
        ({0: {7: 1}}, r"lane 0 .* expected str, got int \(a key\)"),
    ],
)
def test_positions_that_no_checkpoint_can_keep_are_refused(positions: Any, told: str) -> None:
    """E1, S10: by the source, with what is wrong, and for good."""
    operator = SourceOperator(source())
    operator.open(context(0, 1))
    assert operator._reader is not None
    operator._reader.positions = lambda: positions  # type: ignore[method-assign]
    with pytest.raises(PlanError, match=told):
        operator.freeze(SnapshotOrder(CheckpointId(1)))
