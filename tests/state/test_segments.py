"""Blocks of state: an open format, verified before it is believed."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
import xxhash

from penstock.errors import CheckpointCorrupt
from penstock.protocol.snapshot import Block, Segment
from penstock.state import frozen_table
from penstock.state.segments import read_blocks
from tests.state.helpers import Kept, inline_out, read_segment, segment_of


def written(rows: int = 300) -> Segment:
    keys = pa.schema([("k", pa.string())])
    table = Kept(keys, pa.schema([("n", pa.int64())]), "totals")
    cells = table.cells([pa.array([f"key {i}" for i in range(rows)])])
    table.table.columns[0].put(cells, pa.array(cells))
    return segment_of(table.freeze())


def read_all(segment: Segment, groups: range = range(128)) -> list[dict]:
    return [row for batch in read_segment(segment, groups) for row in batch.to_pylist()]


def test_a_segment_is_an_arrow_stream_that_anyone_can_read() -> None:
    """S9: state is data, never code."""
    segment = written()
    table = pa.ipc.open_stream(segment.inline).read_all()
    assert table.column_names == ["__kg", "key.k", "value.n"]
    assert table.num_rows == 300


def test_ranges_read_by_different_subtasks_partition_the_rows(monkeypatch) -> None:
    """I15, R6: a restore with another parallelism reads its own rows only, and fetches only their blocks."""
    monkeypatch.setattr(frozen_table, "BLOCK_ROWS_MAX", 16)
    segment = written()
    assert len(segment.blocks) > 10
    fetched = []

    def fetch(block: Block) -> bytes:
        fetched.append(block.offset)
        return segment.inline[block.offset : block.offset + block.length]

    parts = []
    for groups in (range(43), range(43, 44), range(44, 128)):
        fetched.clear()
        rows = [row for batch in read_blocks(segment, groups, fetch) for row in batch.to_pylist()]
        assert all(row["__kg"] in groups for row in rows)
        wanted = [
            b.offset
            for b in segment.blocks
            if b.first_group < groups.stop and b.last_group >= groups.start
        ]
        assert fetched == wanted
        parts += rows
    assert sorted(map(str, parts)) == sorted(map(str, read_all(segment)))


@pytest.mark.parametrize("step", [7])
def test_any_changed_byte_of_a_block_is_noticed(step: int) -> None:
    """I24, bug-H6: bit flips, anywhere in a block."""
    segment = written(40)
    (block,) = segment.blocks
    data = bytearray(segment.inline)
    for at in range(block.offset, block.offset + block.length, step):
        data[at] ^= 1
        with pytest.raises(CheckpointCorrupt, match=r"state 'totals' .*checksum"):
            read_all(dataclasses.replace(segment, inline=bytes(data)))
        data[at] ^= 1


def test_a_short_file_is_noticed() -> None:
    """I24, bug-E6: truncation and short reads."""
    segment = written()
    for length in (0, 1, segment.blocks[-1].offset, len(segment.inline) - 9):
        with pytest.raises(CheckpointCorrupt, match="bytes are there"):
            read_all(dataclasses.replace(segment, inline=segment.inline[:length]))


@pytest.mark.parametrize("change", [{"rows": 299}, {"first_group": 3}, {"last_group": 200}])
def test_metadata_that_contradicts_the_rows_is_noticed(change: dict[str, int]) -> None:
    """I24: rows would be skipped or taken by the wrong subtask."""
    segment = written()
    (block,) = segment.blocks
    wrong = dataclasses.replace(segment, blocks=(dataclasses.replace(block, **change),))
    with pytest.raises(CheckpointCorrupt, match="instead of"):
        read_all(wrong)


@pytest.mark.parametrize(
    "change", [{"length": 1 << 40}, {"length": 0}, {"length": -8}, {"offset": -1}]
)
def test_sizes_that_no_block_has_are_refused_before_anything_is_read(
    change: dict[str, int],
) -> None:
    """Sizes from disk are capped before anything is allocated."""
    segment = written()
    (block,) = segment.blocks
    wrong = dataclasses.replace(segment, blocks=(dataclasses.replace(block, **change),))

    def fetch(block: Block) -> bytes:
        raise AssertionError("nothing may be read")

    with pytest.raises(CheckpointCorrupt, match="metadata is damaged"):
        list(read_blocks(wrong, range(128), fetch))


def test_a_block_with_a_right_checksum_and_wrong_contents_is_refused() -> None:
    """Arrow input is validated: the checksum proves who wrote it, not that it is well formed."""
    segment = written()
    (block,) = segment.blocks
    junk = b"\xff\xff\xff\xff" + bytes(60)
    forged = dataclasses.replace(block, length=len(junk), checksum=xxhash.xxh3_128_hexdigest(junk))
    wrong = dataclasses.replace(segment, blocks=(forged,))
    with pytest.raises(CheckpointCorrupt):
        list(read_blocks(wrong, range(128), lambda block: junk))


@pytest.mark.parametrize(
    "schema", [b"", b"junk" * 9, pa.schema([("a", pa.int8())]).serialize().to_pybytes()]
)
def test_a_damaged_schema_is_refused(schema: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match="schema of state 'totals'"):
        read_all(dataclasses.replace(written(), schema=schema))


def test_a_schema_of_another_state_does_not_read_this_ones_blocks() -> None:
    """I24: swapped artefacts."""
    schema = pa.schema([("__kg", pa.uint16()), ("x", pa.list_(pa.int64()))])
    other = inline_out().put("other", schema, [])
    with pytest.raises(CheckpointCorrupt, match="not a record batch of this state"):
        read_all(dataclasses.replace(written(), schema=other.schema))


@pytest.mark.parametrize("own", [range(128), range(30, 60), range(40, 41), range(90, 128)])
def test_rows_of_key_groups_that_do_not_count_any_more_are_not_read(own: range) -> None:
    """S6, T4: a later checkpoint has rewritten them elsewhere; here they are old."""
    whole = written()
    part = dataclasses.replace(whole, groups=(40, 90))
    expected = [row for row in read_all(whole, own) if 40 <= row["__kg"] < 90]
    assert read_all(part, own) == expected
    assert bool(expected) == (own != range(90, 128))
