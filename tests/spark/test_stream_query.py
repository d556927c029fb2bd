"""What is done with the batches that Spark brings, without a Spark: how often they come, in which order, and when."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.sources.staged import look
from penstock.errors import DataError
from penstock.ports.feed import Trouble
from penstock.protocol.restart import Fixed
from penstock.shells.spark import staging, stream_query
from penstock.shells.spark.feeds import StagedFeed
from penstock.shells.spark.staging import Place
from penstock.shells.spark.stream_query import StreamQuery, _NotStagedError, _StoppedError
from penstock.wire import paths
from penstock.wire.staging import StagedBatch, StagedFile, encode_batch
from tests.connectors.staged_rows import SET, Stage
from tests.spark.ends import PATIENCE_S, until

FILE_BYTES = 100


class Written(StreamQuery):
    """Writes a file of a hundred bytes for a batch, where Spark would write its rows."""

    def __init__(self, stage: Stage) -> None:
        place = Place("job", "in", stage.source.staged)
        super().__init__(_NO_FRAME, place, Fixed(attempts=2, delay_ms=0), lambda: 0.0)
        self.stage = stage
        self.folder = stage.folder
        self.tries: list[int] = []
        self.fails = False

    def step(self) -> Trouble | None:
        return None

    def stop(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def bring(self, number: int) -> None:
        """As Spark calls it."""
        self._on_batch(None, number)

    def _write(self, frame: Any, number: int) -> StagedBatch:
        self.tries.append(number)
        if self.fails:
            raise OSError("no space left on device")
        place = paths.staged_rows(SET, number, uuid.uuid4().hex)
        (self.folder / place).mkdir(parents=True)
        (self.folder / place / "part-0.parquet").write_bytes(bytes(FILE_BYTES))
        file = StagedFile("part-0.parquet", FILE_BYTES, 10)
        return StagedBatch(number, number, place.partition("/")[2], (file,))

    def rows(self) -> list[str]:
        """The folders of batches that are there."""
        return sorted(
            path.name.partition("-")[0] for path in (self.folder / SET / "rows").glob("*")
        )


_NO_FRAME: Any = None


@pytest.fixture
def query(tmp_path: Path) -> Written:
    made = Written(Stage(tmp_path, bounded=False))
    made.open(SET, 0)
    return made


def opened(query: Written, batch: int) -> Written:
    """Another driver's."""
    again = Written(query.stage)
    again.open(SET, batch)
    return again


def test_a_batch_that_comes_twice_is_staged_once(query: Written) -> None:
    """E1: Spark calls at least once; also of another driver, and after the batch was read and removed."""
    for number in (0, 1, 1, 0, 2):
        query.bring(number)
    assert query.tries == [0, 1, 2]
    assert [batch.batch for batch in query.forget(2)] == [0, 1]
    again = opened(query, 3)
    for number in (1, 2, 3):
        again.bring(number)
    assert again.tries == [3]


def test_whoever_creates_the_document_of_a_batch_has_staged_it(query: Written) -> None:
    """I18: two drivers write the same batch; the rows of the later one go, and nobody reads them."""
    late = opened(query, 0)
    write = late._write

    def overtaken(frame: Any, number: int) -> StagedBatch:
        made = write(frame, number)
        query.bring(number)
        return made

    late._write = overtaken  # type: ignore[method-assign]
    late.bring(0)
    found = look(query._place.store, SET, 0)
    assert found is not None and found == query._staged[0] == late._staged[0]
    assert late.rows() == ["0"], "those of the later one are gone"
    late.bring(1)
    assert late.tries == [0, 1]


def test_batches_that_another_driver_staged_meanwhile_are_not_missing(query: Written) -> None:
    """I18: a driver that is replaced lives on for a while, and Spark goes on behind what it has staged."""
    query.bring(0)
    late = opened(query, 0)
    for number in (1, 2):
        query.bring(number)
    late.bring(3)
    assert late.tries == [3] and sorted(late._staged) == [0, 1, 2, 3]


def test_a_batch_that_fails_has_no_document_and_comes_again(query: Written) -> None:
    query.fails = True
    with pytest.raises(_NotStagedError, match="batch 0 is not staged: no space left"):
        query.bring(0)
    assert look(query._place.store, SET, 0) is None
    query.fails = False
    query.bring(0)
    assert look(query._place.store, SET, 0) is not None


