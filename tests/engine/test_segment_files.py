"""Where the rows of a worker's snapshot go: inline, or in files that are written while the rows are made."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.operators.base import FrozenOperator
from penstock.engine.worker.inputs import ChannelRows
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.engine.worker.snapshots import WriteWork, fetch_from, read_inflight, reader
from penstock.engine.worker.subtask import Taken
from penstock.errors import StorageError
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.snapshot import Segment, SubtaskSnapshot
from penstock.state.frozen import Out
from penstock.state.segments import GROUP_FIELD
from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore
from penstock.wire.paths import WorkerFile
from tests.engine.kit import ManualClock

SCHEMA = pa.schema([GROUP_FIELD, pa.field("x", pa.int64())])
PLACE = WorkerFile(CheckpointId(3), SlotId(1), AttemptId(2))
OWN, SHARED = "chk-3/1-2", "shared/3-1-2-state"
ALL = range(128)


def block(group: int, *values: int) -> pa.RecordBatch:
    groups = pa.array([group] * len(values), pa.uint16())
    return pa.RecordBatch.from_arrays([groups, pa.array(values, pa.int64())], schema=SCHEMA)


def values(store: MemoryStore | LocalStore, *segments: Segment) -> list[int]:
    read = reader(store)
    return [x for s in segments for batch in read(s, ALL) for x in batch["x"].to_pylist()]


class Table:
    """Frozen state of these blocks."""

    def __init__(self, *blocks: pa.RecordBatch, shared: bool = False) -> None:
        self._blocks = blocks
        self._shared = shared

    def write(self, out: Out) -> tuple[Segment, ...]:
        return (out.put("s", SCHEMA, self._blocks, shared=self._shared),)

    def release(self) -> None:
        """Holds nothing."""


def written(
    store: MemoryStore | LocalStore,
    *tables: object,
    inline: int = 0,
    inflight: tuple[ChannelRows, ...] = (),
) -> SubtaskSnapshot:
    frozen = FrozenOperator(tables=tables)  # type: ignore[arg-type]
    taken = Taken(
        SubtaskId(0, 1), PLACE.checkpoint, {"op": frozen}, False, 0, 0, 0, inflight=inflight
    )
    work = WriteWork(
        store, PLACE.slot, PLACE.attempt, PLACE.checkpoint, [taken], ManualClock(), inline
    )
    (snapshot,) = work()
    return snapshot


# ---- which bytes go where


def test_what_is_shared_lies_in_a_file_of_its_own() -> None:
    """T2, T6: one file of what belongs to the checkpoint alone, one of what later ones may refer to."""
    store = MemoryStore()
    rows = (ChannelRows(0, 0, [block(0, 7)]), ChannelRows(0, 1, [block(0, 8), block(0, 9)]))
    tables = (Table(block(1, 1), shared=True), Table(block(1, 2)), Table(block(2, 3), shared=True))
    told = written(store, *tables, inflight=rows)
    assert store.list() == [OWN, SHARED]
    segments = told.operators["op"].segments
    assert [segment.file for segment in segments] == [SHARED, OWN, SHARED]
    assert values(store, *segments) == [1, 2, 3]
    flying = [read_inflight(fetch_from(store), entry, SCHEMA) for entry in told.inflight]
    assert [batch["x"].to_pylist() for batches in flying for batch in batches] == [[7], [8], [9]]
    assert {entry.segment.file for entry in told.inflight} == {OWN}


def test_so_much_is_inline_and_from_then_on_everything_is_in_the_file() -> None:
    """T6: however many segments there are, the metadata stays small."""
    store = MemoryStore()
    out = SegmentFiles(store, PLACE, 1_000)
    segments = [out.put("s", SCHEMA, [block(0, n)]) for n in range(6)]
    large = out.put("s", SCHEMA, [block(0, *range(1_000))])
    small = out.put("s", SCHEMA, [block(0, 5)])
    out.finish()
    inline = [len(s.inline) for s in segments if s.inline is not None]
    assert 1 <= len(inline) < 6
    assert sum(inline) <= 1_000
    assert [s.inline is None for s in segments] == [n >= len(inline) for n in range(6)]
    assert large.file == small.file == OWN
    assert values(store, *segments, large, small) == [*range(6), *range(1_000), 5]


def test_few_rows_in_flight_stay_inline_beside_a_large_shared_file() -> None:
    """T6: no file for a handful of rows."""
    store = MemoryStore()
    out = SegmentFiles(store, PLACE, 2_000)
    large = out.put("s", SCHEMA, [block(0, *range(1_000))], shared=True)
    few = out.put_rows([block(0, 1)])
    out.finish()
    assert (large.file, few.inline is not None) == (SHARED, True)
    assert store.list() == [SHARED]


def test_a_segment_says_what_its_table_said_of_it() -> None:
    """S6."""
    out = SegmentFiles(MemoryStore(), PLACE, 10_000)
    segment = out.put("s", SCHEMA, [block(3, 1), block(5, 2)], groups=(3, 9), delta=True)
    assert (segment.state, segment.groups, segment.delta) == ("s", (3, 9), True)
    assert [(b.first_group, b.last_group, b.rows) for b in segment.blocks] == [(3, 3, 1), (5, 5, 1)]


def test_only_what_was_written_now_counts_as_written() -> None:
    """C6: a segment of an earlier checkpoint was written then."""
    store = MemoryStore()
    earlier = written(store, Table(block(1, *range(100)), shared=True)).operators["op"].segments

    class Incremental(Table):
        def write(self, out: Out) -> tuple[Segment, ...]:
            return (*earlier, *super().write(out))

    told = written(store, Incremental(block(1, 1)))
    mine = told.operators["op"].segments
    assert mine[:1] == earlier
    assert told.timings.bytes_written == mine[1].bytes_total > 0


# ---- little memory


class Watching(MemoryStore):
    """Takes a file chunk by chunk, and keeps none."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks = 0
        self.ended = False

    def begin(self, name: str) -> Watching:  # type: ignore[override]
        return self

    def write(self, chunk: memoryview) -> None:  # type: ignore[override]
        self.chunks += 1

    def finish(self) -> int:
        self.ended = True
        return 0


