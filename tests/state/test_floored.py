"""State that is larger than memory: what is in memory, what goes down and when, what a checkpoint takes along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.process import Process
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.errors import CheckpointCorrupt, ConfigError, StorageError
from penstock.plan.keyhash import key_groups, key_hashes
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import Segment
from penstock.state import aggregates as pen
from penstock.state import floored, index
from penstock.state.floored import Budget, FlooredKeyed
from penstock.storage.memory import MemoryStore
from penstock.storage.memory_floor import MemoryFloor, MemoryFloors
from penstock.storage.rocks import RocksFloors
from penstock.wire.paths import WorkerFile
from tests.engine.test_states import CONTEXT
from tests.engine.ttl_kit import Clock, Declared, Op, written
from tests.engine.ttl_kit import Stage as Lives
from tests.state.helpers import opened, snapshot_of
from tests.state.ways import WAYS, NoRoom, Way, inline_pieces

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
AGGREGATES = {"n": pen.count(), "total": pen.sum("v")}


def batch(keys: Sequence[int | None], value: int = 1) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array([value] * len(keys))], SCHEMA.names
    )


class Stage:
    """A running aggregate over floors in memory."""

    def __init__(self, budget: Budget | None = None, restored: Any = (), **context: Any) -> None:
        self.floors = MemoryFloors()
        self.budget = budget or NoRoom()
        way = Way(incremental=True, floors=lambda: self.floors, budget=lambda: self.budget)
        self.operator: RunningAggregate = opened(
            ["k"], AGGREGATES, SCHEMA, restored, over=way.over, **context
        )
        self.keyed = self.operator._keyed

    @property
    def floor(self) -> MemoryFloor:
        return self.floors.opened[0]

    @property
    def in_memory(self) -> int:
        return self.keyed.space.cells.count

    def send(self, keys: Sequence[int | None]) -> dict[Any, int]:
        (out,) = self.operator.process(batch(keys), 0)
        return dict(zip(out.column("k").to_pylist(), out.column("n").to_pylist(), strict=True))

    def freeze(self, checkpoint: int, base: int = 0) -> Any:
        order = SnapshotOrder(CheckpointId(checkpoint), base=CheckpointId(base))
        return self.operator.freeze(order).tables[0]


def out_for(checkpoint: int, store: MemoryStore | None = None) -> SegmentFiles:
    place = WorkerFile(CheckpointId(checkpoint), SlotId(0), AttemptId(1))
    return SegmentFiles(store or MemoryStore(), place, 1 << 30 if store is None else 0)


# ---- what is in memory


def test_only_what_the_last_batches_had_stays_in_memory() -> None:
    """S5: and all the rest is found when it is asked for."""
    stage = Stage()
    stage.send(range(1_000))
    assert stage.send([1, 2, 3]) == {1: 2, 2: 2, 3: 2}
    assert stage.in_memory < 500, "so that nobody waits for them they leave one after the other"
    for number in range(3, 6):
        assert stage.send([1, 2, 3]) == dict.fromkeys((1, 2, 3), number)
    assert stage.in_memory == 3
    assert len(stage.operator._table) == 1_000
    assert stage.send(range(1_000))[999] == 2


def test_memory_stays_below_the_budget_however_many_keys_there_are() -> None:
    """S5, I26: ten times as many keys as fit."""
    stage = Stage(Budget(1 << 20))
    largest = 0
    for start in range(0, 40_000, 500):
        stage.send(range(start, start + 500))
        largest = max(largest, stage.keyed.bytes_used)
    assert largest <= 1 << 20
    assert 500 <= stage.in_memory < 10_000
    assert stage.send([0, 20_000, 39_999, 40_000]) == {0: 2, 20_000: 2, 39_999: 2, 40_000: 1}


def test_keys_that_come_again_and_again_are_not_fetched_again() -> None:
    """S5: hot rows stay."""
    stage, hot = Stage(Budget(1 << 20)), range(100_000, 100_010)
    stage.send(hot)
    asked: list[bytes] = []
    get = stage.floor.get
    stage.floor.get = lambda keys: asked.extend(keys) or get(keys)  # type: ignore[method-assign]
    for start in range(0, 20_000, 500):
        stage.send([*hot, *range(start, start + 490)])
    assert len(asked) == 40 * 490, "each of the others once, and none of these"


def test_a_budget_that_one_batch_does_not_fit_into_is_refused_with_what_to_do() -> None:
    """What bad input gets."""
    stage = Stage(Budget(10_000))
    with pytest.raises(ConfigError, match=r"totals: the rows that one batch needs.*state_memory"):
        stage.send(range(5_000))


def test_operators_of_a_worker_share_its_budget() -> None:
    budget = Budget(1_000)
    first = Stage(budget)
    assert budget.share_bytes == 1_000
    Stage(budget)
    assert budget.share_bytes == 500
    assert isinstance(first.keyed, FlooredKeyed)


def test_only_what_changed_is_written_down_again() -> None:
    """S5: a row that was only read is what the floor has already."""
    stage = Stage()
    stage.send(range(100))
    stage.send([1])
    written: list[bytes] = []
    write = stage.floor.write
    stage.floor.write = lambda k, v: written.extend(k) or write(k, v)  # type: ignore[method-assign]
    table = stage.operator._table
    stage.keyed.space.find([pa.array([5, 6, 7], pa.int64())])
    assert table.present.sum() >= 3
    stage.send([2])
    stage.send([3])
    assert len(written) == 2, "of keys 1 and 2, which batches before have changed"


def test_a_null_key_is_a_key_like_any_other() -> None:
    stage = Stage()
    stage.send([None, 1])
    stage.send([2])
    assert stage.send([None]) == {None: 2}


# ---- keys whose hashes meet


def test_keys_that_meet_on_their_hash_are_told_apart_in_memory_and_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever can choose keys must not be able to make two of them one."""
    same = index.keyhash.Hashes
    real = index.keyhash.hashes_of

    def meeting(keys: Sequence[pa.Array]) -> Any:
        hashes = real(keys)
        few = np.full(len(hashes.h1), 7, np.uint64)
        return same(few, few, False)

    monkeypatch.setattr(index.keyhash, "hashes_of", meeting)
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    floors = MemoryFloors()
    way = Way(incremental=True, floors=lambda: floors)
    operator = opened(["k"], AGGREGATES, schema, over=way.over)
    for keys in (["a", "b", "c"], ["a"], ["b", "d"], ["c", "a"]):
        rows = pa.record_batch([pa.array(keys), pa.array([1] * len(keys))], schema.names)
        (out,) = operator.process(rows, 0)
    assert out.column("n").to_pylist() == [2, 3]


