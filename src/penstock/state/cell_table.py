"""Key -> cell, for whole batches: linear hashing in NumPy.

The table is one array of (key, cell + 1) pairs; a zero second half means empty. It is cut into segments; a key
probes one entry after the other from its home entry, at most `reach` steps, and never leaves its segment: each
has `reach` entries at its end that are nobody's home.

A small table is one segment that doubles. From then on it grows by splitting: segment s, when its turn comes,
gives half its keys to the new segment s + 2**level, so the work per new key is small and no batch ever waits for
the whole table to be rebuilt. The memory is a private mapping that the kernel can extend without copying.

A key that finds no room within its reach (chance, or somebody who chooses keys so that they meet) goes to a
plain dict. That is slower, never wrong.

A key that is removed leaves a grave, an entry of no cell that probing passes over. When there are many, a few
segments at a time are laid out anew without them. When few keys are left, segments are put together again, in the
opposite order, and the end of the memory is given back.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import InvariantBroken
from penstock.state.stretch import mapping, resized, whole_pages

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Pairs = npt.NDArray[np.complex128]
"""A pair of int64 that NumPy moves as one item of 16 bytes."""

SMALL_BITS = 7
SEGMENT_BITS = 13
LOAD = 0.25
SPLITS_PER_STEP = 4
FEW_ROWS = 16
"""The last rows of a lookup are cheaper one by one."""
RUN = 8
"""Entries that such a row looks at in one go: it seldom needs more."""
PAIR_BYTES = 16
GROWTH_STEP_BYTES = 32 << 20
GIVE_BACK_BYTES = 1 << 20
"""Less is not worth a call."""
SPARSE = 0.25
"""Segments are put together when less than this part of the room is taken."""
MERGES_PER_STEP = 3
KEYS_PER_MERGE = 8_192
KEYS_PER_SWEEP = 2_048
"""A sweep of a few segments clears about as many graves away."""
GRAVE = -1
GRAVES_MIN = 1024
"""So few graves are nobody's trouble."""

_NO_ROWS: I64 = np.empty(0, np.int64)
_ONE, _S32 = np.uint64(1), np.uint64(32)


class Upserted(NamedTuple):
    cells: I64
    """The cell of every row."""
    new_rows: I64
    """For every new key a row that has it, in the order in which their cells were allotted."""


