"""Bugs of the copies that workers keep on their own disks."""

from __future__ import annotations

import fcntl
from contextlib import AbstractContextManager
from typing import Any

from penstock.engine.worker.kept_copies import KeptCopies
from penstock.protocol.lifecycle import JobMachine
from penstock.shells.spark import copies_dir, storing
from penstock.storage.local_copies import CopiedStore, LocalCopies, _Both, _Copy
from tests.mutants.registry import swapped, tested, together
from tests.spark import test_copies_dir

STORE = "tests/storage/test_local_copies.py"
JOB = "tests/engine/test_local_copies.py"
FOLDER = "tests/spark/test_copies_dir.py"


@tested(
    f"{STORE}::test_whatever_becomes_of_a_copy_what_is_read_is_what_was_written",
    f"{JOB}::test_a_copy_that_is_not_what_was_written_is_not_used",
    "tests/sim/test_copies.py::test_no_schedule_depends_on_copies",
)
def a_damaged_copy_is_believed() -> AbstractContextManager[None]:
    """What a worker finds on its own disk is taken for what was written (R4, I23, bug-E8)."""
    original = LocalCopies.read

    def read(self: Any, name: str, offset: int, length: int, is_right: Any) -> Any:
        return original(self, name, offset, length, lambda data: True)

    return swapped(LocalCopies, "read", read)


@tested(
    f"{STORE}::test_whatever_becomes_of_a_copy_what_is_read_is_what_was_written",
    f"{JOB}::test_a_copy_that_is_not_what_was_written_is_not_used",
)
def a_missing_copy_fails_the_restore() -> AbstractContextManager[None]:
    """What has no copy is not looked for in the checkpoint directory (R4, bug-E8)."""

    def read(self: Any, name: str, offset: int, length: int, is_right: Any) -> Any:
        return self._disk.read(name, offset, length)

    return swapped(LocalCopies, "read", read)


@tested(
    f"{STORE}::test_a_copy_that_cannot_be_written_costs_the_copy_alone",
    f"{JOB}::test_a_disk_that_never_works_fails_neither_checkpoints_nor_restores",
)
def a_full_disk_fails_checkpoints() -> AbstractContextManager[None]:
    """A copy that cannot be written takes the checkpoint with it (R4)."""
    return swapped(_Copy, "_try", lambda self, act: act())


@tested(f"{STORE}::test_there_is_no_copy_before_the_file_itself_is_there")
def a_copy_counts_before_its_file_is_durable() -> AbstractContextManager[None]:
    """There may be a copy of a file that was never written (R4)."""

    def finish(self: Any) -> int:
        self._copy.finish()
        return int(self._file.finish())

    return swapped(_Both, "finish", finish)


@tested(f"{STORE}::test_of_a_file_that_is_not_written_there_is_no_copy")
def a_snapshot_that_was_given_up_leaves_half_a_copy() -> AbstractContextManager[None]:
    """Whoever gives a snapshot up finishes its copy instead (R4)."""

    def discard(self: Any) -> None:
        self._file.discard()
        self._copy.finish()

    return swapped(_Both, "discard", discard)


@tested(
    f"{JOB}::test_copies_of_old_checkpoints_do_not_stay",
    f"{JOB}::test_a_shared_file_stays_as_long_as_the_newest_checkpoint_refers_to_it",
)
def copies_are_never_cleaned() -> AbstractContextManager[None]:
    """The disks of the workers fill up with old state (R4, I26)."""
    return swapped(KeptCopies, "_clean", lambda *_: None)


@tested(f"{JOB}::test_a_shared_file_stays_as_long_as_the_newest_checkpoint_refers_to_it")
def copies_of_shared_files_go_with_their_checkpoint() -> AbstractContextManager[None]:
    """What later checkpoints refer to has no copy any more: an increment is read from the directory (R4)."""
    original = KeptCopies.acked

    def acked(self: Any, checkpoint: Any, snapshots: Any) -> None:
        original(self, checkpoint, snapshots)
        own = {name for name in self._acked[checkpoint] if f"/{checkpoint}-" in name}
        own |= {name for name in self._acked[checkpoint] if name.startswith(f"chk-{checkpoint}/")}
        self._acked[checkpoint] = frozenset(own)

    return swapped(KeptCopies, "acked", acked)


@tested(f"{JOB}::test_a_deployment_removes_what_earlier_attempts_left_and_nobody_refers_to")
def copies_of_slots_that_moved_stay() -> AbstractContextManager[None]:
    """A host keeps the state of slots that it has no more (R4, I26)."""
    return swapped(KeptCopies, "deployed", lambda self, snapshots: None)


@tested(
    f"{FOLDER}::test_jobs_of_one_name_have_copies_of_their_own",
    "tests/spark/test_start_options.py"
    "::test_local_copies_are_opened_where_they_are_asked_for_and_by_the_identity_of_the_job",
)
def two_jobs_share_copies() -> AbstractContextManager[None]:
    """Jobs of one name in two directories have one folder, and throw each other's copies away (R4)."""

    def name(job: str, directory: str, created_ms: float) -> str:
        return f"{copies_dir.PREFIX}{job}-0"

    return together(
        swapped(storing, "copies_name", name), swapped(test_copies_dir, "copies_name", name)
    )


@tested(f"{FOLDER}::test_a_folder_that_somebody_else_may_have_made_is_not_used")
def anybodys_folder_is_used() -> AbstractContextManager[None]:
    """State goes where another user can read it (R4)."""
    return swapped(copies_dir, "_check_own", lambda folder: None)


@tested(f"{FOLDER}::test_what_killed_workers_left_goes_after_a_day_and_what_is_in_use_stays")
def folders_of_killed_workers_stay() -> AbstractContextManager[None]:
    """Nobody removes the copies of a job whose workers were all killed (R4, I26)."""
    return swapped(copies_dir, "sweep", lambda parent: None)


@tested(f"{FOLDER}::test_the_last_worker_of_a_job_that_is_over_removes_its_folder")
def the_first_worker_that_leaves_removes_the_folder() -> AbstractContextManager[None]:
    """The others of its job lose their copies (R4)."""

    class Unlocked:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: None) if name == "flock" else getattr(fcntl, name)

    return swapped(copies_dir, "fcntl", Unlocked())


@tested(
    "tests/protocol/test_lifecycle.py::test_a_slot_that_lost_its_worker_stays_on_its_host_if_somebody_is_there"
)
def slots_go_anywhere() -> AbstractContextManager[None]:
    """A slot is given to a worker on another host, although one on its own is free (R4)."""
    original = JobMachine.joined

    def joined(self: Any, worker: Any, launch: int, now_ms: float, host: str = "") -> Any:
        return original(self, worker, launch, now_ms)

    return swapped(JobMachine, "joined", joined)


@tested(f"{JOB}::test_a_lost_workers_successor_reads_all_of_its_state_from_the_copies")
def copies_are_written_and_never_read() -> AbstractContextManager[None]:
    """They cost time and disks, and nobody is faster for it (R4)."""
    return swapped(LocalCopies, "read", lambda *_: None)


@tested(f"{STORE}::test_a_damaged_copy_is_counted_and_an_error_of_the_store_is_the_stores")
def copies_that_are_lost_are_counted_again_in_every_attempt() -> AbstractContextManager[None]:
    """The counter of all attempts together is far too high (R4)."""
    return swapped(CopiedStore, "copies_lost", property(lambda self: self._copies.lost))