# ---- snapshots


def test_a_snapshot_has_the_rows_of_its_freeze_though_rows_must_leave_memory() -> None:
    """S5, I2, bug-D19: what cannot wait for the snapshot writes that down first."""
    stage = Stage()
    stage.send(range(10))
    view = stage.freeze(1)
    stage.send([1, 2])
    stage.send(range(100, 110))
    stage.send([3])
    segments = view.write(out_for(1))
    again = Stage(restored=[snapshot_of(*segments)])
    assert len(again.operator._table) == 10
    assert again.send([1, 3, 100]) == {1: 2, 3: 2, 100: 1}
    assert stage.send([1, 2, 3, 100]) == {1: 3, 2: 3, 3: 3, 100: 2}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows leave memory after every batch; for those that cannot there is always room."""
    monkeypatch.setattr(floored, "FULL", 1e-12)


def test_rows_leave_memory_while_a_snapshot_is_to_be_written_down(patient: None) -> None:
    """S5, I2, I25: those that are as at the freeze; the loop does not wait for the snapshot, and it has them."""
    stage = Stage()
    stage.send(range(10))
    view = stage.freeze(1)
    assert stage.send([1, 2]) == {1: 2, 2: 2}
    stage.send([100])
    assert view.copying and stage.in_memory == 3, "1, 2 and 100 must wait"
    assert stage.send([5, 6]) == {5: 2, 6: 2}, "these come back, and must wait now, too"
    stage.send([100])
    assert view.copying and stage.in_memory == 5
    segments = view.write(out_for(1))
    stage.send([3])
    assert stage.in_memory == 1
    again = Stage(restored=[snapshot_of(*segments)])
    assert again.send([1, 5, 7, 100]) == {1: 2, 5: 2, 7: 2, 100: 1}
    assert stage.send([1, 5, 7, 100]) == {1: 3, 5: 3, 7: 2, 100: 3}


def test_rows_that_changed_behind_a_snapshot_that_was_given_up_wait_for_the_one_before(
    patient: None,
) -> None:
    """I2, B6: two under way, the later one is aborted first."""
    stage = Stage()
    stage.send([1, 2])
    first = stage.freeze(1)
    stage.send([1, 3])
    stage.freeze(2).release()
    stage.send([4])
    stage.send([5])
    segments = first.write(out_for(1))
    assert Stage(restored=[snapshot_of(*segments)]).send([1, 2, 3, 4]) == {1: 2, 2: 2, 3: 1, 4: 1}
    assert stage.send([1, 2, 3, 4]) == {1: 3, 2: 2, 3: 2, 4: 2}


def test_a_key_that_was_cleared_and_came_back_before_a_snapshot_is_not_taken_away_by_it(
    patient: None,
) -> None:
    """S1, I2: its row may only leave memory when the snapshot has removed what the key had before."""
    job = Job()

    def put(function: Totals, rows: pa.RecordBatch) -> None:
        function.value.update_batch(rows, _v(rows))

    def values(keys: Sequence[int]) -> Any:
        return job.run(keys, lambda f, rows: f.value.get_batch(rows).column("n").to_pylist())

    job.run([1, 2], put)
    job.run([3], put)
    job.run([1], lambda f, rows: f.value.clear_batch(rows))
    job.run([1], put, 7)
    frozen = job.operator.freeze(SnapshotOrder(CheckpointId(1)))
    job.run([3], put)
    assert values([1, 2]) == [7, 1]
    job.run([3], put)
    (value,) = (table for table in frozen.tables if table.state == "value")
    value.write(out_for(1))
    assert values([1, 2]) == [7, 1]


def test_snapshots_are_written_down_in_the_order_of_their_freezes() -> None:
    """S5, I2, B6: whoever writes first."""
    stage = Stage(Budget(1 << 30))
    stage.send([1, 2])
    first = stage.freeze(1)
    stage.send([1, 3])
    second = stage.freeze(2)
    stage.send([1])
    later = second.write(out_for(2))
    earlier = first.write(out_for(1))
    assert Stage(restored=[snapshot_of(*earlier)]).send([1, 2, 3]) == {1: 2, 2: 2, 3: 1}
    assert Stage(restored=[snapshot_of(*later)]).send([1, 2, 3]) == {1: 3, 2: 2, 3: 2}


def test_what_a_snapshot_that_was_given_up_had_is_written_down_with_the_next() -> None:
    """C4: nothing is lost when a checkpoint is aborted before it was written."""
    stage = Stage(Budget(1 << 30))
    stage.send([1, 2])
    stage.freeze(1).release()
    stage.send([3])
    segments = stage.freeze(2).write(out_for(2))
    assert Stage(restored=[snapshot_of(*segments)]).send([1, 2, 3]) == {1: 2, 2: 2, 3: 2}


def test_what_a_snapshot_that_was_given_up_had_is_there_when_it_left_memory_since() -> None:
    stage = Stage(Budget(1 << 30))
    stage.send([1, 2])
    stage.freeze(1).release()
    stage.budget = stage.keyed._budget = NoRoom()
    stage.send([3])
    assert stage.in_memory == 1
    assert stage.send([1, 2]) == {1: 2, 2: 2}


def test_a_write_that_failed_half_way_is_done_again_by_the_next_snapshot() -> None:
    """bug-D6: whichever write fails, what was to be written stays to be written."""
    for failing in range(2):
        stage = Stage(Budget(1 << 30))
        stage.send([1, 2])
        name = ("write", "keep")[failing]
        original = getattr(stage.floor, name)

        def broken(*_: Any) -> None:
            raise StorageError("no room")

        setattr(stage.floor, name, broken)
        with pytest.raises(StorageError, match="no room"):
            stage.freeze(1).write(out_for(1))
        setattr(stage.floor, name, original)
        segments = stage.freeze(2).write(out_for(2))
        assert Stage(restored=[snapshot_of(*segments)]).send([1, 2]) == {1: 2, 2: 2}


def files_of(segments: Sequence[Segment]) -> dict[str, str]:
    return {each.member: each.file for each in segments}


def test_a_checkpoint_uploads_only_files_that_its_base_does_not_have() -> None:
    """S5: incremental; T4, bug-D1: and refers to no file of a checkpoint that is not its base."""
    store, stage = MemoryStore(), Stage(Budget(1 << 30))

    def checkpoint(number: int, base: int) -> dict[str, str]:
        stage.send([number])
        out = out_for(number, store)
        segments = stage.freeze(number, base).write(out)
        out.finish()
        return files_of(segments)

    first, second = checkpoint(1, 0), checkpoint(2, 1)
    assert first.items() - {("CURRENT", first["CURRENT"])} < second.items()
    third = checkpoint(3, 1)
    assert not any(name.startswith("shared/2-") for name in third.values()), "2 was never completed"
    full = checkpoint(4, 0)
    assert all("4-0-1" in name or "chk-4/" in name for name in full.values())


def test_a_restored_checkpoint_is_a_base() -> None:
    """S5: the first increment after a restart is one. bug-D15: its own files have other names."""
    store, stage = MemoryStore(), Stage(Budget(1 << 30))
    stage.send(range(50))
    out = out_for(1, store)
    segments = stage.freeze(1).write(out)
    out.finish()
    inline = [_inlined(each, store) for each in segments]
    again = Stage(Budget(1 << 30), [snapshot_of(*inline)], restored_id=1)
    again.send([7])
    next_out = out_for(2, store)
    after = files_of(again.freeze(2, 1).write(next_out))
    lasting = {e.member for e in segments if e.member != "CURRENT"}
    assert lasting and all(after[name] == files_of(inline)[name] for name in lasting)


def _inlined(segment: Segment, store: MemoryStore) -> Segment:
    data = b"".join(store.read(segment.file, b.offset, b.length) for b in segment.blocks)
    at, blocks = 0, []
    for block in segment.blocks:
        blocks.append(replace(block, offset=at))
        at += block.length
    return replace(segment, inline=data, file="", blocks=tuple(blocks))


def test_a_damaged_or_missing_file_is_found_before_anything_is_opened(tmp_path: Path) -> None:
    """I24, T5: every file of a floor has its checksum."""
    floors = RocksFloors(tmp_path / "floors")
    way = Way(incremental=True, floors=lambda: floors)
    operator = opened(["k"], AGGREGATES, SCHEMA, over=way.over)
    operator.process(batch(range(100)), 0)
    view = operator.freeze(SnapshotOrder(CheckpointId(1))).tables[0]
    segments = view.write(out_for(1))
    for number, segment in enumerate(segments):
        assert segment.inline
        changed = bytes([segment.inline[0] ^ 1]) + segment.inline[1:]
        damaged = list(segments)
        damaged[number] = replace(segment, inline=changed)
        with pytest.raises(CheckpointCorrupt, match="the checksum is wrong"):
            opened(["k"], AGGREGATES, SCHEMA, [snapshot_of(*damaged)], over=way.over)
    with pytest.raises(CheckpointCorrupt, match="CURRENT, is missing"):
        opened(["k"], AGGREGATES, SCHEMA, [snapshot_of(*segments[1:])], over=way.over)
    assert b"".join(inline_pieces(segments[0])).endswith(b"\n")


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 4)])
def test_floors_are_shared_out_anew_at_another_parallelism(old: int, new: int) -> None:
    """R6, I15: every key is found at its owner, and nobody counts or keeps another's."""
    whole = [Stage(index=i, parallelism=old) for i in range(old)]
    for stage in whole:
        stage.send([k for k in range(200) if _owner(k, old) == whole.index(stage)])
    snapshots = [snapshot_of(*stage.freeze(1).write(out_for(1))) for stage in whole]
    for i in range(new):
        stage = Stage(restored=snapshots, index=i, parallelism=new)
        mine = [k for k in range(200) if _owner(k, new) == i]
        assert len(stage.operator._table) == len(mine)
        assert stage.send(mine) == dict.fromkeys(mine, 2)
        assert len(list(stage.floor.scan(b""))) == len(mine)