def test_batches_that_are_missing_are_told(query: Written) -> None:
    """Somebody has removed staged rows: Spark will not bring them again."""
    for number in (0, 1):
        query.bring(number)
    with pytest.raises(_NotStagedError, match="Spark brings batch 3.*batch 1 is the newest"):
        query.bring(3)
    assert not query._busy, "the end of the job need not wait for it"
    with pytest.raises(DataError, match=r'batch 5 is to be read next.*restore="fresh"'):
        opened(query, 5)
    query._place.store.delete(paths.staged_set(SET))
    with pytest.raises(DataError, match="removed staged rows"):
        opened(query, 1)


def test_a_query_is_not_started_without_what_spark_has_noted(query: Written) -> None:
    """E1: Spark would count from 0 again, with new rows under the numbers of batches that are staged."""
    query._require_notes()  # nothing is staged yet
    query.bring(0)
    with pytest.raises(DataError, match=r'noted here about batch 0.*restore="fresh"'):
        query._start()
    notes = query.folder / paths.staged_query(SET) / "offsets"
    notes.mkdir(parents=True)
    (notes / "0").touch()
    query._require_notes()


def test_what_spark_has_noted_is_durable_before_a_batch_is_there(
    query: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1, I1: after a loss of power Spark would bring other rows under the number of a batch that is staged."""
    synced: list[str] = []

    def sync(path: Path) -> None:
        assert look(query._place.store, SET, 1) is None
        synced.append(os.path.relpath(path, query.folder))

    query.bring(0)
    notes = query.folder / paths.staged_query(SET)
    for name in ("offsets/1", "sources/0/1", "commits/0", "metadata"):
        (notes / name).parent.mkdir(parents=True, exist_ok=True)
        (notes / name).touch()
    monkeypatch.setattr(staging, "_sync", sync)
    query.bring(1)
    within = paths.staged_query(SET)
    files = {f"{within}/offsets/1", f"{within}/sources/0/1"}
    assert files | {f"{within}/offsets", f"{within}/sources/0", within, SET} <= set(synced)
    assert f"{within}/commits/0" not in synced, (
        "whether Spark knows that it is done does not matter"
    )
    assert look(query._place.store, SET, 1) is not None


def test_a_store_that_does_not_answer_at_first_is_asked_again(
    query: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: by the restart strategy, as every other failure of the query."""
    again, answers = Written(query.stage), iter([OSError("no answer"), OSError("no answer")])
    store = again._place.store
    listed = store.list

    def list_(prefix: str = "") -> Sequence[str]:
        for error in answers:
            raise error
        return listed(prefix)

    monkeypatch.setattr(store, "list", list_)
    for _ in range(2):
        trouble = again.open(SET, 0)
        assert trouble is not None and not trouble.fatal and "no answer" in trouble.reason
        assert not again.opened
    assert again.open(SET, 0) is None and again.opened


def test_the_newest_batch_stays_as_a_sign_that_none_is_missing(query: Written) -> None:
    for number in (0, 1):
        query.bring(number)
    assert [batch.batch for batch in query.forget(2)] == [0]
    assert [batch.batch for batch in query.forget(2)] == []


@contextmanager
def brought(query: Written, number: int) -> Iterator[threading.Thread]:
    """Spark's own thread brings a batch."""
    errors: list[BaseException] = []

    def bring() -> None:
        try:
            query.bring(number)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=bring)
    thread.errors = errors  # type: ignore[attr-defined]
    thread.start()
    yield thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_batch_waits_while_too_much_is_staged_that_is_not_read(
    query: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back pressure: it goes on when a checkpoint has enough behind it."""
    monkeypatch.setattr(stream_query, "STAGED_BYTES_MAX", 2 * FILE_BYTES)
    waits = threading.Event()
    has_room = query._has_room

    def look_for_room() -> bool:
        room = has_room()
        if not room:
            waits.set()
        return room

    query._has_room = look_for_room  # type: ignore[method-assign]
    for number in (0, 1):
        query.bring(number)
    with brought(query, 2):
        assert waits.wait(PATIENCE_S)
        assert query.tries == [0, 1]
        query.behind(1)
    assert query.tries == [0, 1, 2]


def test_a_batch_that_waits_when_the_job_ends_is_given_back(
    query: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not staged, and Spark must not take it for done."""
    monkeypatch.setattr(stream_query, "STAGED_BYTES_MAX", 0)
    with brought(query, 0) as thread:
        query.stop()
    (error,) = thread.errors  # type: ignore[attr-defined]
    assert isinstance(error, _StoppedError)
    assert not query.tries and look(query._place.store, SET, 0) is None


# ---- what nobody needs any more


def positions(batch: int, name: str = SET) -> dict[int, Any]:
    """Lanes of two subtasks, one of which is further."""
    return {0: [name, batch, 0, 0, 0], 1: [name, batch + 1, 0, 0, 0]}


def test_what_lies_before_the_oldest_checkpoint_goes_and_nothing_else(
    query: Written, tmp_path: Path
) -> None:
    """I12: the newest is ahead, but an older one may still be restored."""
    for number in range(5):
        query.bring(number)
    feed = StagedFeed(query.stage.source, query._place, query)
    feed.retained([positions(2), positions(4)])
    feed._clean()
    assert query.rows() == ["2", "3", "4"]
    assert query._read == 4
    feed.retained([positions(3), {}])
    feed._clean()
    assert query.rows() == ["2", "3", "4"], (
        "one that does not say what it needs may need everything"
    )
    feed.retained([positions(4)])
    feed._clean()
    assert query.rows() == ["4"]


def test_older_sets_and_what_killed_drivers_left_go(query: Written, tmp_path: Path) -> None:
    """Rows without a document, and sets from before `restore="fresh"`, also one that was never completed."""
    query.bring(0)
    newer = "000002-00000000"
    (tmp_path / SET / "rows/1-deadbeef").mkdir()
    (tmp_path / SET / "rows/1-deadbeef/part-0.parquet").touch()
    half = tmp_path / "000001-ffffffff/rows/0-00000000"
    half.mkdir(parents=True)
    (half / "part-0.parquet").touch()
    feed = StagedFeed(query.stage.source, query._place, query)
    (tmp_path / SET / "rows/3-deadbeef").mkdir()
    (tmp_path / SET / "rows/3-deadbeef/part-0.parquet").touch()
    feed.begin(positions(0))
    until(lambda: bool(feed._remains))
    assert query.rows() == ["0", "1", "3"], "a driver that lives on may yet make their list"
    for number in (1, 2, 3):
        query.bring(number)
    feed.retained([positions(2)])
    until(lambda: query.rows() == ["2", "3", "3"])
    feed.retained([positions(2), positions(0, newer)])
    feed.retained([positions(0, newer), positions(1, newer)])
    until(lambda: not half.exists() and not (tmp_path / SET).exists())
    feed.close()


def test_the_rows_of_all_sets_go_when_the_job_has_finished(query: Written, tmp_path: Path) -> None:
    """Also those that a killed driver did not complete: they may be as many as all that was read."""
    query.bring(0)
    for name in ("000001-ffffffff", "000002-00000000"):
        (tmp_path / name / "rows/0-00000000").mkdir(parents=True)
        (tmp_path / name / "rows/0-00000000/part-0.parquet").touch()
    StagedFeed(query.stage.source, query._place, query).finished()
    assert not list(tmp_path.rglob("*.parquet"))
    assert look(query._place.store, SET, 0) is not None, "the list stays"


def test_a_fault_of_the_feed_is_told_and_ends_the_job(query: Written) -> None:
    query._place.store.delete(paths.staged_set(SET))
    feed = StagedFeed(query.stage.source, query._place, Written(query.stage))
    rung = threading.Event()
    feed.wake = rung.set
    feed.begin(positions(3))
    assert rung.wait(PATIENCE_S)
    (trouble,) = feed.troubles()
    assert trouble.fatal and trouble.reason.startswith("DataError: ")
    feed.close()


def test_the_document_of_a_batch_proves_itself(query: Written) -> None:
    """T5."""
    batch = StagedBatch(0, 0, "rows/0-00000000", (StagedFile("a", 1, 1),))
    data = bytearray(encode_batch(batch))
    data[30] ^= 1
    query._place.store.create(paths.staged_batch(SET, 0), bytes(data))
    with pytest.raises(Exception, match="digest|whole|valid"):
        look(query._place.store, SET, 0)
