"""The keys of an operator whose rows may lie in a floor: those in memory have cells, the others are asked for there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan.keyhash import I64, Flags, key_groups, key_hashes
from penstock.state.cells import Groups
from penstock.state.flat import FIRST_ROWS, grown, int64_array, take_rows
from penstock.state.keyspace import NOBODY, KeySpace, Placed

LOOKED_AT = 1 << 16
"""So many cells at a time, for those that can go."""
IDLE_BATCHES = 8
"""Keys that no batch had for so long go first."""


class Below(Protocol):
    """All floors of the operator."""

    def encode(self, groups: Groups, keys: Sequence[pa.Array]) -> list[bytes]:
        """Keys as the floors know them."""
        ...

    def ask(self, keys: Sequence[bytes]) -> Answer | None:
        """What they have of these distinct keys; None: nothing."""
        ...


class Answer(Protocol):
    found: Flags
    """Of which keys there is something."""

    def bring(self, cells: I64) -> None:
        """Puts all there is into these cells, one for every key, of which only those count that were found."""
        ...


class CachedSpace(KeySpace):
    below: Below

    def __init__(self, schema: pa.Schema, max_parallelism: int) -> None:
        self._parallelism_max = max_parallelism
        self._used_at: npt.NDArray[np.uint32] = np.zeros(FIRST_ROWS, np.uint32)
        """The batch that each cell was last used in."""
        self._live: Flags = np.zeros(FIRST_ROWS, np.bool_)
        self._batch = np.uint32(IDLE_BATCHES)
        self._hand = 0
        self._made = 0
        """Keys that came into memory since somebody looked."""
        super().__init__(schema, max_parallelism)

    def find(self, keys: Sequence[pa.Array]) -> I64:
        cells = super().find(keys)
        missing = np.flatnonzero(cells < 0)
        if len(missing):
            rows = int64_array(missing)
            cells[missing] = self._fetched([take_rows(key, rows) for key in keys])
        self._used_at[cells[cells >= 0]] = self._batch
        return cells

    def upsert(self, keys: Sequence[pa.Array]) -> Placed:
        placed = super().upsert(keys)
        self._used_at[placed.cells] = self._batch
        new = placed.new
        made = np.arange(new.start, new.stop) if isinstance(new, slice) else new
        if not len(made):
            return placed
        self._live[made] = True
        self._made += len(made)
        keys = self.below.encode(self.cells.groups.take(made), self.keys()(made))
        answer = self.below.ask(keys)
        if answer is None:
            return placed
        answer.bring(made)
        return Placed(placed.cells, made[~answer.found])

    def append(self, keys: Sequence[pa.Array]) -> Placed:
        """A floor may have rows of these keys."""
        return self.upsert(keys)

    def remove(self, cells: I64) -> None:
        self._live[cells] = False
        super().remove(cells)

    def _fetched(self, keys: list[pa.Array]) -> I64:
        """The cells of keys that are not in memory, brought there; `NOBODY` where no floor has them."""
        groups = key_groups(key_hashes(keys)[0], self._parallelism_max)
        asked, which = _distinct(self.below.encode(groups, keys))
        cells = np.full(len(asked), NOBODY, np.int64)
        answer = self.below.ask(asked)
        if answer is not None:
            there = np.flatnonzero(answer.found)
            rows = np.empty(len(asked), np.int64)
            rows[which] = np.arange(len(which))
            some = [take_rows(key, int64_array(rows.take(there))) for key in keys]
            cells[there] = super().upsert(some).cells
            self._live[cells[there]] = True
            self._made += len(there)
            answer.bring(cells)
        return cells.take(which)

    # ---- keys that can go

    def came(self) -> int:
        """How many keys came into memory since the last time."""
        made, self._made = self._made, 0
        return made

    def next_batch(self) -> None:
        self._batch += np.uint32(1)

    def coldest(self, most: int, among: Callable[[I64], Flags] | None = None) -> I64:
        """So many keys that the last batch did not have, if there are, those first that none had for a while; only
        such as `among` says. They are taken for gone."""
        found = self._idle(most, IDLE_BATCHES, among)
        more = most - len(found)
        return np.concatenate([found, self._idle(more, 1, among)]) if more > 0 else found

    def everybody(self) -> I64:
        """All keys that are in memory and can go. They are taken for gone."""
        cells = self.removable(np.flatnonzero(self._live[: self.cells.end]))
        self._live[cells] = False
        return cells

    def _idle(self, most: int, batches: int, among: Callable[[I64], Flags] | None) -> I64:
        end, before, seen, count = self.cells.end, self._batch - np.uint32(batches), 0, 0
        parts: list[I64] = [np.empty(0, np.int64)]
        while seen < end and count < most:
            first = self._hand if self._hand < end else 0
            self._hand = min(first + LOOKED_AT, end)
            part = slice(first, self._hand)
            cold = np.flatnonzero(self._live[part] & (self._used_at[part] <= before)) + first
            cold = cold if among is None else cold[among(cold)]
            cold = self.removable(cold)[: most - count]
            self._live[cold] = False
            parts.append(cold)
            count += len(cold)
            seen += self._hand - first
        return np.concatenate(parts)

    # ---- as a tenant of its own cells

    def grow(self, count: int, capacity: int) -> None:
        super().grow(count, capacity)
        self._used_at = grown(self._used_at, count, capacity)
        self._live = grown(self._live, count, capacity)

    def shrink(self, capacity: int) -> None:
        super().shrink(capacity)
        self._used_at, self._live = self._used_at[:capacity].copy(), self._live[:capacity].copy()

    def move(self, cells: I64, to: I64) -> None:
        super().move(cells, to)
        self._used_at[to], self._live[to] = self._used_at.take(cells), self._live.take(cells)
        self._live[cells] = False


def _distinct(keys: Sequence[bytes]) -> tuple[list[bytes], I64]:
    """Each key once, and for every row the number of its key."""
    numbers: dict[bytes, int] = {}
    rows = (numbers.setdefault(key, len(numbers)) for key in keys)
    which = np.fromiter(rows, np.int64, len(keys))
    return list(numbers), which
