"""Work aside of the loop: results come back on the loop's thread, and nothing outlives close."""

from __future__ import annotations

import threading

from penstock.shells.spark.background import ThreadBackground
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.wakeup import WakeUp
from tests.spark.ends import until


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
        release.wait(10)
        return "late"

    background.submit(slow, got.append, got.append)
    background.submit(lambda: "never begun", got.append, got.append)
    assert started.wait(10)
    background.close()
    release.set()
    until(lambda: not any(thread.is_alive() for thread in background._threads))
    assert background.poll() is False
    assert got == []


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
