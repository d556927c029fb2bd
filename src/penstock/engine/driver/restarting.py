"""What the log says about a restart: when it comes, which one it is, and how to limit them."""

from __future__ import annotations

from typing import assert_never

from penstock.protocol import restart
from penstock.protocol.lifecycle import JobMachine
from penstock.protocol.phases import Gathering


def restart_line(machine: JobMachine, durable: bool, counts: bool = True) -> str:
    """Right after a failure, when the machine has made up its mind to try again. Restarts that the strategy does not
    hear of have no number."""
    phase = machine.phase
    wait_ms = phase.not_before_ms - phase.since_ms if isinstance(phase, Gathering) else 0.0
    when = f"in {wait_ms / 1_000:g} s" if wait_ms else "at once"
    origin = "the newest checkpoint" if durable else "scratch, because it takes no checkpoints"
    if not counts:
        return f"going on {when} from {origin}"
    failures = len(machine.failures_ms)
    limit = _limit(machine.config.strategy, failures, machine.repeats.count)
    return f"trying again {when} from {origin}: restart {failures}, {limit}"


def _limit(strategy: restart.Strategy, failures: int, same: int) -> str:
    match strategy:
        case restart.Exponential(same_failures_max=limit) if same and limit is not None:
            return f"with growing pauses; this failure came {same} times, and ends the job if it comes {limit} times"
        case restart.Exponential():
            return (
                "with growing pauses and no limit; restart=pen.FixedDelay(attempts=3) would set one"
            )
        case restart.Fixed(attempts):
            return f"failure {failures} of {attempts} that restart=pen.FixedDelay(...) allows"
        case restart.Rate(failures_max, interval_ms):
            within_s = interval_ms / 1_000
            return (
                f"restart=pen.FailureRate(...) allows {failures_max} failures within {within_s:g} s"
            )
        case restart.Never():
            return "which is not counted"
        case _:
            assert_never(strategy)
