"""Bugs that only several hosts show: networks that are cut, drivers that stand still, strangers, places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from penstock.engine.worker.attempt import Attempt
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.lifecycle import JobMachine
from penstock.protocol.phases import Connecting
from penstock.shells.spark import control_client, placing, rejoining, sharing
from penstock.shells.spark.door import Door
from penstock.shells.spark.launcher import Launcher
from penstock.shells.spark.network import ZmqNetwork
from penstock.shells.spark.peers import Peer
from penstock.shells.spark.placing import Places
from tests.mutants.registry import swapped, tested

LIFE = "tests/protocol/test_lifecycle.py::"
WORKER = "tests/engine/test_worker.py::"
CONTROL = "tests/spark/test_transport_control.py::"
CHANNELS = "tests/spark/test_transport_channels.py::"
PLACING = "tests/spark/test_placing.py::"


@tested(LIFE + "test_a_network_that_is_cut_is_waited_for_and_told_once")
def a_job_runs_before_its_workers_have_reached_each_other() -> AbstractContextManager[None]:
    """It says that it runs and stands still: checkpoints are triggered that nobody can complete (R1, I25)."""
    original = JobMachine._all_ready

    def all_ready(
        self: JobMachine,
        attempt: AttemptId,
        restored: CheckpointId,
        kind: Any,
        endpoints: Mapping[int, Mapping[str, str]],
        now_ms: float,
    ) -> list[Any]:
        actions = original(self, attempt, restored, kind, endpoints, now_ms)
        if isinstance(self.phase, Connecting):
            actions += self._all_connected(self.phase, now_ms)
        return actions

    return swapped(JobMachine, "_all_ready", all_ready)


@tested(WORKER + "test_nothing_runs_before_all_others_have_answered_and_who_is_silent_is_told")
def a_worker_does_not_wait_for_the_others() -> AbstractContextManager[None]:
    """It sends to whoever may not be there (R1)."""
    original = Attempt.connect

    def connect(self: Attempt, endpoints: Mapping[int, Mapping[str, str]]) -> None:
        original(self, endpoints)
        self._network.unreached = lambda: ()  # type: ignore[method-assign]

    return swapped(Attempt, "connect", connect)


@tested(CHANNELS + "test_a_peer_that_stands_still_is_lost_although_no_connection_broke")
def nobody_listens_to_the_pulse() -> AbstractContextManager[None]:
    """A network that is cut between two workers is noticed by nobody (R1, I25)."""
    return swapped(Peer, "is_lost", lambda self: False)


@tested(CHANNELS + "test_sockets_leave_no_trace_on_the_disk_once_everybody_is_connected")
def socket_folders_stay() -> AbstractContextManager[None]:
    """Every worker that is killed leaves a folder behind (I26)."""
    return swapped(ZmqNetwork, "settled", lambda self: None)


@tested(CONTROL + "test_a_driver_that_listens_and_does_not_answer_is_asked_again_and_again")
def silence_is_taken_for_death() -> AbstractContextManager[None]:
    """A driver that stands still for a moment loses every process (R1)."""
    return swapped(rejoining, "is_closed", lambda endpoint: True)


@tested(CONTROL + "test_a_process_that_stood_still_as_a_whole_is_not_taken_for_stuck")
def standing_still_is_held_against_the_loop() -> AbstractContextManager[None]:
    """A machine that was paused ends its workers when it wakes up (R1)."""
    return swapped(control_client, "STOOD_STILL_S", float("inf"))


@tested(CONTROL + "test_strangers_who_knock_and_babble_disturb_nobody_and_take_no_room")
def strangers_may_stay() -> AbstractContextManager[None]:
    """Whoever opens connections and says nothing takes all files of the driver's process (security, I26)."""
    return swapped(Door, "_send_away", lambda self: None)


@tested(CONTROL + "test_a_stranger_at_a_workers_port_does_not_end_its_connection")
def every_break_is_a_workers() -> AbstractContextManager[None]:
    """A stranger who comes and goes ends the connection of a worker (security, R1)."""
    original = Door.look

    def look(self: Door) -> list[int]:
        before = set(self._strangers)
        broken = original(self)
        gone = before - set(self._strangers)
        return [*broken, *list(self._known)[:1]] if gone - set(broken) - self._known else broken

    return swapped(Door, "look", look)


