"""Bugs of checkpoints that are kept in the driver's memory."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.engine.worker import snapshots
from penstock.engine.worker.snapshots import WriteWork
from penstock.shells.spark import storing
from penstock.storage.memory import MemoryStore
from tests.mutants.registry import swapped, tested

HERE = "tests/engine/test_in_driver.py"
OPTIONS = "tests/spark/test_start_options.py"


@tested(f"{HERE}::test_a_killed_worker_goes_on_from_the_drivers_memory")
def a_job_without_a_store_keeps_no_state() -> AbstractContextManager[None]:
    """Workers that have no store write down positions only, and a restore finds empty state (T1, I2)."""
    original = WriteWork.__call__

    def without_state(self: Any) -> Any:
        return original(replace(self, in_driver=None))

    return swapped(WriteWork, "__call__", without_state)


@tested(
    f"{HERE}::test_a_state_that_is_too_large_is_refused_with_what_it_is_and_what_to_do",
    f"{HERE}::test_many_small_states_are_too_large_together",
)
def any_size_goes_into_the_drivers_memory() -> AbstractContextManager[None]:
    """Nothing limits what a checkpoint takes of the driver's memory (T1)."""
    return swapped(snapshots, "_check_small", lambda *_: None)


class _Forgetting(defaultdict[str, MemoryStore]):
    def __getitem__(self, name: str) -> MemoryStore:
        return MemoryStore()


@tested(
    f"{OPTIONS}::test_a_job_in_memory_has_no_store_for_its_workers_and_keeps_its_own_by_its_name"
)
def every_start_has_a_memory_of_its_own() -> AbstractContextManager[None]:
    """A job that is started again in the same program begins anew, over what its sinks have committed (T1, I1)."""
    return swapped(storing, "_MEMORIES", _Forgetting())
