"""Work aside of the loop: results come back on the loop's thread, and nothing outlives close."""

from __future__ import annotations

import threading
import weakref

from penstock.shells.spark.background import THREADS_MAX, ThreadBackground
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.wakeup import WakeUp
from tests.spark.ends import PATIENCE_S, until


def test_results_and_errors_are_handed_over_on_the_loops_thread() -> None:
    woken, got = threading.Event(), []
    background = ThreadBackground(wake=woken.set)
    here = threading.get_ident()
    background.submit(
        threading.get_ident, lambda there: got.append((there, threading.get_ident())), got.append
    )
    background.submit(lambda: 1 / 0, got.append, lambda error: got.append(type(error)))
    until(lambda: background.poll() is not None and len(got) == 2)
    assert woken.is_set()
    assert ZeroDivisionError in got
    (there, delivered) = next(each for each in got if isinstance(each, tuple))
    assert there != here and delivered == here
    background.close()


def test_what_ends_after_close_is_dropped_and_the_threads_end() -> None:
    """bug-I8: an upload of an old attempt that ends late changes nothing."""
    release, started, got = threading.Event(), threading.Event(), []
    background = ThreadBackground(threads=1)

    def slow() -> str:
        started.set()
        release.wait(PATIENCE_S)
        return "late"

    background.submit(slow, got.append, got.append)
    background.submit(lambda: "never begun", got.append, got.append)
    assert started.wait(PATIENCE_S)
    background.close()
    release.set()
    until(lambda: not any(thread.is_alive() for thread in background._threads))
    assert background.poll() is False
    assert got == []


def test_what_ends_after_close_wakes_nobody() -> None:
    """I26: the loop is gone, and with it what would be rung."""
    release, started, woken = threading.Event(), threading.Event(), threading.Event()
    background = ThreadBackground(threads=1, wake=woken.set)

    def slow() -> None:
        started.set()
        release.wait(PATIENCE_S)

    background.submit(slow, lambda _: None, lambda _: None)
    assert started.wait(PATIENCE_S)
    background.close()
    release.set()
    until(lambda: not any(thread.is_alive() for thread in background._threads))
    assert not woken.is_set()


def test_whatever_work_raises_is_told_and_the_thread_goes_on() -> None:
    """E3, I25: a commit that ends with sys.exit() would otherwise never end for whoever waits for it."""
    got: list[type[BaseException]] = []
    background = ThreadBackground(threads=1)
    for error in (SystemExit, KeyboardInterrupt, GeneratorExit, ValueError):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        background.submit(fail, lambda _: None, lambda raised: got.append(type(raised)))
    until(lambda: background.poll() is not None and len(got) == 4)
    assert got == [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError]
    background.close()


def test_work_that_hangs_does_not_keep_its_process_alive() -> None:
    """I26: an upload that never ends must not keep a worker from leaving."""
    release = threading.Event()
    background = ThreadBackground(threads=1)
    for _ in range(3):
        background.submit(lambda: release.wait(PATIENCE_S), lambda _: None, lambda _: None)
    assert len(background._threads) == 3
    assert all(thread.daemon for thread in background._threads)
    background.close()
    release.set()


def test_what_is_done_is_held_on_to_by_no_thread() -> None:
    """I26: the frozen state of a snapshot must go when it is written, not when the next one is."""

    class State:
        def __call__(self) -> State:
            return self

    got: list[object] = []
    background = ThreadBackground(threads=1)
    state = State()
    gone = weakref.ref(state)
    background.submit(state, lambda _: got.append(None), got.append)
    del state
    until(lambda: background.poll() is not None and len(got) == 1)
    until(lambda: gone() is None)
    background.close()


def test_work_that_hangs_leaves_room_for_other_work() -> None:
    """I25, bug-I8: commits that never return, of this attempt or an old one, keep no snapshot from being written."""
    release, got = threading.Event(), []
    background = ThreadBackground(threads=2)
    for _ in range(5):
        background.submit(lambda: release.wait(PATIENCE_S), got.append, got.append)
    for number in range(200):
        background.submit(lambda number=number: number, got.append, got.append)  # type: ignore[misc]
    until(lambda: background.poll() is not None and len(got) == 200)
    assert sorted(got) == list(range(200))
    release.set()
    until(lambda: background.poll() is not None and len(got) == 205)
    until(lambda: len(background._threads) == 2)
    background.submit(lambda: "on", got.append, got.append)
    until(lambda: background.poll() is not None and got[-1] == "on")
    threads = list(background._threads)
    background.close()
    until(lambda: not any(thread.is_alive() for thread in threads))


def test_what_hangs_gets_a_limited_number_of_threads() -> None:
    """I26."""
    release = threading.Event()
    background = ThreadBackground(threads=2)
    for _ in range(THREADS_MAX + 20):
        background.submit(lambda: release.wait(PATIENCE_S), lambda _: None, lambda _: None)
    threads = list(background._threads)
    assert len(threads) == THREADS_MAX
    background.close()
    release.set()
    until(lambda: not any(thread.is_alive() for thread in threads))


def test_a_bell_rung_after_it_was_closed_harms_nobody() -> None:
    bell = WakeUp()
    for _ in range(100_000):
        bell.ring()
    bell.clear()
    bell.close()
    bell.ring()
    bell.clear()


def test_the_real_clock_goes_forward() -> None:
    clock = RealClock()
    first = clock.monotonic_ms()
    assert clock.monotonic_ms() >= first
    assert clock.wall_ms() > 1.7e12