@tested(PLACING + "test_a_host_that_does_not_answer_is_never_chosen_although_it_looks_empty")
def executors_are_not_asked() -> AbstractContextManager[None]:
    """The replacement of a worker whose host crashed goes to the same host (R1)."""
    original = Places.__init__

    def init(
        self: Places, context: Any, total: int, known: Any = None, answers: Any = None
    ) -> None:
        original(self, context, total, known, lambda executor: True)

    return swapped(Places, "__init__", init)


@tested(PLACING + "test_executors_that_are_just_coming_are_waited_for")
def the_first_executor_gets_all() -> AbstractContextManager[None]:
    """All workers pile up on the executor that registered first (R1)."""
    return swapped(Places, "_await_executors", lambda self, wanted: None)


@tested(PLACING + "test_with_room_only_where_nobody_answers_a_worker_waits_for_room_elsewhere")
def spark_may_choose_a_host_that_is_gone() -> AbstractContextManager[None]:
    """Where only a dead host seems to have room the worker goes there (R1)."""
    original = Places._look

    def look(self: Places, *known: Sequence[str]) -> tuple[Any, bool]:
        return original(self, *known)[0], True

    return swapped(Places, "_look", look)


@tested(PLACING + "test_workers_that_pile_up_are_told_to_move_to_an_empty_place")
def nobody_is_ever_moved() -> AbstractContextManager[None]:
    """Workers that share an executor after a failure share it for ever (R1)."""
    return swapped(placing.Places, "crowded", lambda self, ours: [])


@tested(
    "tests/spark/test_sharing.py"
    "::test_a_worker_that_does_not_see_it_says_which_folder_on_which_host"
)
def folders_are_taken_for_shared() -> AbstractContextManager[None]:
    """Every host writes into a folder of its own, and a commit fails for ever (E2)."""
    return swapped(sharing, "_sees", lambda mark: True)


@tested(LIFE + "test_a_launch_that_brings_nobody_is_made_again_with_growing_patience")
def a_launch_that_went_nowhere_is_waited_for() -> AbstractContextManager[None]:
    """A worker that was launched on a host that crashed meanwhile never comes, and none other does (R1, I25)."""
    original = JobMachine._give_up_ms

    def give_up_ms(self: JobMachine, launch: Any) -> float | None:
        return original(self, launch) if launch.was_here else None

    return swapped(JobMachine, "_give_up_ms", give_up_ms)


# ---- copies of state on the workers' hosts


@tested(PLACING + "test_a_worker_goes_to_the_host_with_the_copy_of_the_one_it_replaces")
def room_is_worth_more_than_a_copy() -> AbstractContextManager[None]:
    """The state of a lost worker travels over the network although a disk has it (R4)."""
    original = Places._look
    return swapped(Places, "_look", lambda self, ours, copies=(): original(self, ours))


@tested(PLACING + "test_where_the_host_with_the_copy_cannot_be_had_any_other_will_do")
def a_host_with_a_copy_is_believed_in() -> AbstractContextManager[None]:
    """A replacement goes where the lost worker was, whether anybody answers there or not (R1, R4)."""
    original = Places._look

    def look(self: Places, ours: Sequence[str], copies: Sequence[str] = ()) -> tuple[Any, bool]:
        there = [each for each in self._known() if each.host in copies]
        return (there[0], True) if there else original(self, ours, copies)

    return swapped(Places, "_look", look)


@tested(PLACING + "test_copies_that_are_left_are_taken_over_once")
def a_copy_is_taken_over_again_and_again() -> AbstractContextManager[None]:
    """All later workers pile up on the host where one was lost (R1, R4)."""
    return swapped(placing.Copies, "taken", lambda self, host: None)


@tested(PLACING + "test_who_is_moved_to_another_place_does_not_come_back_for_its_copy")
def the_crowded_come_back_for_their_copies() -> AbstractContextManager[None]:
    """Workers that share an executor are ended to be spread, and share it again (R1, R4)."""
    original = Launcher._leave_copy

    def leave_copy(self: Launcher, launch: int) -> None:
        self._crowded.clear()
        original(self, launch)

    return swapped(Launcher, "_leave_copy", leave_copy)
