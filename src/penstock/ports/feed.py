"""What the driver does for a source while the job runs: brings it rows, and removes those that nobody needs any more.

All calls come from the manager's loop and none waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.protocol.snapshot import Plain

Positions = Mapping[int, Plain]
"""Of a source, by lane."""


@dataclass(frozen=True)
class Trouble:
    """Something went wrong. `reason` begins with the name of an error and a colon; a `fatal` one ends the job."""

    reason: str
    fatal: bool = False


class Feed(Protocol):
    def begin(self, restored: Positions) -> None:
        """An attempt of this driver is about to run, from these positions; none at the beginning."""
        ...

    def retained(self, positions: Sequence[Positions]) -> None:
        """The positions in every checkpoint that may still be restored, oldest first."""
        ...

    def troubles(self) -> Sequence[Trouble]:
        """What went wrong since the last call."""
        ...
