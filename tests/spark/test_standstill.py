"""Stopped processes are found and ended; nobody else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from penstock.shells.spark.standstill import Process, end_if_stopped, find, numbering
from tests.spark.ends import PATIENCE_S, until

pytestmark = pytest.mark.skipif(not numbering(), reason="needs the /proc of Linux")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def stopped(child: subprocess.Popen[bytes]) -> Process:
    """The child, standing still."""
    found = find(child.pid, numbering())
    assert found is not None
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    return found


def test_a_stopped_process_is_ended(child: subprocess.Popen[bytes]) -> None:
    """R1."""
    assert end_if_stopped(stopped(child))
    assert child.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_that_runs_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    found = find(child.pid, numbering())
    assert found is not None
    assert not end_if_stopped(found)
    assert child.poll() is None


def test_a_process_that_got_the_number_of_another_is_left_alone(
    child: subprocess.Popen[bytes],
) -> None:
    """Numbers are used again: the start of the process is part of who it is."""
    earlier = replace(stopped(child), started="1")
    assert not end_if_stopped(earlier)
    assert child.poll() is None


def test_a_process_that_is_gone_is_no_error(child: subprocess.Popen[bytes]) -> None:
    found = find(child.pid, numbering())
    assert found is not None
    child.kill()
    child.wait()
    assert not end_if_stopped(found)
    assert find(child.pid, numbering()) is None


@pytest.mark.parametrize("numbered_by", ["", "another machine"])
def test_a_number_of_another_machine_finds_nobody(numbered_by: str) -> None:
    """A worker in another container or on another host may have the number of any process here."""
    assert find(os.getpid(), numbered_by) is None


def test_a_child_has_the_numbering_of_its_parent() -> None:
    code = "from penstock.shells.spark.standstill import numbering; print(numbering())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == numbering()
