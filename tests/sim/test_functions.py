"""Functions with state in the simulator: the model says what a plain reading of the function says, and the checkers
object to a state that is anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.protocol.snapshot import Segment
from penstock.shells.sim.function_model import Model, is_part, remembered, replay
from penstock.shells.sim.function_verdict import check_function
from penstock.shells.sim.functions import LONG_MS, Memory
from penstock.shells.sim.scenario import Function
from penstock.shells.sim.states import Stored
from penstock.shells.sim.world import World
from penstock.wire.manifest import Manifest
from tests.sim.kit import calm, invariant, newest

SHORT = Memory(ttl_ms=100)


def told(memory: Memory, *seen: tuple[int, int]) -> list[str]:
    return list(replay(seen, Model(memory)))


# ---- the model


def test_a_list_is_added_to_replaced_and_cleared() -> None:
    """S1: by the last digit of the id: 0 replaces, 1 clears, all others add."""
    rows = [(number, 0) for number in (2, 4, 10, 12, 21, 14)]
    words = told(Memory(("recent",)), *rows)
    assert words == ["", "r2", "r2/r4", "r10", "r10/r12", ""]


def test_a_map_has_the_last_note_of_every_slot() -> None:
    """S1: 3 and 7 remove the note of their slot, which is the rest of a division by three."""
    words = told(Memory(("slots",)), (0, 0), (4, 0), (9, 0), (3, 0), (5, 0))
    assert words == ["", "s0:row 0", "s0:row 0/s1:row 4", "s0:row 9/s1:row 4", "s1:row 4"]


def test_a_value_is_set_and_cleared() -> None:
    """S1: 1, 6 and 8 set it, 3, 5 and 9 clear it."""
    assert told(Memory(("mark",)), (1, 0), (2, 0), (5, 0), (6, 0)) == ["", "mrow 1", "mrow 1", ""]


@pytest.mark.parametrize(("later_ms", "words"), [(99, "r2"), (100, "")])
def test_what_was_written_is_over_after_its_time(later_ms: int, words: str) -> None:
    """I21."""
    assert told(Memory(("recent",), 100), (2, 1_000), (4, 1_000 + later_ms))[1] == words


def test_what_is_read_lives_on_where_reads_count() -> None:
    """I21: and a read counts when a tenth of the time has passed."""
    rows = ((2, 0), (12, 60), (4, 120))
    assert told(Memory(("recent",), 100, on_read=True), *rows)[2] == "r2/r12"
    assert told(Memory(("recent",), 100), *rows)[2] == "r12"
    early = remembered([(2, 0), (12, 9)], Memory(("recent",), 100, on_read=True))
    assert [entry.touched_ms for entry in early.recent] == [0, 9]


def test_a_part_is_in_order() -> None:
    assert is_part([1, 3], [1, 2, 3])
    assert not is_part([3, 1], [1, 2, 3])
    assert not is_part([1, 1], [1, 2, 3])


# ---- a run in which everything is right, until a test changes it


def finished(memory: Memory | None = None) -> Iterator[tuple[World, str, Function]]:
    """Runs with a function, several checkpoints and some history."""
    for seed in range(500):
        found = World(seed, draw=calm)
        for sink, function in found.scenario.functions.items():
            if memory is None or (function.memory.states, function.memory.ttl_ms) == (
                memory.states,
                memory.ttl_ms,
            ):
                found.run()
                if len(found.checkers.manifests) >= 2 and len(found.table.rows(sink)) >= 6:
                    yield found, sink, function


@pytest.fixture
def lasting() -> tuple[World, str, Function]:
    return next(finished(Memory()))


def change_rows(found: World, sink: str, wrong: dict[int, object]) -> None:
    """One visible row of the function, the one that tells most, is not what it was."""
    name, entry = max(
        ((n, t) for n, t in found.table.visible.items() if t.operator == sink),
        key=lambda each: max(len(row[4]) for row in each[1].rows),
    )
    longest = max(range(len(entry.rows)), key=lambda at: len(entry.rows[at][4]))
    changed = list(entry.rows[longest])
    for column, value in wrong.items():
        changed[column] = value
    rows = (*entry.rows[:longest], tuple(changed), *entry.rows[longest + 1 :])
    found.table.visible[name] = replace(entry, rows=rows)


def verdict(found: World, sink: str) -> str:
    check_function(found, sink, once=True, finished=True)
    return invariant(found)


def test_what_a_function_told_in_a_calm_run_is_right(
    lasting: tuple[World, str, Function],
) -> None:
    """I1."""
    found, sink, _ = lasting
    assert verdict(found, sink) == "none"


@pytest.mark.parametrize(
    "wrong", [{4: "r1/r2"}, {4: ""}, {1: 99}, {2: 77}], ids=["other", "nothing", "number", "id"]
)
def test_a_function_that_tells_anything_else_breaks_i1(
    lasting: tuple[World, str, Function], wrong: dict[int, object]
) -> None:
    """I1."""
    found, sink, _ = lasting
    change_rows(found, sink, wrong)
    assert verdict(found, sink) == "I1"


def test_a_function_whose_clock_goes_back_may_have_forgotten_and_nothing_else(
    lasting: tuple[World, str, Function],
) -> None:
    """I21: what it does tell was there."""
    found, sink, function = lasting
    found.scenario.functions[sink] = replace(function, memory=SHORT)
    found.clock.went_back = True
    change_rows(found, sink, {4: ""})
    assert verdict(found, sink) == "none"
    change_rows(found, sink, {4: "r424242"})
    assert verdict(found, sink) == "I21"


# ---- what a checkpoint has of it


def with_segments(
    manifest: Manifest, function: Function, chosen: Callable[[Segment], bool]
) -> Manifest:
    """Only these segments of the function's state."""
    changed = []
    for snapshot in manifest.snapshots:
        operators = dict(snapshot.operators)
        if (part := operators.get(function.name)) is not None:
            segments = tuple(each for each in part.segments if chosen(each))
            operators[function.name] = replace(part, segments=segments)
        changed.append(replace(snapshot, operators=operators))
    return replace(manifest, snapshots=tuple(changed))


