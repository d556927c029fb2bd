"""Bugs of staged DataFrames: rows that are read twice or not at all, documents that prove nothing, rows that go too
soon or never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from penstock.connectors.sources import staged
from penstock.connectors.sources.staged import Files, StagedReader
from penstock.engine.driver.feeding import Feeding
from penstock.protocol.snapshot import Plain
from penstock.shells.spark import feeds
from penstock.shells.spark.feeds import StagedFeed
from penstock.shells.spark.stream_query import StreamQuery
from penstock.wire.staging import StagedBatch
from tests.mutants.registry import swapped, tested

SOURCE = "tests/connectors/test_staged_source.py::"
QUERY = "tests/spark/test_stream_query.py::"
FEEDING = "tests/engine/test_feeding.py::"


# ---- reading


@tested(SOURCE + "test_every_row_comes_once_from_any_position_and_any_parallelism")
def a_position_forgets_the_row_in_its_file() -> AbstractContextManager[None]:
    """After a restore the rows of the file in work come again (I1)."""
    original = StagedReader.positions

    def positions(self: StagedReader) -> Mapping[int, Plain]:
        told = original(self)
        return {lane: [*p[:4], 0] for lane, p in told.items() if isinstance(p, list)}

    return swapped(StagedReader, "positions", positions)


@tested(SOURCE + "test_the_files_of_small_batches_are_dealt_out_to_all_lanes")
def every_batch_begins_with_the_first_lane() -> AbstractContextManager[None]:
    """A stream of small batches is read by one subtask alone (E1)."""
    original = StagedReader._begin

    def begin(self: StagedReader, batch: StagedBatch) -> None:
        original(self, StagedBatch(batch.batch, 0, batch.folder, batch.files))

    return swapped(StagedReader, "_begin", begin)


@tested(SOURCE + "test_lanes_that_are_ahead_of_others_wait_for_them")
def the_foremost_lane_says_which_batch_is_next() -> AbstractContextManager[None]:
    """Rows of lanes that are behind are passed over (I1, R6)."""
    number = property(lambda self: max(at.batch for at in self._at.values()))
    return swapped(StagedReader, "_number", number)


@tested(SOURCE + "test_a_file_that_is_gone_or_shorter_is_named")
def staged_files_are_not_looked_at() -> AbstractContextManager[None]:
    """A staged file that is gone or cut is told in words that do not help (T5)."""
    return swapped(Files, "require_whole", lambda self, number: self.batch.files[number])


@tested(
    SOURCE + "test_a_staging_folder_that_somebody_emptied_is_told",
    SOURCE + "test_a_batch_that_is_missing_before_a_later_one_is_told",
)
def a_missing_batch_is_waited_for() -> AbstractContextManager[None]:
    """Somebody emptied the staging folder, and the job waits for ever (E1)."""
    return swapped(StagedReader, "_in_vain", lambda self: None)


@tested(SOURCE + "test_looking_for_a_batch_does_not_hold_the_reader_up")
def every_poll_looks_anew() -> AbstractContextManager[None]:
    """Looks for the next batch pile up in the background (E1)."""
    original = StagedReader._find_batch

    def find(self: StagedReader) -> bool:
        if self._asked is not None and not self._asked.ready:
            self._asked = None
        return original(self)

    return swapped(StagedReader, "_find_batch", find)


@tested(QUERY + "test_the_document_of_a_batch_proves_itself")
def a_damaged_document_is_none() -> AbstractContextManager[None]:
    """A batch whose document is damaged is waited for instead of told (T5)."""
    original = staged.look

    def look(*arguments: Any) -> Any:
        try:
            return original(*arguments)
        except Exception:
            return None

    return swapped_everywhere(look)


def swapped_everywhere(look: Any) -> AbstractContextManager[None]:
    """The test has a name of its own for it."""
    from tests.spark import test_stream_query

    return swapped(test_stream_query, "look", look)


# ---- staging


@tested(QUERY + "test_a_batch_that_comes_twice_is_staged_once")
def a_batch_is_written_whenever_it_comes() -> AbstractContextManager[None]:
    """Spark calls at least once, and every call is staged (I1)."""

    def take(self: Any, frame: Any, number: int) -> None:
        self._add(self._write(frame, number))

    return swapped(StreamQuery, "_take", take)


@tested(QUERY + "test_whoever_creates_the_document_of_a_batch_has_staged_it")
def rows_of_the_later_driver_stay() -> AbstractContextManager[None]:
    """Two drivers stage a batch, and what the later one wrote is never removed (I13)."""
    original = StreamQuery._add

    def add(self: Any, batch: StagedBatch) -> None:
        with swapped(type(self._place), "remove", lambda *_: None):
            original(self, batch)

    return swapped(StreamQuery, "_add", add)


@tested(QUERY + "test_a_batch_waits_while_too_much_is_staged_that_is_not_read")
def there_is_always_room() -> AbstractContextManager[None]:
    """No back pressure: a slow job's staged rows fill the disk (E1)."""
    return swapped(StreamQuery, "_has_room", lambda self: True)