def _owner(key: int, parallelism: int) -> int:
    hashes = key_hashes([pa.array([key], pa.int64())])[0]
    return int(key_groups(hashes, 128)[0]) * parallelism // 128


# ---- a time to live


def test_rows_that_are_over_leave_the_floor_though_nobody_asks_for_them() -> None:
    """S8: a few are looked at after every batch, so none stays for ever."""
    clock, floors = Clock(), MemoryFloors()
    stage = Lives(clock, Declared(), way=Way(incremental=True, floors=lambda: floors))
    stage.do([Op("value", f"user {n}", n) for n in range(600)])
    for _ in range(3):
        stage.do([Op("", "somebody")])
    assert sum(len(floor.rows) for floor in floors.opened) == 600
    clock.ms += 1_000
    for _ in range(20):
        stage.do([Op("", "somebody")])
    for frozen in stage.freeze(1):
        for table in frozen.tables:
            table.write(out_for(1))
    assert [len(floor.rows) for floor in floors.opened] == [0] * len(floors.opened)


@pytest.mark.parametrize("name", WAYS)
def test_a_moment_that_is_to_come_is_that_of_the_restore(name: str) -> None:
    """S8, I21: the clock of another host was ahead. Also when nobody asks for a row before that moment, and after one
    more restore."""
    clock, way = Clock(), WAYS[name]
    stage = Lives(clock, Declared(), way=way)
    stage.do([Op("value", "a", 1), Op("map", "b", 2)])
    first = written(stage.freeze(1))
    clock.ms -= 80
    again = Lives(clock, Declared(), 1, first, checkpoint=1, way=way)
    second = written(again.freeze(2))
    clock.ms += 90
    for stage in (again, Lives(clock, Declared(), 1, second, checkpoint=2, way=way)):
        assert stage.do([Op("seevalue", "a")]) == [("a", "value", 1)]
    clock.ms += 10
    for stage in (again, Lives(clock, Declared(), 1, second, checkpoint=2, way=way)):
        stage.tick()
        reads = [Op("seevalue", "a"), Op("seemap", "b")]
        assert sorted(stage.do(reads)) == [("a", "value", None), ("b", "map", {})]


