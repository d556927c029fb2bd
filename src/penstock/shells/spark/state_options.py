"""The options of `spark.read.format("penstock")`.

Conditions on the key are options, and not taken from the DataFrame's filters: Spark 4 pushes filters to Python data
sources only where it is told to, and then goes on to use what it has planned for one filter for other queries over the
same DataFrame. Rows would be missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.engine.checkpoints.leases import LEASE_MS, LEASE_MS_MAX
from penstock.engine.reading.choosing import likeliest, told
from penstock.engine.reading.request import Request, make_request
from penstock.errors import ConfigError
from penstock.plan.duration import parse_duration_ms
from penstock.storage.filesystem import FilesystemStore
from penstock.storage.memory import MEMORY

OPTIONS = ("path", "checkpoint", "kind", "operator", "state", "lease")
STORAGE = "storage."
"""Before the name of an option that is for fsspec."""
WHERE = "where."
"""Before a column of the key."""


@dataclass(frozen=True)
class StateOptions:
    """What is wanted, and what the store needs for it."""

    request: Request
    lease_ms: float
    storage: Mapping[str, Any] = field(repr=False)

    def open(self) -> FilesystemStore:
        return FilesystemStore.to_read(self.request.root, self.storage)


def parse_options(given: Mapping[str, str]) -> StateOptions:
    """Raises ConfigError for options that there are not. Spark does not tell upper from lower case in their names."""
    named = {name.lower(): value for name, value in given.items()}
    storage = storage_options(named)
    where = _below(WHERE, named)
    wanted = {n: value for n, value in named.items() if not n.startswith((STORAGE, WHERE))}
    for name in wanted:
        if name not in OPTIONS:
            known = [*OPTIONS, f"{WHERE}<column>", f"{STORAGE}<name>"]
            raise ConfigError(f"there is no option {name!r}{likeliest(name, known)}; {told(known)}")
    path = wanted.pop("path", "")
    if not path.strip():
        raise ConfigError('name the job\'s folder: .load("<checkpoint directory>/<job>")')
    lease_ms = _lease_ms(wanted.pop("lease", None))
    return StateOptions(make_request(_absolute(path), **wanted, where=where), lease_ms, storage)


def storage_options(named: Mapping[str, str]) -> dict[str, Any]:
    """Those for fsspec, out of all of them by their names in lower case."""
    return {name: _storage_value(value) for name, value in _below(STORAGE, named).items()}


def _below(prefix: str, named: Mapping[str, str]) -> dict[str, str]:
    return {n.removeprefix(prefix): value for n, value in named.items() if n.startswith(prefix)}


def _lease_ms(text: str | None) -> float:
    if text is None:
        return LEASE_MS
    length_ms = parse_duration_ms(text, "lease")
    if not 0 < length_ms <= LEASE_MS_MAX:
        raise ConfigError(f"lease: {text!r} must be above zero and not longer than an hour")
    return length_ms


def _absolute(path: str) -> str:
    """Tasks may have another working directory."""
    return (
        path
        if "://" in path or path.startswith(MEMORY)
        else str(Path(path).expanduser().absolute())
    )


def _storage_value(text: str) -> Any:
    """Options of Spark are text. What fsspec wants as true, false, a mapping or a list is written as JSON has it."""
    if text in ("true", "false") or text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
