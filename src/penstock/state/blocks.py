"""How full the blocks of a pile are, and which of them are to be emptied.

A pile lies in blocks of a few megabytes, so it grows without being copied. When too much of it is garbage the emptiest
blocks are to go: they are *leaving*. Their values are written anew, a few at a time, by the column that points at them;
once it has looked at all that it points at, nothing is in them any more, and they are let go. What is counted here only
says which blocks are worth it: nothing is lost if it is wrong.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.keyhash import I64, Flags
from penstock.state.flat import grown

GARBAGE_BYTES_MIN = 1 << 20
"""So much may lie about before it is worth looking for more."""
GARBAGE_SHARE = 6
"""Beyond this part of a pile blocks have to go."""
ROUND_SHARE = 16
"""About this part of a pile is won at a time. With more, all that is moved would be there twice for longer."""
NEARLY_EMPTY = 0.25
"""Blocks with less than this part in use go in any case: there is little to be moved."""


class Blocks:
    """Numbers of blocks are used again."""

    def __init__(self) -> None:
        self._used: I64 = np.zeros(8, np.int64)
        self._live: I64 = np.zeros(8, np.int64)
        self._free: list[int] = []
        self._end = 0
        self.leaving: Flags = np.zeros(9, np.bool_)
        """By block. The last entry stands for what is in no block: it never leaves."""
        self.any_leaving = False
        self.used_bytes = 0
        self._garbage_bytes = 0

    @property
    def live_bytes(self) -> int:
        return self.used_bytes - self._garbage_bytes

    def make(self) -> int:
        if self._free:
            return self._free.pop()
        block, self._end = self._end, self._end + 1
        if self._end > len(self._used):
            self._used = grown(self._used, block, self._end)
            self._live = grown(self._live, block, self._end)
            leaving = np.zeros(len(self._used) + 1, np.bool_)
            leaving[:block] = self.leaving[:block]
            self.leaving = leaving
        return block

    def put(self, block: int, used: int, live: int) -> None:
        """So many bytes more were written into it, of which so many are pointed at."""
        self._used[block] += used
        self._live[block] += live
        self.used_bytes += used
        self._garbage_bytes += used - live

    def forget(self, block: int) -> tuple[int, int]:
        """It became part of another one: how many bytes it had, and how many of them are pointed at."""
        before = int(self._used[block]), int(self._live[block])
        self._used[block] = self._live[block] = 0
        self._free.append(block)
        self._add_up()
        return before

    def let_go(self, blocks: I64, sizes: I64) -> None:
        """Nothing points at values any more that took so many bytes in these blocks."""
        self._live -= np.bincount(blocks, sizes, len(self._live)).astype(np.int64)
        self._garbage_bytes += int(sizes.sum())

    def condemn(self, stays: int) -> None:
        """Says which blocks are to go, if there is enough garbage. `stays` is still being filled."""
        total = self.used_bytes
        if self._garbage_bytes <= max(GARBAGE_BYTES_MIN, total // GARBAGE_SHARE):
            return
        used, live = self._used, self._live
        share = live / np.maximum(used, 1)
        share[used == 0] = 2.0
        share[stays] = 2.0
        order = np.argsort(share, kind="stable")
        freed = np.cumsum((used - live)[order])
        enough = int(np.searchsorted(freed, total // ROUND_SHARE)) + 1
        going = order[: max(enough, int(np.count_nonzero(share < NEARLY_EMPTY)))]
        going = going[share[going] < 1.0]
        self.leaving[going] = True
        self.any_leaving = len(going) > 0

    def gone(self) -> list[int]:
        """Nothing is in the blocks any more that were leaving."""
        blocks = np.flatnonzero(self.leaving)
        self.leaving[blocks] = False
        self.any_leaving = False
        self._used[blocks] = self._live[blocks] = 0
        self._add_up()
        numbers: list[int] = blocks.tolist()
        self._free += numbers
        return numbers

    def _add_up(self) -> None:
        self.used_bytes = int(self._used.sum())
        self._garbage_bytes = self.used_bytes - int(self._live.sum())
