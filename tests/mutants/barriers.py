"""Bugs around barriers: where they stand in a channel, which ones count, what a subtask does until all are there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.connectors.base import EndOfInput, Wait
from penstock.engine.worker.attempt import Attempt
from penstock.engine.worker.inputs import Input
from penstock.engine.worker.outputs import Outputs
from penstock.engine.worker.subtask import Subtask
from penstock.ports.channel import Barrier, Batch, End
from penstock.protocol import alignment, counting
from penstock.protocol.alignment import Alignment, Take
from penstock.protocol.counting import Counting
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder, Sync
from tests.mutants.registry import simulated, swapped, tested

# ---- where a barrier stands


@simulated
def barrier_overtakes_waiting_output() -> AbstractContextManager[None]:
    """A barrier does not go behind rows that still wait for room in their channel (B1)."""

    def barrier(self: Outputs, order: SnapshotOrder) -> None:
        for output in self._all:
            output.waiting.appendleft(Barrier(order))
            output.flush()

    return swapped(Outputs, "barrier", barrier)


@simulated
def snapshot_after_the_next_batch() -> AbstractContextManager[None]:
    """The barrier goes out, one more batch is processed, then the state is frozen (bug-B4)."""
    original = Subtask._take

    def take(self: Subtask, action: Take) -> None:
        if not self.finished:
            self.outputs.barrier(action.order)
            _one_more_batch(self)
        self.outputs.barrier = lambda *_: None  # type: ignore[method-assign]
        try:
            original(self, action)
        finally:
            del self.outputs.barrier

    return swapped(Subtask, "_take", take)


def _one_more_batch(task: Subtask) -> None:
    if task.chain.source is not None:
        rows = task.chain.source.poll(10)
        if not isinstance(rows, Wait | EndOfInput):
            task.chain.process(rows, 0)
        return
    for entry in task._inputs:
        frame = entry.take()
        if isinstance(frame, Batch):
            task.chain.process(frame.data, entry.port)
            return
        if frame is not None:
            entry.queue.appendleft(frame)


@simulated
def rest_of_a_cut_batch_goes_to_the_end() -> AbstractContextManager[None]:
    """What a slice leaves of a batch is taken after what came behind it in the channel, the barrier included (I4)."""

    def put_back(self: Input, rest: pa.RecordBatch) -> None:
        while (frame := self.channel.try_receive()) is not None:
            self.put(frame)
        self.put(Batch(rest))

    return swapped(Input, "put_back", put_back)


@simulated
def end_is_lost_in_a_full_channel() -> AbstractContextManager[None]:
    """The end of a stream does not wait for room: who reads the channel waits for ever (B10, I27)."""

    def end(self: Outputs) -> None:
        for output in self._all:
            output.channel.try_send(End())

    return swapped(Outputs, "end", end)


@simulated
def one_full_output_stops_the_whole_worker() -> AbstractContextManager[None]:
    """While one subtask waits for room nobody else in its worker works: two workers wait for each other (B2, I25)."""
    original = Attempt.step

    def step(self: Attempt) -> bool:
        waiting = [task for task in self.subtasks if not task.outputs.flush()]
        return False if waiting else original(self)

    return swapped(Attempt, "step", step)


@tested(
    "tests/engine/test_outputs.py::test_the_barrier_of_an_aborted_snapshot_that_still_waits_is_taken_out"
)
def an_aborted_barrier_still_goes_out() -> AbstractContextManager[None]:
    """A barrier that waits for room is sent although its snapshot is over (C4)."""
    return swapped(Outputs, "forget_barrier", lambda self, checkpoint: None)


# ---- alignment


@simulated
def no_alignment() -> AbstractContextManager[None]:
    """Channels that have delivered their barrier are processed on (B3)."""
    return swapped(Alignment, "blocked", property(lambda self: frozenset()))


@simulated
def counting_where_aligning_was_asked_for() -> AbstractContextManager[None]:
    """An exactly-once job counts barriers, as an at-least-once job does (B3)."""

    def barriers(self: Attempt, channels: tuple[ChannelId, ...]) -> Counting:
        return Counting(frozenset(channels))

    return swapped(Attempt, "_barriers", barriers)


@tested("tests/protocol/test_alignment.py::test_an_obsolete_barrier_behind_a_newer_one_is_let_go")
def an_obsolete_barrier_counts_for_the_newer_one() -> AbstractContextManager[None]:
    """A barrier that is older than the one being aligned is taken for that one (bug-B1, B11)."""
    return swapped(alignment, "_is_older", lambda state, checkpoint: False)


@tested("tests/protocol/test_alignment.py::test_a_newer_barrier_gives_the_older_snapshot_up")
def a_newer_barrier_counts_for_the_older_one() -> AbstractContextManager[None]:
    """A newer barrier does not give the older snapshot up, it completes it (bug-B5, bug-B11)."""
    return swapped(alignment, "_without_older", lambda state, checkpoint, reason: (state, ()))


@tested(
    "tests/protocol/test_alignment.py::test_a_barrier_of_an_aborted_snapshot_starts_nothing_wherever_it_still_is"
)
def aborted_snapshots_are_forgotten() -> AbstractContextManager[None]:
    """A barrier of a snapshot that was aborted blocks its channel again, until the next table of live ones (B11)."""
    return swapped(Alignment, "is_over", lambda self, checkpoint: checkpoint <= self.last)


@tested("tests/protocol/test_alignment.py::test_an_abort_between_the_barriers_unblocks")
def an_abort_keeps_channels_blocked() -> AbstractContextManager[None]:
    """Aborting a snapshot leaves its alignment standing (B11, bug-B11)."""
    original = alignment.on_abort

    def on_abort(state: Alignment, checkpoint: CheckpointId) -> alignment.Step:
        after, actions = original(state, checkpoint)
        return replace(after, phase=state.phase), actions

    return swapped(alignment, "on_abort", on_abort)


# ---- ends


@simulated
def only_sources_hear_of_triggers() -> AbstractContextManager[None]:
    """A subtask whose inputs have ended waits for a barrier that cannot come (B10, bug-B7)."""
    original = Attempt.trigger

    def trigger(self: Attempt, order: SnapshotOrder) -> None:
        everyone = self.subtasks
        self.subtasks = [task for task in everyone if task.chain.source is not None]
        try:
            original(self, order)
        finally:
            self.subtasks = everyone

    return swapped(Attempt, "trigger", trigger)


@simulated
def a_finished_subtask_takes_no_part() -> AbstractContextManager[None]:
    """Who has finished answers no trigger: no snapshot completes any more (B10, I27)."""
    original = Subtask.trigger

    def trigger(self: Subtask, order: SnapshotOrder) -> None:
        if not self.finished:
            original(self, order)

    return swapped(Subtask, "trigger", trigger)


@tested("tests/protocol/test_alignment.py::test_an_ended_channel_owes_no_barrier")
def an_ended_channel_still_owes_its_barrier() -> AbstractContextManager[None]:
    """The end of the last channel that owed a barrier does not complete the alignment (B10)."""

    def on_end(state: Alignment, channel: ChannelId) -> alignment.Step:
        after = replace(state, open=state.open - {channel})
        return alignment._take_announced(after, ())

    return swapped(alignment, "on_end", on_end)


@tested(
    "tests/protocol/test_alignment.py::test_the_last_end_takes_what_was_announced_in_order_of_ids"
)
def the_last_end_takes_nothing() -> AbstractContextManager[None]:
    """What was announced while a channel was open is not taken when the last one ends (B10)."""
    return swapped(alignment, "_take_announced", lambda state, actions: (state, actions))


@simulated
def a_restored_source_that_had_finished_sends_no_end() -> AbstractContextManager[None]:
    """After a restore those behind it wait for an end that was sent in another life (B10, I27)."""
    original = Attempt._make_subtask

    def make(self: Attempt, task: Any) -> Subtask:
        made = original(self, task)
        before = [s for s in self._deploy.snapshots if s.subtask == made.id]
        if made.chain.source is not None and any(s.finished for s in before):
            made.finished = True
        return made

    return swapped(Attempt, "_make_subtask", make)


# ---- at least once


@simulated
def at_least_once_takes_at_the_first_barrier() -> AbstractContextManager[None]:
    """The snapshot does not wait for the slower channels: what they still bring is lost in a recovery (B4)."""

    def take_due(state: Counting) -> counting.Step:
        due = {*state.counts} if state.open else {*state.counts, *state.announced}
        taken = []
        for order in sorted(due, key=lambda each: each.id):
            if not state.is_over(order.id):
                state = counting._taken(state, order.id)
                taken.append(Take(order))
        return state, tuple(taken)

    return swapped(counting, "_take_due", take_due)


@tested("tests/engine/test_subtask.py::test_at_least_once_reads_on")
def at_least_once_blocks() -> AbstractContextManager[None]:
    """A channel that has delivered its barrier waits for the others although nobody asked for that (B4)."""

    def blocked(self: Counting) -> frozenset[ChannelId]:
        return frozenset().union(*self.counts.values()) & self.open

    return swapped(Counting, "blocked", property(blocked))


@tested(
    "tests/engine/test_attempt.py::test_the_mode_of_the_job_says_whether_barriers_are_aligned_or_counted"
)
def aligning_where_counting_was_asked_for() -> AbstractContextManager[None]:
    """An at-least-once job aligns its barriers, as an exactly-once job does: channels stand still (B4)."""

    def barriers(self: Attempt, channels: tuple[ChannelId, ...]) -> Alignment:
        return Alignment(frozenset(channels))

    return swapped(Attempt, "_barriers", barriers)


# ---- the table of live snapshots


@tested(
    "tests/engine/test_attempt.py::test_the_table_of_live_snapshots_heals_a_lost_trigger_and_a_lost_notice"
)
def lost_triggers_stay_lost() -> AbstractContextManager[None]:
    """A trigger that did not arrive is not made up for by the table of live snapshots (C2, I25)."""
    return _sync_without("trigger")


@tested(
    "tests/engine/test_attempt.py::test_the_table_of_live_snapshots_ends_one_whose_abort_was_lost"
)
def lost_aborts_stay_lost() -> AbstractContextManager[None]:
    """An abort that did not arrive is not made up for by the table of live snapshots (C4, B11)."""
    return _sync_without("abort")


def _sync_without(what: str) -> AbstractContextManager[None]:
    original = Attempt.sync

    def sync(self: Attempt, message: Sync) -> None:
        setattr(self, what, lambda *_: None)
        try:
            original(self, message)
        finally:
            delattr(self, what)

    return swapped(Attempt, "sync", sync)


@simulated
def lost_notices_stay_lost() -> AbstractContextManager[None]:
    """A notice of completion that did not arrive is not repeated: its transactions are never committed (E3)."""
    original = Attempt.sync

    def sync(self: Attempt, message: Sync) -> None:
        original(self, replace(message, completed=CheckpointId(0)))

    return swapped(Attempt, "sync", sync)


@tested(
    "tests/engine/test_attempt.py::test_an_answer_that_was_lost_is_said_again_and_not_all_the_time"
)
def lost_answers_stay_lost() -> AbstractContextManager[None]:
    """An acknowledgement that did not arrive is never said again: the snapshot waits for its timeout (C2, I25)."""
    return swapped(Attempt, "_answer_again", lambda self, live, newest: None)
