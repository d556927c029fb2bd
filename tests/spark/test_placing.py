"""Where workers go: to executors that answer and have room, spread over them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.shells.spark import placing
from penstock.shells.spark.executors import Executor
from penstock.shells.spark.placing import Places
from tests.spark.ends import PATIENCE_S


def executor(id: str, running: int = 0, cores: int = 2) -> Executor:
    return Executor(id, f"host-{id}", 7078, cores, running)


class Spark:
    """Executors that come, and hosts that do or do not answer."""

    def __init__(self, *known: Executor, silent: str = "") -> None:
        self.known = list(known)
        self.silent = set(silent)
        self.asked: list[str] = []

    def answers(self, one: Executor) -> bool:
        self.asked.append(one.id)
        return one.id not in self.silent

    def places(self, total: int = 3) -> Places:
        return Places(None, total, lambda: self.known, self.answers)

    def choose(self, *ours: str) -> str | None:
        chosen = self.places().choose(lambda: ours, lambda: True)
        return chosen.id if chosen is not None else None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "QUIET_S", 0.0)
    monkeypatch.setattr(placing, "LOOK_EVERY_S", 0.001)


def test_the_executor_with_the_most_room_is_chosen() -> None:
    assert Spark(executor("a", 1), executor("b", 0), executor("c", 1)).choose() == "b"


def test_workers_that_are_on_their_way_count() -> None:
    assert Spark(executor("a"), executor("b")).choose("a", "b", "a") == "b"


def test_a_host_that_does_not_answer_is_never_chosen_although_it_looks_empty() -> None:
    """R1: Spark believes in an executor for a minute after its host is gone."""
    spark = Spark(executor("a", 1), executor("b", 0), silent="b")
    assert spark.choose() == "a"


def test_with_room_only_where_nobody_answers_a_worker_waits_for_room_elsewhere() -> None:
    """R1: given to Spark it would go to the host that is gone."""
    spark = Spark(executor("a", 2), executor("b", 0), silent="b")

    def ours() -> Sequence[str]:
        if len(spark.asked) > 10:
            spark.known[0] = executor("a", 1)
        return ()

    chosen = spark.places().choose(ours, lambda: True)
    assert chosen is not None and chosen.id == "a"


def test_where_no_executor_answers_at_all_nothing_can_be_told_from_it() -> None:
    """The driver may not be let through to executors, though they are to it."""
    assert Spark(executor("a", 1), executor("b", 0), silent="ab").choose() == "b"


def test_without_room_anywhere_spark_is_left_to_queue() -> None:
    assert Spark(executor("a", 2), executor("b", 2)).choose() is None


def test_executors_that_are_just_coming_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one has room for all, and would get all."""
    monkeypatch.setattr(placing, "QUIET_S", PATIENCE_S)
    monkeypatch.setattr(placing, "EXECUTORS_WITHIN_S", PATIENCE_S)
    spark = Spark(executor("a", cores=8))
    looks = iter(range(1_000))

    def known() -> list[Executor]:
        if next(looks) == 20:
            spark.known += [executor("b"), executor("c")]
        return spark.known

    places = Places(None, 3, known, spark.answers)
    taken: list[str] = []
    for _ in range(3):
        chosen = places.choose(lambda: taken, lambda: True)
        assert chosen is not None
        taken.append(chosen.id)
    assert sorted(taken) == ["a", "b", "c"]


def test_a_worker_that_nobody_wants_any_more_waits_for_nothing() -> None:
    spark = Spark(executor("a", 2), executor("b", 0), silent="b")
    assert spark.places().choose(lambda: (), lambda: False) is None


def test_workers_that_pile_up_are_told_to_move_to_an_empty_place() -> None:
    spark = Spark(executor("a", 3, cores=4), executor("b", 0))
    assert spark.places().crowded({0: "a", 1: "a", 2: "a"}) == [2]


@pytest.mark.parametrize(
    ("known", "silent"),
    [
        ([executor("a", 2), executor("b", 1)], ""),
        ([executor("a", 2), executor("b", 0)], "b"),
        ([executor("a", 2), executor("b", 2)], ""),
    ],
    ids=["spread already", "the other does not answer", "no room there"],
)
def test_nobody_moves_where_that_would_gain_nothing(known: list[Executor], silent: str) -> None:
    ours = {0: "a", 1: "a", 2: "b"} if known[1].running == 1 else {0: "a", 1: "a"}
    assert Spark(*known, silent=silent).places().crowded(ours) == []
