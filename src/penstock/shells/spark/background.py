"""A few daemon threads for writes, commits and storage; results go back to the loop through `poll`.

Not `concurrent.futures`: its threads are joined when the interpreter ends, so one stuck upload would keep a
worker from leaving. And its pools have a fixed size: a commit that hangs (a connection that is half open) keeps its
thread, also when its attempt is long over, and two of them would leave none for the snapshots of this process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from typing import TypeVar

from penstock.shells.spark.ahead import in_order

T = TypeVar("T")

THREADS_MAX = 64
"""What hangs is kept company by so many at most."""


class ThreadBackground:
    """`ports.background.Background` with threads. `wake` interrupts the loop's wait; it must be thread-safe.

    `threads` are there all the time; while all are busy further work gets threads of its own, which end with it. How
    much is under way is for whoever submits it to limit: a commit per sink, a write per snapshot. With no thread at
    all nothing is ever carried out."""

    def __init__(self, threads: int = 2, wake: Callable[[], None] = lambda: None) -> None:
        self._work: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._ended: deque[Callable[[], None]] = deque()
        self._wake = wake
        self._closed = False
        self._usual = threads
        self._lock = threading.Lock()
        self._under_way = 0
        """Pieces of work that were submitted and have not ended."""
        self._started = 0
        self._threads: list[threading.Thread] = []
        for _ in range(threads):
            self._start_thread()

    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        if self._closed:
            return

        def carry_out() -> Callable[[], None]:
            try:
                value = work()
            except BaseException as error:
                problem = error
                return lambda: failed(problem)
            return lambda: done(value)

        self._work.put(carry_out)
        with self._lock:
            self._under_way += 1
            if 0 < self._usual <= len(self._threads) < min(self._under_way, THREADS_MAX):
                self._start_thread()

    def each(self, works: Iterable[Callable[[], T]]) -> Generator[T]:
        return in_order(works)

    def poll(self) -> bool:
        delivered = False
        while self._ended and not self._closed:
            self._ended.popleft()()
            delivered = True
        return delivered

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._ended.clear()
            for _ in self._threads:
                self._work.put(None)

    def _start_thread(self) -> None:
        name = f"penstock-background-{self._started}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started += 1
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (carry_out := self._work.get()) is not None:
            if self._closed:
                continue
            result = carry_out()
            if not self._closed:
                self._ended.append(result)
                self._wake()
            del carry_out, result
            if self._is_one_too_many():
                return

    def _is_one_too_many(self) -> bool:
        """A piece of work has ended. The thread of one that hangs counts: it may be needed in its place."""
        with self._lock:
            self._under_way -= 1
            if self._closed or len(self._threads) <= max(self._usual, self._under_way):
                return False
            self._threads.remove(threading.current_thread())
            return True
