"""How a job runs: checkpoints, restarts and limits. Everything is checked when it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import wraps
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from penstock.errors import ConfigError
from penstock.plan.duration import parse_duration_ms
from penstock.plan.sizes import parse_bytes
from penstock.protocol import restart as strategies
from penstock.redaction import redacted
from penstock.storage.memory import MEMORY

Duration: TypeAlias = str | timedelta

Mode: TypeAlias = Literal["exactly_once", "at_least_once"]
Compression: TypeAlias = Literal["zstd"]
Backend: TypeAlias = Literal["heap", "rocksdb"]
STATE_MEMORY_BYTES_MIN = 16 << 20
Retain: TypeAlias = Literal["retain_on_cancel", "delete_on_cancel", "never_retain"]
_GIVEN = "_given"
_Config = TypeVar("_Config")


def _remembers_what_is_given(config: type[_Config]) -> type[_Config]:
    """Around a dataclass: `given_in_code` knows which of its fields were given and which have their defaults."""
    names = [spec.name for spec in fields(config)]  # type: ignore[arg-type]
    init: Any = config.__init__

    @wraps(init)
    def remembering(self: _Config, *values: Any, **named: Any) -> None:
        object.__setattr__(self, _GIVEN, frozenset([*names[: len(values)], *named]))
        init(self, *values, **named)

    config.__init__ = remembering  # type: ignore[method-assign, assignment]
    return config


@_remembers_what_is_given
@dataclass(frozen=True, repr=False)
class CheckpointConfig:
    """Where checkpoints go and how often they are taken.

    `directory` is a local path or a URL that fsspec knows, or "memory:": then small checkpoints are kept in the driver,
    for as long as its process lives. A field whose feature is not there yet takes its
    default only, and says so. Fields that are not given may be set by `spark.penstock.checkpoint.*` keys.
    """

    directory: str | PurePath
    every: Duration = "10 seconds"
    mode: Mode = "exactly_once"
    unaligned: bool = False
    aligned_timeout: Duration | None = None
    timeout: Duration = "10 minutes"
    min_pause: Duration = "0 seconds"
    max_concurrent: int = 1
    tolerable_failures: int = 0
    keep: int = 2
    retain: Retain = "retain_on_cancel"
    backend: Backend = "heap"
    """Where state is while the job runs: in memory, or in RocksDB on the workers' own disks with the rows in use in
    memory."""
    state_memory: str | int = "512 MiB"
    """With RocksDB: so much memory for rows in use, in each worker."""
    incremental: bool = True
    changelog: bool = False
    """State is written ahead of checkpoints, which only add what changed last: they take as long for much state as for
    little."""
    materialize_every: Duration = "10 minutes"
    """With `changelog`: after so long all rows of a state are written anew, beside the checkpoints."""
    local_recovery: bool = False
    """Workers keep a second copy of their state on their own disks, and read that back first after a failure."""
    inflight_bytes_max: int = 256 << 20
    """The most rows in flight that one subtask may have in an unaligned checkpoint, in bytes. Beyond it that
    checkpoint is given up, without counting as failed, and the next one is aligned."""
    compression: Compression | None = None
    """Compresses state before it is written: smaller files, for some work of the processor."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Passed to fsspec. May hold secrets: never shown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", _directory(self.directory))
        positive_ms(self.every, "CheckpointConfig.every")
        positive_ms(self.timeout, "CheckpointConfig.timeout")
        parse_duration_ms(self.min_pause, "CheckpointConfig.min_pause")
        one_of(self.mode, get_args(Mode), "CheckpointConfig.mode")
        one_of(self.retain, get_args(Retain), "CheckpointConfig.retain")
        one_of(self.backend, get_args(Backend), "CheckpointConfig.backend")
        self._check_memory()
        if self.compression is not None:
            one_of(self.compression, get_args(Compression), "CheckpointConfig.compression")
        whole_number(self.max_concurrent, "CheckpointConfig.max_concurrent", 1, 100)
        whole_number(self.tolerable_failures, "CheckpointConfig.tolerable_failures", 0, 100_000)
        whole_number(self.keep, "CheckpointConfig.keep", 1, 10_000)
        truth_value(self.incremental, "CheckpointConfig.incremental")
        truth_value(self.unaligned, "CheckpointConfig.unaligned")
        truth_value(self.local_recovery, "CheckpointConfig.local_recovery")
        whole_number(self.inflight_bytes_max, "CheckpointConfig.inflight_bytes_max", 1, 1 << 40)
        truth_value(self.changelog, "CheckpointConfig.changelog")
        positive_ms(self.materialize_every, "CheckpointConfig.materialize_every")
        self._check_unaligned()
        self._check_changelog()
        if self.local_recovery and self.in_memory:
            raise ConfigError(
                f"CheckpointConfig.local_recovery=True needs a directory: with {MEMORY!r} all state travels with the"
                " driver's messages, and there are no files to copy. Leave it out."
            )

    def __repr__(self) -> str:
        shown = [f"{spec.name}={getattr(self, spec.name)!r}" for spec in fields(self) if spec.repr]
        return redacted(f"CheckpointConfig({', '.join(shown)})")

    @property
    def in_memory(self) -> bool:
        return self.directory == MEMORY

    @property
    def every_ms(self) -> int:
        return parse_duration_ms(self.every)

    @property
    def timeout_ms(self) -> int:
        return parse_duration_ms(self.timeout)

    @property
    def min_pause_ms(self) -> int:
        return parse_duration_ms(self.min_pause)

    @property
    def aligned_timeout_ms(self) -> int | None:
        """When a checkpoint becomes unaligned; None: never, or at once."""
        if self.aligned_timeout is None:
            return None
        return parse_duration_ms(self.aligned_timeout, "CheckpointConfig.aligned_timeout")

    @property
    def materialize_every_ms(self) -> int:
        return parse_duration_ms(self.materialize_every)

    @property
    def unaligned_at_once(self) -> bool:
        return self.unaligned and self.aligned_timeout is None

    @property
    def state_memory_bytes(self) -> int:
        return parse_bytes(self.state_memory, "CheckpointConfig.state_memory")

    def _check_memory(self) -> None:
        if self.state_memory_bytes < STATE_MEMORY_BYTES_MIN:
            raise ConfigError(
                f"CheckpointConfig.state_memory={self.state_memory!r} is too little: the rows of a few batches must"
                ' fit into it. Give at least "16 MiB".'
            )

    def _check_unaligned(self) -> None:
        """Rows in flight belong to one snapshot only, and only exactly once needs them."""
        aligned_timeout_ms = self.aligned_timeout_ms
        if not self.unaligned and aligned_timeout_ms is None:
            return
        chosen = "unaligned=True" if self.unaligned else f"aligned_timeout={self.aligned_timeout!r}"
        if self.mode != "exactly_once":
            raise ConfigError(
                f"CheckpointConfig.{chosen} needs mode='exactly_once': at least once never blocks a channel, so "
                "there is nothing to gain from it. Leave it out."
            )
        if self.max_concurrent > 1:
            raise ConfigError(
                f"CheckpointConfig.{chosen} goes with max_concurrent=1 only, not {self.max_concurrent}: "
                "unaligned checkpoints are quick, and one is taken at a time."
            )
        if aligned_timeout_ms is not None and aligned_timeout_ms >= self.timeout_ms:
            raise ConfigError(
                f"CheckpointConfig.aligned_timeout={self.aligned_timeout!r} must be shorter than "
                f"timeout={self.timeout!r}: a checkpoint that long is given up before it could become unaligned."
            )

    def _check_changelog(self) -> None:
        if self.changelog and not self.incremental:
            raise ConfigError(
                "CheckpointConfig.changelog=True needs incremental=True: what is written ahead belongs to several"
                " checkpoints, which build on one another. Leave incremental out."
            )
        if self.changelog and self.in_memory:
            raise ConfigError(
                f"CheckpointConfig.changelog=True needs a directory: with {MEMORY!r} all state travels with the"
                " driver's messages, and there are no files to write ahead. Leave it out."
            )


