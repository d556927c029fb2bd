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
    user_error: float = 0.0
    """User code raises, per batch."""
    snapshot_error: float = 0.0
    """Freezing raises, per snapshot of an operator."""
    restore_error: float = 0.0
    """Opening raises, per operator."""
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
    launch_failure: float = 0.0


RATES: dict[str, tuple[float, ...]] = {
    "crash": (0.0, 0.0005, 0.002),
    "partition": (0.0, 0.0005, 0.001),
    "pause": (0.0, 0.0005, 0.001),
    "driver_crash": (0.0, 0.0003),
    "second_driver": (0.0, 0.0, 0.0002),
    "user_error": (0.0, 0.0, 0.01),
    "snapshot_error": (0.0, 0.0, 0.02),
    "restore_error": (0.0, 0.0, 0.05),
    "commit_error": (0.0, 0.1, 0.3),
    "storage_error": (0.0, 0.02, 0.1),
    "storage_unknown": (0.0, 0.02, 0.1),
    "late_write": (0.0, 0.5, 1.0),
    "drop_message": (0.0, 0.0, 0.02, 0.1),
    "launch_failure": (0.0, 0.0, 0.2),
}


def draw(rng: Random) -> Faults:
    """Which faults this seed has: many seeds have few, so that each fault also shows on its own."""
    kinds = [field.name for field in fields(Faults)]
    enabled = rng.sample(kinds, rng.randint(0, len(kinds)))
    rates = {kind: rng.choice(RATES[kind]) for kind in sorted(enabled)}
    return replace(Faults(), **rates)
