"""Where workers go: to executors that answer and have room, spread over them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.shells.spark import placing
from penstock.shells.spark.executors import Executor
from penstock.shells.spark.launcher import Launcher, _Running
from penstock.shells.spark.placing import Copies, Places
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

    def choose(self, *ours: str, copies: Sequence[str] = ()) -> str | None:
        chosen = self.places().choose(lambda: ours, lambda: True, lambda: copies)
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


def test_a_worker_goes_to_the_host_with_the_copy_of_the_one_it_replaces() -> None:
    """R4: although another has more room."""
    spark = Spark(executor("a", 1), executor("b", 0), executor("c", 1))
    assert spark.choose(copies=["host-c"]) == "c"


@pytest.mark.parametrize(
    ("holder", "silent"),
    [(executor("c", 2), ""), (executor("c", 1), "c"), (executor("d", 0), "d")],
    ids=["full", "does not answer", "is gone"],
)
def test_where_the_host_with_the_copy_cannot_be_had_any_other_will_do(
    holder: Executor, silent: str
) -> None:
    """R1, R4: state is in the checkpoint directory, too."""
    spark = Spark(executor("a", 1), executor("b", 0), holder, silent=silent)
    assert spark.choose(copies=["host-c"]) == "b"


def launcher(spark: Spark, *, keep_copies: bool = True) -> Launcher:
    context = SparkContext()
    made = Launcher(context, "job", "job", 3, lambda ended: None, keep_copies=keep_copies)
    made._places = spark.places()
    return made


class SparkContext:
    """Only as much as a launcher asks for when nothing is launched."""

    master = "spark://somewhere:7077"

    def getConf(self) -> dict[str, str]:
        return {}


def start(launching: Launcher, launch: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where this launch goes, without Spark."""
    launching._running[launch] = _Running(None, "")  # type: ignore[arg-type]
    monkeypatch.setattr("penstock.shells.spark.launcher._prefer", lambda context, place: place)
    return str(launching._placed(launch)).rpartition("_")[2]


def test_copies_that_are_left_are_taken_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: the next worker goes where one was lost, and the one after it where there is room."""
    spark = Spark(executor("a", 0, cores=9), executor("b", 1))
    launching = launcher(spark)
    assert start(launching, 0, monkeypatch) == "a"
    spark.known = [executor("a", 5, cores=9), executor("b", 0)]
    launching._cancel_tag = lambda tag: None  # type: ignore[method-assign]
    launching.cancel(0)
    launching.cancel(0)
    assert start(launching, 1, monkeypatch) == "a"
    assert start(launching, 2, monkeypatch) == "b"


def test_who_is_moved_to_another_place_does_not_come_back_for_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R1: otherwise workers that are crowded would stay so."""
    spark = Spark(executor("a", 0), executor("b", 1))
    launching = launcher(spark)
    assert start(launching, 0, monkeypatch) == "a"
    launching._crowded = {0}
    spark.known = [executor("a", 1), executor("b", 0)]
    launching._cancel_tag = lambda tag: None  # type: ignore[method-assign]
    launching.cancel(0)
    assert start(launching, 1, monkeypatch) == "b"


def test_without_copies_room_is_all_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(executor("a", 0), executor("b", 1))
    launching = launcher(spark, keep_copies=False)
    assert start(launching, 0, monkeypatch) == "a"
    spark.known = [executor("a", 1), executor("b", 0)]
    launching._cancel_tag = lambda tag: None  # type: ignore[method-assign]
    launching.cancel(0)
    assert start(launching, 1, monkeypatch) == "b"


def test_a_copy_that_cannot_be_had_is_given_up_when_its_state_is_elsewhere() -> None:
    """R4: who is lost later is replaced at its own host."""
    copies = Copies()
    copies.left("host-a")
    copies.taken("host-b")
    assert copies() == ()
    copies.taken("host-b")
    copies.left("host-b")
    assert copies() == ("host-b",)