def given_in_code(config: CheckpointConfig) -> frozenset[str]:
    """The fields that the program has given; `dataclasses.replace` gives all of them."""
    given: frozenset[str] = getattr(config, _GIVEN)
    return given


@dataclass(frozen=True)
class ExponentialDelay:
    """Restarts for ever. The delay grows with every failure and starts again after a quiet time.

    `same_failures`: an error about values, such as a ValueError, that comes so often in a row in the same place lies in
    the rows, and ends the job. None: it never does.
    """

    initial: Duration = "50 ms"
    max: Duration = "1 minute"
    multiplier: float = 2.0
    reset_after: Duration = "1 minute"
    same_failures: int | None = 10

    def __post_init__(self) -> None:
        at_least_one(self.multiplier, "ExponentialDelay.multiplier")
        made = self.strategy()
        if made.max_ms < made.initial_ms:
            raise ConfigError(
                f"ExponentialDelay: max {self.max!r} is shorter than initial {self.initial!r}"
            )

    def strategy(self) -> strategies.Exponential:
        return strategies.Exponential(
            initial_ms=parse_duration_ms(self.initial, "ExponentialDelay.initial"),
            max_ms=parse_duration_ms(self.max, "ExponentialDelay.max"),
            multiplier=float(self.multiplier),
            reset_after_ms=positive_ms(self.reset_after, "ExponentialDelay.reset_after"),
            same_failures_max=None
            if self.same_failures is None
            else whole_number(self.same_failures, "ExponentialDelay.same_failures", 1, 1_000_000),
        )


