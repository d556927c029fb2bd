"""A subtask and the rows in flight: recorded while it works on, processed in order, never lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.worker.inputs import Rescued
from penstock.engine.worker.subtask import GivenUp, Taken
from penstock.ports.channel import Batch, End
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.protocol.snapshot import NO_SOURCE
from tests.engine.kit import barrier, numbers, rows
from tests.engine.test_subtask import Bench

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
N1, N2 = CheckpointId(1), CheckpointId(2)
CHECKPOINT = SnapshotKind.CHECKPOINT


def inflight(taken: object) -> dict[int, list[int]]:
    """Rows in flight by the index of their sender."""
    assert isinstance(taken, Taken)
    return {
        entry.source: [x for batch in entry.batches for x in numbers(batch)]
        for entry in taken.inflight
    }


def test_rows_that_are_on_their_way_become_part_of_the_snapshot_and_are_processed_too() -> None:
    """B7, I3."""
    bench = Bench()
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    assert bench.subtask.news == []
    bench.a.frames += [Batch(rows(1)), barrier(N1, True), Batch(rows(2))]
    bench.b.frames += [Batch(rows(3)), Batch(rows(4)), barrier(N1, True)]
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {0: [1], 1: [3, 4]}
    assert sorted(bench.seen) == [1, 2, 3, 4]
    assert bench.left[0] == barrier(N1, True), "the barrier goes before what is processed later"


def test_processing_goes_on_while_it_records() -> None:
    """B2, B7: a barrier that is long in coming stops nobody."""
    bench = Bench()
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.a.frames += [Batch(rows(1)), Batch(rows(2))]
    bench.run()
    assert (bench.seen, bench.subtask.news) == ([1, 2], [])


def test_the_first_urgent_barrier_is_enough() -> None:
    """B7."""
    bench = Bench()
    bench.a.frames += [Batch(rows(1)), barrier(N1, True)]
    bench.run()
    bench.b.frames += [Batch(rows(2)), barrier(N1, True)]
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {1: [2]}


def test_a_subtask_that_waits_for_a_full_output_takes_part() -> None:
    """B7: it records, and its barrier goes behind what still waits."""
    bench = Bench(room=1)
    bench.a.frames += [Batch(rows(1)), Batch(rows(2)), Batch(rows(3)), barrier(N1, True)]
    bench.run()
    assert bench.seen == [1, 2]
    assert bench.subtask.reading() == []
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    assert bench.subtask.reading() == [A, B]
    bench.b.frames += [barrier(N1, True)]
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {0: [3]}
    assert bench.seen == [1, 2], "it still waits"
    sent = []
    while bench.out.frames:
        sent += bench.left
        bench.out.frames.clear()
        bench.run()
    assert sent == [[1], [2], barrier(N1, True), [3]]


def test_what_an_earlier_recording_left_belongs_to_the_next_snapshot() -> None:
    """I3: queued and not processed is in flight, whenever it was read."""
    bench = Bench(room=1)
    bench.a.frames += [Batch(rows(1)), Batch(rows(2))]
    bench.run()
    bench.a.frames += [Batch(rows(3)), barrier(N1, True), Batch(rows(4)), barrier(N2, True)]
    bench.b.frames += [barrier(N1, True), barrier(N2, True)]
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.run()
    bench.subtask.trigger(SnapshotOrder(N2, CHECKPOINT, urgent=True))
    bench.run()
    first, second = bench.subtask.news
    assert inflight(first) == {0: [3]}
    assert inflight(second) == {0: [3, 4]}


def test_the_rest_of_a_batch_that_a_slice_cut_is_in_flight() -> None:
    """B7: a long batch does not hold the snapshot up, and nothing of it is lost."""
    bench = Bench()
    bench.subtask.slicing.rows = 2
    bench.a.frames += [Batch(rows(1, 2, 3, 4, 5)), barrier(N1, True)]
    bench.b.frames += [barrier(N1, True)]
    assert bench.subtask.step()
    assert bench.seen == [1, 2]
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {0: [3, 4, 5]}
    assert bench.seen == [1, 2, 3, 4, 5]


def test_the_queue_of_a_channel_whose_end_was_read_is_in_flight() -> None:
    """B10, I3."""
    bench = Bench(room=1)
    bench.b.frames += [Batch(rows(1)), Batch(rows(2))]
    bench.run()
    bench.a.frames += [Batch(rows(3)), End()]
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.run()
    bench.subtask.abort(N1)
    bench.subtask.trigger(SnapshotOrder(N2, CHECKPOINT, urgent=True))
    bench.b.frames += [barrier(N2, True)]
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {0: [3]}
    assert not taken.finished


def test_a_pointwise_channel_is_processed_up_to_its_barrier_first() -> None:
    """B7: the other channels are read aside, so that nobody upstream waits for this subtask."""
    bench = Bench(pointwise=frozenset((B,)))
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.a.frames += [Batch(rows(1)), barrier(N1, True)]
    bench.run()
    assert (bench.seen, bench.a.frames) == ([], type(bench.a.frames)())
    bench.b.frames += [Batch(rows(2)), barrier(N1, True)]
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {0: [1]}
    assert bench.seen == [2, 1]


def test_an_aborted_recording_keeps_its_rows_for_the_stream() -> None:
    """B11, bug-C12: and its state is let go."""
    bench = Bench()
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.a.frames += [Batch(rows(1)), Batch(rows(2))]
    bench.run()
    bench.subtask.abort(N1)
    bench.a.frames += [barrier(N1, True), Batch(rows(3))]
    bench.run()
    assert bench.subtask.news == []
    assert bench.seen == [1, 2, 3]


def test_more_in_flight_than_allowed_is_declined_and_nothing_stops() -> None:
    """I26: the limit is hard, and giving up is better than to wait for each other."""
    bench = Bench(inflight_bytes_max=64)
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.a.frames += [Batch(rows(i)) for i in range(20)]
    bench.run()
    (news,) = bench.subtask.news
    assert isinstance(news, GivenUp)
    assert news.overflow
    assert bench.seen == list(range(20))
    bench.a.frames += [barrier(N1, True), barrier(N2)]
    bench.b.frames += [barrier(N1, True), barrier(N2)]
    bench.run()
    assert isinstance(bench.subtask.news[-1], Taken), "the next one is aligned"


def test_restored_rows_come_before_new_ones_and_are_recorded_until_they_are_processed() -> None:
    """B7, bug-B13, bug-C10: a checkpoint in the middle of a recovery."""
    bench = Bench()
    for entry in bench.subtask._inputs:
        entry.put(Batch(rows(10 + entry.id.source)))
    bench.subtask._read_ahead = True
    bench.a.frames += [Batch(rows(1)), barrier(N1, True)]
    bench.b.frames += [barrier(N1, True)]
    assert bench.subtask.step()
    assert bench.seen == [10]
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {0: [1], 1: [11]}
    assert bench.seen == [10, 11, 1]


def test_rows_of_another_parallelism_go_before_all_channels_and_in_the_next_snapshot_too() -> None:
    """B7, I4, R6: what follows them comes by another channel than they did."""
    bench = Bench(rescued=[Rescued(0, Batch(rows(n))) for n in (1, 2, 3)])
    bench.b.frames += [Batch(rows(4)), barrier(N1, True)]
    assert bench.subtask.step()
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.run()
    assert bench.seen == [1, 2, 3, 4]
    bench.a.frames += [barrier(N1, True)]
    bench.run()
    (taken,) = bench.subtask.news
    assert inflight(taken) == {NO_SOURCE: [2, 3], 1: [4]}
    assert isinstance(taken, Taken)
    assert taken.inflight[0].source == NO_SOURCE, "they are recorded first, to be restored first"


def test_an_aligned_snapshot_waits_for_rows_of_another_parallelism() -> None:
    """B3, R6: they are before every barrier."""
    bench = Bench(rescued=[Rescued(0, Batch(rows(n))) for n in (1, 2)])
    bench.a.frames += [barrier(N1)]
    bench.b.frames += [barrier(N1)]
    bench.run()
    assert bench.left == [[1], [2], barrier(N1)]
    (taken,) = bench.subtask.news
    assert inflight(taken) == {}


def test_rows_of_another_parallelism_are_processed_in_slices_and_whatever_is_held() -> None:
    """B7, I25: a barrier behind them cannot be what they wait for."""
    bench = Bench(rescued=[Rescued(0, Batch(rows(1, 2, 3)))])
    bench.out.confirms = False
    bench.subtask.slicing.rows = 2
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    assert bench.subtask.step()
    assert bench.seen == [1, 2]
    bench.run()
    assert bench.seen == [1, 2, 3]
    bench.a.frames += [barrier(N1, True), Batch(rows(4))]
    bench.b.frames += [barrier(N1, True)]
    bench.run()
    assert bench.seen == [1, 2, 3], "now it is held"
    assert inflight(bench.subtask.news[0]) == {NO_SOURCE: [1, 2, 3]}


@pytest.mark.parametrize("barriers_first", [False, True])
def test_more_restored_rows_than_allowed_are_declined_too(barriers_first: bool) -> None:
    """I26, R6: after a start with fewer subtasks one of them may have the rows in flight of several."""
    many = [Rescued(0, Batch(rows(1)))] * 20
    bench = Bench(inflight_bytes_max=64, room=1, rescued=many)
    barriers = [barrier(N1, True)]
    if barriers_first:
        bench.a.frames += barriers
        bench.b.frames += barriers
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.run()
    if not barriers_first:
        bench.a.frames += barriers
        bench.b.frames += barriers
        bench.run()
    (news,) = bench.subtask.news
    assert isinstance(news, GivenUp)
    assert news.overflow


@pytest.mark.parametrize("pointwise", [frozenset(), frozenset((B,))])
@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.data())
def test_rows_in_flight_and_rows_processed_make_up_just_what_was_sent(
    pointwise: frozenset[ChannelId], data: st.DataObject
) -> None:
    """I3, I4, bug-C1, bug-B8: any interleaving of frames, steps, triggers, aborts and full outputs."""
    bench = Bench(room=data.draw(st.integers(1, 4)), pointwise=pointwise)
    bench.subtask.slicing.rows = data.draw(st.integers(1, 4))
    seen_at: dict[int, list[int]] = {}
    sent: dict[int, list[int]] = {0: [], 1: []}
    sent_at: dict[tuple[int, int], int] = {}
    row = iter(range(10_000))
    newest, aborted = 0, set()
    freeze = bench.subtask.chain.freeze

    def noting(order: SnapshotOrder) -> dict:
        seen_at[order.id] = list(bench.seen)
        return freeze(order)

    bench.subtask.chain.freeze = noting  # type: ignore[method-assign]
    urgent_ids: set[int] = set()
    barriers: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(data.draw(st.integers(5, 40))):
        act = data.draw(
            st.sampled_from(
                ["rows", "rows", "step", "step", "drain", "new", "barrier", "abort", "urge"]
            )
        )
        side = data.draw(st.integers(0, 1))
        channel = (bench.a, bench.b)[side]
        if act == "rows":
            made = [next(row) for _ in range(data.draw(st.integers(1, 5)))]
            sent[side] += made
            channel.frames.append(Batch(rows(*made)))
        elif act == "step":
            bench.subtask.step()
            bench.subtask.check()
        elif act == "drain":
            bench.out.frames.clear()
        elif act == "new":
            if newest and newest not in seen_at:
                aborted.add(newest)
                bench.subtask.abort(CheckpointId(newest))
            newest += 1
            if data.draw(st.booleans()):
                urgent_ids.add(newest)
            barriers[0].append(newest)
            barriers[1].append(newest)
            if data.draw(st.booleans()):
                bench.subtask.trigger(
                    SnapshotOrder(CheckpointId(newest), CHECKPOINT, newest in urgent_ids)
                )
        elif act == "barrier" and barriers[side]:
            number = barriers[side].pop(0)
            sent_at[number, side] = len(sent[side])
            channel.frames.append(barrier(CheckpointId(number), number in urgent_ids))
        elif act == "abort" and newest and data.draw(st.booleans()):
            aborted.add(newest)
            bench.subtask.abort(CheckpointId(newest))
        elif act == "urge" and newest and newest not in aborted:
            urgent_ids.add(newest)
            bench.subtask.trigger(SnapshotOrder(CheckpointId(newest), CHECKPOINT, urgent=True))
    for side, channel in enumerate((bench.a, bench.b)):
        for number in barriers[side]:
            sent_at[number, side] = len(sent[side])
            channel.frames.append(barrier(CheckpointId(number), number in urgent_ids))
    while bench.subtask.step() or bench.out.frames:
        bench.subtask.check()
        bench.out.frames.clear()
    for taken in bench.subtask.news:
        if not isinstance(taken, Taken):
            continue
        for side in (0, 1):
            before = [x for x in seen_at[taken.checkpoint] if x in set(sent[side])]
            held = inflight(taken).get(side, [])
            assert before + held == sent[side][: sent_at[taken.checkpoint, side]]
            assert not (held and ChannelId(0, side, 0) in pointwise)
    for side in (0, 1):
        assert [x for x in bench.seen if x in set(sent[side])] == sent[side]
    done = {taken.checkpoint for taken in bench.subtask.news if isinstance(taken, Taken)}
    if newest and newest not in aborted:
        assert newest in done, "the newest snapshot is never whole"


# ---- back pressure behind an urgent barrier


def test_nothing_new_is_made_behind_an_urgent_barrier_until_its_reader_has_processed_it() -> None:
    """I26: or every snapshot would move a channel full of rows into the reader's queue, and more would follow."""
    bench = Bench()
    bench.out.confirms = False
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.a.frames += [barrier(N1, True), Batch(rows(1))]
    bench.b.frames += [barrier(N1, True)]
    bench.run()
    assert bench.left == [barrier(N1, True)]
    assert bench.subtask.reading() == [B], "a barrier could come there"
    assert bench.subtask.outputs.awaiting() == [ChannelId(1, 0, 0)]
    bench.out.confirm(N1)
    bench.run()
    assert bench.left == [barrier(N1, True), [1]]


