"""A watched folder over a long time: what is remembered, what is forgotten, and that nothing is read twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.answer import Answer
from penstock.connectors.base import SourceContext, SourceReader, Wait
from penstock.connectors.sources import FileSource
from penstock.connectors.sources.files import FORGET_AFTER_MS, POLL_INTERVAL_MS
from penstock.protocol.snapshot import Plain

EMPTY_LANE_CHARACTERS = 25
LANES = 128


class Watch:
    """A watched folder, its reader, and a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ms = 0.0
        self.seen: list[int] = []
        self.readers = [self._open(0, 1, {})]

    def _open(self, index: int, parallelism: int, positions: Mapping[int, Plain]) -> SourceReader:
        source = FileSource(str(self.folder), "json", "n BIGINT", watch=True)
        context = SourceContext("in", index, parallelism, LANES, lambda: self.now_ms)
        return source.reader(context, positions)

    def arrive(self, number: int, name: str = "") -> Path:
        path = self.folder / (name or f"{number:06}.json")
        path.write_text(f'{{"n": {number}}}\n')
        return path

    def look(self, after_ms: float = POLL_INTERVAL_MS) -> list[int]:
        """The rows that come now."""
        self.now_ms += after_ms
        fresh: list[int] = []
        for reader in self.readers:
            while isinstance(batch := reader.poll(1000), pa.RecordBatch):
                fresh += batch.column(0).to_pylist()
        self.seen += fresh
        return fresh

    def positions(self) -> dict[int, Plain]:
        """As a checkpoint holds them."""
        stored = {str(n): each for reader in self.readers for n, each in reader.positions().items()}
        return {int(lane): each for lane, each in json.loads(json.dumps(stored)).items()}

    def restore(self, positions: Mapping[int, Plain], parallelism: int = 1) -> None:
        self.readers = [self._open(i, parallelism, positions) for i in range(parallelism)]

    def characters(self) -> int:
        return len(json.dumps(self.positions()))


def test_thousands_of_files_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    """I22, bug-G8: the position is as large as the folder, not as its history."""
    watch = Watch(tmp_path)
    sizes = []
    for batch in range(8):
        paths = [watch.arrive(batch * 500 + n) for n in range(500)]
        assert len(watch.look()) == 500
        sizes.append(watch.characters())
        if batch == 4:
            watch.restore(watch.positions(), parallelism=3)
        for path in paths[:-1]:
            path.unlink()
        watch.look()
        watch.look(FORGET_AFTER_MS)
    assert sorted(watch.seen) == list(range(4_000))
    assert max(sizes) < (500 + 8) * 16 + LANES * EMPTY_LANE_CHARACTERS
    assert watch.characters() < 8 * 16 + LANES * EMPTY_LANE_CHARACTERS


def test_a_file_that_stays_is_never_read_again(tmp_path: Path) -> None:
    """I22: however long it stays, and with restores in between."""
    watch = Watch(tmp_path)
    for number in range(3_000):
        watch.arrive(number)
    watch.look()
    for parallelism in (2, 1):
        watch.restore(watch.positions(), parallelism)
        assert watch.look(10 * FORGET_AFTER_MS) == []
        assert watch.look(10 * FORGET_AFTER_MS) == []
    assert sorted(watch.seen) == list(range(3_000))


def test_a_file_that_arrives_late_with_an_old_time_and_an_early_name_is_read(
    tmp_path: Path,
) -> None:
    """E1: neither its time nor its name decides whether a file is new."""
    watch = Watch(tmp_path)
    watch.arrive(5)
    watch.look()
    watch.restore(watch.positions())
    os.utime(watch.arrive(1), (0, 0))
    assert watch.look() == [1]


def test_a_file_that_is_missing_for_a_while_is_not_read_again(tmp_path: Path) -> None:
    """I22: a listing that misses a file for a moment does not make it a new one."""
    watch = Watch(tmp_path)
    watch.arrive(0)
    path = watch.arrive(1)
    watch.look()
    for _ in range(3):
        path.rename(tmp_path / ".elsewhere")
        watch.look()
        watch.look(FORGET_AFTER_MS - 2 * POLL_INTERVAL_MS)
        (tmp_path / ".elsewhere").rename(path)
        assert watch.look() == [], "the time begins anew whenever the file is there"


def test_a_restore_does_not_shorten_the_time_that_a_missing_file_is_remembered(
    tmp_path: Path,
) -> None:
    """I22: a process that just started knows nothing of what was missing before."""
    watch = Watch(tmp_path)
    watch.arrive(0)
    path = watch.arrive(1)
    watch.look()
    path.unlink()
    watch.look()
    positions = watch.positions()
    watch.now_ms += 10 * FORGET_AFTER_MS
    watch.restore(positions)
    watch.arrive(1)
    assert watch.look() == []


def test_a_disk_that_is_not_mounted_makes_nothing_forgotten(tmp_path: Path) -> None:
    """I22: an empty folder tells nothing, for however long; when the disk is back no file is new."""
    mounted, away = tmp_path / "in", tmp_path / "away"
    mounted.mkdir()
    watch = Watch(mounted)
    for number in range(50):
        watch.arrive(number)
    watch.look()
    mounted.rename(away)
    mounted.mkdir()
    for _ in range(3):
        assert watch.look(FORGET_AFTER_MS) == []
    mounted.rmdir()
    away.rename(mounted)
    assert watch.look() == []


def test_a_name_that_was_away_for_long_may_be_used_again(tmp_path: Path) -> None:
    """It is another file then."""
    watch = Watch(tmp_path)
    watch.arrive(0)
    watch.arrive(1, "daily.json").unlink()
    path = watch.arrive(1, "daily.json")
    watch.look()
    path.unlink()
    watch.look()
    watch.look(FORGET_AFTER_MS)
    watch.arrive(2, "daily.json")
    assert watch.look() == [2]


def test_a_subtask_forgets_also_when_none_of_the_files_that_stay_is_its_own(tmp_path: Path) -> None:
    """bug-G8: what another subtask sees in the folder shows that the disk is there."""
    watch = Watch(tmp_path)
    watch.restore({}, parallelism=LANES)
    paths = [watch.arrive(number) for number in range(300)]
    watch.look()
    for path in paths[1:]:
        path.unlink()
    watch.look()
    watch.look(FORGET_AFTER_MS)
    assert watch.characters() < 16 + LANES * EMPTY_LANE_CHARACTERS


def test_a_listing_that_takes_long_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    """A watched folder is listed in the background: until the answer is there the reader only waits."""
    (tmp_path / "a.json").write_text('{"v": 1}\n')
    asked: list[Answer[Any]] = []
    work: list[Callable[[], Any]] = []

    def ask(what: Callable[[], Any]) -> Answer[Any]:
        work.append(what)
        asked.append(Answer())
        return asked[-1]

    now = [0.0]
    source = FileSource(str(tmp_path), "json", "v BIGINT", watch=True, poll_interval_ms=5.0)
    reader = source.reader(SourceContext("in", 0, 1, LANES, lambda: now[0], ask), {})
    assert isinstance(reader.poll(10), pa.RecordBatch)
    (tmp_path / "b.json").write_text('{"v": 2}\n')
    now[0] = 10.0
    for _ in range(3):
        answer = reader.poll(10)
        assert isinstance(answer, Wait) and answer.until_ms > now[0]
    assert len(work) == 1, "asked once"
    asked[0].set(work[0]())
    batch = reader.poll(10)
    assert isinstance(batch, pa.RecordBatch) and batch.to_pydict() == {"v": [2]}
