"""Pieces of work side by side, on threads of their own, with their results in order: how state is read back.

The threads are there for one row of pieces and end with it, also when it is given up half way. Nobody waits for their
ends: a read that hangs must not keep a failure from being told, and a daemon thread keeps no process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

THREADS = 4
AHEAD = 8
"""So many results at most are there, or being made, that nobody has taken yet: blocks of state are large."""


class _Piece(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._over = threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def carry_out(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def result(self) -> T:
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._value


class _Crew(Generic[T]):
    """Threads that are started as there is work for them."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._threads = 0
        self._work: SimpleQueue[_Piece[T] | None] = SimpleQueue()
        self._over = False

    def begin(self, piece: _Piece[T]) -> None:
        self._work.put(piece)
        if self._threads < self._threads_max:
            name = f"penstock-ahead-{self._threads}"
            self._threads += 1
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """What has not begun never does."""
        self._over = True
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (piece := self._work.get()) is not None:
            if not self._over:
                piece.carry_out()
            del piece


def in_order(
    works: Iterable[Callable[[], T]], threads: int = THREADS, ahead: int = AHEAD
) -> Generator[T]:
    """The part of `ports.background.Background` for those who wait for results."""
    crew: _Crew[T] = _Crew(threads)
    waiting: deque[_Piece[T]] = deque()
    try:
        for work in works:
            piece = _Piece(work)
            waiting.append(piece)
            crew.begin(piece)
            del piece
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        crew.close()
