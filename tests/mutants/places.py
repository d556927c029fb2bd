"""Bugs where the code meets the world: files on the disk, documents, sockets, settings."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from penstock.api.config import CheckpointConfig
from penstock.connectors.sinks.files import FileCommitter, FileWriter
from penstock.plan import keyhash
from penstock.ports.channel import Frame
from penstock.protocol import restart
from penstock.shells.spark import network
from penstock.storage import local
from penstock.wire import document
from tests.mutants.registry import simulated, swapped, tested, together

# ---- files


@tested("tests/storage/test_conformance.py::test_create_leaves_an_existing_file_alone")
def create_writes_over_what_is_there() -> AbstractContextManager[None]:
    """Of two drivers that create the same file both are told that it is theirs (I18, bug-E15)."""

    def link(temp: str, path: str) -> bool:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.link(temp, path)
        return True

    return swapped(local, "_link", link)


@tested(
    "tests/storage/test_local.py::test_content_is_synced_before_its_name_and_the_name_before_the_return"
)
def names_are_not_synced() -> AbstractContextManager[None]:
    """A file that was called written is gone after a power cut, because its folder was not synced (T1, C3)."""
    return swapped(local, "_fsync_folder", lambda folder: None)


@tested("tests/storage/test_local.py::test_short_reads_are_continued")
def a_short_read_is_taken_for_all() -> AbstractContextManager[None]:
    """A disk that gives fewer bytes than were asked for gives a file without its end (bug-E6)."""

    def read_range(descriptor: int, path: str, offset: int, length: int | None) -> bytes:
        size = os.fstat(descriptor).st_size if length is None else length
        return os.pread(descriptor, size, offset)

    return swapped(local, "_read_range", read_range)


@tested("tests/wire/test_manifest.py::test_every_single_byte_change_is_found")
def changed_documents_are_read() -> AbstractContextManager[None]:
    """Metadata that has changed since it was written is believed (T5, I24)."""

    def open_(data: bytes, kind: str, where: str) -> tuple[bytes, int]:
        found = document._TAIL.search(data)
        if found is None:
            raise document.CheckpointCorrupt(f"{where}: no end")
        return data[len(document._HEAD) : found.start()], int(found[3])

    return swapped(document, "_open", open_)


@tested("tests/connectors/test_file_commit.py::test_aborting_leaves_the_files_of_others_alone")
def jobs_share_their_staged_files() -> AbstractContextManager[None]:
    """A job that starts takes the open transactions of another job for its own (E2, bug-F4)."""

    def shared(original: Any) -> Any:
        def begin(self: Any, *arguments: Any) -> None:
            original(self, *arguments)
            self._job = "everybody"

        return begin

    return together(
        swapped(FileWriter, "__init__", shared(FileWriter.__init__)),
        swapped(FileCommitter, "__init__", shared(FileCommitter.__init__)),
    )


# ---- channels and keys


@tested("tests/spark/test_transport_channels.py::test_a_missing_frame_is_a_lost_channel")
def a_gap_in_a_channel_goes_unnoticed() -> AbstractContextManager[None]:
    """Frames that a broken connection lost are not missed (I4, R1)."""

    def take(self: network.ZmqInput, socket: Any) -> Frame:
        header = socket.recv(network._NOBLOCK)
        _, self._sequence, _ = network._HEADER.unpack(header)
        return original(self, _Again(socket, header))

    original = network.ZmqInput._take
    return swapped(network.ZmqInput, "_take", take)


class _Again:
    """A socket that gives a message back first which was taken off it."""

    def __init__(self, socket: Any, message: bytes) -> None:
        self._socket = socket
        self._messages = [message]

    def recv(self, *arguments: Any, **named: Any) -> Any:
        return self._messages.pop() if self._messages else self._socket.recv(*arguments, **named)


@tested("tests/plan/test_keyhash.py::test_lanes_and_groups_are_those_of_the_golden_vectors")
def key_groups_are_another_part_of_the_hash() -> AbstractContextManager[None]:
    """Keys have other groups than in the release that took the checkpoint: they are looked for elsewhere (I15)."""

    def key_groups(h1: Any, max_parallelism: int) -> Any:
        return (h1 % np.uint64(max_parallelism)).astype(np.uint16)

    return swapped(keyhash, "key_groups", key_groups)


# ---- settings


@tested(
    "tests/api/test_config.py::test_unaligned_checkpoints_are_taken_one_at_a_time_and_for_exactly_once"
)
def several_unaligned_at_once_are_accepted() -> AbstractContextManager[None]:
    """Nobody refuses `unaligned=True` with `max_concurrent=2` (bug-B14)."""
    return swapped(CheckpointConfig, "_check_unaligned", lambda self: None)


@simulated
def a_job_without_checkpoints_starts_again() -> AbstractContextManager[None]:
    """At most once: a failure does not end the job, it reads its input a second time (B5)."""
    original = restart.decide

    def decide(strategy: restart.Strategy, *failures: Any) -> restart.Decision:
        if isinstance(strategy, restart.Never):
            return restart.RestartAfter(0)
        return original(strategy, *failures)

    return swapped(restart, "decide", decide)


@tested("tests/protocol/test_restart.py::test_the_delay_doubles_up_to_its_limit")
def delays_do_not_grow() -> AbstractContextManager[None]:
    """A job that fails again and again is restarted as fast as it fails (R2)."""
    return swapped(restart, "_exponential_delay_ms", lambda strategy, failures: strategy.initial_ms)
