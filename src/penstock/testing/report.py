"""What a person reads after a simulation: how much was tried, or what broke, why, and how to see it again."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.testing.finding import Call, Finding, shortened
from penstock.testing.schedule import Run

WIDTH = 110
LOUD = ("fault", "world", "person", "CHECKER")
WORKERS = ("joins", "is killed", "leaves", "stands still", "loses its driver")


@dataclass(frozen=True)
class Minimal:
    """The smallest schedule that was found to break the rule."""

    seed: int
    parallelism: int
    faults: tuple[str, ...]
    faults_at_first: int
    calls: tuple[Call, ...]
    """To the sink, for the transactions that are wrong."""
    trace: tuple[str, ...]
    """Everything that happened, line by line."""
    story: tuple[str, ...]
    """The lines of it that tell the story."""


@dataclass(frozen=True)
class Report:
    """What `simulate` did. `finding` and `minimal` are None when no rule was broken."""

    schedules: int
    checkpoints: int
    attempts: int
    faults: int
    rows: int
    """How many rows the sources have."""
    seconds: float
    finding: Finding | None = None
    minimal: Minimal | None = None
    silent: tuple[str, ...] = ()
    """Sinks that showed no row even when nothing failed: about them it says nothing."""

    @property
    def ok(self) -> bool:
        return self.finding is None

    def __str__(self) -> str:
        if self.finding is None or self.minimal is None:
            return self._good()
        return "\n".join(_violation(self.finding, self.minimal, self._tried()))

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        """How a notebook shows it."""
        printer.text(str(self))  # type: ignore[attr-defined]

    def _good(self) -> str:
        empty = (
            f", BUT NO ROW CAME OUT OF {', '.join(map(repr, self.silent))}" if self.silent else ""
        )
        return f"{self._tried()}: no rule was broken{empty}"

    def _tried(self) -> str:
        return (
            f"{_number(self.schedules, 'schedule')} of {_number(self.rows, 'row')} with"
            f" {_number(self.faults, 'fault')}, {_number(self.attempts, 'attempt')} and"
            f" {_number(self.checkpoints, 'checkpoint')} in {self.seconds:.1f} s"
        )


def minimal(run: Run, first: Run) -> Minimal:
    world = run.world
    finding = run.finding
    names = finding.transactions if finding is not None else ()
    lines = world.lines
    return Minimal(
        run.schedule.seed,
        world.scenario.parallelism,
        tuple(kind for kind, _ in run.struck),
        len(first.struck),
        tuple(call for call in world.calls if call.transaction in names and names),
        tuple(_line(*each) for each in lines),
        tuple(_line(*each) for each in lines if _tells(each[1], each[2])),
    )


def _tells(who: str, what: str) -> bool:
    if who in LOUD:
        return who != "CHECKER"
    if "[" in who:
        return True
    return what.startswith(WORKERS) or ("_metadata True" in what and "create" in what)


def _line(at_ms: float, who: str, what: str) -> str:
    return f"{at_ms:9.1f} ms  {who:<26} {what}"


def _violation(finding: Finding, found: Minimal, tried: str) -> list[str]:
    lines = [f"seed {found.seed} breaks a rule ({tried})", ""]
    lines += _item("rule", [finding.rule])
    lines += _item("what", [finding.what])
    lines += _item("expected", finding.expected)
    lines += _item("seen", finding.seen)
    lines += _item("look at", [finding.look_at] if finding.look_at else ())
    if found.calls:
        lines += ["", f"  What the sink was asked for {finding.transactions[-1]}:"]
        lines += [f"  {line}" for line in shortened([str(call) for call in found.calls])]
    lines += ["", f"  The smallest schedule found that breaks it: {_smallest(found)}"]
    lines += [f"  {line}" for line in shortened(found.story)]
    return [*lines, "", f"  See it again with simulate(..., seeds=[{found.seed}])"]


def _smallest(found: Minimal) -> str:
    counted = Counter(found.faults).items()
    which = ", ".join(kind if n == 1 else f"{n} x {kind}" for kind, n in counted) or "none"
    return f"parallelism {found.parallelism}, {len(found.faults)} of {found.faults_at_first} faults ({which})"


def _item(name: str, lines: Iterable[str]) -> list[str]:
    made: list[str] = []
    for line in lines:
        made += textwrap.wrap(line, WIDTH) or [""]
    return [f"  {name if number == 0 else '':<9} {line}" for number, line in enumerate(made)]


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
