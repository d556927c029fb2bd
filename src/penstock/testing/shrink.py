"""From a schedule that fails to a smaller one that fails in the same way: fewer faults, fewer subtasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.shells.sim.faults import STRIKES
from penstock.testing.luck import Script
from penstock.testing.schedule import Run, Schedule

Play = Callable[[Schedule], Run]
TRIES_MAX = 200
EARLY = 4
"""How many occasions of each kind are tried for a fault that is enough by itself."""


class Shrinker:
    def __init__(self, play: Play, first: Run, tries_max: int = TRIES_MAX) -> None:
        self._play = play
        self._left = tries_max
        self._kind = first.finding.kind if first.finding is not None else ""
        self.best = first

    def shrink(self) -> Run:
        """The smallest schedule that was found; the first one, at worst."""
        if self._one_fault(1) or self._one_fault(self.best.schedule.parallelism):
            return self.best
        whole = self._with(frozenset(self.best.struck))
        if not any(self._try(replace(whole, parallelism=p)) for p in self._parallelisms()):
            self._try(whole)
        self._drop_chunks()
        return self.best

    def _one_fault(self, parallelism: int | None) -> bool:
        """Often a single fault of a kind that struck is enough, if it comes early."""
        kinds = sorted({kind for kind, _ in self.best.struck if kind not in STRIKES})
        scripts = [frozenset({(kind, at)}) for at in range(1, EARLY + 1) for kind in kinds]
        scripts.insert(0, frozenset())
        return any(self._try(replace(self._with(s), parallelism=parallelism)) for s in scripts)

    def _parallelisms(self) -> tuple[int, ...]:
        return (1, 2) if self.best.schedule.parallelism is None else ()

    def _drop_chunks(self) -> None:
        """First halves, then quarters, then single faults, until none can go."""
        size = max(1, len(self.best.struck) // 2)
        while self._left > 0:
            if self._drop_one_chunk(size):
                continue
            if size == 1:
                return
            size //= 2

    def _drop_one_chunk(self, size: int) -> bool:
        faults = list(self.best.struck)
        for start in range(0, len(faults), size):
            rest = frozenset(faults[:start] + faults[start + size :])
            if self._try(self._with(rest)):
                return True
        return False

    def _with(self, script: Script) -> Schedule:
        return replace(self.best.schedule, script=script)

    def _try(self, schedule: Schedule) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        run = self._play(schedule)
        if run.finding is None or run.finding.kind != self._kind:
            return False
        self.best = run
        return True
