"""A numbered sequence of rows, shared out between lanes in blocks.

Block b holds the rows `b * block .. (b + 1) * block - 1` and belongs to lane `b % lanes`. A lane's position is
`[next, block]`: the number of its next row, and the block size, which stays as it was when the job started
even if the source is given another number of rows or rate later.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from penstock.errors import DataError
from penstock.protocol.snapshot import Plain

Run = tuple[int, int]
"""First row and number of rows."""


class Stripes:
    """Where the lanes of one subtask stand. Rows are always taken in ascending order."""

    def __init__(
        self,
        lanes: Sequence[int],
        lanes_total: int,
        block: int,
        rows: int | None,
        positions: Mapping[int, Plain],
    ) -> None:
        restored = {lane: _parse(lane, positions[lane]) for lane in lanes if lane in positions}
        blocks = {restored_block for _, restored_block in restored.values()}
        if len(blocks) > 1:
            raise DataError(f"the lanes were cut into blocks of different sizes: {sorted(blocks)}")
        self._block = blocks.pop() if blocks else block
        self._stride = self._block * lanes_total
        self._rows = rows
        starts = {lane: lane * self._block for lane in lanes}
        starts.update((lane, next_row) for lane, (next_row, _) in restored.items())
        self._heap = sorted((next_row, lane) for lane, next_row in starts.items())

    @property
    def next_row(self) -> int:
        """The lowest row that was not taken yet."""
        return self._heap[0][0] if self._heap else 0

    @property
    def finished(self) -> bool:
        return not self._heap or (self._rows is not None and self.next_row >= self._rows)

    def positions(self) -> dict[int, Plain]:
        return {lane: [next_row, self._block] for next_row, lane in self._heap}

    def rows_below(self, limit: int) -> int:
        """How many rows below this one are still to be taken."""
        end = limit if self._rows is None else min(limit, self._rows)
        return sum(self._left(next_row, end) for next_row, _ in self._heap if next_row < end)

    def _left(self, next_row: int, end: int) -> int:
        """Of one lane: the rest of its block, then whole blocks, then a part of one."""
        block_end = next_row - next_row % self._block + self._block
        blocks, rest = divmod(max(0, end - block_end + self._block - self._stride), self._stride)
        return min(end, block_end) - next_row + blocks * self._block + min(rest, self._block)

    def take(self, rows_max: int, below: int | None = None) -> list[Run]:
        """The next runs of rows, all of them below `below`; neighbours are joined. Stops at a block's end when
        half of `rows_max` is there, so that large blocks are not copied together."""
        runs: list[Run] = []
        taken = 0
        limit = _lower(self._rows, below)
        while self._heap and taken * 2 < rows_max:
            count = self._take_run(rows_max - taken, limit, runs)
            if count == 0:
                break
            taken += count
        return runs

    def _take_run(self, rows_max: int, limit: int | None, runs: list[Run]) -> int:
        start, lane = self._heap[0]
        block_end = start - start % self._block + self._block
        end = min(start + rows_max, block_end)
        if limit is not None:
            end = min(end, limit)
        if end <= start:
            return 0
        following = end if end < block_end else end + self._stride - self._block
        heapq.heapreplace(self._heap, (following, lane))
        if runs and sum(runs[-1]) == start:
            runs[-1] = (runs[-1][0], runs[-1][1] + end - start)
        else:
            runs.append((start, end - start))
        return end - start


def _lower(first: int | None, second: int | None) -> int | None:
    given = [each for each in (first, second) if each is not None]
    return min(given) if given else None


def _parse(lane: int, position: Plain) -> tuple[int, int]:
    match position:
        case [int(next_row), int(block)] if next_row >= 0 and block > 0:
            return next_row, block
        case _:
            raise DataError(
                f"lane {lane}: {position!r} is not a position of this source;"
                " the snapshot was taken with another kind of source under this name"
            )
