"""Where rows of state lie that are not in memory: bytes by key, on a worker's own disk.

A floor belongs to one state of one subtask of one attempt. Keys sort as bytes do. What is written survives nothing:
only what `keep` handed out, and a checkpoint took along, is there after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

FIRST_MEMBER = "CURRENT"
"""A floor's files begin with this one."""

Members: TypeAlias = Mapping[str, Callable[[], Iterable[bytes]]]
"""Files by name, and how the pieces of each are read."""


class Kept(Protocol):
    """A floor's files as they were at one moment. They do not change."""

    @property
    def members(self) -> Mapping[str, int]:
        """Names and sizes, `FIRST_MEMBER` first."""
        ...

    def is_lasting(self, member: str) -> bool:
        """No other file of this floor will ever have this name."""
        ...

    def read(self, member: str) -> Iterator[bytes]:
        """Piece by piece, none larger than a few megabytes."""
        ...

    def release(self) -> None: ...


class Moment(Protocol):
    """A floor as it was, for whoever reads a few rows of it later, on any thread."""

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...


class Floor(Protocol):
    alone: AbstractContextManager[object]
    """Held by a thread that writes down what others must not write meanwhile. The same thread may hold it twice."""

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...

    def remove(self, keys: Sequence[bytes]) -> None: ...

    def remove_range(self, first: bytes, end: bytes) -> None:
        """All rows from this key on and before the other."""
        ...

    def scan(self, first: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows in the order of their keys, from this key on and before the other."""
        ...

    def below(self, prefixes: Sequence[bytes]) -> Sequence[Sequence[tuple[bytes, bytes]]]:
        """For each, the rows whose keys begin with it, in order."""
        ...

    def moment(self) -> Moment:
        """What it has now, noted in constant time."""
        ...

    def keep(self) -> Kept:
        """All that was written so far. Blocks; on any thread."""
        ...

    def close(self) -> None:
        """Removes it."""
        ...


class Floors(Protocol):
    """All floors of one attempt on one worker."""

    def open(self, members: Members | None = None) -> Floor:
        """A new one, or one that begins with these files."""
        ...

    def close(self) -> None:
        """Removes all of them. Also fine while a piece of work still uses one: it fails."""
        ...
