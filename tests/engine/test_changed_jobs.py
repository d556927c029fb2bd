"""A job that was changed between two runs, and a checkpoint with rows in flight: no row is dropped without a word."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.engine.checkpoints.manifests import operators_mismatch
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.spec import JobSpec
from penstock.engine.worker.inputs import ChannelRows, Input
from penstock.engine.worker.restoring import restore_inflight
from penstock.engine.worker.subtask import Taken
from penstock.errors import PlanError
from penstock.plan.graph import Broadcast, Forward, LogicalGraph, Node, Partitioning, Rebalance
from penstock.plan.graph import Input as Edge
from penstock.plan.physical import PhysicalPlan, make_plan
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import OperatorSnapshot, SubtaskSnapshot
from penstock.storage.memory import MemoryStore
from penstock.wire.manifest import Manifest
from tests.engine.kit import SCHEMA, Do, ShortChannel, rows
from tests.engine.test_restoring import written

N1 = CheckpointId(1)
OTHER = pa.schema([("n", pa.string())])


def plan(
    *steps: tuple[str, Partitioning], schema: pa.Schema = SCHEMA, parallelism: int = 1
) -> PhysicalPlan:
    """A source, and one step behind the other."""
    nodes = [Node("in", "source", Do, (), schema)]
    for name, how in steps:
        nodes.append(Node(name, "map", Do, (Edge(nodes[-1].name, how),), schema))
    return make_plan(LogicalGraph(tuple(nodes)), parallelism, 8)


def snapshots(store: MemoryStore) -> tuple[SubtaskSnapshot, ...]:
    """Of a job whose task `work > after`, without state, had rows on their way to it."""
    operators = {"work": FrozenOperator(), "after": FrozenOperator()}
    held = (ChannelRows(0, 0, [rows(1, 2, 3)]),)
    return tuple(written(store, Taken(SubtaskId(1, 0), N1, operators, False, 0, 0, 0, held)))


def manifest(parts: tuple[SubtaskSnapshot, ...]) -> Manifest:
    kind = SnapshotKind.CHECKPOINT
    return Manifest("job", N1, AttemptId(1), kind, 0.0, 0.0, 1, 8, (), parts, CheckpointId(101))


@pytest.mark.parametrize(
    "made",
    [
        plan(("work", Rebalance()), ("after", Forward())),
        plan(("work", Rebalance()), ("after", Rebalance())),
        plan(("before", Forward()), ("work", Rebalance())),
        plan(("work", Rebalance()), parallelism=3),
    ],
)
def test_a_job_in_which_every_row_in_flight_has_its_place_goes_on(made: PhysicalPlan) -> None:
    """R8: other changes are no reason to refuse."""
    assert operators_mismatch(manifest(snapshots(MemoryStore())), JobSpec("job", made)) == ""


def test_state_without_its_operator_is_refused_with_how_each_kind_is_named() -> None:
    """R8: a sink or a source has no `.named`."""
    part = OperatorSnapshot(transactions=("a file",))
    lost = SubtaskSnapshot(SubtaskId(2, 0), {"file-sink-3": part})
    refusal = operators_mismatch(manifest((lost,)), JobSpec("job", plan(("work", Rebalance()))))
    assert "'file-sink-3'" in refusal
    for way in ('.named("...")', '.to(sink, name="...")', 'from_source(source, name="...")'):
        assert way in refusal


def test_state_without_its_operator_goes_when_that_is_asked_for_but_no_promise_does() -> None:
    """R8, I10: rows that a sink has promised to commit are lost to nobody's order."""
    spec = JobSpec("job", plan(("work", Rebalance())))
    allowed = replace(spec, allow_non_restored_state=True)
    position = SubtaskSnapshot(SubtaskId(2, 0), {"old": OperatorSnapshot(lanes={0: 7})})
    assert "allow_non_restored_state=True" in operators_mismatch(manifest((position,)), spec)
    assert operators_mismatch(manifest((position,)), allowed) == ""
    promise = SubtaskSnapshot(SubtaskId(2, 0), {"old": OperatorSnapshot(transactions=("file",))})
    refusal = operators_mismatch(manifest((promise,)), allowed)
    assert "'old'" in refusal and "job.stop()" in refusal


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (plan(("other", Rebalance()), ("after", Forward())), "no such input"),
        (plan(("work", Forward()), ("after", Forward())), "no such input"),
        (plan(("work", Forward()), ("after", Rebalance())), "no such input"),
        (plan(("work", Broadcast())), "a broadcast edge"),
        (plan(("work", Rebalance()), schema=OTHER), "n int64, and the job now sends n string"),
    ],
)
def test_rows_in_flight_without_a_place_to_go_to_are_refused(made: PhysicalPlan, why: str) -> None:
    """R8, bug-C4: operators without state are not missed by their state, but the rows on their way to them are."""
    refusal = operators_mismatch(manifest(snapshots(MemoryStore())), JobSpec("job", made))
    assert "rows in flight for input 0 of operator 'work'" in refusal
    assert why in refusal
    assert "job.stop()" in refusal


def test_rows_in_flight_never_go_to_another_operator_than_they_were_sent_to() -> None:
    """R8: `after` was in the same task, but the rows had not been through `work`."""
    store = MemoryStore()
    made = plan(("work", Forward()), ("after", Rebalance()))
    (channel,) = made.inputs(SubtaskId(1, 0))
    inputs = [Input(channel, 0, ShortChannel(1))]
    with pytest.raises(PlanError, match="rows in flight for input 0 of operator 'work'"):
        restore_inflight("after", snapshots(store), inputs, made, SlotId(0), store)
    assert not inputs[0].queue
