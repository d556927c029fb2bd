"""Bugs of reading state back on several threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import Any

from penstock.engine.worker.loading import Loading
from penstock.shells.spark import ahead
from penstock.shells.spark.ahead import _Crew, _Piece
from tests.mutants.registry import swapped, tested

AHEAD = "tests/spark/test_ahead.py"
LOADING = "tests/engine/test_loading.py"


@tested(f"{AHEAD}::test_what_one_raises_is_raised_in_its_turn")
def a_read_that_fails_is_passed_over() -> AbstractContextManager[None]:
    """A block that cannot be read is left out, and the state is restored without its rows (T5, I2)."""

    def result(self: Any) -> Any:
        self._over.wait()
        return getattr(self, "_value", None)

    return swapped(_Piece, "result", result)


@tested(f"{AHEAD}::test_results_come_in_order_whatever_ends_first")
def blocks_come_as_they_are_ready() -> AbstractContextManager[None]:
    """What was read last is loaded first: a later segment no longer has the last word (I2)."""

    class Backwards(ahead.deque[Any]):
        def popleft(self) -> Any:
            return self.pop()

    return swapped(ahead, "deque", Backwards)


@tested(f"{AHEAD}::test_what_one_raises_is_raised_in_its_turn")
def threads_that_read_ahead_stay() -> AbstractContextManager[None]:
    """Every restore leaves its threads behind (bug-D21)."""
    return swapped(_Crew, "close", lambda self: None)


@tested(f"{LOADING}::test_an_attempt_whose_operator_fails_reads_no_further")
def a_failed_attempt_reads_on() -> AbstractContextManager[None]:
    """What was read ahead for an operator that failed is held on to as long as its error is (bug-D21)."""
    return swapped(Loading, "close", lambda self: None)


@tested(f"{AHEAD}::test_few_results_wait_to_be_taken")
def all_of_the_state_is_read_ahead() -> AbstractContextManager[None]:
    """All blocks wait in memory for an operator that is slower than the store (I25)."""
    original = ahead.in_order

    def eager(works: Iterable[Callable[[], Any]], threads: int = 4, **_: Any) -> Generator[Any]:
        return original(works, threads, 1 << 30)

    return swapped(ahead, "in_order", eager)
