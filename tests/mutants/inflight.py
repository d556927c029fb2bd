"""Bugs around rows in flight: what an unaligned snapshot records, and how the rows come back after a restore."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.engine.worker import attempt, restoring
from penstock.engine.worker.attempt import Attempt
from penstock.engine.worker.inputs import ChannelRows, Input, Recorder, Rescued
from penstock.engine.worker.local_channel import LocalChannel
from penstock.engine.worker.outputs import Output, Outputs
from penstock.engine.worker.subtask import Subtask
from penstock.plan.graph import Rebalance
from penstock.ports.channel import Barrier, Batch, End, Frame
from penstock.protocol import alignment
from penstock.protocol.alignment import Alignment, Recording
from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.shells.sim.ports import SimChannel
from tests.mutants.registry import simulated, swapped, tested, together

NONE: frozenset[ChannelId] = frozenset()

# ---- what is recorded


@simulated
def what_was_queued_is_not_recorded() -> AbstractContextManager[None]:
    """Only what is read from now on is recorded, not what an earlier recording or a restore left (bug-C1, bug-C10)."""
    original = Recorder.__init__

    def begin(self: Recorder, inputs: Any, checkpoint: Any, rescued: Any = ()) -> None:
        original(self, inputs, checkpoint, rescued)
        self.bytes = 0
        self._rows = {channel: [] for channel in self._rows}

    return swapped(Recorder, "__init__", begin)


@simulated
def what_is_read_while_recording_is_not_recorded() -> AbstractContextManager[None]:
    """Rows that come between the snapshot and the barrier are processed and not in the snapshot (bug-C1, I3)."""
    original = Subtask._set_aside

    def set_aside(self: Subtask, entry: Input, frame: Frame) -> None:
        if not isinstance(frame, Batch):
            original(self, entry, frame)
            return
        entry.put(frame)
        self._read_ahead = True

    return swapped(Subtask, "_set_aside", set_aside)


@simulated
def rest_of_a_cut_batch_is_not_recorded() -> AbstractContextManager[None]:
    """What a slice left of a batch is neither in the state nor in flight (bug-C1, I3)."""
    put_back, queued_before = Input.put_back, Input.queued_before

    def put_back_and_mark(self: Input, rest: pa.RecordBatch) -> None:
        put_back(self, rest)
        self.cut = rest  # type: ignore[attr-defined]

    def without_cut(self: Input, checkpoint: CheckpointId) -> Iterable[Batch]:
        cut = getattr(self, "cut", None)
        return [batch for batch in queued_before(self, checkpoint) if batch.data is not cut]

    return together(
        swapped(Input, "put_back", put_back_and_mark), swapped(Input, "queued_before", without_cut)
    )


@simulated
def queue_of_an_ended_channel_is_not_recorded() -> AbstractContextManager[None]:
    """A channel whose end was read counts as empty, though its rows were not processed yet (bug-C1, B10)."""
    original = Input.queued_before

    def queued_before(self: Input, checkpoint: CheckpointId) -> Iterable[Batch]:
        if any(isinstance(frame, End) for frame in self.queue):
            return ()
        return original(self, checkpoint)

    return swapped(Input, "queued_before", queued_before)


@simulated
def only_the_first_channel_is_recorded() -> AbstractContextManager[None]:
    """Of several channels with rows in flight one is looked at (bug-C3)."""
    original = Recorder.add

    def add(self: Recorder, channel: ChannelId, batch: Batch) -> None:
        if channel == min(self._rows):
            original(self, channel, batch)

    return swapped(Recorder, "add", add)


@simulated
def recording_goes_on_behind_the_barrier() -> AbstractContextManager[None]:
    """Until the last channel has delivered, the others are read and recorded behind their barriers (bug-B8)."""
    original = Alignment.aside.fget  # type: ignore[attr-defined]

    def aside(self: Alignment) -> frozenset[ChannelId]:
        waiting: frozenset[ChannelId] = original(self)
        if not isinstance(self.phase, Recording):
            return waiting
        n = self.phase.checkpoint
        return waiting | {c for c in self.open - self.end_read if self.read.get(c, 0) == n}

    return swapped(Alignment, "aside", property(aside))


@simulated
def rows_in_flight_are_not_written() -> AbstractContextManager[None]:
    """The snapshot is acknowledged without what was recorded (B7)."""
    return swapped(Recorder, "rows", lambda self: ())


@tested(
    "tests/engine/test_unaligned.py::test_rows_that_are_on_their_way_become_part_of_the_snapshot_and_are_processed_too"
)
def rows_in_flight_of_another_channel() -> AbstractContextManager[None]:
    """What was recorded on one channel is written down for its neighbour (I3, I4)."""
    original = Recorder.rows

    def rows(self: Recorder) -> tuple[ChannelRows, ...]:
        made = original(self)
        senders = [entry.source for entry in made]
        turned = senders[1:] + senders[:1]
        return tuple(replace(e, source=s) for e, s in zip(made, turned, strict=True))

    return swapped(Recorder, "rows", rows)


@simulated
def an_aborted_recording_loses_its_queue() -> AbstractContextManager[None]:
    """Rows that were read aside for a snapshot go with it when it is aborted (bug-C12, C4)."""
    original = Subtask._forget_unrecorded

    def forget(self: Subtask, checkpoint: CheckpointId) -> None:
        if self._unrecorded is not None and self._unrecorded.checkpoint == checkpoint:
            for entry in self._inputs:
                kept = [frame for frame in entry.queue if not isinstance(frame, Batch)]
                entry.queue.clear()
                entry.queue.extend(kept)
        original(self, checkpoint)

    return swapped(Subtask, "_forget_unrecorded", forget)


# ---- who waits for what


@simulated
def pointwise_edges_are_not_aligned() -> AbstractContextManager[None]:
    """Broadcast and forward edges have rows in flight in a snapshot, which a restore cannot share out (bug-C7)."""
    original = Attempt._barriers

    def barriers(self: Attempt, channels: tuple[ChannelId, ...]) -> Any:
        made = original(self, channels)
        return replace(made, pointwise=NONE) if isinstance(made, Alignment) else made

    return swapped(Attempt, "_barriers", barriers)


@tested(
    "tests/engine/test_unaligned.py::test_a_pointwise_channel_is_processed_up_to_its_barrier_first"
)
def nothing_is_read_aside_while_pointwise_edges_align() -> AbstractContextManager[None]:
    """While a broadcast edge aligns the other channels stand still, and so does everybody upstream of them (B7)."""

    def aside(self: Alignment) -> frozenset[ChannelId]:
        return self.phase.waiting if isinstance(self.phase, Recording) else NONE

    return swapped(Alignment, "aside", property(aside))


@tested("tests/engine/test_unaligned.py::test_a_subtask_that_waits_for_a_full_output_takes_part")
def recording_waits_for_room_in_the_output() -> AbstractContextManager[None]:
    """A subtask whose output is full does not record: the snapshot takes as long as the back pressure (B7)."""
    original = Subtask.step

    def step(self: Subtask) -> bool:
        if self.outputs.blocked and not self.outputs.flush():
            return False
        return original(self)

    return swapped(Subtask, "step", step)


@tested("tests/engine/test_unaligned.py::test_a_subtask_that_waits_for_a_full_output_takes_part")
def a_subtask_with_a_full_output_does_not_ask_for_frames() -> AbstractContextManager[None]:
    """The host is not told that a recording subtask waits for its channels, so nothing wakes it (B7)."""
    original = Subtask.reading

    def reading(self: Subtask) -> list[ChannelId]:
        return [] if self.outputs.blocked else original(self)

    return swapped(Subtask, "reading", reading)


@tested(
    "tests/engine/test_unaligned.py::test_more_in_flight_than_allowed_is_declined_and_nothing_stops"
)
def overflow_stops_reading() -> AbstractContextManager[None]:
    """At the limit a recording subtask stops to read, and the snapshot is never whole (I26, B7)."""
    original = Subtask._read_aside

    def read_aside(self: Subtask) -> bool:
        queued = sum(entry.bytes_queued for entry in self._inputs)
        return queued <= self._inflight_bytes_max and original(self)

    return together(
        swapped(Subtask, "_read_aside", read_aside),
        swapped(Subtask, "_check_overflow", lambda self: None),
    )


@tested(
    "tests/engine/test_unaligned.py::test_more_in_flight_than_allowed_is_declined_and_nothing_stops"
)
def rows_in_flight_have_no_limit() -> AbstractContextManager[None]:
    """A snapshot takes as much memory as rows come before its barriers (I26)."""
    return swapped(Subtask, "_check_overflow", lambda self: None)


@tested("tests/protocol/test_unaligned.py::test_an_urgent_barrier_is_as_good_as_the_trigger")
def an_urgent_barrier_waits_like_any_other() -> AbstractContextManager[None]:
    """Only the trigger makes a snapshot urgent: where it comes late, the first barrier aligns (B7)."""
    original = alignment.on_barrier

    def on_barrier(state: Alignment, channel: ChannelId, order: SnapshotOrder) -> alignment.Step:
        return original(state, channel, replace(order, urgent=False))

    return swapped(alignment, "on_barrier", on_barrier)


@tested(
    "tests/protocol/test_unaligned.py::test_an_aligned_snapshot_that_is_expedited_keeps_the_channels_that_have_delivered"
)
def a_snapshot_under_way_cannot_be_expedited() -> AbstractContextManager[None]:
    """A subtask that aligns already does not hear that the snapshot has become urgent (B8)."""
    original = alignment.on_trigger

    def on_trigger(state: Alignment, order: SnapshotOrder) -> Any:
        known = order.id in state.pending
        return original(state, replace(order, urgent=order.urgent and not known))

    return swapped(alignment, "on_trigger", on_trigger)


@tested("tests/engine/test_unaligned.py::test_processing_goes_on_while_it_records")
def nothing_is_processed_while_recording() -> AbstractContextManager[None]:
    """A subtask stands still from its snapshot until the last barrier (B2, B7)."""
    original = Subtask.step

    def step(self: Subtask) -> bool:
        recording = isinstance(getattr(self.barriers, "phase", None), Recording)
        return self._read_aside() if recording else original(self)

    return swapped(Subtask, "step", step)


# ---- how rows come back


@simulated
def restored_rows_are_lost() -> AbstractContextManager[None]:
    """A restore forgets the rows that were in flight (B7, R1)."""
    return swapped(attempt, "restore_inflight", lambda *_: [])


@simulated
def restored_rows_come_twice() -> AbstractContextManager[None]:
    """A restore puts the rows in flight into the queues two times (bug-C10, R1)."""
    original = restoring.restore_inflight

    def restore(*arguments: Any) -> list[Rescued]:
        return original(*arguments) + original(*arguments)

    return swapped(attempt, "restore_inflight", restore)


@simulated
def the_queue_comes_after_the_channel() -> AbstractContextManager[None]:
    """What was read aside, or restored, is processed after what is still in the channel (B7, I4)."""

    def take(self: Input) -> Frame | None:
        frame = self.channel.try_receive()
        return self.take_queued() if frame is None else frame

    def step_inputs(self: Subtask) -> bool:
        if self._rescued:
            self._step_rescued()
            return True
        return self._step_next(self.barriers.blocked | self.barriers.aside, queued_only=False)

    return together(swapped(Input, "take", take), swapped(Subtask, "_step_inputs", step_inputs))


@tested("tests/engine/test_restoring.py::test_every_channel_gets_its_own_rows_back_in_order")
def restored_rows_come_in_another_order() -> AbstractContextManager[None]:
    """The rows of a channel are put back newest first (I4)."""
    original = restoring.read_inflight
    return swapped(restoring, "read_inflight", lambda *args: original(*args)[::-1])


@tested("tests/engine/test_restoring.py::test_every_channel_gets_its_own_rows_back_in_order")
def restored_rows_come_by_another_channel() -> AbstractContextManager[None]:
    """Rows in flight from one sender are put into the queue of another (I4)."""
    original = restoring._input_of

    def input_of(head: str, inflight: Any, *rest: Any) -> Input:
        return original(head, replace(inflight, source=inflight.source + 1), *rest)

    return swapped(restoring, "_input_of", input_of)


@tested(
    "tests/engine/test_restoring.py::test_with_another_parallelism_keyed_rows_go_to_whom_their_key_belongs_to_now"
)
def rescaled_rows_go_to_anyone() -> AbstractContextManager[None]:
    """With another parallelism rows in flight do not go to the owners of their keys (bug-C4, R6, I15)."""
    original = restoring._ours

    def ours(batch: pa.RecordBatch, how: Any, *rest: Any) -> pa.RecordBatch:
        return original(batch, Rebalance(), *rest)

    return swapped(restoring, "_ours", ours)


@tested(
    "tests/engine/test_restoring.py::test_with_another_parallelism_keyed_rows_go_to_whom_their_key_belongs_to_now"
)
def rescaled_rows_go_to_everyone() -> AbstractContextManager[None]:
    """With another parallelism every subtask takes all rows that were in flight (bug-C4, R6)."""
    return swapped(restoring, "_ours", lambda batch, *_: batch)


@tested(
    "tests/engine/test_restoring.py"
    "::test_with_another_parallelism_rows_without_a_key_go_somewhere_once"
)
def rescaled_rows_are_lost() -> AbstractContextManager[None]:
    """With another parallelism subtasks that are no more take their rows in flight with them (bug-C4, R6)."""
    original = restoring.restore_inflight

    def restore(operator: str, snapshots: Any, inputs: Any, plan: Any, *rest: Any) -> Any:
        staying = [s for s in snapshots if s.subtask.index < plan.parallelism]
        return original(operator, staying, inputs, plan, *rest)

    return together(
        swapped(restoring, "restore_inflight", restore),
        swapped(attempt, "restore_inflight", restore),
    )


@tested("tests/engine/test_restoring.py::test_rows_that_went_before_all_channels_do_so_again")
def rescaled_rows_wait_in_a_queue() -> AbstractContextManager[None]:
    """With another parallelism rows in flight are put into the queue of some channel, and what follows them comes by
    another one (I4, R6)."""
    original = restoring.restore_inflight

    def restore(operator: str, snapshots: Any, inputs: list[Input], *rest: Any) -> list[Rescued]:
        for entry in original(operator, snapshots, inputs, *rest):
            next(each for each in inputs if each.port == entry.port).put(entry.rows)
        return []

    return swapped(restoring, "restore_inflight", restore)


@tested(
    "tests/engine/test_unaligned.py"
    "::test_rows_of_another_parallelism_go_before_all_channels_and_in_the_next_snapshot_too"
)
def rescued_rows_are_not_recorded() -> AbstractContextManager[None]:
    """A snapshot in the middle of a recovery forgets what goes before all channels (B7, I3)."""
    original = Recorder.__init__

    def begin(self: Recorder, inputs: Any, checkpoint: Any, rescued: Any = ()) -> None:
        original(self, inputs, checkpoint)

    return swapped(Recorder, "__init__", begin)


@tested(
    "tests/engine/test_unaligned.py"
    "::test_rows_of_another_parallelism_go_before_all_channels_and_in_the_next_snapshot_too"
)
def rescued_rows_are_recorded_last() -> AbstractContextManager[None]:
    """A checkpoint does not know any more that some rows go before all channels (I4)."""
    original = Recorder.rows
    return swapped(Recorder, "rows", lambda self: original(self)[::-1])


@tested("tests/engine/test_restoring.py::test_rows_that_are_others_by_the_key_of_now_are_refused")
def rows_in_flight_of_another_key_are_taken() -> AbstractContextManager[None]:
    """The job's key was changed, and rows in flight stay with whom the old key belonged to (I15, R8)."""
    original = restoring._ours

    def ours(batch: pa.RecordBatch, how: Any, target: int, plan: Any, slot: Any) -> Any:
        return batch if target == slot else original(batch, how, target, plan, slot)

    return swapped(restoring, "_ours", ours)


