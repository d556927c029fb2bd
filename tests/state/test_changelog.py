"""The changelog of a table: whatever was written ahead of a checkpoint, or in the background, that checkpoint has the
rows of its moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.state import changelog
from penstock.wire import paths
from tests.state.log_kit import ALL, Logged, Piece, Snapshot, rows_in


def with_rows(count: int) -> Logged:
    logged = Logged()
    logged.put(range(count), 0)
    return logged


def checkpoint(logged: Logged) -> tuple[Any, Any]:
    """Written and complete: the chain, and what was written for it."""
    snapshot = logged.freeze()
    written = logged.write(snapshot)
    logged.complete(snapshot.number)
    return written


# ---- ahead of the barrier


def test_a_checkpoint_writes_only_what_changed_since_the_last_cut() -> None:
    """S7: the rows of a cut are durable before the barrier comes."""
    logged = with_rows(1_000)
    checkpoint(logged)
    logged.put(range(300), 1)
    cut = logged.cut()
    assert cut is not None
    logged.put([7, 5_000], 2)
    logged.remove([8])
    assert logged.end(cut).rows == 300, "as they were at the cut, each once"
    chain, out = checkpoint(logged)
    assert out.rows == 2 + 1
    assert [segment.delta for segment in chain] == [False, True, True]


def test_a_table_that_no_checkpoint_knows_begins_with_nothing() -> None:
    """S7: the first base of an empty state is nothing, and deltas lie over it."""
    logged = with_rows(1_000)
    for number in (1, 2):
        cut = logged.cut()
        assert cut is not None
        logged.end(cut)
        logged.put(range(10), number)
    chain, out = checkpoint(logged)
    assert out.rows == 10
    assert [(each.delta, bool(each.blocks)) for each in chain] == [
        (False, False),
        (True, True),
        (True, True),
        (True, True),
    ]
    again = logged.again(1)
    again.put([1], 9)
    chain, out = checkpoint(again)
    assert out.rows == 1


def test_a_cut_that_is_not_there_in_time_is_written_by_whoever_comes_next() -> None:
    """S7: the next cut, or the checkpoint; also if it never comes."""
    logged = with_rows(1_000)
    checkpoint(logged)
    logged.put(range(100), 1)
    late = logged.cut()
    assert late is not None
    logged.put(range(200, 210), 2)
    next_one = logged.cut()
    assert next_one is not None
    snapshot = logged.freeze()
    assert logged.write(snapshot)[1].rows == 110
    logged.complete(snapshot.number)
    assert logged.end(late).rows == 100
    assert logged.end(next_one).rows == 110
    assert checkpoint(logged)[1].rows == 0, "nobody needs them any more"


def test_a_key_that_went_before_a_gap_and_came_back_behind_it_is_there() -> None:
    """S7, I21: what says that a key is gone is never applied after its new row."""
    logged = with_rows(100)
    checkpoint(logged)
    logged.remove([1])
    logged.put([3], 5)
    logged.give_up(logged.freeze())
    logged.put([1], 7)
    cut = logged.cut()
    assert cut is not None
    logged.end(cut)
    logged.put([2], 8)
    chain, _ = checkpoint(logged)
    assert rows_in(chain, logged.table.schema)[1] == 7


def test_a_removal_between_the_cut_and_the_barrier_counts() -> None:
    """S7, I21."""
    logged = with_rows(100)
    checkpoint(logged)
    logged.put([1, 2], 1)
    cut = logged.cut()
    assert cut is not None
    logged.remove([1])
    logged.end(cut)
    chain, _ = checkpoint(logged)
    assert 1 not in rows_in(chain, logged.table.schema)


def test_what_is_written_after_the_barrier_is_not_in_the_checkpoint() -> None:
    """S7, I2: a cut or all rows of a later moment may be durable before the checkpoint is written."""
    logged = with_rows(100)
    checkpoint(logged)
    logged.put([1], 1)
    snapshot = logged.freeze()
    logged.put([1, 2], 2)
    cut, whole = logged.cut(), logged.materialize()
    assert cut is not None
    logged.end(cut)
    logged.end(whole)
    chain, _ = logged.write(snapshot)
    assert rows_in(chain, logged.table.schema) == dict.fromkeys(range(100), 0) | {1: 1}


# ---- all rows


def test_all_rows_are_written_over_several_checkpoints_and_then_come_first() -> None:
    """S7, bug-D10: the mark of a materialization has nothing to do with any checkpoint's."""
    logged = with_rows(1_000)
    checkpoint(logged)
    logged.put(range(10), 1)
    checkpoint(logged)
    logged.put(range(10, 20), 2)
    whole = logged.materialize()
    logged.put(range(20, 30), 3)
    for _ in range(3):
        chain, out = checkpoint(logged)
        assert not out.wholes
    logged.put([30], 4)
    assert logged.end(whole).rows == 1_000
    chain, out = checkpoint(logged)
    assert out.rows == 1
    assert chain[0].file == paths.shared_file(whole.place)
    assert [sum(block.rows for block in each.blocks) for each in chain] == [1_000, 20, 1]