@tested(QUERY + "test_a_batch_that_waits_when_the_job_ends_is_given_back")
def a_batch_at_the_end_is_taken_for_done() -> AbstractContextManager[None]:
    """A batch that is not staged because the job ends: Spark commits it, and its rows are lost (I1)."""
    original = StreamQuery._take

    def take(self: Any, frame: Any, number: int) -> None:
        if not self._ending and self._has_room():
            original(self, frame, number)

    return swapped(StreamQuery, "_take", take)


@tested(QUERY + "test_batches_that_are_missing_are_told")
def a_gap_between_batches_is_passed_over() -> AbstractContextManager[None]:
    """Spark's checkpoint is ahead of what is staged, and the rows between are lost (I1)."""
    original = StreamQuery._take

    def take(self: Any, frame: Any, number: int) -> None:
        self._staged.setdefault(number - 1, StagedBatch(number - 1, 0, "", ()))
        original(self, frame, number)

    return swapped(StreamQuery, "_take", take)


# ---- what goes


@tested(QUERY + "test_what_lies_before_the_oldest_checkpoint_goes_and_nothing_else")
def the_newest_checkpoint_says_what_goes() -> AbstractContextManager[None]:
    """Rows that an older retained checkpoint needs are removed (I12)."""
    original = StagedFeed.retained

    def retained(self: StagedFeed, positions: Sequence[Any]) -> None:
        original(self, positions[-1:])

    return swapped(StagedFeed, "retained", retained)


@tested(QUERY + "test_what_lies_before_the_oldest_checkpoint_goes_and_nothing_else")
def the_foremost_lane_says_what_goes() -> AbstractContextManager[None]:
    """Rows that a lane has still to read are removed (I12)."""

    def first(positions: Mapping[int, Any]) -> Any:
        return max(((p[0], p[1]) for p in positions.values()), default=None)

    return swapped(feeds, "_first", first)


@tested(QUERY + "test_the_newest_batch_stays_as_a_sign_that_none_is_missing")
def every_batch_may_go() -> AbstractContextManager[None]:
    """With the last document goes the only sign that somebody has emptied the folder (E1)."""

    def forget(self: StreamQuery, before: int) -> list[StagedBatch]:
        gone = [batch for number, batch in self._staged.items() if number < before]
        self._staged = {n: batch for n, batch in self._staged.items() if n >= before}
        return gone

    return swapped(StreamQuery, "forget", forget)


@tested(QUERY + "test_older_sets_and_what_killed_drivers_left_go")
def what_a_killed_driver_wrote_stays() -> AbstractContextManager[None]:
    """Rows without a document are never removed (I13)."""
    return swapped(StagedFeed, "_remove_remains", lambda self, name, before: None)


@tested(FEEDING + "test_a_restored_job_needs_what_its_older_checkpoints_need")
def older_checkpoints_need_nothing() -> AbstractContextManager[None]:
    """After a restart of the driver, rows of the checkpoint before the restored one are removed (I12)."""
    original = Feeding.claimed

    def claimed(self: Feeding, point: Any) -> None:
        from dataclasses import replace

        original(self, replace(point, older=(), kept=point.kept[-1:]))

    return swapped(Feeding, "claimed", claimed)


@tested(FEEDING + "test_while_a_retained_checkpoint_is_unknown_everything_is_needed")
def unknown_checkpoints_need_nothing() -> AbstractContextManager[None]:
    """A retained checkpoint that nobody has read is taken for one that needs no rows (I12)."""
    original = Feeding._tell

    def tell(self: Feeding) -> None:
        self._unknown.clear()
        original(self)

    return swapped(Feeding, "_tell", tell)


@tested(QUERY + "test_what_spark_has_noted_is_durable_before_a_batch_is_there")
def sparks_notes_are_left_to_the_disk() -> AbstractContextManager[None]:
    """After a loss of power other rows come under the number of a batch that is staged (E1, I1)."""
    return swapped(StreamQuery, "_keep_notes", lambda self: None)
