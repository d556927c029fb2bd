"""Files that are made piece by piece: how a store without a way of its own to do so begins one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.ports.store import Writing


class Collected:
    """Keeps the pieces in memory and hands them over when the file is whole: for stores that are memory themselves."""

    def __init__(self, store: Callable[[Sequence[bytes]], int]) -> None:
        self._store = store
        self._pieces: list[bytes] = []

    def write(self, chunk: bytes | memoryview) -> None:
        self._pieces.append(bytes(chunk))

    def finish(self) -> int:
        return self._store(self._pieces)

    def discard(self) -> None:
        self._pieces = []


def write_all(file: Writing, chunks: Iterable[bytes | memoryview]) -> int:
    """A whole file or none."""
    try:
        for chunk in chunks:
            file.write(chunk)
        return file.finish()
    except BaseException:
        file.discard()
        raise