def watched_blocks(count: int, store: Watching) -> Iterator[pa.RecordBatch]:
    """Makes a block when it is asked for one. By then the store must have those before, and nobody else."""
    made: list[weakref.ref[np.ndarray]] = []
    held = pa.total_allocated_bytes()
    for number in range(count):
        values = np.arange(number, number + 1_000)
        made.append(weakref.ref(values))
        groups = np.full(1_000, number, np.uint16)
        yield pa.RecordBatch.from_arrays([pa.array(groups), pa.array(values)], schema=SCHEMA)
        nbytes = values.nbytes
        del values
        assert store.chunks > number, "blocks wait for those after them"
        assert sum(each() is not None for each in made) <= 2
        assert pa.total_allocated_bytes() - held <= 8 * nbytes


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_large_state_is_written_with_a_few_blocks_in_memory(
    shared: bool, compression: str | None
) -> None:
    """S4: state of 10 GB must not need 10 GB more. The bytes of a block go to the store before the next is made, and no
    list of them is kept."""
    store = Watching()
    out = SegmentFiles(store, PLACE, 1_000, compression)
    segment = out.put("s", SCHEMA, watched_blocks(200, store), shared=shared)
    assert not store.ended
    out.finish()
    assert store.ended
    assert len(segment.blocks) == 200
    assert store.chunks == 202, "the schema, the blocks, the end"


# ---- failures


class Broken:
    """Fails when a part of it is written."""

    def write(self, out: Out) -> tuple[Segment, ...]:
        return (out.put("s", SCHEMA, self._blocks(), shared=True),)

    def _blocks(self) -> Iterable[pa.RecordBatch]:
        yield block(0, *range(10_000))
        raise MemoryError("no more")

    def release(self) -> None:
        """Holds nothing."""


def test_a_write_that_fails_half_way_leaves_no_file(tmp_path: object) -> None:
    """C4, T4: neither of what was whole already, nor of what was not; not even under another name."""
    store = LocalStore(str(tmp_path))
    with pytest.raises(MemoryError):
        written(store, Table(block(0, *range(10_000))), Broken())
    assert store.list() == []
    assert store.leftovers(-1) == []


def test_a_store_that_fails_at_the_end_leaves_no_segment(tmp_path: object) -> None:
    """C4: who reads a segment finds its file."""

    class Failing(MemoryStore):
        def write(self, name: str, chunks: object) -> int:
            raise StorageError(f"cannot write {name}")

    store = Failing()
    with pytest.raises(StorageError, match=OWN):
        written(store, Table(block(0, 1)))
    assert store.list() == []


# ---- compression


def test_compressed_state_is_smaller_and_is_read_by_whoever_does_not_know_of_it() -> None:
    """T5, S9: it is still an Arrow stream, and each block has its checksum."""
    store = MemoryStore()
    blocks = [block(0, *([7] * 5_000)), block(1, *([8] * 5_000))]
    plain = SegmentFiles(store, PLACE, 1 << 20).put("s", SCHEMA, blocks)
    small = SegmentFiles(store, PLACE, 1 << 20, "zstd").put("s", SCHEMA, blocks)
    assert small.bytes_total * 5 < plain.bytes_total
    assert values(store, small) == values(store, plain)
    assert small.inline is not None
    assert pa.ipc.open_stream(small.inline).read_all().num_rows == 10_000