# ---- what is held back


@tested(
    "tests/engine/test_unaligned.py::test_nothing_new_is_made_behind_an_urgent_barrier_until_its_reader_has_processed_it"
)
def nothing_is_held_behind_an_urgent_barrier() -> AbstractContextManager[None]:
    """The sender fills the channel again that its reader has just emptied: more is in flight each time (I26)."""
    return swapped(Output, "held", property(lambda self: False))


@simulated
def barriers_are_never_confirmed() -> AbstractContextManager[None]:
    """A sender waits for ever for word that its reader has come to the barrier (I25)."""

    def confirm(self: Any, checkpoint: CheckpointId) -> None:
        """Nobody hears of it."""

    return together(
        swapped(LocalChannel, "confirm", confirm), swapped(SimChannel, "confirm", confirm)
    )


@tested(
    "tests/engine/test_unaligned.py::test_every_barrier_that_is_processed_is_confirmed_to_its_sender"
)
def a_barrier_is_confirmed_when_it_is_read() -> AbstractContextManager[None]:
    """The rows before it are still in the queue, and the sender adds to them (I26)."""
    original = Subtask._set_aside

    def set_aside(self: Subtask, entry: Input, frame: Frame) -> None:
        original(self, entry, frame)
        if isinstance(frame, Barrier):
            entry.channel.confirm(frame.order.id)

    return swapped(Subtask, "_set_aside", set_aside)