class CellTable:
    """`hash_of` must give the same hashes as the caller passes to `upsert`, `lookup` and `remove`; `allot` gives out
    cells for so many new keys."""

    def __init__(self, hash_of: Callable[[I64], U64], allot: Callable[[int], I64]) -> None:
        self._hash_of = hash_of
        self._allot = allot
        self._bits = SMALL_BITS
        self._level = 0
        self._split = 0
        self._segments = 1
        self._entries = 0
        """Graves are entries, too."""
        self._graves = 0
        self._swept = 0
        """The segment that is laid out anew next."""
        self._overflow: dict[int, int] = {}
        self._memory: mmap.mmap | None = None
        self._use(np.zeros(1 << SMALL_BITS, np.complex128))
        self._size_segment()

    def __len__(self) -> int:
        """How many keys there are."""
        return self._entries - self._graves + len(self._overflow)

    @property
    def overflowed(self) -> int:
        """How many keys did not fit into their segment."""
        return len(self._overflow)

    @property
    def bytes_reserved(self) -> int:
        return len(self._pairs) * PAIR_BYTES

    def expect(self, count: int) -> None:
        """So many keys will come, or less: an empty table is made large enough at once."""
        entries = int(count / LOAD) + 1
        if self._entries or entries <= len(self._pairs):
            return
        self._bits = min(SEGMENT_BITS, (entries - 1).bit_length())
        self._use(np.zeros(1 << self._bits, np.complex128))
        self._size_segment()
        if self._bits == SEGMENT_BITS:
            self._segments = -(-entries // (1 << self._bits))
            self._level = self._segments.bit_length() - 1
            self._split = self._segments - (1 << self._level)
            self._extend(self._segments << self._bits)

    def lookup(self, keys: I64, hashes: U64) -> I64:
        """The cell of every key, -1 where there is none."""
        cells = self._find(keys, hashes)
        if self._overflow:
            self._find_overflowed(keys, cells)
        cells -= 1
        return cells

    def upsert(self, keys: I64, hashes: U64) -> Upserted:
        """The cell of every key; new keys get new cells."""
        found = self._find(keys, hashes)
        if self._overflow:
            self._find_overflowed(keys, found)
        if len(found) and found.min() > 0:
            found -= 1
            return Upserted(found, _NO_ROWS)
        missing = np.flatnonzero(found == 0)
        new_rows = missing
        if len(missing):
            missing_keys, missing_hashes = keys.take(missing), hashes.take(missing)
            self._reserve(missing_keys)
            cells, first = self._insert(missing_keys, missing_hashes)
            found[missing] = cells
            new_rows = missing.take(first)
        found -= 1
        return Upserted(found, new_rows)

    def remove(self, keys: I64, hashes: U64) -> None:
        """Distinct keys that are there."""
        if self._overflow:
            inside = np.ones(len(keys), np.bool_)
            for row, key in enumerate(keys.tolist()):
                if self._overflow.pop(key, None) is not None:
                    inside[row] = False
            keys, hashes = keys[inside], hashes[inside]
        self._cells[self._places(keys, hashes)] = GRAVE
        self._graves += len(keys)
        while self._graves > max(GRAVES_MIN, self._entries // 4):
            self._sweep()

        self.tidy(len(keys))

    def tidy(self, removed: int = 0) -> None:
        """Where few keys are left, puts a few segments together, and more where many were just removed."""
        for _ in range(MERGES_PER_STEP + removed // KEYS_PER_MERGE):
            if self._segments == 1 or self._room() < (1 - SPARSE) * self._capacity():
                return
            self._merge_segments()

    def relabel(self, keys: I64, hashes: U64, cells: I64) -> None:
        """Distinct keys that are there have these cells from now on."""
        if self._overflow:
            inside = np.ones(len(keys), np.bool_)
            for row, (key, cell) in enumerate(zip(keys.tolist(), cells.tolist(), strict=True)):
                if key in self._overflow:
                    self._overflow[key], inside[row] = cell, False
            keys, hashes, cells = keys[inside], hashes[inside], cells[inside]
        self._cells[self._places(keys, hashes)] = cells + 1

    def adopt(self, keys: I64, hashes: U64, cells: I64) -> None:
        """Distinct keys that are not there have these cells."""
        allot, self._allot = self._allot, lambda _: cells
        try:
            self.upsert(keys, hashes)
        finally:
            self._allot = allot

    def _places(self, keys: I64, hashes: U64) -> I64:
        """The entries of keys that are there."""
        place, rest = self._home(hashes), np.arange(len(keys))
        while len(rest):
            entry = self._pairs.take(place.take(rest)).view(np.int64).reshape(-1, 2)
            rest = rest[(entry[:, 0] != keys.take(rest)) | (entry[:, 1] == GRAVE)]
            place[rest] += 1
        return place

    def _find(self, keys: I64, hashes: U64) -> I64:
        """Cell + 1 of every key that lies in the array, else 0."""
        place = self._home(hashes)
        entry = self._pairs.take(place).view(np.int64).reshape(-1, 2)
        found = entry[:, 1].copy()
        rest = np.flatnonzero(self._misses(entry, keys))
        for _ in range(self._reach):
            if not len(rest):
                return found
            occupied = found.take(rest) != 0
            found[rest] = 0
            rest = rest[occupied]
            if len(rest) < FEW_ROWS:
                break
            after = place.take(rest)
            after += 1
            place[rest] = after
            entry = self._pairs.take(after).view(np.int64).reshape(-1, 2)
            found[rest] = entry[:, 1]
            rest = rest[self._misses(entry, keys.take(rest))]
        else:
            found[rest] = 0
            return found
        if len(rest):
            starts = (place.take(rest) + 1).tolist()
            for row, key, start in zip(
                rest.tolist(), keys.take(rest).tolist(), starts, strict=True
            ):
                found[row] = self._find_one(key, start)
        return found

    def _misses(self, entry: I64, keys: I64) -> npt.NDArray[np.bool_]:
        misses: npt.NDArray[np.bool_] = entry[:, 0] != keys
        if self._graves:
            misses |= entry[:, 1] == GRAVE
        return misses

    def _find_one(self, key: int, start: int) -> int:
        """Cell + 1 of a key whose home lies before `start`, and which is in none of the entries up to there.
        Looking a little beyond its reach does no harm: it cannot be there."""
        stop = start + self._reach
        for at in range(start, stop, RUN):
            end = min(at + RUN, stop)
            cells = self._cells[at:end].tolist()
            for candidate, cell in zip(self._keys[at:end].tolist(), cells, strict=True):
                if cell == 0:
                    return 0
                if candidate == key and cell != GRAVE:
                    return int(cell)
        return 0

    def _find_overflowed(self, keys: I64, found: I64) -> None:
        """Looks the missing keys up in the dict, each distinct key once."""
        missing = np.flatnonzero(found == 0)
        if not len(missing):
            return
        distinct, where = np.unique(keys.take(missing), return_inverse=True)
        cells = [self._overflow.get(key, -1) + 1 for key in distinct.tolist()]
        found[missing] = np.array(cells, np.int64)[where]

    def _insert(self, keys: I64, hashes: U64) -> tuple[I64, I64]:
        """Puts keys in that are in no place yet; they may repeat. Cell + 1 per row, and a row per new cell.

        Every row writes its key and its own number into its place if that is empty; where rows meet, the last
        one stays. Who then reads its own key there is done, the others go one entry on."""
        count = len(keys)
        numbers = np.arange(1, count + 1)
        mine = np.empty((count, 2), np.int64)
        mine[:, 0], mine[:, 1] = keys, numbers
        pairs = mine.view(np.complex128)[:, 0]
        place, rows = self._home(hashes), numbers - 1
        final = np.zeros(count, np.int64)
        settled = np.zeros(count, np.int64)
        for _ in range(self._reach + 1):
            empty = np.flatnonzero(self._cells[place] == 0)
            self._pairs[place.take(empty)] = pairs.take(rows.take(empty))
            entry = self._pairs.take(place).view(np.int64).reshape(-1, 2)
            done = ~self._misses(entry, keys.take(rows))
            final[rows[done]] = entry[done, 1]
            settled[rows[done]] = place[done]
            left = np.flatnonzero(~done)
            if not len(left):
                break
            place, rows = place.take(left) + 1, rows.take(left)
        return self._number(keys, final, settled)

    def _number(self, keys: I64, final: I64, settled: I64) -> tuple[I64, I64]:
        """Replaces row numbers by cells; rows that found no place (0) go to the dict."""
        count = len(keys)
        homeless = np.flatnonzero(final == 0)
        seen: dict[int, int] = {}
        for row, key in zip(homeless.tolist(), keys.take(homeless).tolist(), strict=True):
            final[row] = seen.setdefault(key, row + 1)
        winners = np.flatnonzero(final == np.arange(1, count + 1))
        cell_of_row = np.empty(count + 1, np.int64)
        cell_of_row[winners + 1] = self._allot(len(winners)) + 1
        cells = cell_of_row.take(final)
        for key, number in seen.items():
            self._overflow[key] = int(cell_of_row[number]) - 1
        self._entries += len(winners) - len(seen)
        placed = winners if not seen else winners[~np.isin(winners, homeless)]
        self._cells[settled.take(placed)] = cells.take(placed)
        return cells, winners

    def _home(self, hashes: U64) -> I64:
        """The entry where probing starts: the segment from the low bits, the place in it from the high ones."""
        place = hashes >> _S32
        place *= self._homes
        place >>= _S32
        if self._segments == 1:
            return place.view(np.int64)
        segment = hashes & np.uint64((1 << self._level) - 1)
        if self._split:
            upper = hashes >> np.uint64(self._level)
            upper &= segment < np.uint64(self._split)
            upper <<= np.uint64(self._level)
            segment |= upper
        segment <<= np.uint64(self._bits)
        segment |= place
        return segment.view(np.int64)

    def _capacity(self) -> int:
        return int(LOAD * (self._segments << self._bits))

    def _room(self) -> int:
        return self._capacity() - self._entries

    def _reserve(self, keys: I64) -> None:
        """Grows until these keys fit. They may repeat: only when they do not fit as they are is it worth
        counting the distinct ones."""
        if len(keys) <= self._room():
            return
        ordered = np.sort(keys)
        needed = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
        while needed > self._room():
            if self._bits < SEGMENT_BITS:
                self._double()
            else:
                self._split_segments()

    def _double(self) -> None:
        """Small tables: one segment, twice as long."""
        live = self._unearthed(0, len(self._pairs))
        self._bits += 1
        self._use(np.zeros(1 << self._bits, np.complex128))
        self._size_segment()
        self._build(live)

    def _size_segment(self) -> None:
        self._reach = min(127, (1 << self._bits) // 4 - 1)
        self._homes = np.uint64((1 << self._bits) - self._reach - 1)

    def _split_segments(self) -> None:
        """Splits the next few segments, each into itself and the one 2**level further on."""
        step = min(SPLITS_PER_STEP, (1 << self._level) - self._split)
        self._extend((self._segments + step) << self._bits)
        first, last = self._split << self._bits, (self._split + step) << self._bits
        live = self._unearthed(first, last)
        self._pairs[first:last] = 0
        self._split += step
        self._segments += step
        if self._split == 1 << self._level:
            self._level, self._split = self._level + 1, 0
        self._build(live)

    def _merge_segments(self) -> None:
        """Takes the last few splits back. Keys that do not fit any more within their reach go to the dict."""
        if not self._split:
            self._level, self._split = self._level - 1, 1 << (self._level - 1)
        step = min(SPLITS_PER_STEP, self._split)
        upper = self._segments - step
        lower = self._split - step
        live = np.concatenate(
            [
                self._unearthed(first << self._bits, (first + step) << self._bits)
                for first in (lower, upper)
            ]
        )
        for first in (lower, upper):
            self._pairs[first << self._bits : (first + step) << self._bits] = 0
        self._split, self._segments = lower, upper
        self._swept = min(self._swept, self._segments)
        self._build(self._fitting(live))
        self._give_back(self._segments << self._bits)

    def _fitting(self, live: Pairs) -> Pairs:
        """Those that have room within their reach; the others go to the dict."""
        while True:
            pairs = live.view(np.int64).reshape(-1, 2)
            order, home, place = self._laid_out(pairs[:, 0].copy())
            far = order[place - home > self._reach]
            if not len(far):
                return live
            for key, cell in pairs[far].tolist():
                self._overflow[key] = cell - 1
            self._entries -= len(far)
            live = np.delete(live, far)

    def _sweep(self) -> None:
        """Lays the next few segments out without their graves."""
        self._swept = self._swept if self._swept < self._segments else 0
        step = min(SPLITS_PER_STEP, self._segments - self._swept)
        first, last = self._swept << self._bits, (self._swept + step) << self._bits
        live = self._unearthed(first, last)
        self._pairs[first:last] = 0
        self._swept += step
        self._build(live)

    def _unearthed(self, first: int, last: int) -> Pairs:
        """What is in these entries, without the graves, which are counted off."""
        cells = self._cells[first:last]
        there = np.flatnonzero(cells)
        if self._graves:
            alive = cells[there] != GRAVE
            gone = len(there) - int(np.count_nonzero(alive))
            self._graves -= gone
            self._entries -= gone
            there = there[alive]
        return self._pairs[first:last].take(there)

    def _build(self, live: Pairs) -> None:
        """Lays distinct keys out in empty segments in one pass: in order of their homes, each takes its home or
        the entry behind its predecessor.

        All fit: no order has smaller displacements than this one, the keys did fit before, and growing only
        takes neighbours away (a split) or moves homes apart (doubling)."""
        pairs = live.view(np.int64).reshape(-1, 2)
        order, home, place = self._laid_out(pairs[:, 0].copy())
        if len(home) and int((place - home).max()) > self._reach:
            raise InvariantBroken(
                "a cell table's hash function is not the one its keys came in with"
            )
        self._pairs[place] = live.take(order)

    def _laid_out(self, keys: I64) -> tuple[I64, I64, I64]:
        """An order of these keys; and in that order, where each has its home, and where there is room for it."""
        home = self._home(self._hash_of(keys))
        order = np.argsort(home)
        home = home.take(order)
        index = np.arange(len(home))
        return order, home, np.maximum.accumulate(home - index) + index

    def _use(self, pairs: Pairs) -> None:
        self._pairs = pairs
        halves = pairs.view(np.int64).reshape(-1, 2)
        self._keys, self._cells = halves[:, 0], halves[:, 1]

    def _extend(self, entries: int) -> None:
        """Makes room for so many entries: a mapping that the kernel moves page by page, not byte by byte."""
        if entries <= len(self._pairs):
            return
        have = len(self._pairs) * PAIR_BYTES
        size = max(entries * PAIR_BYTES, have + min(have // 2, GROWTH_STEP_BYTES))
        size = whole_pages(size)
        if self._memory is None or not self._extend_in_place(size):
            old, self._memory = self._pairs, mapping(size)
            self._use(np.frombuffer(self._memory, np.complex128))
            self._pairs[: len(old)] = old
        else:
            self._use(np.frombuffer(self._memory, np.complex128))

    def _extend_in_place(self, size: int) -> bool:
        """Asks the kernel; where it cannot (not Linux), the caller copies."""
        assert self._memory is not None
        old_entries = len(self._pairs)
        del self._pairs, self._keys, self._cells
        if not resized(self._memory, size):
            self._use(np.frombuffer(self._memory, np.complex128, old_entries))
            return False
        return True

    def _give_back(self, entries: int) -> None:
        """No more than so many entries are needed. A little more may stay: it will be needed again."""
        size = whole_pages((entries + entries // 8) * PAIR_BYTES)
        if self._memory is not None and size + GIVE_BACK_BYTES < len(self._memory):
            self._extend_in_place(size)
            self._use(np.frombuffer(self._memory, np.complex128))
