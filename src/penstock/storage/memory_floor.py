"""Floors in memory, with files as a database has them: each `keep` adds one, and now and then all become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count

import msgpack

from penstock.ports.floor import FIRST_MEMBER, Members

RUNS_MAX = 4
"""So many files; then they become one."""


class MemoryFloors:
    def __init__(self) -> None:
        self.opened: list[MemoryFloor] = []

    def open(self, members: Members | None = None) -> MemoryFloor:
        floor = MemoryFloor()
        if members is not None:
            floor.load({name: b"".join(pieces()) for name, pieces in members.items()})
        self.opened.append(floor)
        return floor

    def close(self) -> None:
        for floor in self.opened:
            floor.close()


@dataclass
class MemoryFloor:
    rows: dict[bytes, bytes] = field(default_factory=dict)
    closed: bool = False
    alone: AbstractContextManager[object] = field(default_factory=nullcontext)
    _changed: dict[bytes, bytes | None] = field(default_factory=dict)
    _runs: dict[str, bytes] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def load(self, members: Mapping[str, bytes]) -> None:
        names, used = msgpack.unpackb(members[FIRST_MEMBER])
        self._numbers = count(used)
        for name in names:
            self._runs[name] = members[name]
            for key, value in msgpack.unpackb(members[name]):
                if value is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        made = dict(zip(keys, values, strict=True))
        self.rows |= made
        self._changed |= made

    def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.rows.pop(key, None)
            self._changed[key] = None

    def remove_range(self, first: bytes, end: bytes) -> None:
        self.remove([key for key in self.rows if first <= key < end])

    def scan(self, first: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        inside = sorted(key for key in self.rows if key >= first and (end is None or key < end))
        return ((key, self.rows[key]) for key in inside)

    def below(self, prefixes: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
        return [
            [(key, self.rows[key]) for key in sorted(self.rows) if key.startswith(prefix)]
            for prefix in prefixes
        ]

    def moment(self) -> MemoryFloor:
        return MemoryFloor(dict(self.rows))

    def keep(self) -> KeptRuns:
        if len(self._runs) >= RUNS_MAX:
            self._runs, self._changed = {}, dict(self.rows)
        number = next(self._numbers)
        if self._changed:
            self._runs[f"{number}.run"] = msgpack.packb(sorted(self._changed.items()))
        self._changed = {}
        head = msgpack.packb([list(self._runs), number + 1])
        return KeptRuns({FIRST_MEMBER: head, **self._runs})

    def close(self) -> None:
        self.closed = True


@dataclass
class KeptRuns:
    files: Mapping[str, bytes]

    @property
    def members(self) -> Mapping[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def is_lasting(self, member: str) -> bool:
        return member != FIRST_MEMBER

    def read(self, member: str) -> Iterator[bytes]:
        yield self.files[member]

    def release(self) -> None:
        """Nothing is held for it."""
