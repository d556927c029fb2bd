"""I2, I3, I15, I21, watched from outside: the state in a checkpoint, with the rows in flight, is what the rows before
the sources' positions make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.protocol.snapshot import OperatorSnapshot, Segment
from penstock.shells.sim.function_model import Entry, Model, is_part, remembered
from penstock.shells.sim.functions import AS_MARK, HISTORY_STATE, IN_SLOTS, RECENTLY, Memory
from penstock.shells.sim.inflight import copies_to, fetch_from, rows_in_flight
from penstock.shells.sim.outside import row
from penstock.state.floor_files import parts, read_floor, with_fetch
from penstock.state.lifetime import TOUCHED
from penstock.state.segments import read_blocks
from penstock.storage.memory_floor import MemoryFloors
from penstock.wire.manifest import Manifest

if TYPE_CHECKING:
    from penstock.shells.sim.scenario import Function
    from penstock.shells.sim.world import World

Fold: TypeAlias = dict[int, tuple[int, int]]
"""Per key, how many rows and their sum."""


@dataclass(frozen=True)
class Stored:
    values: tuple[Any, ...]
    touched_ms: int | None


Below: TypeAlias = tuple[Any, ...]
"""What a row is found by below its key: a position in a list, a key of a map, nothing."""


@dataclass
class Rows:
    """Of one state in one checkpoint, by key."""

    by_key: dict[int, dict[Below, Stored]] = field(default_factory=dict)

    def of(self, key: int) -> list[Stored]:
        """In the order of their positions."""
        found = self.by_key.get(key, {})
        return [found[below] for below in sorted(found)]


class StateChecks:
    def __init__(self, world: World) -> None:
        self._world = world

    def check(self, manifest: Manifest) -> None:
        """A checkpoint has come to exist."""
        covered, scenario = self._covered(manifest), self._world.scenario
        for aggregate, ids in scenario.aggregates.values():
            for rows in self._stored(manifest, aggregate).values() or (Rows(),):
                state = {key: pair(found[()].values) for key, found in rows.by_key.items()}
                self._check_fold(manifest, aggregate, covered, ids, state)
        for function in scenario.functions.values():
            states = self._stored(manifest, function.name)
            history = states.setdefault(HISTORY_STATE, Rows())
            state = {key: counted(_ids(history.of(key))) for key in history.by_key}
            self._check_fold(manifest, function.name, covered, function.ids, state)
            self._check_function(manifest, function, states)

    def _covered(self, manifest: Manifest) -> list[int]:
        """All ids before the sources' positions."""
        covered: list[int] = []
        for snapshot in manifest.snapshots:
            for name, part in snapshot.operators.items():
                source = self._world.scenario.sources.get(name)
                if source is not None:
                    covered += source.covered(part.lanes)
        return covered

    # ---- folds

    def _check_fold(
        self,
        manifest: Manifest,
        operator: str,
        covered: list[int],
        ids: Mapping[int, int],
        state: Fold,
    ) -> None:
        want = fold({number: ids[number] for number in covered if number in ids})
        got = self._with_rows_in_flight(state, manifest, operator)
        if got != want and (self._world.exactly_once or not at_least(got, want)):
            what = f"checkpoint {manifest.checkpoint}, {operator}: state {got}, fold {want}"
            self._world.violation("I2", what)

    def _with_rows_in_flight(self, state: Fold, manifest: Manifest, operator: str) -> Fold:
        graph = self._world.scenario.graph
        for target, key, value in rows_in_flight(manifest, self._world.disk):
            times = copies_to(graph, operator, manifest.parallelism, target)
            n, total = state.get(key, (0, 0))
            if times:
                state[key] = (n + times, total + times * value)
        return state

    # ---- functions

    def _check_function(
        self, manifest: Manifest, function: Function, states: Mapping[str, Rows]
    ) -> None:
        """I2, I21: all states of a key are what its history makes of them."""
        where = f"checkpoint {manifest.checkpoint}, {function.name}"
        history = states[HISTORY_STATE]
        for key in history.by_key:
            seen = [pair(each.values) for each in history.of(key)]
            got = _as_remembered({name: rows.by_key.get(key, {}) for name, rows in states.items()})
            problem = self._problem(seen, function.memory, got)
            if problem:
                what = f"key {key}: {problem}; {function.memory}, history {seen}"
                self._world.violation("I2", f"{where}, {what}")
        keys = {key for rows in states.values() for key in rows.by_key}
        if strays := sorted(keys.difference(history.by_key)):
            self._world.violation("I2", f"{where}: keys without a history: {strays}")

    def _problem(self, seen: list[tuple[int, int]], memory: Memory, got: Model) -> str:
        """Nothing is there that never was or is over, and nothing is missing that is not over by now."""
        if memory.ttl_ms is None or self._world.clock.went_back:
            whole, some = _words(remembered(seen, memory.for_ever())), _words(got)
            good = some == whole if memory.ttl_ms is None else is_part(some, whole)
            return "" if good else f"{some} is remembered and not {whole}"
        want = remembered(seen, memory)
        most, found = _moments(want), _moments(got)
        want.expire(int(self._world.clock.wall_ms()))
        good = is_part(found, most) and is_part(_moments(want), found)
        return "" if good else f"{found} is remembered and not {most}"

    # ---- reading

    def _stored(self, manifest: Manifest, operator: str) -> dict[str, Rows]:
        """By the names of states. I15: every key is in one subtask."""
        states: dict[str, Rows] = {}
        for snapshot in manifest.snapshots:
            part = snapshot.operators.get(operator)
            for name, mine in self._of_subtask(manifest, part).items() if part is not None else ():
                known = states.setdefault(name, Rows()).by_key
                for key in mine.by_key.keys() & known.keys():
                    self._world.violation("I15", f"key {key} is in two subtasks")
                known |= mine.by_key
        return states

    def _of_subtask(self, manifest: Manifest, part: OperatorSnapshot) -> dict[str, Rows]:
        groups = range(manifest.max_parallelism)
        states: dict[str, Rows] = {}
        fetch = partial(fetch_from, self._world.disk)
        for each in parts(part.segments):
            if isinstance(each, Segment):
                state, delta = each.state, each.delta
                batches = read_blocks(each, groups, fetch(each))
            else:
                state, delta = each[0].state, False
                batches = read_floor(each, groups, with_fetch(fetch), MemoryFloors())
            rows = states.setdefault(state, Rows())
            for stored in (each_row for batch in batches for each_row in batch.to_pylist()):
                self._apply(stored, rows, delta=delta)
        return states

    def _apply(self, stored: dict[str, Any], rows: Rows, *, delta: bool) -> None:
        """A row as it is stored: in a delta it counts more than what came before."""
        key = next(value for name, value in stored.items() if name.startswith("key."))
        below = tuple(value for name, value in stored.items() if name.startswith("below."))
        values = tuple(value for name, value in stored.items() if name.startswith("value."))
        of_key = rows.by_key.setdefault(key, {})
        if below in of_key and not delta:
            self._world.violation("I15", f"key {key} is twice in one subtask")
        if stored.get("__gone"):
            of_key.pop(below, None)
        else:
            of_key[below] = Stored(values, stored.get(TOUCHED.name))
        if not of_key:
            del rows.by_key[key]


