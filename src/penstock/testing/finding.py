"""What a simulation found: which rule does not hold, what was expected, what was seen, and where to look."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

SHORT = 60
LINES_MAX = 40
FIRST_LINES = 8
"""How many lines of the beginning are shown of what is too long."""
AGAIN_MIN = 10
"""From so many lines on that all were there before they are left out."""
COUNTS_UP = re.compile(
    r"^ *[\d.]+ ms|(?<=attempt )\d+ *|(?<=chk-)\d+|(?<=prepare\()\d+|(?<=launch )\d+"
)
"""What is another number every time that the same thing happens."""


@dataclass(frozen=True)
class Call:
    """One call to a source or sink of the user, in virtual time."""

    at_ms: float
    where: str
    """Which sink or source, and which subtask of it in which attempt."""
    what: str
    transaction: str = ""

    def __str__(self) -> str:
        return f"{self.at_ms:9.1f} ms  {self.where:<28} {self.what}"


def short(value: object) -> str:
    """A value as it fits into one line of a trace."""
    text = repr(value)
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."


def shortened(lines: Sequence[str]) -> list[str]:
    """Lines of a trace that are too many. What comes again and again is shown once; else it is the end where it breaks,
    and the beginning that says how it came there."""
    if len(lines) <= LINES_MAX:
        return list(lines)
    made = [line for run in _runs(lines) for line in _once(run)]
    return made if len(made) <= LINES_MAX else _cut(made)


def _runs(lines: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Lines that are new and lines that were there before, by turns, each with what it says whenever it comes."""
    alike = [(line, COUNTS_UP.sub("", line)) for line in lines]
    first = {said: at for at, (_, said) in reversed(list(enumerate(alike)))}
    numbered = enumerate(alike)
    for _, run in groupby(numbered, key=lambda entry: first[entry[1][1]] == entry[0]):
        yield [pair for _, pair in run]


def _once(run: list[tuple[str, str]]) -> list[str]:
    times = max(Counter(said for _, said in run).values())
    if len(run) < AGAIN_MIN or times == 1:
        return [line for line, _ in run]
    return [f"... and this repeats {times:,} times ({len(run):,} lines)"]


def _cut(lines: Sequence[str]) -> list[str]:
    left_out = f"({len(lines) - LINES_MAX} lines here are in report.minimal.trace)"
    return [*lines[:FIRST_LINES], left_out, *lines[FIRST_LINES - LINES_MAX :]]


@dataclass(frozen=True)
class Finding:
    kind: str
    """A word for this kind of finding: a smaller schedule must fail in the same way."""
    rule: str
    """The rule that does not hold, with its number."""
    what: str
    expected: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    look_at: str = ""
    transactions: tuple[str, ...] = ()
    """Whose calls a person wants to see."""


RULES = {
    "I1": "exactly once: what comes out is what an undisturbed run gives",
    "I2": "exactly once: a checkpoint is a consistent cut",
    "I9": "nothing is seen before its checkpoint is complete",
    "I10": "a transaction becomes visible as a whole, once, however often it is committed",
    "I11": "nothing that was staged is left behind",
    "I25": "after the last fault the job goes on",
    "I27": "a job whose input ends finishes",
}


def rule(invariant: str) -> str:
    told = RULES.get(invariant)
    return f"{invariant}, {told}" if told else invariant


OF_PENSTOCK = (
    "This rule is Penstock's own to keep. Unless the pipeline changes things behind its back, it is a bug in"
    " Penstock: please report it with this text."
)
