"""What somebody wants to read, as a person or a program says it: a path, a checkpoint, a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.engine.reading.choosing import Choice, choose, kind_of
from penstock.engine.reading.stored import place_of, read_one
from penstock.engine.reading.tables import Table
from penstock.engine.reading.where import narrowed
from penstock.errors import ConfigError
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import CheckpointId
from penstock.wire.manifest import Manifest

LATEST = "latest"
_ID = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


class Found(NamedTuple):
    manifest: Manifest
    table: Table


@dataclass(frozen=True)
class Request:
    """`checkpoint` None: the newest when it is looked for."""

    root: str = field(repr=False)
    checkpoint: CheckpointId | None
    choice: Choice
    where: Mapping[str, str]
    """Columns of the key, or the key group, and the text of the value that each must have."""

    def find(self, store: CheckpointStore) -> Found:
        manifest = read_one(store, self.root, self.checkpoint)
        return Found(manifest, narrowed(choose(manifest, self.choice), self.where))


def make_request(
    path: str,
    checkpoint: str | None = None,
    kind: str | None = None,
    operator: str | None = None,
    state: str | None = None,
    where: Mapping[str, str] | None = None,
) -> Request:
    """Raises ConfigError for what nobody can mean. None: it was left out."""
    place = place_of(path)
    wanted = _checkpoint(checkpoint or LATEST)
    if None not in (wanted, place.checkpoint) and wanted != place.checkpoint:
        raise ConfigError(
            f"the path names checkpoint {place.checkpoint} and checkpoint={wanted} another one: leave one of them out"
        )
    choice = Choice(kind_of(kind or "state"), operator, state)
    return Request(place.root, place.checkpoint or wanted, choice, dict(where or {}))


def _checkpoint(text: str) -> CheckpointId | None:
    if text == LATEST:
        return None
    if not _ID.fullmatch(text):
        raise ConfigError(f'checkpoint={text!r} is no checkpoint: give its number, or "{LATEST}"')
    return CheckpointId(int(text))
