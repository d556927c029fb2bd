"""A user's function with every kind of state per key, in both forms: key by key, and by whole batches.

For every row it tells what it remembers, then remembers the row. So what comes out says in which order the function saw
the rows, and `function_model` says what it must have remembered each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.engine.operators.process import ProcessContext
from penstock.engine.operators.row import Row
from penstock.engine.operators.states.lists import ListState
from penstock.engine.operators.states.maps import MapState
from penstock.engine.operators.states.value import ValueState

INT, TEXT = pa.int64(), pa.string()
HISTORY = pa.schema([("id", INT), ("at_ms", INT)])
RECENT = pa.schema([("id", INT)])
SLOT = pa.schema([("slot", INT)])
NOTE = pa.schema([("text", TEXT)])
OUT = pa.schema([("key", INT), ("n", INT), ("id", INT), ("at_ms", INT), ("told", TEXT)])

Rows: TypeAlias = list[tuple[int, int, int]]
"""Of a batch: id, key and value."""

SLOTS = 3
ADDS, REPLACES, CLEARS = "adds", "replaces", "clears"
ON_RECENT = {0: REPLACES, 1: CLEARS}
"""What a row with this value does to the list of recent ids; any other is added."""
ON_SLOTS = {3: CLEARS, 7: CLEARS}
"""What it does to its slot in the map; any other sets it."""
ON_MARK = {1: REPLACES, 3: CLEARS, 5: CLEARS, 6: REPLACES, 8: REPLACES, 9: CLEARS}
"""What it does to the value; any other nothing."""


RECENTLY, IN_SLOTS, AS_MARK = "recent", "slots", "mark"
HISTORY_STATE = "history"


@dataclass(frozen=True)
class Memory:
    """What a function remembers besides its history, which always stays: by which of its states, and for how long."""

    states: tuple[str, ...] = (RECENTLY, IN_SLOTS, AS_MARK)
    ttl_ms: int | None = None
    """None: for ever."""
    on_read: bool = False

    def life(self) -> dict[str, Any]:
        """As arguments of a state."""
        if self.ttl_ms is None:
            return {}
        on = "read" if self.on_read else "write"
        return {"ttl": timedelta(milliseconds=self.ttl_ms), "ttl_on": on}

    def for_ever(self) -> Memory:
        return Memory(self.states)


LONG_MS = 100_000 * 86_400_000
"""Longer than any clock jumps."""


def draw_memory(rng: Random) -> Memory:
    """Mostly one state, because every one costs time in every batch."""
    one = rng.choice((RECENTLY, IN_SLOTS, AS_MARK))
    states = Memory.states if rng.random() < 0.2 else (one,)
    ttl_ms = rng.choice((None, None, 15, 120, 3_600_000, LONG_MS))
    return Memory(states, ttl_ms, ttl_ms is not None and rng.random() < 0.4)


def text_of(number: int) -> str:
    return f"row {number}"


def told(recent: Iterable[int], slots: Iterable[tuple[int, str]], mark: str | None) -> str:
    """What a function remembers, as one text; order matters in the list only."""
    words = [f"r{number}" for number in recent]
    words += [f"s{slot}:{text}" for slot, text in sorted(slots)]
    return "/".join([*words, f"m{mark}"] if mark is not None else words)


class Journal:
    """What both forms have in common."""

    recent: ListState | None = None
    slots: MapState | None = None
    mark: ValueState | None = None

    def __init__(self, wall_ms: Callable[[], float], memory: Memory) -> None:
        self._wall_ms = wall_ms
        self._memory = memory
        self._at_ms = 0

    def __deepcopy__(self, memo: object) -> Journal:
        """Every subtask has its own; the world around it is one."""
        return type(self)(self._wall_ms, self._memory)

    def open(self, ctx: ProcessContext) -> None:
        states, life = self._memory.states, self._memory.life()
        self.history = ctx.list_state(HISTORY_STATE, HISTORY)
        if RECENTLY in states:
            self.recent = ctx.list_state(RECENTLY, RECENT, **life)
        if IN_SLOTS in states:
            self.slots = ctx.map_state(IN_SLOTS, SLOT, NOTE, **life)
        if AS_MARK in states:
            self.mark = ctx.value_state(AS_MARK, NOTE, **life)

    def now_ms(self) -> int:
        """As the engine sees it: it does not go back."""
        self._at_ms = max(self._at_ms, int(self._wall_ms()))
        return self._at_ms


class ByKey(Journal):
    def process(
        self, key: Row, rows: Sequence[Row], ctx: ProcessContext
    ) -> Iterator[tuple[Any, ...]]:
        at_ms, n = self.now_ms(), len(self.history.get())
        for row in rows:
            n += 1
            yield key.key, n, row.id, at_ms, self._told()
            self.history.add((row.id, at_ms))
            self._remember(row.id, row.value)

    def _told(self) -> str:
        recent = [entry.id for entry in self.recent.get()] if self.recent is not None else []
        slots = self.slots.items() if self.slots is not None else ()
        mark = self.mark.get() if self.mark is not None else None
        texts = [(slot, entry.text) for slot, entry in slots]
        return told(recent, texts, mark.text if mark is not None else None)

    def _remember(self, number: int, value: int) -> None:
        if self.recent is not None:
            self._on_recent(self.recent, number, ON_RECENT.get(value, ADDS))
        if self.slots is not None and ON_SLOTS.get(value) == CLEARS:
            self.slots.remove(number % SLOTS)
        elif self.slots is not None:
            self.slots.put(number % SLOTS, (text_of(number),))
        if self.mark is not None and ON_MARK.get(value) == CLEARS:
            self.mark.clear()
        elif self.mark is not None and ON_MARK.get(value) == REPLACES:
            self.mark.update((text_of(number),))

    def _on_recent(self, recent: ListState, number: int, what: str) -> None:
        if what == REPLACES:
            recent.update([(number,)])
        elif what == CLEARS:
            recent.clear()
        else:
            recent.add((number,))


@dataclass
class Held:
    """What a function has of one key while it works on a batch."""

    n: int = 0
    recent: list[int] = field(default_factory=list)
    slots: dict[int, str] = field(default_factory=dict)
    mark: str | None = None

    def remember(self, number: int, value: int) -> None:
        on_recent, on_mark = ON_RECENT.get(value, ADDS), ON_MARK.get(value)
        kept = self.recent if on_recent == ADDS else []
        self.recent = kept if on_recent == CLEARS else [*kept, number]
        self.slots.pop(number % SLOTS, None)
        if ON_SLOTS.get(value) != CLEARS:
            self.slots[number % SLOTS] = text_of(number)
        if on_mark is not None:
            self.mark = text_of(number) if on_mark == REPLACES else None


class ByBatch(Journal):
    def process_batch(self, batch: pa.RecordBatch, ctx: ProcessContext) -> pa.RecordBatch:
        at_ms, held, states = self.now_ms(), self._load(batch), self._memory.states
        rows, out = _rows(batch), []
        for number, key, value in rows:
            mine = held[key]
            mine.n += 1
            words = told(
                mine.recent if RECENTLY in states else (),
                mine.slots.items() if IN_SLOTS in states else (),
                mine.mark if AS_MARK in states else None,
            )
            out.append((key, mine.n, number, at_ms, words))
            mine.remember(number, value)
        keys, ns, ids, ats, texts = map(list, zip(*out, strict=True))
        self.history.add_batch(batch, _batch(HISTORY, ids, ats))
        self._store_recent(batch, rows)
        self._store_slots(batch, rows)
        self._store_mark(batch, rows)
        return _batch(OUT, keys, ns, ids, ats, texts)

    def _load(self, batch: pa.RecordBatch) -> dict[int, Held]:
        """What is read for every row of a key is taken from the first."""
        keys = batch.column("key").to_pylist()
        held = {key: Held() for key in keys}
        first = {keys.index(key): mine for key, mine in held.items()}
        for at in self.history.get_batch(batch).positions.to_pylist():
            if at in first:
                first[at].n += 1
        if self.recent is not None:
            recent = self.recent.get_batch(batch)
            for at, number in _pairs(recent.positions, recent.values.column(0)):
                if at in first:
                    first[at].recent.append(number)
        self._load_slots(batch, first)
        if self.mark is not None:
            marks = self.mark.get_batch(batch).column(0).to_pylist()
            for at, mine in first.items():
                mine.mark = marks[at]
        return held

    def _load_slots(self, batch: pa.RecordBatch, first: dict[int, Held]) -> None:
        if self.slots is None:
            return
        slots = self.slots.items_batch(batch)
        entries = _pairs(slots.keys.column(0), slots.values.column(0))
        for at, (slot, text) in zip(slots.positions.to_pylist(), entries, strict=True):
            if at in first:
                first[at].slots[slot] = text

    # Of several rows that change one thing the last counts.

    def _store_recent(self, batch: pa.RecordBatch, rows: Rows) -> None:
        cleared, added = _recent_changes(rows)
        if self.recent is not None and cleared:
            self.recent.clear_batch(_some(batch, cleared))
        if self.recent is not None and added:
            some = _some(batch, added)
            self.recent.add_batch(some, some.select(["id"]))

    def _store_slots(self, batch: pa.RecordBatch, rows: Rows) -> None:
        if self.slots is None:
            return
        by_slot = {(key, number % SLOTS): at for at, (number, key, _) in enumerate(rows)}.values()
        gone = [at for at in by_slot if ON_SLOTS.get(rows[at][2]) == CLEARS]
        kept = [at for at in by_slot if ON_SLOTS.get(rows[at][2]) != CLEARS]
        if gone:
            self.slots.remove_batch(_some(batch, gone), _slots(rows, gone))
        if kept:
            self.slots.put_batch(_some(batch, kept), _slots(rows, kept), _notes(rows, kept))

    def _store_mark(self, batch: pa.RecordBatch, rows: Rows) -> None:
        if self.mark is None:
            return
        by_key = {key: at for at, (_, key, value) in enumerate(rows) if value in ON_MARK}.values()
        gone = [at for at in by_key if ON_MARK[rows[at][2]] == CLEARS]
        kept = [at for at in by_key if ON_MARK[rows[at][2]] == REPLACES]
        if gone:
            self.mark.clear_batch(_some(batch, gone))
        if kept:
            self.mark.update_batch(_some(batch, kept), _notes(rows, kept))


def _recent_changes(rows: Rows) -> tuple[list[int], list[int]]:
    """Rows whose key's list is cleared first, and rows that are added then."""
    cleared: dict[int, int] = {}
    for at, (_, key, value) in enumerate(rows):
        if value in ON_RECENT:
            cleared[key] = at
    added = [
        at
        for at, (_, key, value) in enumerate(rows)
        if at >= cleared.get(key, 0) and ON_RECENT.get(value) != CLEARS
    ]
    return sorted(cleared.values()), added


def _rows(batch: pa.RecordBatch) -> Rows:
    columns = (batch.column(name).to_pylist() for name in ("id", "key", "value"))
    return list(zip(*columns, strict=True))


def _pairs(ones: pa.Array, others: pa.Array) -> list[tuple[int, Any]]:
    return list(zip(ones.to_pylist(), others.to_pylist(), strict=True))


def _some(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    return batch.take(pa.array(rows, INT))


def _slots(rows: Rows, chosen: Sequence[int]) -> pa.RecordBatch:
    return _batch(SLOT, [rows[at][0] % SLOTS for at in chosen])


def _notes(rows: Rows, chosen: Sequence[int]) -> pa.RecordBatch:
    return _batch(NOTE, [text_of(rows[at][0]) for at in chosen])


def _batch(schema: pa.Schema, *columns: Sequence[Any]) -> pa.RecordBatch:
    arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
