"""Which table of a checkpoint somebody means: by kind, operator and state, each of which may be left out where there is
only one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import assert_never

from penstock.engine.reading.flying import inflight_tables
from penstock.engine.reading.keyed import state_tables
from penstock.engine.reading.listings import Listing, operators, positions
from penstock.engine.reading.tables import Table
from penstock.errors import ConfigError
from penstock.wire.manifest import Manifest


class Kind(StrEnum):
    """What of a checkpoint is read."""

    STATE = "state"
    POSITIONS = "positions"
    INFLIGHT = "inflight"
    OPERATORS = "operators"


@dataclass(frozen=True)
class Choice:
    """What somebody asked for; None where it was left out."""

    kind: Kind = Kind.STATE
    operator: str | None = None
    state: str | None = None


def kind_of(text: str) -> Kind:
    known = [str(kind) for kind in Kind]
    if text not in known:
        raise ConfigError(f"kind: there is no {text!r}{likeliest(text, known)}; {told(known)}")
    return Kind(text)


def choose(manifest: Manifest, choice: Choice) -> Table:
    """Raises ConfigError, with what there is, where it is not one table that is meant."""
    where = f"checkpoint {manifest.checkpoint} of job {manifest.job!r}"
    match choice.kind:
        case Kind.STATE:
            return _one_of(state_tables(manifest), choice, f"{where} has no state")
        case Kind.INFLIGHT:
            nothing = f"{where} has no rows in flight: only unaligned checkpoints have some"
            return _one_of(inflight_tables(manifest), choice, nothing)
        case Kind.POSITIONS:
            return _about(positions(manifest), choice, "positions of")
        case Kind.OPERATORS:
            return _about(operators(manifest), choice, "state of")
        case _:
            assert_never(choice.kind)


def _one_of(tables: Sequence[Table], choice: Choice, nothing: str) -> Table:
    if not tables:
        raise ConfigError(nothing)
    names = list(dict.fromkeys(table.operator for table in tables))
    operator = _named("operator", choice.operator, names, "")
    of_it = {table.state: table for table in tables if table.operator == operator}
    return of_it[_named("state", choice.state, list(of_it), f" of operator {operator!r}")]


def _named(what: str, given: str | None, known: Sequence[str], of: str) -> str:
    if given is None:
        if len(known) > 1:
            raise ConfigError(
                f"name the {what}{of} that is meant, as in {what}={known[0]!r}; {told(known)}"
            )
        return known[0]
    if given not in known:
        hint = likeliest(given, known)
        raise ConfigError(f"there is nothing of {what} {given!r}{of}{hint}; {told(known)}")
    return given


def _about(listing: Listing, choice: Choice, what: str) -> Listing:
    if choice.state is not None:
        raise ConfigError(f"state={choice.state!r} does not go with kind={str(choice.kind)!r}")
    if choice.operator is None:
        return listing
    known = listing.operators
    if choice.operator not in known:
        hint = likeliest(choice.operator, known)
        raise ConfigError(f"there are no {what} operator {choice.operator!r}{hint}; {told(known)}")
    return listing.about(choice.operator)


def likeliest(name: str, known: Iterable[str]) -> str:
    """What may have been meant, to be put behind a name that is not there."""
    folded = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), list(folded), 1)
    return f" (did you mean {folded[near[0]]!r}?)" if near else ""


def told(known: Sequence[str]) -> str:
    return f"there are: {', '.join(map(repr, known))}" if known else "there are none"
