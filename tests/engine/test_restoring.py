"""Rows in flight come back: to their channel, to their new owner, or with an error that says what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.engine.operators.base import FrozenOperator
from penstock.engine.worker.inputs import ChannelRows, Input
from penstock.engine.worker.restoring import restore_inflight
from penstock.engine.worker.snapshots import WriteWork, fetch_from
from penstock.engine.worker.subtask import Taken
from penstock.errors import CheckpointCorrupt, PlanError
from penstock.plan.graph import Hash, LogicalGraph, Node, Partitioning, Rebalance
from penstock.plan.graph import Input as Edge
from penstock.plan.keyhash import key_groups, key_hashes, owner_of
from penstock.plan.physical import PhysicalPlan, make_plan
from penstock.ports.channel import Batch
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.snapshot import NO_SOURCE, SubtaskSnapshot
from penstock.storage.memory import MemoryStore
from tests.engine.kit import SCHEMA, Do, ManualClock, ShortChannel, numbers, rows

GROUPS = 16
BY_KEY = Hash(("n",))


def plan(parallelism: int, how: Partitioning = BY_KEY, schema: pa.Schema = SCHEMA) -> PhysicalPlan:
    nodes = (
        Node("in", "map", Do, (), schema),
        Node("work", "map", Do, (Edge("in", how),), schema),
    )
    return make_plan(LogicalGraph(nodes), parallelism, GROUPS)


def taken(index: int, *channels: tuple[int, list[pa.RecordBatch]]) -> Taken:
    held = tuple(ChannelRows(0, source, batches) for source, batches in channels)
    return Taken(
        SubtaskId(1, index), CheckpointId(1), {"work": FrozenOperator()}, False, 0, 0, 0, held
    )


def written(store: MemoryStore, *parts: Taken, inline: bool = False) -> list[SubtaskSnapshot]:
    """As the workers of these subtasks write them, one file each."""
    found: list[SubtaskSnapshot] = []
    for part in parts:
        slot, limit = SlotId(part.subtask.index), 1 << 20 if inline else 0
        where = (slot, AttemptId(1), CheckpointId(1))
        found += WriteWork(store, *where, [part], ManualClock(), limit)()
    return found


def restored(
    snapshots: list[SubtaskSnapshot], made: PhysicalPlan, slot: int, store: MemoryStore
) -> dict[int, list[int]]:
    """What each channel of this slot's subtask has in its queue, by the index of its sender; and what goes before."""
    channels = made.inputs(SubtaskId(1, slot))
    inputs = [Input(c, made.edges[c.edge].port, ShortChannel(1)) for c in channels]
    rescued = restore_inflight("work", snapshots, inputs, made, SlotId(slot), fetch_from(store))
    first = {NO_SOURCE: [x for entry in rescued for x in numbers(entry.rows.data)]}
    queued = {
        entry.id.source: [x for f in entry.queue if isinstance(f, Batch) for x in numbers(f.data)]
        for entry in inputs
    }
    return {source: held for source, held in (first | queued).items() if held}


@pytest.mark.parametrize("inline", [False, True])
def test_every_channel_gets_its_own_rows_back_in_order(inline: bool) -> None:
    """B7, I3, I4, T6."""
    store = MemoryStore()
    parts = (
        taken(0, (0, [rows(1, 2), rows(3)]), (1, [rows(4)])),
        taken(1, (1, [rows(5)])),
    )
    snapshots = written(store, *parts, inline=inline)
    assert bool(store.list()) is not inline
    made = plan(2, Rebalance())
    assert restored(snapshots, made, 0, store) == {0: [1, 2, 3], 1: [4]}
    assert restored(snapshots, made, 1, store) == {1: [5]}


def test_rows_that_went_before_all_channels_do_so_again() -> None:
    """B7, I4, R6: with the same parallelism, and with another one before those that came after them."""
    store = MemoryStore()
    parts = (taken(0, (NO_SOURCE, [rows(1), rows(2)]), (1, [rows(3)])), taken(1, (0, [rows(4)])))
    snapshots = written(store, *parts)
    made = plan(2, Rebalance())
    assert restored(snapshots, made, 0, store) == {NO_SOURCE: [1, 2], 1: [3]}
    assert restored(snapshots, made, 1, store) == {0: [4]}
    assert restored(snapshots, plan(1, Rebalance()), 0, store) == {NO_SOURCE: [1, 2, 3, 4]}