@tested(
    "tests/engine/test_unaligned.py::test_a_snapshot_that_is_being_aligned_goes_before_what_would_be_held"
)
def a_held_output_stops_an_alignment() -> AbstractContextManager[None]:
    """A snapshot waits for rows that a held output keeps back, and the hold for that snapshot (I25)."""
    return swapped(Subtask, "_is_held", lambda self: self.outputs.held)


@tested("tests/engine/test_unaligned.py::test_barriers_go_through_a_subtask_that_is_held")
def a_held_subtask_lets_no_barrier_through() -> AbstractContextManager[None]:
    """Word of a barrier comes when all behind its reader have it: with frequent snapshots never (I25)."""
    return swapped(Subtask, "_step_marks", lambda self: False)


@tested(
    "tests/engine/test_unaligned.py::test_a_barrier_that_is_taken_out_of_the_queue_is_not_waited_for"
)
def a_barrier_that_was_taken_out_is_waited_for() -> AbstractContextManager[None]:
    """The barrier of an aborted snapshot never left, and its sender waits for word of it (B11, I25)."""
    original = Outputs.forget_barrier

    def forget_barrier(self: Outputs, checkpoint: CheckpointId) -> None:
        awaited = [output.awaited for output in self._all]
        original(self, checkpoint)
        for output, before in zip(self._all, awaited, strict=True):
            output.awaited = before

    return swapped(Outputs, "forget_barrier", forget_barrier)


@tested(
    "tests/engine/test_unaligned.py::test_a_trigger_that_comes_again_after_the_abort_holds_nothing"
)
def a_late_trigger_holds_an_output() -> AbstractContextManager[None]:
    """A trigger that was delivered twice waits for a barrier that was taken out (B11, I25)."""

    def forget(self: Output, checkpoint: CheckpointId) -> None:
        self.awaited = NO_CHECKPOINT

    return swapped(Output, "forget", forget)
