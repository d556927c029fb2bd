"""One schedule of a user's pipeline, from the first row to the verdict, and what an undisturbed run gives."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, SimulationFailed
from penstock.testing.compare import Difference, LastPer, View, difference
from penstock.testing.copies import SharedGlobals
from penstock.testing.finding import Finding, rule, shortened
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
    batches_read: int
    written: Mapping[str, Any]
    """To sinks that show rows without a commit."""
    silent: tuple[str, ...]
    """Sinks that showed no row at all."""
    seconds: float
    """Of the processor."""
    shared: tuple[str, ...]
    """Globals of modules that the pipeline changes."""


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
            watch.writes_directly, watch.learns = name in expected.direct, False
        judge = _Judge(play, world, expected)
        world.scenario.judge = judge.judge
        finding = world.explore()
    return Run(schedule, finding, tuple(luck.struck), world)


def expect(stage: Stage) -> Expected:
    """Two undisturbed runs, cut into other batches and on other subtasks, must agree, or there is nothing to compare
    a disturbed one with."""
    stage.check()
    first, second = undisturbed(stage, 1), undisturbed(stage, 2)
    for name in first.views:
        wrong = _disagreement(first, second, name)
        if wrong is not None:
            raise SimulationFailed(
                f"simulate: two undisturbed runs gave different rows in sink {name!r}: {wrong.summary}.\n"
                f"  first:  {'; '.join(wrong.expected)}\n  second: {'; '.join(wrong.seen)}\n"
                f"{_why_they_differ(first, second, name)}"
            )
    return replace(
        first,
        direct=first.direct | second.direct,
        seconds=min(first.seconds, second.seconds),
        shared=tuple(sorted({*first.shared, *second.shared})),
    )


def _disagreement(first: Expected, second: Expected, name: str) -> Difference | None:
    """In what was committed, or, where rows are shown without a commit, in what was seen."""
    of = [(first.visible, second.visible)]
    if name not in first.direct | second.direct:
        of.insert(0, (first.committed, second.committed))
    found = (difference(b[name], a[name], words=ONLY) for a, b in of)
    return next((wrong for wrong in found if wrong is not None), None)


def _why_they_differ(first: Expected, second: Expected, name: str) -> str:
    view, is_direct = first.views[name], name in first.direct & second.direct
    if is_direct and first.written[name] == second.written[name]:
        return f"The same rows were written to it in both runs. Look at {DIRECT_LOST}"
    if isinstance(view, LastPer):
        return f"They were compared by the last row of each {', '.join(view.columns)}. {NOT_AGAIN}"
    return f"{CUT} {NOT_AGAIN}"


def undisturbed(stage: Stage, seed: int) -> Expected:
    with tempfile.TemporaryDirectory(prefix="penstock-sim-") as folder:
        play = Play(stage, Path(folder))
        world = UserWorld(seed, Luck(seed, frozenset()), play.undisturbed)
        world.shared = SharedGlobals()
        began = time.process_time()
        with calm():
            finding = world.explore()
        seconds = time.process_time() - began
        finding = finding or _wrong_at_the_end(play)
        if finding is not None:
            raise _broken_from_the_start(world, finding)
        return _expected(play, world, seconds)


def _expected(play: Play, world: UserWorld, seconds: float) -> Expected:
    views = play.views()
    seen = {name: watch.visible_rows() for name, watch in play.watches.items()}
    direct = {name: watch for name, watch in play.watches.items() if watch.writes_directly}
    staged = {name: watch for name, watch in play.watches.items() if name not in direct}
    return Expected(
        views=views,
        committed={name: views[name](watch.committed_rows()) for name, watch in staged.items()},
        visible={name: views[name](rows) for name, rows in seen.items()},
        direct=frozenset(direct),
        rows_read=world.rows_read,
        batches_read=world.batches_read,
        written={name: views[name](watch.written_rows()) for name, watch in direct.items()},
        silent=tuple(name for name, rows in seen.items() if not rows),
        seconds=seconds,
        shared=tuple(sorted(world.shared.changed)) if world.shared is not None else (),
    )


def _wrong_at_the_end(play: Play) -> Finding | None:
    """What an undisturbed run shows about a sink without anything to compare it with."""
    views = play.views()
    for name, watch in play.watches.items():
        lost = watch.lost_when_nothing_failed(views[name])
        if lost is not None:
            return lost
        left = play.leftovers(name)
        if left:
            return _left_behind(name, left, KEPT)
    return None


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
        told = "\n".join([f"{finding.rule}: {finding.what}", *_told(world, finding)])
    return SimulationFailed(f"simulate: the pipeline fails without any fault: {told}")


def _told(world: UserWorld, finding: Finding) -> Iterator[str]:
    for name, rows in (("expected", finding.expected), ("seen", finding.seen)):
        if rows:
            yield f"  {name}: {'; '.join(rows)}"
    if finding.look_at:
        yield finding.look_at
    calls = [call for call in world.calls if call.transaction in finding.transactions]
    if calls:
        yield f"What the sink was asked for {finding.transactions[-1]}:"
    yield from shortened([str(call) for call in calls])


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
                hint = DIRECT_LOST if "rows lost" in wrong.summary else DIRECT
                finding = Finding(
                    f"shown {name}", rule("I1"), what, wrong.expected, wrong.seen, hint
                )
                self._world.found(finding)

    def _check_leftovers(self, name: str) -> None:
        """What a worker staged behind the end that nobody knew to be alive is not held against the sink."""
        left = 0 if self._world.table.prepared else self._play.leftovers(name)
        if left:
            self._world.found(_left_behind(name, left, LEFT))


def _left_behind(name: str, left: int, look_at: str) -> Finding:
    what = f"sink {name!r}: {left} staged when the job is over"
    return Finding(f"left {name}", rule("I11"), what, ("0 staged",), (f"{left} staged",), look_at)


ONLY = ("only in the first", "only in the second")
CUT = (
    "Rows that depend on how the input was cut into batches (those behind a running aggregate do) have no single right"
    ' answer: compare the last row of each key, with compare=last_per("key"), or with a function of your own.'
)
NOT_AGAIN = (
    "Look for what is not the same in another run: what a function keeps in self, in a closure or in a global of its"
    " module (each subtask has its own, and other rows; use ctx.value_state), random numbers, the clock, and the order"
    " in which rows of different subtasks arrive. After a restart they are not the same either."
)
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
DIRECT_LOST = (
    "write() and prepare() of this sink. It shows rows without a commit (prepare() returned None, or it is idempotent),"
    " so when prepare() returns, all rows so far must be where a reader finds them: flush what is buffered, and let"
    " errors out. What is still in memory is lost with the process, and the checkpoint counts it as done."
)
KEPT = (
    "commit() of this sink: nothing has failed, so all that was staged has been committed, and some of it is still"
    " there. commit() must take away what it has made visible (move it, do not copy it), and prepare() must stage"
    " nothing that it does not return. Is `staged` counting what was published, too?"
)
LEFT = (
    "abort_others() of this sink: it must remove everything that earlier attempts staged for this subtask, and for"
    " those whose place it took after a rescale, except what is in `keep`."
)
