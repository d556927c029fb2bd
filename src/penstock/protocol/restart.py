"""Whether and when a job that failed is started again: four strategies, each a pure function of the failures.

`decide(strategy, failures_ms)` gets the times of all failures so far, the newest last, and answers with a delay or
with the reason for giving up.

Poison rows. A row that the code cannot handle comes again after every restart. How it is told from trouble that passes,
such as a service that does not answer: the error is one about values (`ValueError`, `TypeError`, `KeyError` and their
like, and no `OSError`), and the same one, in the same operator and at the same line, again and again. Positions cannot
tell, because batches are cut anew after a restart, and behind a shuffle nobody knows them. Other failures in between
change nothing: a lost worker says nothing about rows. An attempt that ran well for a while does: see `Repeats`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Exponential:
    """The delay doubles with every failure, and starts again after a quiet time without one."""

    initial_ms: int = 50
    max_ms: int = 60_000
    multiplier: float = 2.0
    reset_after_ms: int = 60_000
    same_failures_max: int | None = 10
    """So often the same failure about rows may come; with the default delays that takes half a minute."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay every time, at most `attempts` times."""

    attempts: int = 3
    delay_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Gives up when there are more than `failures_max` failures within `interval_ms`."""

    failures_max: int = 3
    interval_ms: int = 60_000
    delay_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Never:
    """The first failure ends the job. `why` is told with it."""

    why: str = "restarts are switched off"


Strategy: TypeAlias = Exponential | Fixed | Rate | Never


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Decision: TypeAlias = RestartAfter | GiveUp


REPEATS_KEPT = 100
"""How many different failures are told apart."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often each failure about rows has come since the job last ran well."""

    counts: Mapping[str, int] = field(default_factory=dict)
    newest: str = ""
    """The failure that ended the attempt, if it is one about rows."""

    def after(self, what: str, *, ran_well: bool) -> Repeats:
        """An attempt has failed. `what`: operator, error and place; empty for failures that are not about rows."""
        counts = {} if ran_well or len(self.counts) >= REPEATS_KEPT else dict(self.counts)
        if what:
            counts[what] = counts.get(what, 0) + 1
        return Repeats(counts, what)

    @property
    def count(self) -> int:
        """How often the newest one has come; 0 for one that is not about rows."""
        return self.counts.get(self.newest, 0)


NO_REPEATS = Repeats()


def decide(
    strategy: Strategy, failures_ms: Sequence[float], repeats: Repeats = NO_REPEATS
) -> Decision:
    match strategy:
        case Exponential(same_failures_max=limit) if limit is not None and repeats.count >= limit:
            return GiveUp(
                f"the same failure came {repeats.count} times in a row, so the rows are to blame and not the moment; "
                "mend the code, or filter such rows out before, and start the job again: it goes on from its newest "
                "checkpoint. restart=pen.ExponentialDelay(same_failures=None) would try for ever"
            )
        case Exponential():
            return RestartAfter(_exponential_delay_ms(strategy, failures_ms))
        case Fixed(attempts, delay_ms):
            if len(failures_ms) > attempts:
                return GiveUp(f"failed {len(failures_ms)} times; {attempts} restarts are allowed")
            return RestartAfter(delay_ms)
        case Rate(failures_max, interval_ms, delay_ms):
            recent = [at for at in failures_ms if failures_ms[-1] - at < interval_ms]
            if len(recent) > failures_max:
                return GiveUp(
                    f"failed {len(recent)} times within {interval_ms} ms; {failures_max} are allowed"
                )
            return RestartAfter(delay_ms)
        case Never(why):
            return GiveUp(why)
        case _:
            assert_never(strategy)


def _exponential_delay_ms(strategy: Exponential, failures_ms: Sequence[float]) -> int:
    """Counts the failures of the present series: those with no quiet time between them."""
    series = 1
    for earlier, later in zip(reversed(failures_ms[:-1]), reversed(failures_ms[1:]), strict=True):
        if later - earlier >= strategy.reset_after_ms:
            break
        series += 1
    exponent = min(series - 1, 64)
    return int(min(strategy.max_ms, strategy.initial_ms * strategy.multiplier**exponent))