def test_rows_that_are_others_by_the_key_of_now_are_refused() -> None:
    """R8, I15: a job whose key is another one than when the checkpoint was taken."""
    store = MemoryStore()
    everything = (taken(0, (0, [rows(*range(40))])), taken(1))
    with pytest.raises(PlanError, match=r"the job's key there is another one.*job\.stop\(\)"):
        restored(written(store, *everything), plan(2), 0, store)


def test_the_statistics_know_what_was_in_flight() -> None:
    """C6."""
    (snapshot,) = written(MemoryStore(), taken(0, (0, [rows(1, 2)])))
    assert 0 < snapshot.timings.inflight_bytes == snapshot.timings.bytes_written


@pytest.mark.parametrize("parallelism", [1, 3, 4])
def test_with_another_parallelism_keyed_rows_go_to_whom_their_key_belongs_to_now(
    parallelism: int,
) -> None:
    """R6, I15, bug-C4: each once, and those of one channel in order."""
    store, everything = MemoryStore(), list(range(40))
    made = plan(parallelism)
    parts = (taken(0, (0, [rows(*everything[:20])])), taken(1, (1, [rows(*everything[20:])])))
    snapshots = written(store, *parts)
    lane, _ = key_hashes([pa.array(everything, pa.int64())])
    owners = owner_of(key_groups(lane, GROUPS), parallelism, GROUPS).tolist()
    seen = []
    for slot in range(parallelism):
        got = [x for held in restored(snapshots, made, slot, store).values() for x in held]
        assert got == sorted(x for x in everything if owners[x] == slot)
        seen += got
    assert sorted(seen) == everything


@pytest.mark.parametrize("parallelism", [1, 3])
def test_with_another_parallelism_rows_without_a_key_go_somewhere_once(parallelism: int) -> None:
    """R6."""
    store = MemoryStore()
    snapshots = written(store, taken(0, (0, [rows(1, 2)])), taken(1, (0, [rows(3)])))
    made = plan(parallelism, Rebalance())
    seen = [
        x
        for slot in range(parallelism)
        for held in restored(snapshots, made, slot, store).values()
        for x in held
    ]
    assert sorted(seen) == [1, 2, 3]


def test_more_rows_than_any_channel_has_room_for_come_back() -> None:
    """Bug-C13: a restore waits for nothing that only a running job could free."""
    store = MemoryStore()
    batches = [rows(*range(i * 1000, (i + 1) * 1000)) for i in range(200)]
    snapshots = written(store, taken(0, (0, batches)))
    assert restored(snapshots, plan(1), 0, store) == {0: list(range(200_000))}


def test_rows_for_an_input_that_is_gone_are_refused() -> None:
    """R8: never dropped without a word."""
    store = MemoryStore()
    held = taken(0, (0, [rows(1)]))
    other = replace(held, inflight=(replace(held.inflight[0], port=1),))
    with pytest.raises(PlanError, match="rows in flight for input 1 of operator 'work'"):
        restored(written(store, other), plan(1), 0, store)


def test_rows_of_another_schema_are_refused_with_both_sides() -> None:
    """S10."""
    store = MemoryStore()
    snapshots = written(store, taken(0, (0, [rows(1)])))
    made = plan(1, BY_KEY, pa.schema([("n", pa.string())]))
    with pytest.raises(CheckpointCorrupt, match=r"'work'.*columns n int64.*sends n string"):
        restored(snapshots, made, 0, store)


def test_any_byte_that_changes_in_the_rows_is_found() -> None:
    """I24, bug-H6."""
    store = MemoryStore()
    snapshots = written(store, taken(0, (0, [rows(1, 2, 3)])))
    (name,) = store.list()
    whole = store.read(name)
    (block,) = snapshots[0].inflight[0].segment.blocks
    for at in range(block.offset, block.offset + block.length):
        broken = bytearray(whole)
        broken[at] ^= 1
        store.write(name, [memoryview(bytes(broken))])
        with pytest.raises(CheckpointCorrupt, match="checksum"):
            restored(snapshots, plan(1), 0, store)
    store.write(name, [memoryview(whole[:-40])])
    with pytest.raises(CheckpointCorrupt, match="should have"):
        restored(snapshots, plan(1), 0, store)
