"""All known bugs, by name: importing this file registers them."""

from __future__ import annotations

from tests.mutants import (
    barriers,
    commits,
    coordination,
    copies,
    files,
    hosts,
    in_driver,
    inflight,
    keyed_state,
    lives,
    loading,
    orders,
    overlooked,
    places,
    retention,
    rows,
    segments,
    staging,
    stores,
    tables,
)
from tests.mutants.registry import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "barriers",
    "commits",
    "coordination",
    "copies",
    "files",
    "hosts",
    "in_driver",
    "inflight",
    "keyed_state",
    "lives",
    "loading",
    "orders",
    "overlooked",
    "places",
    "retention",
    "rows",
    "segments",
    "staging",
    "stores",
    "tables",
]
