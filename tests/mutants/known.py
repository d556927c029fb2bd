"""All known bugs, by name: importing this file registers them."""

from __future__ import annotations

from tests.mutants import (
    barriers,
    commits,
    coordination,
    files,
    hosts,
    inflight,
    lives,
    overlooked,
    places,
    retention,
    rows,
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
    "files",
    "hosts",
    "inflight",
    "lives",
    "overlooked",
    "places",
    "retention",
    "rows",
    "staging",
    "stores",
    "tables",
]