def test_every_checkpoint_of_a_calm_run_has_the_right_states(
    lasting: tuple[World, str, Function],
) -> None:
    """I2."""
    found, _, _ = lasting
    found.checkers.states.check(newest(found))
    assert invariant(found) == "none"


@pytest.mark.parametrize("state", ["history", "recent", "slots", "mark"])
def test_a_checkpoint_without_one_of_the_states_breaks_i2(
    lasting: tuple[World, str, Function], state: str
) -> None:
    """I2."""
    found, _, function = lasting
    bad = with_segments(newest(found), function, lambda segment: segment.state != state)
    found.checkers.states.check(bad)
    assert invariant(found) == "I2"


def test_a_checkpoint_with_moments_of_others_breaks_i2() -> None:
    """I2, I21: what is stored says when each entry was touched."""
    found, _, function = next(finished(Memory(ttl_ms=LONG_MS)))
    found.checkers.states.check(newest(found))
    assert invariant(found) == "none"
    original = Stored.__init__

    def later(self: Stored, values: tuple[Any, ...], touched_ms: int | None) -> None:
        original(self, values, None if touched_ms is None else touched_ms + 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stored, "__init__", later)
        found.checkers.states.check(newest(found))
    assert invariant(found) == "I2", function.memory


# ---- schedules


def test_lives_end_in_many_schedules_and_go_on_in_others() -> None:
    """I21: where nothing is ever over, nothing is proved."""
    short = over = 0
    for seed in range(250):
        found = World(seed)
        functions = found.scenario.functions.items()
        chosen = [(sink, fn) for sink, fn in functions if fn.memory.ttl_ms in (15, 120)]
        if not chosen or not found.exactly_once:
            continue
        found.run()
        short += len(chosen)
        over += sum(has_forgotten(found, sink, fn.memory) for sink, fn in chosen)
    assert short / 5 < over < short


def has_forgotten(found: World, sink: str, memory: Memory) -> bool:
    """Whether a function told less than it would have without an end."""
    keys = {key for key, *_ in found.table.rows(sink)}
    histories = [sorted(r for r in found.table.rows(sink) if r[0] == key) for key in keys]
    return any(
        told(memory.for_ever(), *((r[2], r[3]) for r in rows)) != [r[4] for r in rows]
        for rows in histories
    )
