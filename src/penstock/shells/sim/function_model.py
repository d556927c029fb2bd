"""What a `Journal` must remember, given the rows of a key in the order in which it saw them, and when: plain Python
that knows nothing of tables, snapshots or restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.shells.sim.functions import (
    ADDS,
    AS_MARK,
    CLEARS,
    IN_SLOTS,
    ON_MARK,
    ON_RECENT,
    ON_SLOTS,
    RECENTLY,
    REPLACES,
    SLOTS,
    Memory,
    text_of,
    told,
)
from penstock.shells.sim.outside import row
from penstock.state.lifetime import READ_SHARE


@dataclass(frozen=True)
class Entry:
    value: Any
    touched_ms: int


@dataclass
class Model:
    """Of one key."""

    memory: Memory
    recent: list[Entry] = field(default_factory=list)
    slots: dict[int, Entry] = field(default_factory=dict)
    mark: Entry | None = None

    def told(self) -> str:
        slots = [(slot, entry.value) for slot, entry in self.slots.items()]
        mark = self.mark.value if self.mark is not None else None
        return told([entry.value for entry in self.recent], slots, mark)

    def look(self, now_ms: int) -> None:
        """What is over goes; what is read may live on."""
        self.expire(now_ms)
        self.recent = [self._read(entry, now_ms) for entry in self.recent]
        self.slots = {slot: self._read(entry, now_ms) for slot, entry in self.slots.items()}
        self.mark = self._read(self.mark, now_ms) if self.mark is not None else None

    def expire(self, now_ms: int) -> None:
        self.recent = [entry for entry in self.recent if self._lives(entry, now_ms)]
        self.slots = {slot: e for slot, e in self.slots.items() if self._lives(e, now_ms)}
        if self.mark is not None and not self._lives(self.mark, now_ms):
            self.mark = None

    def remember(self, number: int, now_ms: int) -> None:
        _, _, value = row(number)
        states, note = self.memory.states, Entry(text_of(number), now_ms)
        on_recent = ON_RECENT.get(value, ADDS)
        if on_recent in (REPLACES, CLEARS):
            self.recent = []
        if RECENTLY in states and on_recent != CLEARS:
            self.recent.append(Entry(number, now_ms))
        self.slots.pop(number % SLOTS, None)
        if IN_SLOTS in states and ON_SLOTS.get(value) != CLEARS:
            self.slots[number % SLOTS] = note
        if AS_MARK in states and value in ON_MARK:
            self.mark = note if ON_MARK[value] == REPLACES else None

    def _lives(self, entry: Entry, now_ms: int) -> bool:
        return self.memory.ttl_ms is None or now_ms < entry.touched_ms + self.memory.ttl_ms

    def _read(self, entry: Entry, now_ms: int) -> Entry:
        memory = self.memory
        if memory.ttl_ms is None or not memory.on_read:
            return entry
        counts = entry.touched_ms <= now_ms - memory.ttl_ms // READ_SHARE
        return replace(entry, touched_ms=now_ms) if counts else entry


def replay(seen: Iterable[tuple[int, int]], model: Model) -> Iterator[str]:
    """For every row, by its number and when it was seen, what the function must tell."""
    for number, at_ms in seen:
        model.look(at_ms)
        yield model.told()
        model.remember(number, at_ms)


def remembered(seen: Iterable[tuple[int, int]], memory: Memory) -> Model:
    """After all these rows."""
    model = Model(memory)
    for _ in replay(seen, model):
        pass
    return model


def is_part(some: Sequence[object], whole: Sequence[object]) -> bool:
    """In the same order, perhaps with others between them."""
    rest = iter(whole)
    return all(each in rest for each in some)
