"""What a job is, as it is shipped to the workers and used by the job manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.plan.physical import PhysicalPlan
from penstock.ports.floor import Floors
from penstock.ports.store import CheckpointStore
from penstock.storage.local_copies import LocalCopies


class Mode(StrEnum):
    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True)
class InDriver:
    """Checkpoints are kept in the memory of the driver. No worker can reach that: all state travels inside
    acknowledgements and deployments, so it has to be small."""

    state_bytes_max: int
    """Of one state of one operator in one subtask."""
    worker_bytes_max: int
    """Of all that one worker adds to a checkpoint."""


@dataclass(frozen=True)
class Changelogs:
    """State is written ahead of checkpoints."""

    materialize_every_ms: float
    """After so long all rows of a state are written anew, if anything has changed."""
    ahead_bytes: int = 4 << 20
    """When about so much has changed it is written ahead."""


@dataclass(frozen=True)
class JobSpec:
    """`open_store` opens the job's own directory; None when the job has none, because it takes no checkpoints or
    keeps them `in_driver`. `open_origin` opens another job's directory, to restore from it."""

    job: str
    plan: PhysicalPlan
    mode: Mode = Mode.EXACTLY_ONCE
    buffer_timeout_ms: float = 10.0
    open_store: Callable[[], CheckpointStore] | None = None
    open_origin: Callable[[str], CheckpointStore] | None = None
    open_copies: Callable[[], LocalCopies | None] | None = None
    """Opens the copies of the job's state on the disk of the host that this is called on; None where that cannot be."""
    in_driver: InDriver | None = None
    location: str = ""
    """Where the job's own directory is, fit to be shown to people."""
    inline_bytes_max: int = 16_384
    """A worker's state that is smaller than this travels in the metadata instead of a file of its own."""
    incremental: bool = False
    """Checkpoints build on earlier ones."""
    changelog: Changelogs | None = None
    open_floors: Callable[[], Floors] | None = None
    """Opens a place for floors on the host that this is called on: for state that is larger than memory, and to read
    such state."""
    floor_memory_bytes: int | None = None
    """Rows in use of state with floors may take so much in a worker; None: all state is in memory."""
    floor_memory_is_strict: bool = True
    """Too little for one batch is an error."""
    compression: str | None = None
    """How blocks of state are compressed, as Arrow calls it."""
    inflight_bytes_max: int = 256 << 20
    """A subtask with more rows in flight than this declines an unaligned checkpoint; the next one is aligned."""
    allow_non_restored_state: bool = False
    """State of a checkpoint that the job does not have any more may go."""
    check_host: Callable[[], None] | None = None
    """Raises ConfigError on a host where the job cannot work."""
