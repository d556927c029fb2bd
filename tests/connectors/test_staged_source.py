"""Reading staged rows: every row once from any position, batch by batch, and what is told where rows are missing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors.answer import Answer
from penstock.connectors.base import END, SourceContext, SourceReader, Wait
from penstock.connectors.sources.staged import EMPTIED_AFTER_LOOKS, LOOK_MS, look
from penstock.errors import DataError
from penstock.protocol.snapshot import Plain
from penstock.testing.conformance import source_conformance
from penstock.wire import paths
from tests.connectors.staged_rows import SET, Stage, staged

LANES = 8


def reader(
    stage: Stage, positions: Mapping[int, Plain] | None = None, index: int = 0, parallelism: int = 1
) -> SourceReader:
    context = SourceContext("in", index, parallelism, LANES, lambda: 0.0)
    return stage.source.reader(context, positions or {})


def read(readers: list[SourceReader], rows: int = 7) -> list[int]:
    """All that is there now, a few rows at a time."""
    found: list[int] = []
    for each in readers:
        while isinstance(batch := each.poll(rows), pa.RecordBatch):
            found += batch.column("i").to_pylist()
    return found


def test_every_row_comes_once_from_any_position_and_any_parallelism(tmp_path: Path) -> None:
    """E1, C2: the suite for all sources."""
    stage = staged(tmp_path, [(40, 1, 17, 30, 5, 29, 11, 3, 8, 20)], bounded=True)
    assert source_conformance(lambda: stage.source).num_rows == stage.rows


def test_marks_of_a_pattern_in_the_path_are_letters(tmp_path: Path) -> None:
    """Files of a batch are found in a folder of any name, and where they lie elsewhere."""
    folder = tmp_path / "run[1]*?"
    stage = staged(folder, [(5, 5)], bounded=True)
    batch = look(stage.store, SET, 0)
    assert batch is not None
    listing = stage.source.staged.listing(SET, batch)
    assert [file.name for file in listing.files()] == [file.name for file in batch.files]
    elsewhere = replace(batch, folder=f"{folder / SET / batch.folder}/")
    assert stage.source.staged.listing(SET, elsewhere).files() == listing.files()
    assert read([reader(stage)]) == list(range(10))


def test_batches_are_read_as_they_come_and_in_their_order(tmp_path: Path) -> None:
    stage = staged(tmp_path, [(5, 5)], bounded=False)
    one = reader(stage)
    assert read([one]) == list(range(10))
    answer = one.poll(10)
    assert isinstance(answer, Wait) and answer.until_ms == LOOK_MS
    stage.add()
    stage.add(3)
    stage.add(2, 2)
    assert read([one]) == list(range(10, 17))


def test_the_files_of_small_batches_are_dealt_out_to_all_lanes(tmp_path: Path) -> None:
    stage = staged(tmp_path, [(4,)] * 16, bounded=False)
    halves = [read([reader(stage, index=i, parallelism=2)]) for i in (0, 1)]
    assert [len(half) for half in halves] == [32, 32]
    assert sorted(halves[0] + halves[1]) == list(range(64))


def test_lanes_that_are_ahead_of_others_wait_for_them(tmp_path: Path) -> None:
    """R6: after a change of parallelism one subtask has lanes of two that had come to different batches."""
    stage = staged(tmp_path, [(4, 4), (4, 4), (4, 4)], bounded=False)
    fast, slow = (reader(stage, index=i, parallelism=2) for i in (0, 1))
    before = read([fast], rows=100)
    batch = slow.poll(2)
    assert isinstance(batch, pa.RecordBatch)
    before += batch.column("i").to_pylist()
    together = reader(stage, {**fast.positions(), **slow.positions()})
    rest = read([together])
    assert sorted(before + rest) == list(range(24))
    assert rest == sorted(rest), "in the order of the batches"
    assert min(position[1] for position in together.positions().values()) == 3  # type: ignore[index]


def test_every_lane_passes_over_a_batch_that_has_nothing_for_it(tmp_path: Path) -> None:
    """What all lanes have behind them can be removed."""
    stage = staged(tmp_path, [(1,), (), (1,)], bounded=False)
    one = reader(stage)
    assert read([one]) == [0, 1]
    assert set(map(str, one.positions().values())) == {str([SET, 3, 0, 0, 0])}


def test_a_stream_that_had_ended_ends_again_without_its_rows(tmp_path: Path) -> None:
    """A job that finished has its staged rows removed; started again it has nothing to do."""
    stage = staged(tmp_path, [(3, 4)], bounded=True)
    one = reader(stage)
    assert len(read([one])) == 7
    assert one.poll(1) is END
    shutil.rmtree(tmp_path)
    assert reader(stage, one.positions()).poll(1) is END


def test_looking_for_a_batch_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    stage = staged(tmp_path, [], bounded=False)
    asked: list[Answer[object]] = []

    def ask(work: object) -> Answer[object]:
        asked.append(Answer())
        return asked[-1]

    one = stage.source.reader(SourceContext("in", 0, 1, LANES, lambda: 0.0, ask), {})
    assert isinstance(one.poll(1), Wait)
    assert isinstance(one.poll(1), Wait)
    assert len(asked) == 1
    asked[0].set(None)
    assert isinstance(one.poll(1), Wait)
    assert isinstance(one.poll(1), Wait)
    assert len(asked) == 2


# ---- what bad input gets


def test_a_file_that_is_gone_or_shorter_is_named(tmp_path: Path) -> None:
    stage = staged(tmp_path, [(20, 20)], bounded=True)
    file = next(tmp_path.rglob("part-00001.parquet"))
    whole = file.read_bytes()
    for content in (whole[:-1], b"", None):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(DataError, match=r'part-00001.parquet: .*restore="fresh"'):
            read([reader(stage)])


def test_a_page_that_has_changed_is_noticed(tmp_path: Path) -> None:
    """T5: a file of the right size that holds something else."""
    stage = Stage(tmp_path, bounded=True)
    import pyarrow.parquet as pq

    write = pq.write_table
    with pytest.MonkeyPatch.context() as patch:
        options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
        patch.setattr(pq, "write_table", lambda *a, **k: write(*a, **{**k, **options}))
        stage.add(20)
    file = next(tmp_path.rglob("part-00000.parquet"))
    content = bytearray(file.read_bytes())
    at = bytes(content).index((7).to_bytes(8, "little"))
    content[at] = 99
    file.write_bytes(content)
    with pytest.raises(DataError, match="part-00000"):
        read([reader(stage)])


@pytest.mark.parametrize("bounded", [True, False])
def test_a_staging_folder_that_somebody_emptied_is_told(tmp_path: Path, bounded: bool) -> None:
    stage = staged(tmp_path, [(5,)], bounded=bounded)
    shutil.rmtree(tmp_path / SET)
    one = reader(stage)
    with pytest.raises(DataError, match=r'staged for .in. are not there.*restore="fresh"'):
        for _ in range(EMPTIED_AFTER_LOOKS + 1):
            one.poll(1)


def test_a_batch_that_is_missing_before_a_later_one_is_told(tmp_path: Path) -> None:
    stage = staged(tmp_path, [(5,), (5,), (5,)], bounded=False)
    stage.store.delete(paths.staged_batch(SET, 1))
    one = reader(stage)
    with pytest.raises(DataError, match="batch 1 of the staged rows of 'in' is missing"):
        for _ in range(EMPTIED_AFTER_LOOKS + 5):
            one.poll(10)


@pytest.mark.parametrize("position", [[3, 1], ["../../etc", 0, 0, 0, 0], {"done": ""}, None])
def test_a_position_of_another_source_is_refused(tmp_path: Path, position: Plain) -> None:
    stage = staged(tmp_path, [(5,)], bounded=True)
    with pytest.raises(DataError, match="not a position of a staged DataFrame"):
        reader(stage, {0: position})
