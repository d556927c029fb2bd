"""Real processes are killed, stopped and woken at random for as long as one likes: `make chaos CHAOS_ROUNDS=n`. A short
slice of it is part of every run of all tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.frame_plays import play_with_frames
from tests.chaos.plays import play_with_drivers, play_with_workers
from tests.spark.ends import on_another_machine

pytestmark = pytest.mark.spark
LONG = [pytest.mark.chaos, pytest.mark.timeout(3600)]
HOW_LONG = ["short", pytest.param("long", marks=LONG)]


@pytest.mark.parametrize("how_long", HOW_LONG)
def test_workers_are_killed_and_stopped_at_random(
    spark: Any,
    tmp_path: Path,
    how_long: str,
    rounds: int,
    draw: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R1, I1, I2, I26, bug-I1, bug-I5, bug-F20: out of the driver's reach, so that who was stopped wakes up."""
    on_another_machine(monkeypatch)
    play_with_workers(spark, tmp_path, rounds if how_long == "long" else 4, draw)


@pytest.mark.parametrize("how_long", HOW_LONG)
def test_drivers_are_killed_at_random_and_started_again(
    tmp_path: Path, how_long: str, rounds: int, draw: random.Random
) -> None:
    """R5, I1, I2, I7, I18: killed at any moment of their life, also while they start or recover."""
    play_with_drivers(tmp_path, max(2, rounds // 4) if how_long == "long" else 2, draw)


@pytest.mark.parametrize(
    ("kind", "how_long"),
    [
        ("counting", "short"),
        *(pytest.param(kind, "long", marks=LONG) for kind in ("counting", "rates", "files")),
    ],
)
def test_drivers_are_killed_that_read_a_streaming_dataframe(
    tmp_path: Path, kind: str, how_long: str, draw: random.Random
) -> None:
    """E1, R1, R5, I1, I2: by a data source of one's own, Spark's rate source and files; Spark's query and what it
    staged go on where they stood."""
    drivers, workers = (3, 3) if how_long == "long" else (1, 1)
    play_with_frames(tmp_path, kind, drivers, workers, draw)