def test_all_rows_outlive_the_checkpoint_in_whose_time_they_were_begun() -> None:
    """S7, bug-D7, bug-D1: aborts in between, and later ones that use them and are aborted."""
    logged = with_rows(100)
    checkpoint(logged)
    aborted = logged.freeze()
    whole = logged.materialize()
    logged.give_up(aborted)
    for number in range(5):
        logged.put([number], number)
        checkpoint(logged)
    logged.end(whole)
    logged.sweep()
    used = logged.freeze()
    logged.write(used)
    logged.give_up(used)
    chain, _ = checkpoint(logged)
    assert chain[0].file == paths.shared_file(whole.place)


def test_files_of_a_checkpoint_that_was_given_up_are_not_used_again() -> None:
    """bug-D1, bug-D15, I12: they go with it, and its rows are written once more."""
    logged = with_rows(100)
    checkpoint(logged)
    logged.put([1], 1)
    given_up = logged.freeze()
    logged.write(given_up)
    logged.give_up(given_up)
    logged.put([2], 2)
    chain, out = checkpoint(logged)
    assert out.rows == 2
    assert not any(each.file.startswith(f"shared/{given_up.number}-") for each in chain)


def test_what_is_thrown_away_does_not_stay() -> None:
    """I13, bug-D6: a cut that all rows came before, and one whose writing failed and left a file, go when the next base
    is built on."""
    logged = with_rows(100)
    checkpoint(logged)
    logged.put([1], 1)
    covered, broken = logged.cut(), logged.materialize()
    assert covered is not None
    logged.end(covered)
    logged.fail(broken, leaves_file=True)
    logged.end(logged.materialize())
    checkpoint(logged)
    logged.put([2], 2)
    for _ in range(3):
        checkpoint(logged)
    needed = {each.file for number in logged.retention.existing for each in logged.chains[number]}
    assert logged.there <= needed


def test_a_dead_attempt_leaves_nothing_that_is_not_needed() -> None:
    """I13: found by the next one's first look."""
    logged = with_rows(100)
    checkpoint(logged)
    logged.put([1], 1)
    cut, whole = logged.cut(), logged.materialize()
    assert cut is not None
    logged.end(cut)
    logged.end(whole)
    again = logged.again(1)
    assert again.there == {each.file for each in logged.chains[1]}


# ---- short chains


def test_chains_stay_short_without_writing_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7: small deltas become one; when there are too many of those the table wants to be materialized."""
    monkeypatch.setattr(changelog, "DELTAS_MAX", 12)
    logged = with_rows(2_000)
    checkpoint(logged)
    longest, wholes = 0, 0
    for number in range(1, 400):
        logged.put([number % 2_000, 3 * number % 2_000], number)
        if logged.log.is_long:
            logged.end(logged.materialize())
            wholes += 1
        chain, out = checkpoint(logged)
        assert not out.wholes
        longest = max(longest, len(chain))
    assert 10 < longest <= 14
    assert 4 < wholes < 20


def test_deltas_that_are_larger_than_all_rows_want_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7: by size."""
    monkeypatch.setattr(changelog, "DELTA_BYTES_MIN", 100)
    logged = with_rows(1_000)
    checkpoint(logged)
    assert not logged.log.is_long
    for number in range(1, 4):
        logged.put(range(600), number)
        checkpoint(logged)
    assert logged.log.is_long
    logged.end(logged.materialize())
    assert not logged.log.is_long, "one waits for the next checkpoint"
    checkpoint(logged)
    assert not logged.log.is_long


def test_where_as_much_has_changed_as_there_is_all_rows_are_written() -> None:
    """S7: that is no more, and the deltas before it go."""
    logged = with_rows(100)
    checkpoint(logged)
    logged.put(range(100), 1)
    chain, out = checkpoint(logged)
    assert (len(chain), out.rows) == (1, 100)


def test_memory_is_bounded_while_no_checkpoint_completes() -> None:
    """I26: and no row is forgotten."""
    logged = with_rows(1_000)
    checkpoint(logged)
    for number in range(3 * changelog.INTERVALS_MAX):
        logged.put([number], 1)
        logged.remove([999 - number])
        cut = logged.cut()
        assert cut is not None
        logged.fail(cut)
        logged.give_up(logged.freeze())
    assert len(logged.log._intervals) <= changelog.INTERVALS_MAX
    _, out = checkpoint(logged)
    assert not out.wholes


