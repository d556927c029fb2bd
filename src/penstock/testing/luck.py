"""Which faults strike: drawn with a seed at first, then, to find a smaller schedule that fails, by a script.

A fault is known by its kind and by which occasion it struck at: `("commit_error", 3)` is the third time that a commit
could have failed. So a schedule can be played again with some of its faults left out.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TypeAlias

from penstock.shells.sim.faults import STRIKES, Faults

Fault: TypeAlias = tuple[str, int]
Script: TypeAlias = frozenset[Fault]


class Luck:
    """The dice for faults are apart from those of the scheduler: leaving a fault out moves no other die."""

    def __init__(self, seed: int, script: Script | None = None) -> None:
        self.struck: list[Fault] = []
        self._rng = Random(seed)
        self._script = script
        self._occasions: Counter[str] = Counter()
        self._steps = 0
        self._strikes = {at: kind for kind, at in script or () if kind in STRIKES}

    def happens(self, kind: str, rate: float) -> bool:
        if rate <= 0:
            return False
        self._occasions[kind] += 1
        fault = (kind, self._occasions[kind])
        hit = self._rng.random() < rate if self._script is None else fault in self._script
        if hit:
            self.struck.append(fault)
        return hit

    def strike(self, faults: Faults) -> str | None:
        """At most one fault from outside, per step of the scheduler."""
        self._steps += 1
        if self._script is None:
            kind = self._drawn(faults)
        else:
            kind = self._strikes.get(self._steps)
        if kind is not None:
            self.struck.append((kind, self._steps))
        return kind

    def _drawn(self, faults: Faults) -> str | None:
        dice = self._rng.random()
        for kind in STRIKES:
            dice -= getattr(faults, kind)
            if dice < 0:
                return kind
        return None
