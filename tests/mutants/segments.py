"""Bugs of the bytes that state becomes: where they go, and which of them are read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from penstock.engine.worker import segment_files
from penstock.state import segments
from penstock.storage import remote
from tests.mutants.registry import swapped, tested, together

OUT = "tests/engine/test_segment_files.py"
READING = "tests/state/test_segments.py"
REMOTE = "tests/storage/test_remote.py"


@tested(f"{READING}::test_rows_of_key_groups_that_do_not_count_any_more_are_not_read")
def old_key_groups_are_read() -> AbstractContextManager[None]:
    """A segment is read whole although only some of its key groups count: old values come back (S6)."""
    return swapped(segments, "_that_count", lambda segment, groups: groups)


@tested(f"{OUT}::test_a_large_state_is_written_with_a_few_blocks_in_memory")
def a_snapshot_is_made_in_memory() -> AbstractContextManager[None]:
    """All bytes are there before the first goes to the store: state of 10 GB needs 10 GB more (S4)."""
    original = segment_files._File.finish
    kept: list[Any] = []

    def write(self: Any, chunk: Any) -> None:
        if self._writing is None:
            self._writing = self._store.begin(self.name)
        self.size += len(chunk)
        kept.append(chunk)

    def finish(self: Any) -> None:
        for chunk in kept:
            self._writing.write(chunk)
        original(self)

    owner = segment_files._File
    return together(swapped(owner, "write", write), swapped(owner, "finish", finish))


@tested(f"{OUT}::test_a_write_that_fails_half_way_leaves_no_file")
def half_a_file_is_left() -> AbstractContextManager[None]:
    """A snapshot that cannot be written leaves what it had written (C4)."""
    return swapped(segment_files.SegmentFiles, "discard", segment_files.SegmentFiles.finish)


@tested(f"{OUT}::test_so_much_is_inline_and_from_then_on_everything_is_in_the_file")
def every_small_segment_is_inline() -> AbstractContextManager[None]:
    """The limit holds for each segment, not for all of them: metadata grows with the number of states (T6)."""
    original = segment_files.SegmentFiles._put

    def put(self: Any, *given: Any) -> Any:
        left = self._inline_left
        segment = original(self, *given)
        self._inline_left = left
        return segment

    return swapped(segment_files.SegmentFiles, "_put", put)


@tested(f"{REMOTE}::test_an_upload_that_is_given_up_is_never_put_together")
def an_upload_is_only_dropped() -> AbstractContextManager[None]:
    """fsspec then finishes the file with what it has: half a file is there under its name (C4)."""
    return swapped(remote._Upload, "discard", lambda self: None)
