"""A swarm of faults: each seed first draws which faults exist and how often, then the faults themselves."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random


@dataclass(frozen=True)
class Faults:
    """Probabilities, per occasion. All zero: a healed world."""

    crash: float = 0.0
    """A worker process dies, per scheduler step."""
    partition: float = 0.0
    """The driver loses a worker that lives on, per scheduler step."""
    pause: float = 0.0
    """A worker process stands still for a while, per scheduler step."""
    driver_crash: float = 0.0
    """The driver dies and is started again, per scheduler step."""
    second_driver: float = 0.0
    """A second driver starts while the first lives on, per scheduler step."""
    stop: float = 0.0
    """A person stops the job and starts it again, per scheduler step."""
    cancel: float = 0.0
    """A person cancels the job and starts it again, per scheduler step."""
    manual: float = 0.0
    """A person asks for a checkpoint, per scheduler step."""
    damage: float = 0.0
    """A file of a completed checkpoint changes, is cut, emptied, swapped or lost, per scheduler step."""
    clock_jump: float = 0.0
    """The wall clock jumps, forward or back, per scheduler step."""
    user_error: float = 0.0
    """User code raises, per batch."""
    slow_user: float = 0.0
    """User code takes long, per batch: later batches are cut into slices."""
    snapshot_error: float = 0.0
    """Freezing raises, per snapshot of an operator."""
    restore_error: float = 0.0
    """Opening raises, per operator."""
    prepare_error: float = 0.0
    """Making a sink's transaction durable raises, per transaction."""
    commit_error: float = 0.0
    """A commit raises, before or after it took effect."""
    storage_error: float = 0.0
    """A storage operation raises before it took effect."""
    storage_unknown: float = 0.0
    """A storage operation takes effect and raises all the same."""
    torn_write: float = 0.0
    """A write ends in the middle: it raises, or its process dies, and part of the file is there."""
    delete_error: float = 0.0
    """A deletion raises before it took effect."""
    slow_delete: float = 0.0
    """A deletion takes very long."""
    stall: float = 0.0
    """Background work stands still between two storage operations, and the rest of the world goes on."""
    late_write: float = 0.0
    """Work of a dead process is still carried out, later."""
    drop_message: float = 0.0
    """A control message is lost."""
    duplicate_message: float = 0.0
    """A control message arrives twice: at once, or the second time much later."""
    launch_failure: float = 0.0
    """A worker process does not come up, per launch."""


STRIKES = (
    "crash",
    "partition",
    "pause",
    "driver_crash",
    "second_driver",
    "stop",
    "cancel",
    "manual",
    "damage",
    "clock_jump",
)
"""Faults that come from outside, at any step of the scheduler."""

RATES: dict[str, tuple[float, ...]] = {
    "crash": (0.0, 0.001, 0.004),
    "partition": (0.0, 0.001, 0.002),
    "pause": (0.0, 0.001, 0.002),
    "driver_crash": (0.0, 0.001),
    "second_driver": (0.0, 0.0, 0.0005),
    "stop": (0.0, 0.0, 0.002),
    "cancel": (0.0, 0.0, 0.001),
    "manual": (0.0, 0.01),
    "damage": (0.0, 0.0, 0.0, 0.002),
    "clock_jump": (0.0, 0.002),
    "user_error": (0.0, 0.0, 0.01),
    "slow_user": (0.0, 0.05, 0.3),
    "snapshot_error": (0.0, 0.0, 0.02),
    "restore_error": (0.0, 0.0, 0.05),
    "prepare_error": (0.0, 0.0, 0.1),
    "commit_error": (0.0, 0.1, 0.3),
    "storage_error": (0.0, 0.02, 0.1),
    "storage_unknown": (0.0, 0.02, 0.1),
    "torn_write": (0.0, 0.05, 0.3),
    "delete_error": (0.0, 0.0, 0.3, 1.0),
    "slow_delete": (0.0, 0.0, 0.3),
    "stall": (0.0, 0.0, 0.2, 0.7),
    "late_write": (0.0, 0.5, 1.0),
    "drop_message": (0.0, 0.0, 0.02, 0.1),
    "duplicate_message": (0.0, 0.0, 0.1),
    "launch_failure": (0.0, 0.0, 0.2),
}


def draw(rng: Random) -> Faults:
    """Which faults this seed has: many seeds have few, so that each fault also shows on its own."""
    kinds = [field.name for field in fields(Faults)]
    enabled = rng.sample(kinds, rng.randint(0, len(kinds)))
    rates = {kind: rng.choice(RATES[kind]) for kind in sorted(enabled)}
    return replace(Faults(), **rates)


def interleaves(faults: Faults) -> bool:
    """Whether other things may happen between two storage operations of one piece of work."""
    return faults.stall > 0 or faults.slow_delete > 0 or faults.torn_write > 0


def describe(faults: Faults) -> str:
    """For people: what this seed has."""
    rates = [(field.name, getattr(faults, field.name)) for field in fields(Faults)]
    return ", ".join(f"{name} {rate:g}" for name, rate in rates if rate) or "none"