@dataclass(frozen=True)
class FixedDelay:
    """Restarts at most `attempts` times, after the same delay each time."""

    attempts: int = 3
    delay: Duration = "1 second"

    def __post_init__(self) -> None:
        self.strategy()

    def strategy(self) -> strategies.Fixed:
        return strategies.Fixed(
            attempts=whole_number(self.attempts, "FixedDelay.attempts", 1, 1_000_000),
            delay_ms=parse_duration_ms(self.delay, "FixedDelay.delay"),
        )


@dataclass(frozen=True)
class FailureRate:
    """Gives up when there are more than `failures` failures within `interval`."""

    failures: int = 3
    interval: Duration = "1 minute"
    delay: Duration = "1 second"

    def __post_init__(self) -> None:
        self.strategy()

    def strategy(self) -> strategies.Rate:
        return strategies.Rate(
            failures_max=whole_number(self.failures, "FailureRate.failures", 1, 1_000_000),
            interval_ms=positive_ms(self.interval, "FailureRate.interval"),
            delay_ms=parse_duration_ms(self.delay, "FailureRate.delay"),
        )


@dataclass(frozen=True)
class NoRestart:
    """The first failure ends the job."""

    def strategy(self) -> strategies.Never:
        return strategies.Never()


RestartStrategy: TypeAlias = ExponentialDelay | FixedDelay | FailureRate | NoRestart


@dataclass(frozen=True)
class JobSettings:
    """All that the shell needs to know to run a graph: made by `Pipeline.start`, already checked."""

    name: str
    parallelism: int
    max_parallelism: int
    checkpoint: CheckpointConfig | None
    restart: strategies.Strategy
    restore: str = field(repr=False)
    """`auto`, `fresh`, or the path of a checkpoint."""
    spare_workers: int
    slot_timeout_ms: int | None
    """None: the shell's own, which depends on what it runs on."""
    buffer_timeout_ms: int
    driver_timeout_ms: int = 30_000
    """How long workers that hear nothing from the driver keep their processes and try to come back."""
    allow_non_restored_state: bool = False
    """State that the job does not have any more may go."""
    unnamed: bool = False
    """The user gave no name, to the job or to any of its operators."""


def positive_ms(value: Duration, what: str) -> int:
    """A duration above zero."""
    milliseconds = parse_duration_ms(value, what)
    if milliseconds == 0:
        raise ConfigError(f"{what}: {value!r} must be longer than zero")
    return milliseconds


def whole_number(value: object, what: str, least: int, most: int) -> int:
    """An integer within limits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{what}: {value!r} ({type(value).__name__}) is not a whole number")
    if not least <= value <= most:
        raise ConfigError(f"{what}: {value} is out of range; it must be between {least} and {most}")
    return value


def at_least_one(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
        raise ConfigError(f"{what}: {value!r} is not a number of at least 1")


def one_of(value: object, choices: tuple[str, ...], what: str) -> None:
    if value not in choices:
        raise ConfigError(f"{what}: {value!r} is not known; choose one of {', '.join(choices)}")


def truth_value(value: object, what: str) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{what}: {value!r} is neither True nor False")


def _directory(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f"CheckpointConfig.directory: {value!r} is no directory; give a path or a URL, as in"
            ' CheckpointConfig("checkpoints/", every="1 second")'
        )
    if value.startswith(MEMORY) and value != MEMORY:
        raise ConfigError(
            f"CheckpointConfig.directory: {redacted(value)!r} is no directory; to keep checkpoints in the driver's"
            f" memory write CheckpointConfig({MEMORY!r}): jobs are told apart by their names"
        )
    return value
