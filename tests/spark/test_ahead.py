"""Pieces of work side by side: results in order, few of them ahead, errors in their turn, no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from penstock.shells.spark.ahead import in_order
from penstock.shells.spark.background import ThreadBackground
from tests.spark.ends import PATIENCE_S, until


def ours() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("penstock-ahead")]


def none_left() -> None:
    """bug-D21."""
    until(lambda: not ours(), within_s=60)


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    none_left()


class Gate:
    """A piece of work that ends when a test says so."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)
        return self.value


def test_results_come_in_order_whatever_ends_first() -> None:
    gates = [Gate(n) for n in range(3)]
    results = in_order(gates, threads=3, ahead=3)
    for gate in reversed(gates):
        gate.may_end.set()
    assert list(results) == [0, 1, 2]


def test_pieces_run_side_by_side() -> None:
    """R1: two wait for each other."""
    meeting = threading.Barrier(2, timeout=PATIENCE_S)
    assert len(list(in_order([meeting.wait] * 4, threads=2, ahead=4))) == 4


def test_a_later_one_is_done_while_the_first_is_waited_for() -> None:
    first, second = Gate(0), Gate(1)
    results = in_order([first, second], threads=2, ahead=2)
    found: list[int] = []
    taker = threading.Thread(target=lambda: found.extend(results))
    taker.start()
    assert second.begun.wait(PATIENCE_S)
    second.may_end.set()
    first.may_end.set()
    taker.join(PATIENCE_S)
    assert found == [0, 1]


def test_few_results_wait_to_be_taken() -> None:
    """I25: blocks are large; all of them together may not fit."""
    begun: list[int] = []

    def works() -> Iterator[Callable[[], None]]:
        for n in range(100):
            begun.append(n)
            yield lambda: None

    with closing(in_order(works(), threads=2, ahead=5)) as results:
        for taken in range(1, 90):
            next(results)
            assert len(begun) <= taken + 4


def fail(n: int) -> int:
    if n == 5:
        raise OSError(f"block {n} is gone")
    return n


def test_what_one_raises_is_raised_in_its_turn() -> None:
    """T5: what came before it is there, and nothing comes after it."""
    with closing(in_order([partial(fail, n) for n in range(50)])) as results:
        found = [next(results) for _ in range(5)]
        with pytest.raises(OSError, match="block 5 is gone"):
            next(results)
        assert found == [0, 1, 2, 3, 4]
        assert list(results) == []


def test_nothing_begins_when_it_was_given_up() -> None:
    """bug-D21: an operator that fails wants no more of it."""
    first, held = Gate(0), Gate(1)
    begun: list[int] = []
    results = in_order(
        [first, held, *[partial(begun.append, n) for n in range(5)]], threads=1, ahead=7
    )
    first.may_end.set()
    assert next(results) == 0
    assert held.begun.wait(PATIENCE_S)
    results.close()
    held.may_end.set()
    none_left()
    assert begun == []


def test_a_worker_reads_like_that() -> None:
    background = ThreadBackground(threads=0)
    meeting = threading.Barrier(2, timeout=PATIENCE_S)
    assert len(list(background.each([meeting.wait] * 2))) == 2
    background.close()