def _ids(history: list[Stored]) -> list[int]:
    return [each.values[0] for each in history]


def pair(values: tuple[Any, ...]) -> tuple[int, int]:
    one, other = values
    return one, other


def counted(ids: list[int]) -> tuple[int, int]:
    return len(ids), sum(row(number)[2] for number in ids)


def _as_remembered(parts: Mapping[str, dict[Below, Stored]]) -> Model:
    """What is stored of one key, by the names of states."""
    recent, slots, mark = (
        {below: Entry(e.values[0], e.touched_ms or 0) for below, e in parts.get(name, {}).items()}
        for name in (RECENTLY, IN_SLOTS, AS_MARK)
    )
    by_slot = {slot: entry for (slot,), entry in slots.items()}
    return Model(Memory(), [recent[place] for place in sorted(recent)], by_slot, mark.get(()))


def _moments(model: Model) -> list[tuple[str, int]]:
    """Word by word, each with the moment of its last touch."""
    entries = [(f"r{entry.value}", entry.touched_ms) for entry in model.recent]
    entries += [(f"s{n}:{e.value}", e.touched_ms) for n, e in sorted(model.slots.items())]
    mark = model.mark
    return [*entries, (f"m{mark.value}", mark.touched_ms)] if mark is not None else entries


def _words(model: Model) -> list[str]:
    return [word for word, _ in _moments(model)]


def fold(ids: Mapping[int, int]) -> Fold:
    """Per key the count and the sum of the rows with these ids, each as often as it says."""
    state: Fold = {}
    for number, times in ids.items():
        _, key, value = row(number)
        n, total = state.get(key, (0, 0))
        state[key] = (n + times, total + times * value)
    return state


def at_least(got: Fold, want: Fold) -> bool:
    return all(key in got and got[key][0] >= n for key, (n, _) in want.items())
