"""Bugs of stores and folders: a failure that looks like an answer, a listing of long ago, a name that is not durable,
fewer bytes than were written."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any

from penstock.connectors.sinks import folder
from penstock.connectors.sinks.files import FileWriter, Staged, staged_path
from penstock.connectors.sinks.folder import RemoteFolder
from penstock.connectors.sources import lines, listing
from penstock.connectors.sources.chunks import Cursor
from penstock.connectors.sources.listing import Listing
from penstock.errors import StorageError
from penstock.storage import local
from penstock.storage.local import LocalStore
from penstock.storage.remote import RemoteStore
from tests.mutants.registry import swapped, tested, together

LOCAL = "tests/storage/test_local.py"
REMOTE = "tests/storage/test_remote.py"
COMMIT = "tests/connectors/test_file_commit.py"
SOURCE = "tests/connectors/test_file_source.py"
LISTINGS = "tests/connectors/test_remembered_listings.py"

# ---- listings


def _remembering(owner: Any, method: str, files: str) -> AbstractContextManager[None]:
    """A method that does not tell fsspec to forget what it has listed before."""
    original = getattr(owner, method)

    def remember(self: Any, *arguments: Any) -> Any:
        with swapped(getattr(self, files), "invalidate_cache", lambda *_: None):
            return original(self, *arguments)

    return swapped(owner, method, remember)


@tested(f"{REMOTE}::test_a_newer_owner_is_noticed")
def owners_are_listed_from_a_cache() -> AbstractContextManager[None]:
    """A driver looks who owns its job in a listing of long ago, and goes on beside the new one (R5, I18)."""
    return _remembering(RemoteStore, "_find", "_files")


@tested(f"{REMOTE}::test_a_file_that_another_process_replaced_is_read_whole")
def sizes_come_from_a_cache() -> AbstractContextManager[None]:
    """A file that has become longer is read as far as it went when it was listed (I24)."""
    return _remembering(RemoteStore, "_size", "_files")


@tested(f"{LISTINGS}::test_new_files_in_a_watched_folder_are_found")
def a_watched_folder_is_listed_from_a_cache() -> AbstractContextManager[None]:
    """New files in a watched folder behind a URL are never seen (I22)."""
    return _remembering(Listing, "files", "_fs")


@tested(f"{LISTINGS}::test_a_file_that_changed_while_it_was_read_is_an_error")
def a_changed_file_is_looked_up_in_a_cache() -> AbstractContextManager[None]:
    """Whether an input file is still what it was is looked up in the listing that said what it was (I22)."""
    return _remembering(Listing, "size", "_fs")


@tested(f"{LISTINGS}::test_what_another_worker_has_committed_is_committed")
def commits_are_looked_up_in_a_cache() -> AbstractContextManager[None]:
    """A transaction that somebody else has committed meanwhile looks lost (E3, I10)."""
    return _remembering(RemoteFolder, "size", "_fs")


@tested(f"{LISTINGS}::test_what_another_worker_has_staged_is_aborted")
def staged_files_are_listed_from_a_cache() -> AbstractContextManager[None]:
    """What was staged after the last look is never aborted (E2, I11)."""
    return _remembering(RemoteFolder, "list", "_fs")


@tested(f"{SOURCE}::test_a_folder_that_cannot_be_listed_is_no_empty_one")
def folders_that_cannot_be_listed_are_empty() -> AbstractContextManager[None]:
    """The files of a folder that could not be listed for a moment are never read (I22)."""
    return swapped(Listing, "_walks", property(lambda self: False))


def _empty_on_error(owner: Any) -> AbstractContextManager[None]:
    original = owner.list

    def list_(self: Any, prefix: str = "") -> list[str]:
        try:
            names: list[str] = original(self, prefix)
        except StorageError:
            return []
        return names

    return swapped(owner, "list", list_)


@tested(f"{LOCAL}::test_a_folder_that_cannot_be_listed_is_no_empty_one")
def a_disk_that_fails_looks_empty() -> AbstractContextManager[None]:
    """A driver that cannot list its directory begins anew, over the owner and the checkpoints there (R5, I18)."""
    return _empty_on_error(LocalStore)


@tested(f"{REMOTE}::test_what_the_store_did_not_do_is_an_error")
def a_store_that_fails_looks_empty() -> AbstractContextManager[None]:
    """The same behind a URL (R5, I18)."""
    return _empty_on_error(RemoteStore)


@tested(f"{REMOTE}::test_a_store_that_searches_by_the_beginning_of_names_shows_no_neighbours")
def neighbours_are_listed() -> AbstractContextManager[None]:
    """With checkpoint 1 the files of checkpoint 10 are deleted (I12)."""

    def find(self: RemoteStore, prefix: str) -> list[str]:
        self._files.invalidate_cache()
        path = f"{self._path}/{prefix}" if prefix else self._path
        return [name[len(self._path) + 1 :] for name in self._files.find(path)]

    return swapped(RemoteStore, "_find", find)


# ---- answers


@tested(f"{REMOTE}::test_what_the_store_did_not_do_is_an_error")
def a_create_that_failed_means_somebody_was_first() -> AbstractContextManager[None]:
    """A store that does not answer is taken to have the file already (I18, C3)."""
    original = RemoteStore._create

    def create(self: RemoteStore, path: str, data: bytes) -> bool:
        try:
            return original(self, path, data)
        except OSError:
            return False

    return swapped(RemoteStore, "_create", create)


@tested(f"{REMOTE}::test_what_the_store_did_not_do_is_an_error")
def a_delete_that_failed_counts() -> AbstractContextManager[None]:
    """The files of a checkpoint go although its metadata could not be deleted: it exists by halves (I12)."""
    original = RemoteStore.delete

    def delete(self: RemoteStore, name: str) -> None:
        with suppress(StorageError):
            original(self, name)

    return swapped(RemoteStore, "delete", delete)


@tested(f"{COMMIT}::test_what_a_folder_could_not_tell_or_do_is_an_error")
def a_size_that_cannot_be_told_means_gone() -> AbstractContextManager[None]:
    """A store that fails for a moment has lost a transaction, it seems (E3, I10)."""
    original = RemoteFolder.size

    def size(self: RemoteFolder, name: str) -> int | None:
        try:
            return original(self, name)
        except OSError:
            return None

    return swapped(RemoteFolder, "size", size)


# ---- bytes


@tested(f"{LOCAL}::test_a_write_that_the_disk_cut_short_is_an_error")
def a_write_cut_short_counts() -> AbstractContextManager[None]:
    """A disk that fills up takes the first part of a file, and that is the file (T1, bug-H6)."""

    def write(self: Any, chunk: bytes) -> None:
        with suppress(OSError):
            self._file.write(chunk)

    def to_disk(file: Any) -> None:
        with suppress(OSError):
            file.flush()

    return together(swapped(local._LocalFile, "write", write), swapped(local, "_to_disk", to_disk))


@tested(f"{COMMIT}::test_rows_that_the_store_cut_short_are_an_error")
def staged_rows_cut_short_are_promised() -> AbstractContextManager[None]:
    """A checkpoint promises what the store kept of the rows, not what was written (C3, bug-F7)."""
    original = FileWriter._seal_file

    def seal_file(self: FileWriter, staged: Staged, checkpoint: int) -> Any:
        staged.bytes_written = self._folder.size(staged_path(self._job, staged.name)) or 0
        return original(self, staged, checkpoint)

    return swapped(FileWriter, "_seal_file", seal_file)


@tested(f"{SOURCE}::test_a_file_that_has_fewer_rows_than_were_read_is_an_error")
def a_file_shorter_than_the_position_in_it_is_done() -> AbstractContextManager[None]:
    """An input file that lost rows since they were read ends in silence (I22)."""
    return swapped(Cursor, "missing_rows", property(lambda self: 0))


# ---- names


@tested(f"{COMMIT}::test_every_new_folder_is_durable_in_its_parent_before_rows_are")
def staging_folders_are_not_durable() -> AbstractContextManager[None]:
    """A power cut takes the folder of a synced file away, and the promise with it (C3, E2)."""
    return swapped(folder, "_sync_above", lambda folders: None)


@tested(f"{LOCAL}::test_a_deletion_is_durable_before_the_next_one_begins")
def deletions_are_not_durable() -> AbstractContextManager[None]:
    """A power cut brings the metadata of a checkpoint back whose files are gone (I12)."""
    original = LocalStore.delete

    def delete(self: LocalStore, name: str) -> None:
        with swapped(local, "_fsync_folder", lambda path: None):
            original(self, name)

    return swapped(LocalStore, "delete", delete)


# ---- input


@tested(f"{SOURCE}::test_short_reads_of_an_input_file_are_continued")
def a_short_read_ends_an_input_file() -> AbstractContextManager[None]:
    """A network that gives fewer bytes than were asked for costs the rest of the file (I22)."""
    return swapped(lines, "_read_fully", lambda handle, bytes_wanted: handle.read(bytes_wanted))


@tested(f"{SOURCE}::test_hidden_folders_behind_a_url_do_not_count_either")
def staged_files_behind_a_url_are_read() -> AbstractContextManager[None]:
    """Who reads a folder that a sink writes to sees rows that were never committed (E2)."""
    return swapped(listing, "_counts", lambda name: not name.startswith(("_", ".")))


@tested(f"{SOURCE}::test_large_row_groups_are_read_to_their_end_from_every_place")
def a_position_in_a_large_row_group_is_forgotten() -> AbstractContextManager[None]:
    """Rows behind the first batch of a row group are counted from that batch on (I22)."""
    original = Cursor.take

    def take(self: Cursor, max_rows: int) -> Any:
        batch = original(self, max_rows)
        self.skip = self._offset
        return batch

    return swapped(Cursor, "take", take)
