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
    flip: float = 0.0
    """A bit of a completed checkpoint changes, per scheduler step."""
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
    late_write: float = 0.0
    """Work of a dead process is still carried out, later."""
    drop_message: float = 0.0
    """A control message is lost."""
    duplicate_message: float = 0.0
    """A control message arrives twice."""
    launch_failure: float = 0.0


STRIKES = (
    "crash",
    "partition",
    "pause",
    "driver_crash",
    "second_driver",
    "stop",
    "cancel",
    "manual",
    "flip",
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
    "flip": (0.0, 0.0, 0.0, 0.002),
    "user_error": (0.0, 0.0, 0.01),
    "slow_user": (0.0, 0.0, 0.05),
    "snapshot_error": (0.0, 0.0, 0.02),
    "restore_error": (0.0, 0.0, 0.05),
    "prepare_error": (0.0, 0.0, 0.02),
    "commit_error": (0.0, 0.1, 0.3),
    "storage_error": (0.0, 0.02, 0.1),
    "storage_unknown": (0.0, 0.02, 0.1),
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


def describe(faults: Faults) -> str:
    """For people: what this seed has."""
    rates = [(field.name, getattr(faults, field.name)) for field in fields(Faults)]
    return ", ".join(f"{name} {rate:g}" for name, rate in rates if rate) or "none"
