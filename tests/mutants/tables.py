"""Bugs of tables: which row of a key wins, what a merge may take away, and who gets the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.stream import Stream
from penstock.connectors.sinks.folder import Folder
from penstock.connectors.tables import compaction, ledger, names, sink
from penstock.connectors.tables.compaction import Compaction
from penstock.connectors.tables.merging import merged
from penstock.connectors.tables.rows import VERSION
from tests.mutants.registry import swapped, tested

TABLES = "tests/connectors/test_tables.py"
MERGES = "tests/connectors/test_table_compaction.py"

# ---- which row wins


@tested(f"{TABLES}::test_a_key_that_moves_to_another_subtask_shows_its_later_row")
def a_merged_file_is_as_new_as_its_newest_row() -> AbstractContextManager[None]:
    """A row that another subtask has overwritten wins again when its file is merged with a newer one (E7, R6)."""

    def ageless(*arguments: Any) -> Iterator[pa.Table]:
        for piece in merged(*arguments):
            at = piece.schema.get_field_index(VERSION.name)
            highest = np.full(piece.num_rows, piece.column(at).to_numpy().max())
            yield piece.set_column(at, VERSION, pa.array(highest))

    return swapped(compaction, "merged", ageless)


@tested(f"{TABLES}::test_a_job_that_begins_anew_writes_over_what_it_wrote_before")
def versions_begin_with_the_job() -> AbstractContextManager[None]:
    """Rows of a job that counts its checkpoints from one again lose against those of its first life (E7)."""
    return swapped(sink, "newest_version", lambda folder: 0)


@tested(f"{TABLES}::test_what_is_promised_and_not_committed_yet_counts_as_older")
def only_what_is_committed_has_a_version() -> AbstractContextManager[None]:
    """A commit that is still under way brings an old row back (E7, R6)."""

    def newest_version(folder: Folder) -> int:
        return max([0, *(file.highest for file in names.list_files(folder))])

    return swapped(sink, "newest_version", newest_version)


@tested(f"{TABLES}::test_a_listing_that_missed_a_file_is_not_believed")
def one_listing_is_believed() -> AbstractContextManager[None]:
    """A reader shows a transaction of a subtask and not the one before it (E7, I1)."""
    return swapped(names, "without_gaps", lambda first, second: second)


@tested("tests/api/test_sink_keys.py::test_rows_go_to_the_subtask_of_their_key")
def rows_stay_where_they_are() -> AbstractContextManager[None]:
    """Two subtasks write rows of one key, and nobody knows whose is the later one (E7)."""
    return swapped(Stream, "_edge_to", lambda self, sink, label: self._partitioning)


# ---- what a merge takes away


@tested(f"{MERGES}::test_superseded_files_stay_for_a_while_and_are_passed_over")
def superseded_files_go_at_once() -> AbstractContextManager[None]:
    """A reader finds files gone that it has just listed (E7)."""
    return swapped(compaction, "GRACE_MS", -1.0)


@tested(f"{MERGES}::test_a_copy_that_did_not_end_takes_nothing_away")
def half_a_copy_counts_as_a_merged_file() -> AbstractContextManager[None]:
    """The only whole copy of rows is deleted (E7, bug-F16)."""
    return swapped(Compaction, "_is_safe", lambda self, file: True)


@tested(f"{TABLES}::test_a_column_may_be_added_and_is_null_in_older_rows")
def merges_have_the_columns_of_the_first_file() -> AbstractContextManager[None]:
    """A column that was added is lost when its rows are merged with older ones (E7)."""
    return swapped(compaction, "united_schema", lambda sources: sources[0].schema)


# ---- what was committed


@tested(f"{TABLES}::test_a_transaction_whose_file_was_merged_and_is_gone_is_committed")
def merged_transactions_are_forgotten() -> AbstractContextManager[None]:
    """An old checkpoint cannot be restored any more: what it promised looks lost (E3, R1)."""
    return swapped(ledger, "united", lambda ledgers: {})


@tested(f"{TABLES}::test_a_transaction_that_was_aborted_is_not_taken_for_a_merged_one")
def what_is_gone_counts_as_merged() -> AbstractContextManager[None]:
    """A transaction that was lost is taken for a committed one (E3, I10)."""
    return swapped(ledger, "has", lambda *_: True)