def test_so_much_may_go_that_all_rows_are_less() -> None:
    """I26: what keys were removed is not kept for ever."""
    logged = with_rows(10)
    checkpoint(logged)
    for number in range(300):
        keys = range(1_000 + 100 * number, 1_100 + 100 * number)
        logged.put(keys, number)
        logged.remove(keys)
        logged.give_up(logged.freeze())
    assert sum(each.gone for each in logged.log._intervals) < 20_000
    checkpoint(logged)


def test_after_a_restore_that_cannot_be_built_on_all_rows_count_as_changed() -> None:
    """S7, bug-D22: a checkpoint of a job without increments has files that go with it."""
    logged = with_rows(100)
    chain, _ = checkpoint(logged)
    again = Logged(2, restored=1)
    again.put(range(100), 0)
    own = paths.worker_file(CheckpointId(1), SlotId(0), AttemptId(1))
    again.log.restored(1, [replace(each, file=own, inline=None) for each in chain], ALL)
    again.put([1], 1)
    made, out = checkpoint(again)
    assert out.rows == 100
    assert all(each.file != own for each in made)


# ---- all of it, in any order


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog, "INTERVALS_MAX", 6)
        yield


keys = st.lists(st.integers(0, 12), max_size=4)


class Life(RuleBasedStateMachine):
    """Everything that happens to one table. What must hold is checked when a snapshot is written, and whenever a file
    goes: see `Logged.write` and `_turn`."""

    def __init__(self) -> None:
        super().__init__()
        self.logged = Logged()
        self.pieces: list[Piece] = []
        self.snapshots: list[Snapshot] = []
        self.written: list[Snapshot] = []
        self.steps = 0

    @rule(keys=keys)
    def put(self, keys: list[int]) -> None:
        self.steps += 1
        self.logged.put(keys, self.steps)

    @rule(keys=keys)
    def remove(self, keys: list[int]) -> None:
        self.logged.remove(keys)

    @rule()
    def cut(self) -> None:
        piece = self.logged.cut()
        if piece is not None:
            self.pieces.append(piece)

    @rule()
    def materialize(self) -> None:
        self.pieces.append(self.logged.materialize())

    @precondition(lambda self: self.pieces)
    @rule(which=st.integers(0, 9), ok=st.sampled_from([True, True, True, False]))
    def end_piece(self, which: int, ok: bool) -> None:
        piece = self.pieces.pop(which % len(self.pieces))
        if ok:
            self.logged.end(piece)
        else:
            self.logged.fail(piece, leaves_file=bool(which % 2))

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule()
    def freeze(self) -> None:
        self.snapshots.append(self.logged.freeze())

    @precondition(lambda self: self.snapshots)
    @rule(which=st.integers(0, 9))
    def write(self, which: int) -> None:
        snapshot = self.snapshots.pop(which % len(self.snapshots))
        self.logged.write(snapshot)
        self.written.append(snapshot)

    @precondition(lambda self: self.written)
    @rule(which=st.integers(0, 9), keep=st.integers(1, 3))
    def complete(self, which: int, keep: int) -> None:
        """Those that are older never are."""
        number = self.written.pop(which % len(self.written)).number
        self.logged.complete(number, keep)
        for each in [s for s in (*self.snapshots, *self.written) if s.number < number]:
            self._give_up(each)

    @precondition(lambda self: self.snapshots or self.written)
    @rule(which=st.integers(0, 9))
    def give_up(self, which: int) -> None:
        both = [*self.snapshots, *self.written]
        self._give_up(both[which % len(both)])

    def _give_up(self, snapshot: Snapshot) -> None:
        self.snapshots = [each for each in self.snapshots if each is not snapshot]
        self.written = [each for each in self.written if each is not snapshot]
        self.logged.give_up(snapshot)

    @precondition(lambda self: self.logged.base)
    @rule(part=st.sampled_from([ALL, range(64)]))
    def restore(self, part: range) -> None:
        self.logged = self.logged.again(self.logged.base, part)
        self.pieces, self.snapshots, self.written = [], [], []

    @rule()
    def sweep(self) -> None:
        self.logged.sweep()

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.logged.log._intervals) <= changelog.INTERVALS_MAX


def test_whatever_happens_a_checkpoint_has_the_rows_of_its_moment() -> None:
    """S7, R6, I2, I12, I20, I21, bug-D1, bug-D7, bug-D9, bug-D10: rows, cuts, materializations that end late or fail,
    checkpoints that are written late, aborted, or concurrent, restores of all rows or a part of them."""
    run_state_machine_as_test(
        Life, settings=settings(max_examples=200, stateful_step_count=50, deadline=None)
    )