# ---- functions with several states


class Totals:
    """Adds what a batch has to a state, and reads it; another state is there beside it."""

    schema = "n BIGINT"

    def open(self, ctx: Any) -> None:
        self.stats = ctx.aggregating_state("stats", "v BIGINT", s=pen.sum("v"))
        self.value = ctx.value_state("value", self.schema)
        self.entries = ctx.list_state("entries", "n BIGINT")
        self.do: Any = lambda batch: None

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        self.do(batch)


class Wider(Totals):
    schema = "n BIGINT, more STRING"


class Job:
    def __init__(
        self,
        function: type[Totals] = Totals,
        restored: Any = (),
        way: Way = WAYS["floors"],
        **more: Any,
    ) -> None:
        self.floors = MemoryFloors()
        if way is WAYS["floors"]:
            way = replace(way, floors=lambda: self.floors)
        self.operator = Process(function, ("k",), SCHEMA)
        fitting = {"input_schemas": (SCHEMA,), "restored": restored, "max_parallelism": 128}
        self.operator.open(way.over(replace(CONTEXT, **fitting, **more)))

    def run(self, keys: Sequence[int], do: Any, value: int | None = 1) -> Any:
        found: list[Any] = []
        self.operator.function.do = lambda rows: found.append(do(self.operator.function, rows))
        values = pa.array([value] * len(keys), pa.int64())
        self.operator.process(
            pa.record_batch([pa.array(keys, pa.int64()), values], SCHEMA.names), 0
        )
        return found[0]

    def snapshot(self, number: int = 1) -> Any:
        frozen = self.operator.freeze(SnapshotOrder(CheckpointId(number)))
        return snapshot_of(*(s for table in frozen.tables for s in table.write(out_for(number))))


