"""What leaves a subtask: in order, behind what waits, never lost for lack of room."""

from __future__ import annotations

from penstock.engine.worker.outputs import Output, Outputs
from penstock.engine.worker.partition import make_partitioner
from penstock.plan.graph import Broadcast, Forward
from penstock.ports.channel import Batch, End
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder
from tests.engine.kit import ShortChannel, barrier, numbers, rows

N1, N2 = CheckpointId(1), CheckpointId(2)


def one(room: int) -> tuple[Outputs, ShortChannel]:
    channel = ShortChannel(room)
    outputs = [Output(ChannelId(0, 0, 0), channel)]
    return Outputs({0: (make_partitioner(Forward(), 1, 8), outputs)}), channel


def seen(channel: ShortChannel) -> list:
    return [numbers(f.data) if isinstance(f, Batch) else f for f in channel.frames]


def test_a_barrier_goes_behind_rows_that_wait_for_room() -> None:
    """B1."""
    outputs, channel = one(room=1)
    for n in range(3):
        outputs.emit(0, rows(n))
    outputs.barrier(SnapshotOrder(N1))
    assert outputs.blocked
    channel.room = 10
    assert outputs.flush()
    assert seen(channel) == [[0], [1], [2], barrier(N1)]


def test_rows_go_behind_a_barrier_that_waits() -> None:
    """B1: and no row overtakes a barrier."""
    outputs, channel = one(room=0)
    outputs.barrier(SnapshotOrder(N1))
    channel.room = 1
    outputs.emit(0, rows(7))
    channel.room = 10
    outputs.flush()
    assert seen(channel) == [barrier(N1), [7]]


def test_the_end_goes_last_however_full_the_channel_is() -> None:
    """B10."""
    outputs, channel = one(room=0)
    outputs.emit(0, rows(1))
    outputs.end()
    assert channel.frames == []
    channel.room = 10
    outputs.flush()
    assert seen(channel) == [[1], End()]


def test_the_barrier_of_an_aborted_snapshot_that_still_waits_is_taken_out() -> None:
    """B11: and only that one."""
    outputs, channel = one(room=0)
    outputs.barrier(SnapshotOrder(N1))
    outputs.emit(0, rows(1))
    outputs.barrier(SnapshotOrder(N2))
    outputs.forget_barrier(N1)
    channel.room = 10
    outputs.flush()
    assert seen(channel) == [[1], barrier(N2)]


def test_one_full_channel_does_not_hold_up_another() -> None:
    full, free = ShortChannel(0), ShortChannel(10)
    both = [Output(ChannelId(0, 0, i), channel) for i, channel in enumerate((full, free))]
    outputs = Outputs({0: (make_partitioner(Broadcast(), 2, 8), both)})
    outputs.emit(0, rows(1))
    outputs.barrier(SnapshotOrder(N1))
    assert seen(free) == [[1], barrier(N1)]
    assert outputs.wanting_room() == [ChannelId(0, 0, 0)]


def test_closing_gives_up_what_waits() -> None:
    outputs, channel = one(room=0)
    outputs.emit(0, rows(1))
    outputs.close()
    assert not outputs.blocked
    assert channel.closed
