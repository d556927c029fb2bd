"""Background work that must happen one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from penstock.ports.background import Background

T = TypeVar("T")


class State(Enum):
    WAITING = "waiting"
    UNDER_WAY = "under way"
    OVER = "over"


@dataclass(eq=False)
class Piece:
    """A piece of work that was handed in."""

    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    state: State = State.WAITING

    def take_back(self) -> None:
        """It is not done any more, unless it has begun."""
        if self.state is State.WAITING:
            self.state = State.OVER


class Serial:
    """A queue in front of a `Background`: the next piece begins when the one before has ended."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._waiting: deque[Piece] = deque()
        self._busy = False

    @property
    def idle(self) -> bool:
        waits = any(piece.state is State.WAITING for piece in self._waiting)
        return not self._busy and not waits

    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> Piece:
        piece = Piece(work, done, failed)
        self._waiting.append(piece)
        self._next()
        return piece

    def _next(self) -> None:
        while self._waiting and not self._busy:
            piece = self._waiting.popleft()
            if piece.state is State.WAITING:
                self._begin(piece)

    def _begin(self, piece: Piece) -> None:
        self._busy = True
        piece.state = State.UNDER_WAY

        def ended(tell: Callable[[Any], None], result: Any) -> None:
            self._busy = False
            piece.state = State.OVER
            try:
                tell(result)
            finally:
                self._next()

        self._background.submit(
            piece.work,
            lambda result: ended(piece.done, result),
            lambda error: ended(piece.failed, error),
        )
