"""Every simulated process and every schedule has its own copy of the user's code, as every worker on Spark has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock as pen
from penstock.shells.spark.shipping import pack
from penstock.testing import MemoryTable, Outside, SimulationFailed, simulate
from penstock.testing.copies import Template
from tests.testing.shop import ShopCommitter, ShopSink, ShopWriter, orders, shop, shown

SEEDS = range(60)
PAIRS = [(i % 7, i % 9) for i in range(60)]


def pairs() -> pen.Stream:
    return pen.from_rows(PAIRS, "a BIGINT, b BIGINT")


def with_lock() -> dict[str, pen.Stream]:
    lock = threading.Lock()

    def locked(row: Any) -> Any:
        with lock:
            return row

    def locked_batch(batch: Any) -> Any:
        with lock:
            return batch

    class Locked:
        def process_batch(self, batch: Any, ctx: Any) -> Any:
            with lock:
                return batch

    class Helper:
        def work(self, row: Any) -> Any:
            with lock:
                return row

    helper = Helper()
    schema = "a BIGINT, b BIGINT"
    return {
        "map": pairs().map(locked),
        "flat_map": pairs().flat_map(lambda row: [locked(row)]),
        "filter": pairs().filter(lambda batch: bool(locked(1))),
        "map_batches": pairs().map_batches(locked_batch),
        "own function": pairs().key_by("a").process(Locked(), schema),
        "helper": pairs().map(helper.work),
    }


@pytest.mark.parametrize("kind", sorted(with_lock()))
def test_what_cannot_be_sent_to_workers_is_refused_with_the_words_of_start(kind: str) -> None:
    stream = with_lock()[kind]
    with pytest.raises(pen.PlanError) as on_spark:
        pack(stream.to(pen.CollectSink()).graph())
    with pytest.raises(pen.PlanError, match="cannot be sent to the workers") as simulated:
        simulate(stream, seeds=range(1))
    assert str(simulated.value) == str(on_spark.value)
    with pytest.raises(pen.PlanError, match="cannot be sent to the workers"):
        simulate(lambda: stream, seeds=range(1))


def remembering() -> tuple[pen.Stream, set[Any]]:
    """Wrong: what was seen is not in state, so a restored job has forgotten it, or knows too much."""
    seen: set[Any] = set()

    def first_of_each(row: Any) -> Iterator[Any]:
        pair = (row.a, row.b)
        if pair not in seen:
            seen.add(pair)
            yield row

    return pairs().flat_map(first_of_each), seen


class OfTheClass:
    """Wrong in the same way; `made` gives a class that cannot be imported, as one of a notebook."""

    @staticmethod
    def made() -> pen.Stream:
        class FirstOfEach:
            seen: set[Any] = set()

            def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]:
                for row in rows:
                    if (row.a, row.b) not in self.seen:
                        self.seen.add((row.a, row.b))
                        yield (row.a, row.b)

        return pairs().key_by("a").process(FirstOfEach(), "a BIGINT, b BIGINT")


@pytest.mark.parametrize("given", ["stream", "function", "class"])
def test_what_a_function_remembers_in_a_closure_is_gone_with_its_process(given: str) -> None:
    """R1: rows that are replayed to a process that has seen them are lost, and rows are seen as new by another one."""
    stream, seen = remembering()
    if given == "class":
        stream = OfTheClass.made()
    pipeline: Any = (lambda: stream) if given == "function" else stream
    told = []
    for _ in range(2):
        with pytest.raises(SimulationFailed, match="rows committed to sink") as failed:
            simulate(pipeline, seeds=SEEDS, parallelism=1)
        assert failed.value.report is not None
        told.append(failed.value.report.finding)
    assert told[0] == told[1], "one simulation left something behind for the next"
    assert seen == set(), "the user's own objects are not used"


def test_the_users_own_classes_stay_as_they_are() -> None:
    """Unpickling a class in the process that has it would change it."""
    calls: list[int] = []

    class Counting(ShopSink):
        def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
            calls.append(context.index)
            return super().writer(context)

    method = Counting.writer
    assert simulate(orders().to(Counting()), read=shown, seeds=range(5)).ok
    assert Counting.writer is method
    assert calls == []


def test_an_error_of_a_fake_is_caught_by_its_class() -> None:
    """A fake is the same for all processes, and so are the classes that it deals in."""

    class Conflict(Exception):
        pass

    class Database(Outside):
        def __init__(self) -> None:
            self.keys: dict[int, int] = {}

        def insert(self, key: int) -> None:
            if key in self.keys:
                raise Conflict(key)
            self.keys[key] = 1

    def insert_into(database: Database) -> Callable[[Any], Any]:
        def insert(row: Any) -> Any:
            try:
                database.insert(row.a)
            except Conflict:
                return row
            return row

        return insert

    assert simulate(pairs().map(insert_into(Database())), seeds=range(20)).ok


def test_each_schedule_has_its_own_outside_also_in_a_closure() -> None:
    """The fake is shared by the processes of a schedule; what is given to `simulate` stays as it was."""
    table = MemoryTable()

    def note(row: Any) -> Any:
        table.rows.append(row)
        return row

    assert simulate(pairs().map(note), seeds=range(3)).ok
    assert table.rows == []
    same = Template({"one": table, "two": [table]}).copy()
    other = Template({"one": table, "two": [table]}, new_world=True).copy()
    assert same["one"] is table
    assert other["one"] is not table
    assert other["one"] is other["two"][0]


def test_a_fake_that_cannot_be_copied_is_told_with_a_way_out() -> None:
    class Locked(MemoryTable):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    def build() -> pen.Pipeline:
        pipeline = shop()
        sink = ShopSink()
        sink.table = Locked()
        return pen.Pipeline(pipeline, orders().to(sink, name="locked"))

    with pytest.raises(pen.ConfigError, match="a function that builds the pipeline"):
        simulate(build(), read=shown, seeds=range(1))
    assert simulate(build, read=shown, seeds=range(5)).ok


# ---- what is not copied

WAITING: dict[str, Any] = {}


class KeepsInGlobal(ShopWriter):
    def prepare(self, checkpoint: int) -> Any:
        name = super().prepare(checkpoint)
        if name is not None:
            WAITING[name] = self.table.staged.pop(name)
        return name


class TakesFromGlobal(ShopCommitter):
    def commit(self, transaction: Any) -> None:
        if transaction in WAITING:
            self.table.staged[transaction] = WAITING.pop(transaction)
        super().commit(transaction)


class InGlobal(ShopSink):
    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return KeepsInGlobal(self.table, context, "")

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return TakesFromGlobal(self.table, context, "")


class CountsInItsClass:
    rows = 0

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            type(self).rows += 1
            yield (row.a, row.b)


def test_who_changes_a_global_of_a_module_is_told_that_it_is_shared() -> None:
    """Rows that wait in a module are lost with a worker, and not with a simulated one; in the end none is there."""
    with pytest.warns(UserWarning, match=rf"the pipeline changes {__name__}.WAITING\. "):
        simulate(orders().to(InGlobal()), read=shown, seeds=range(1))
    WAITING.clear()
    counted = pairs().key_by("a").process(CountsInItsClass(), "a BIGINT, b BIGINT")
    with pytest.warns(UserWarning, match="CountsInItsClass.rows"):
        simulate(counted, seeds=range(1))