def _v(rows: pa.RecordBatch, name: str = "n") -> pa.RecordBatch:
    return pa.record_batch([rows.column("v")], [name])


def test_a_null_that_comes_back_is_a_null() -> None:
    """S5, I2: a sum of nothing but nulls, read by a function that adds nothing to it."""
    job = Job()
    job.run([1], lambda f, rows: f.stats.add_batch(rows, _v(rows, "v")), None)
    again = Job(restored=(job.snapshot(),))
    found = again.run([1, 2], lambda f, rows: f.stats.get_batch(rows).column("s").to_pylist())
    assert found == [None, None]


def test_a_key_is_in_memory_with_all_its_states_or_with_none() -> None:
    """S5, S10: one state has other columns now and is read row by row, before the next one is opened as it is."""
    job = Job()

    def put(function: Totals, rows: pa.RecordBatch) -> None:
        function.value.update_batch(rows, _v(rows))
        function.entries.add_batch(rows, _v(rows))

    job.run([1, 2], put)
    again = Job(Wider, (job.snapshot(),))
    assert again.run([1], lambda f, rows: f.value.get_batch(rows).to_pylist()) == [
        {"n": 1, "more": None}
    ]
    entries = again.run([1], lambda f, rows: f.entries.get_batch(rows).values.to_pylist())
    assert entries == [{"n": 1}]


