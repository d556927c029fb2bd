"""A few daemon threads for writes, commits and storage; results go back to the loop through `poll`.

Not `concurrent.futures`: its threads are joined when the interpreter ends, so one stuck upload would keep a
worker from leaving.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class ThreadBackground:
    """`ports.background.Background` with threads. `wake` interrupts the loop's wait; it must be thread-safe."""

    def __init__(self, threads: int = 2, wake: Callable[[], None] = lambda: None) -> None:
        self._work: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._ended: deque[Callable[[], None]] = deque()
        self._wake = wake
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"penstock-background-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

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

    def poll(self) -> bool:
        delivered = False
        while self._ended and not self._closed:
            self._ended.popleft()()
            delivered = True
        return delivered

    def close(self) -> None:
        self._closed = True
        self._ended.clear()
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (carry_out := self._work.get()) is not None:
            if self._closed:
                continue
            result = carry_out()
            if not self._closed:
                self._ended.append(result)
                self._wake()
            del carry_out, result
