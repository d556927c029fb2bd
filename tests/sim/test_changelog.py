"""Schedules of jobs that write their state ahead of checkpoints: no invariant may break."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from penstock.engine.spec import Changelogs
from penstock.engine.worker import writing_ahead
from penstock.shells.sim.scenario import Drawn, draw_everything
from penstock.shells.sim.world import Violation, World
from penstock.state import changelog
from penstock.wire import paths

FIRST = 400_000
SCHEDULES = 120


def logged(world: World, rng: Random) -> Drawn:
    """What the seed draws, with a changelog: few rows are many, and all rows are written all the time. A job that is
    started again may have none."""
    drawn = draw_everything(world, rng)
    limits = Changelogs(rng.choice((1.0, 5.0, 50.0)), ahead_bytes=rng.choice((1, 1, 100)))
    inline = rng.choice((0, 0, 300))
    first = replace(drawn.keeping, incremental=True, in_driver=False, changelog=limits)
    later = replace(drawn.keeping_later or first, in_driver=False)
    later = replace(later, changelog=rng.choice((limits, limits, None)))
    settings = replace(drawn.settings, inline_bytes_max=inline)
    return replace(drawn, settings=settings, keeping=first, keeping_later=later)


def run(seed: int, written: Counter[str]) -> str:
    world = World(seed, draw=logged)
    try:
        world.run()
    except Violation as violation:
        return f"seed {seed}: {violation}"
    for manifest in world.checkers.manifests.values():
        written.update({shared.role for shared in paths.shared_among(manifest.files)})
    return ""


@pytest.mark.timeout(1800)
def test_schedules_with_a_changelog_break_no_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7, T4, I1-I14, bug-D1, bug-D6, bug-D7, bug-D9, bug-D10, bug-D13, bug-D15."""
    monkeypatch.setattr(writing_ahead, "LOOK_EVERY_MS", 1.0)
    monkeypatch.setattr(writing_ahead, "RETRY_MS", 10.0)
    monkeypatch.setattr(changelog, "SMALL_MAX", 2)
    written: Counter[str] = Counter()
    failures = [found for n in range(SCHEDULES) if (found := run(FIRST + n, written))]
    assert not failures, failures[:5]
    assert min(written["log"], written["base"]) > SCHEDULES // 2, (
        "too few: the schedules prove little"
    )