def test_a_row_that_is_fetched_into_a_used_cell_is_not_in_an_older_snapshot() -> None:
    """I2: the cell was free at the freeze, and had changed before."""
    job = Job()

    def put(function: Totals, rows: pa.RecordBatch) -> None:
        function.value.update_batch(rows, _v(rows))

    job.run([1], put, 10)
    job.run([2, 3, 4], put, 20)
    job.run([2, 3, 4], lambda f, rows: f.value.clear_batch(rows))
    job.run([5], put, 50)
    frozen = job.operator.freeze(SnapshotOrder(CheckpointId(1)))
    keyed = job.operator._scope.keyed
    keyed._budget = Budget(1 << 30)
    job.run([1], put, 11)
    segments = [s for table in frozen.tables for s in table.write(out_for(1))]
    again = Job(restored=(snapshot_of(*segments),))
    found = again.run([1, 2], lambda f, rows: f.value.get_batch(rows).column("n").to_pylist())
    assert found == [10, None]


@pytest.mark.parametrize("state", ["value", "entries"])
def test_what_was_cleared_does_not_come_back_while_a_snapshot_is_written_down(state: str) -> None:
    """S1, S5: the floor is read, and then the snapshot removes there what was cleared before it."""
    job = Job()

    def put(function: Totals, rows: pa.RecordBatch) -> None:
        function.value.update_batch(rows, _v(rows))
        function.entries.add_batch(rows, _v(rows))

    job.run([1, 2], put)
    job.run([3], put)
    job.run([1], lambda f, rows: getattr(f, state).clear_batch(rows))
    job.run([3], put)
    frozen = job.operator.freeze(SnapshotOrder(CheckpointId(1)))
    job.operator._scope.keyed._budget = Budget(1 << 30)
    for floor in job.floors.opened:
        _write_down_behind(floor, frozen.tables)
    found = job.run([1, 2], lambda f, rows: f.value.get_batch(rows).column("n").to_pylist())
    assert found == [None if state == "value" else 1, 1]
    entries = job.run([1, 2], lambda f, rows: f.entries.get_batch(rows).positions.tolist())
    assert entries == ([0, 1] if state == "value" else [1])