def test_every_barrier_that_is_processed_is_confirmed_to_its_sender() -> None:
    bench = Bench()
    bench.a.frames += [barrier(N1)]
    bench.run()
    assert (bench.a.confirmations, bench.b.confirmations) == ([N1], [])
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.b.frames += [Batch(rows(1)), barrier(N1, True)]
    assert bench.subtask.move()
    assert bench.b.confirmations == [], "it was read, and not processed yet"
    bench.run()
    assert bench.b.confirmations == [N1]


def test_a_snapshot_that_becomes_urgent_holds_the_outputs_whose_barrier_is_sent_already() -> None:
    """B8, I26."""
    bench = Bench()
    bench.out.confirms = False
    bench.a.frames += [barrier(N1), Batch(rows(1))]
    bench.b.frames += [barrier(N1)]
    bench.run()
    assert bench.seen == [1]
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.a.frames += [Batch(rows(2))]
    bench.run()
    assert bench.seen == [1]
    bench.out.confirm(N1)
    bench.run()
    assert bench.seen == [1, 2]


def test_a_snapshot_that_is_being_aligned_goes_before_what_would_be_held() -> None:
    """I25: its barrier may be what the reader waits for, directly or by a detour."""
    bench = Bench(pointwise=frozenset((B,)))
    bench.out.confirms = False
    bench.b.frames += [barrier(N1, True)]
    bench.a.frames += [barrier(N1, True)]
    bench.run()
    bench.b.frames += [Batch(rows(1)), barrier(N2, True)]
    bench.run()
    assert bench.seen == []
    bench.subtask.trigger(SnapshotOrder(N2, CHECKPOINT, urgent=True))
    bench.run()
    assert bench.seen == [1]
    assert bench.left[-1] == barrier(N2, True)


