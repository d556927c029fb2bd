"""Which faults a schedule may have: a random choice of all, or what the user asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TypeAlias

from penstock.errors import ConfigError
from penstock.shells.sim import faults as sim
from penstock.shells.sim.faults import RATES, Faults

Choose: TypeAlias = Callable[[Random, bool], Faults]
"""From dice, and whether rows live in the driver only."""

ABOUT_STORAGE_ONLY = ("damage",)
"""Damaged checkpoints end a job on purpose: they say nothing about a pipeline."""
ROWS_IN_DRIVER = ("driver_crash", "second_driver", "cancel", "drop_message")
"""Rows that are handed to a driver go with it. They travel in a control message, and while a connection lives none of
those is really lost."""

FAULTS = tuple(kind for kind in RATES if kind not in ABOUT_STORAGE_ONLY)
"""The names that `simulate(faults=...)` takes."""


def chooser(wanted: Faults | Iterable[str] | None) -> Choose:
    """How the faults of a seed are chosen."""
    if isinstance(wanted, Faults):
        fixed = wanted
        return lambda _rng, _bound: fixed
    if wanted is None:
        return _any
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        _check(name)
    return lambda rng, _bound: _these(rng, names)


def _any(rng: Random, bound_to_driver: bool) -> Faults:
    """Many schedules have few kinds of faults, so that each also shows on its own."""
    drawn = sim.draw(rng)
    without = (*ABOUT_STORAGE_ONLY, *(ROWS_IN_DRIVER if bound_to_driver else ()))
    return replace(drawn, **dict.fromkeys(without, 0.0))


def _these(rng: Random, names: tuple[str, ...]) -> Faults:
    rates = {name: rng.choice([rate for rate in RATES[name] if rate]) for name in names}
    return replace(Faults(), **rates)


def _check(name: object) -> None:
    if name in FAULTS:
        return
    if name in ABOUT_STORAGE_ONLY:
        raise ConfigError(
            f"simulate: {name!r} is left out here: a job without a checkpoint that can be read ends for good, whatever"
            " the pipeline is"
        )
    close = difflib.get_close_matches(str(name), FAULTS, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(FAULTS)}"
    raise ConfigError(f"simulate: there is no fault {name!r}; {hint}")