def _write_down_behind(floor: Any, views: Sequence[Any]) -> None:
    """As the other thread may: when a read has its rows, and before anybody has looked at them."""

    def then(read: Any) -> Any:
        def both(keys: Sequence[bytes]) -> Any:
            found = read(keys)
            for view in views:
                if view.plan.changes.floor is floor:
                    view.plan.settle(view)
            return found

        return both

    floor.get, floor.below = then(floor.get), then(floor.below)


def test_lists_come_from_the_heap_though_there_is_no_room_for_all_of_them() -> None:
    """I23: some have left memory again before the last is read, and their cells have no position."""
    heap = Way(incremental=True)
    context = replace(CONTEXT, input_schemas=(SCHEMA,), max_parallelism=128)
    job = Job()
    job.operator = Process(Totals, ("k",), SCHEMA)
    job.operator.open(heap.over(context))

    def add(function: Totals, rows: pa.RecordBatch) -> None:
        function.entries.add_batch(rows, _v(rows))

    def increment(number: int) -> list[Segment]:
        order = SnapshotOrder(CheckpointId(number), base=CheckpointId(number - 1))
        tables = job.operator.freeze(order).tables
        return [segment for table in tables for segment in table.write(out_for(number))]

    job.run(range(2_000), add)
    increment(1)
    job.run(range(20), add)
    job.run(range(30, 35), lambda f, rows: f.entries.clear_batch(rows))
    increment(2)
    for number in (3, 4, 5):
        job.run([40 + number], add)
        segments = increment(number)
    assert sum(each.delta for each in segments if each.state == "entries") == 4
    again = Job(restored=(snapshot_of(*segments),))
    found = again.run([5, 30, 50], lambda f, rows: f.entries.get_batch(rows).positions.to_pylist())
    assert found == [0, 0, 2]
    again.operator._scope.keyed._budget = Budget(1 << 30)
    again.run(range(3_000, 3_500), add)
    cells = again.operator._scope.keyed.space.find([pa.array(range(3_000, 3_500), pa.int64())])
    assert len(np.unique(cells)) == 500, "no cell was given back twice"


def test_files_of_a_snapshot_that_was_given_up_after_it_was_written_down_go(tmp_path: Path) -> None:
    """I26, C4: the loop could not wait, and then the checkpoint was aborted."""
    floors = RocksFloors(tmp_path / "floors")
    way = Way(incremental=True, floors=lambda: floors)
    operator = opened(["k"], AGGREGATES, SCHEMA, over=way.over)
    for number in range(1, 4):
        operator.process(batch(range(100)), 0)
        view = operator.freeze(SnapshotOrder(CheckpointId(number))).tables[0]
        operator.process(batch([number]), 0)
        operator.process(batch([100 + number]), 0)
        assert not view.copying, "it was settled"
        view.release()
    assert not [path.name for path in (tmp_path / "floors").iterdir() if "kept" in path.name]


def test_what_is_over_below_is_never_more_than_a_few_times_what_came_lately() -> None:
    """S8, I26: new keys come with every batch, and none of them ever comes again."""
    clock, floors = Clock(), MemoryFloors()
    stage = Lives(clock, Declared(), way=Way(incremental=True, floors=lambda: floors))
    for number in range(30):
        stage.tick()
        stage.do([Op("value", f"user {number} {n}", n) for n in range(500)])
        clock.ms += 50
    assert sum(len(floor.rows) for floor in floors.opened) < 5_000, "15,000 have come"


def test_a_block_of_a_snapshot_may_be_larger_than_memory() -> None:
    """S5, I23: it is not one batch."""
    heap = Job(way=WAYS["heap"])
    heap.run(range(60_000), lambda f, rows: f.value.update_batch(rows, _v(rows)))
    way = replace(WAYS["floors"], budget=lambda: Budget(4 << 20))
    again = Job(restored=(heap.snapshot(),), way=way)
    found = again.run([7, 59_999], lambda f, rows: f.value.get_batch(rows).column("n").to_pylist())
    assert found == [1, 1]
