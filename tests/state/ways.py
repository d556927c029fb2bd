"""The ways in which state can be kept: tests of state run over all of them, and all must give the same answers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.floors import StateFloors
from penstock.ports.floor import Floors
from penstock.protocol.snapshot import Block, Segment
from penstock.state.floor_files import parts, read_floor, with_fetch
from penstock.state.floored import Budget
from penstock.storage.memory_floor import MemoryFloors
from penstock.storage.rocks import RocksFloors
from tests.state.helpers import read_segment


class NoRoom(Budget):
    """What the last batch did not have leaves memory."""

    def __init__(self) -> None:
        super().__init__(1, strict=False)


@dataclass(frozen=True)
class Way:
    incremental: bool = False
    floors: Callable[[], Floors] | None = None
    changelog: bool = False
    budget: Callable[[], Budget] = NoRoom

    def over(self, context: OperatorContext) -> OperatorContext:
        """The context of an operator that keeps its state in this way."""
        floors = None
        if self.floors is not None:
            floors = StateFloors(self.floors(), self.budget(), inline_pieces)
        return replace(
            context,
            incremental=self.incremental,
            floors=floors,
            log=context.log if self.changelog else None,
            read_segments=read_segments,
        )


def inline_pieces(segment: Segment) -> Iterable[bytes]:
    data = segment.inline
    assert data is not None

    def fetch(block: Block) -> bytes:
        return data[block.offset : block.offset + block.length]

    return with_fetch(lambda _: fetch)(segment)


def read_segments(segments: Sequence[Segment], groups: range) -> Iterator[pa.RecordBatch]:
    """The floors of any way can be read by every other."""
    for part in parts(segments):
        if isinstance(part, Segment):
            yield from read_segment(part, groups)
        else:
            names = [each.member for each in part]
            rocks = any(name.endswith(".sst") or "MANIFEST" in name for name in names)
            floors: Any = RocksFloors(rocks_folder()) if rocks else MemoryFloors()
            yield from read_floor(part, groups, inline_pieces, floors)


def rocks_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_ROOT.name))


_ROOT = tempfile.TemporaryDirectory(prefix="penstock-test-floors-")


def _rocks() -> Floors:
    return RocksFloors(rocks_folder())


WAYS = {
    "heap": Way(),
    "heap, incremental": Way(incremental=True),
    "changelog": Way(incremental=True, changelog=True),
    "floors": Way(incremental=True, floors=MemoryFloors),
    "rocksdb": Way(incremental=True, floors=_rocks),
    "changelog over floors": Way(incremental=True, floors=MemoryFloors, changelog=True),
    "changelog over rocksdb": Way(incremental=True, floors=_rocks, changelog=True),
}


def after(way: str, another: str | None) -> Way:
    """How a job keeps its state that goes on from one that kept it this way, and is to keep it another one. The files
    of floors in memory are for tests, and nobody else knows them."""
    then = WAYS[another or way]
    kinds = {WAYS[way].floors, then.floors} - {None}
    return WAYS[way] if len(kinds) > 1 else then
