"""Work that must not keep the loop waiting: writes of frozen state, commits, storage.

`work` runs elsewhere (a thread; in the simulator a later step) and must touch frozen data only.
`done` runs on the loop's own thread, from `poll`, with what `work` returned or raised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Background(Protocol):
    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None: ...

    def each(self, works: Iterable[Callable[[], T]]) -> Generator[T]:
        """The results of pieces of work, in order, for a loop that waits for them: a few are carried out ahead, side by
        side where there are threads. What one raises is raised in its turn; after that, or when the generator is
        closed, no other begins."""
        ...

    def poll(self) -> bool:
        """Delivers what has ended; True when anything was."""
        ...

    def close(self) -> None:
        """Waits for nothing: what ends later is dropped."""
        ...


def one_by_one(works: Iterable[Callable[[], T]]) -> Generator[T]:
    """`Background.each` without threads."""
    for work in works:
        yield work()