def test_a_barrier_that_is_taken_out_of_the_queue_is_not_waited_for() -> None:
    """B11: nobody could ever confirm it."""
    bench = Bench(room=0)
    bench.out.confirms = False
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    assert bench.subtask.outputs.held
    bench.subtask.abort(N1)
    assert not bench.subtask.outputs.held


def test_a_trigger_that_comes_again_after_the_abort_holds_nothing() -> None:
    """B11, I25: the barrier that would be waited for was taken out."""
    bench = Bench(room=0)
    bench.out.confirms = False
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.subtask.abort(N1)
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    assert not bench.subtask.outputs.held


def test_barriers_go_through_a_subtask_that_is_held() -> None:
    """I25: who waits for word of a barrier does not wait for all that stand behind its reader."""
    bench = Bench()
    bench.out.confirms = False
    bench.subtask.trigger(SnapshotOrder(N1, CHECKPOINT, urgent=True))
    bench.a.frames += [barrier(N1, True)]
    bench.b.frames += [barrier(N1, True)]
    bench.run()
    bench.subtask.trigger(SnapshotOrder(N2, CHECKPOINT, urgent=True))
    bench.a.frames += [barrier(N2, True), Batch(rows(1))]
    bench.b.frames += [barrier(N2, True), End()]
    bench.run()
    assert (bench.a.confirmations, bench.b.confirmations) == ([N1, N2], [N1, N2])
    assert bench.subtask.barriers.open == {A}
    assert bench.seen == []
    bench.out.confirm(N2)
    bench.run()
    assert bench.seen == [1]
