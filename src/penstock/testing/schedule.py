"""One schedule of a user's pipeline, from the first row to the verdict, and what an undisturbed run gives."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, SimulationFailed
from penstock.testing.compare import View, difference
from penstock.testing.finding import Finding, rule
from penstock.testing.luck import Fault, Luck, Script
from penstock.testing.outside import calm
from penstock.testing.stage import Play, Stage
from penstock.testing.world import UserWorld

__tracebackhide__ = True
"""pytest shows the report, and not how it came about."""


@dataclass(frozen=True)
class Schedule:
    """What makes a run what it is."""

    seed: int
    script: Script | None = None
    parallelism: int | None = None


@dataclass(frozen=True)
class Expected:
    """What an undisturbed run gave, per sink: of the rows that reached it, and of what it shows."""

    views: Mapping[str, View]
    committed: Mapping[str, Any]
    visible: Mapping[str, Any]
    direct: frozenset[str]
    """Sinks that show rows without a commit."""
    rows_read: int


@dataclass(frozen=True)
class Run:
    schedule: Schedule
    finding: Finding | None
    struck: tuple[Fault, ...]
    world: UserWorld = field(repr=False)

    @property
    def attempts(self) -> int:
        return sum(driver.manager.machine.attempts for driver in self.world.cluster.drivers)


def run(stage: Stage, schedule: Schedule, expected: Expected) -> Run:
    """Plays a schedule with faults and compares what came out with what was expected."""
    with tempfile.TemporaryDirectory(prefix="penstock-sim-") as folder:
        play = Play(stage, Path(folder), schedule.parallelism)
        luck = Luck(schedule.seed, schedule.script)
        world = UserWorld(schedule.seed, luck, play.disturbed)
        for name, watch in play.watches.items():
            watch.writes_directly = name in expected.direct
        judge = _Judge(play, world, expected)
        world.scenario.judge = judge.judge
        finding = world.explore()
    return Run(schedule, finding, tuple(luck.struck), world)


def expect(stage: Stage) -> Expected:
    """Two undisturbed runs, cut into other batches and on other subtasks, must agree, or there is nothing to compare
    a disturbed one with."""
    stage.check()
    first, second = undisturbed(stage, 1), undisturbed(stage, 2)
    for name, view in first.committed.items():
        wrong = difference(second.committed[name], view)
        if wrong is not None:
            raise SimulationFailed(
                f"simulate: two undisturbed runs gave different rows in sink {name!r}: {wrong.summary}.\n"
                f"  first:  {'; '.join(wrong.expected)}\n  second: {'; '.join(wrong.seen)}\n"
                "Rows that depend on how the input was cut into batches (those behind a running aggregate do) have no"
                ' single right answer: compare the last row of each key, with compare=last_per("key"), or with a'
                " function of your own. Anything random or read from a clock must go."
            )
    return first


def undisturbed(stage: Stage, seed: int) -> Expected:
    with tempfile.TemporaryDirectory(prefix="penstock-sim-") as folder:
        play = Play(stage, Path(folder))
        world = UserWorld(seed, Luck(seed, frozenset()), play.undisturbed)
        with calm():
            finding = world.explore()
        if finding is not None:
            raise _broken_from_the_start(world, finding)
        views = play.views()
        committed = {n: views[n](w.committed_rows()) for n, w in play.watches.items()}
        visible = {n: views[n](w.visible_rows()) for n, w in play.watches.items()}
        direct = frozenset(n for n, w in play.watches.items() if w.writes_directly)
        return Expected(views, committed, visible, direct, world.rows_read)


def _broken_from_the_start(world: UserWorld, finding: Finding) -> ConfigError | SimulationFailed:
    """Without any fault: what the user wants to see is what their code raised."""
    if finding.kind == "rows":
        return ConfigError(f"simulate: {finding.what}. {finding.look_at}")
    failures = world.failures()
    if finding.kind == "I27" and failures:
        first = failures[0]
        place = f" in {first.operator!r}" if first.operator else ""
        told = f"{first.error}{place}: {first.message}\n{first.traceback}".rstrip()
    else:
        expected, seen = "; ".join(finding.expected), "; ".join(finding.seen)
        told = f"{finding.rule}: {finding.what}\n  expected: {expected}\n  seen: {seen}\n{finding.look_at}"
    return SimulationFailed(f"simulate: the pipeline fails without any fault: {told}")


class _Judge:
    """What must hold for the user's sinks when a schedule is over."""

    def __init__(self, play: Play, world: UserWorld, expected: Expected) -> None:
        self._play = play
        self._world = world
        self._expected = expected

    def judge(self, finished: bool, once: bool) -> None:
        if not finished:
            return
        for name, watch in self._play.watches.items():
            watch.check_visible("the end")
            self._compare(name, once)
            self._check_leftovers(name)

    def _compare(self, name: str, once: bool) -> None:
        watch, view = self._play.watches[name], self._expected.views[name]
        if not watch.writes_directly:
            wrong = difference(
                view(watch.committed_rows()), self._expected.committed[name], once=once
            )
            if wrong is not None:
                what = f"rows committed to sink {name!r}: {wrong.summary}"
                finding = Finding(
                    f"rows {name}", rule("I1"), what, wrong.expected, wrong.seen, BEFORE_THE_SINK
                )
                self._world.found(finding)
        if not watch.is_exact:
            wrong = difference(view(watch.visible_rows()), self._expected.visible[name], once=once)
            if wrong is not None:
                what = f"rows visible in sink {name!r}: {wrong.summary}"
                finding = Finding(
                    f"shown {name}", rule("I1"), what, wrong.expected, wrong.seen, DIRECT
                )
                self._world.found(finding)

    def _check_leftovers(self, name: str) -> None:
        """What a worker staged that nobody knew to be alive is not held against the sink."""
        zombies = [t for t in self._world.table.prepared.values() if t.by_zombie]
        left = 0 if zombies else self._play.leftovers(name)
        if left:
            what = f"sink {name!r}: {left} staged when the job is over"
            finding = Finding(
                f"left {name}", rule("I11"), what, ("0 staged",), (f"{left} staged",), LEFT
            )
            self._world.found(finding)


BEFORE_THE_SINK = (
    "What comes before the sink. A source must give the same rows again from the positions it returned"
    " (source_conformance checks that); a function must keep what it remembers in state (ctx.value_state), never in"
    " self, in a closure or in a global, because only state goes back in time with the job."
)
DIRECT = (
    "This sink shows rows without waiting for a commit (prepare() returned None, or it is idempotent), so rows that"
    " are replayed after a failure are written again: writing the same rows twice must change nothing, as an upsert by"
    " key does, or the rows must wait for commit()."
)
LEFT = (
    "abort_others() of this sink: it must remove everything that earlier attempts staged for this subtask, and for"
    " those whose place it took after a rescale, except what is in `keep`."
)
