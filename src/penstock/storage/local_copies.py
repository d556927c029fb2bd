"""Second copies of the files that a worker writes, on a disk of its own: what is read back from them is near.

Nothing depends on them. A copy is begun together with the file itself and gets its name after the file has got its own,
so there is never a copy of something that does not exist. One that is missing, short or damaged is passed over, and a
disk that fails costs copies: neither a checkpoint nor a restore hears of it, only those who look at the numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

from penstock.errors import StorageError
from penstock.ports.store import CheckpointStore, Writing
from penstock.redaction import redacted

log = logging.getLogger("penstock")


class LocalCopies:
    """Those of one job on one host. Any thread may use it; no call raises because of the disk."""

    def __init__(
        self, disk: CheckpointStore, close: Callable[[bool], None] = lambda _: None
    ) -> None:
        """`close` is told whether the job is over: then nobody needs the copies any more."""
        self._disk = disk
        self._close = close
        self._lock = Lock()
        self._said = False
        self.lost = 0
        """Copies that could not be written, or were damaged."""

    def begin(self, name: str) -> _Copy:
        return _Copy(self, lambda: self._disk.begin(name))

    def read(
        self, name: str, offset: int, length: int, is_right: Callable[[bytes], bool]
    ) -> bytes | None:
        """None: there is no copy, or it is not what was written, and it is thrown away."""
        try:
            data = self._disk.read(name, offset, length)
        except StorageError:
            self.delete(name)
            return None
        if is_right(data):
            return data
        self.give_up(f"{name} is damaged")
        self.delete(name)
        return None

    def list(self) -> list[str]:
        try:
            return self._disk.list()
        except StorageError as error:
            self.give_up(str(error))
            return []

    def delete(self, name: str) -> None:
        try:
            self._disk.delete(name)
        except StorageError as error:
            self._say(str(error))

    def give_up(self, why: str) -> None:
        with self._lock:
            self.lost += 1
        self._say(why)

    def close(self, *, over: bool) -> None:
        self._close(over)

    def _say(self, why: str) -> None:
        """Once: a disk that is full fails at every checkpoint."""
        with self._lock:
            said, self._said = self._said, True
        if not said:
            log.warning(
                "copies of state on this worker's own disk are incomplete: %s. Checkpoints are not affected; what has"
                " no copy is read from the checkpoint directory after a failure",
                redacted(why),
            )


class _Copy:
    """`Writing` that never raises: after the first failure it does nothing."""

    def __init__(self, copies: LocalCopies, begin: Callable[[], Writing]) -> None:
        self._copies = copies
        self._writing: Writing | None = None
        self._try(lambda: setattr(self, "_writing", begin()))

    def write(self, chunk: bytes | memoryview) -> None:
        if (writing := self._writing) is not None:
            self._try(lambda: writing.write(chunk))

    def finish(self) -> None:
        if (writing := self._writing) is not None:
            self._try(writing.finish)

    def discard(self) -> None:
        if self._writing is not None:
            self._writing.discard()
            self._writing = None

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except StorageError as error:
            self._copies.give_up(str(error))
            self.discard()


class CopiedStore:
    """What the workers of an attempt write their state to and read it back from: the job's own store, with copies
    beside it if there are any. Any thread may use it."""

    def __init__(self, primary: CheckpointStore, copies: LocalCopies | None = None) -> None:
        self._primary = primary
        self._copies = copies
        self._lock = Lock()
        self._lost_before = copies.lost if copies is not None else 0
        self.local_bytes = 0
        self.primary_bytes = 0
        """So much was read, from copies and from the store."""

    @property
    def copies_lost(self) -> int | None:
        """Since this was made; None where there are to be no copies."""
        return None if self._copies is None else self._copies.lost - self._lost_before

    def begin(self, name: str) -> Writing:
        file = self._primary.begin(name)
        return file if self._copies is None else _Both(file, self._copies.begin(name))

    def read(self, name: str, offset: int, length: int, is_right: Callable[[bytes], bool]) -> bytes:
        """From the copy if that proves to be right. What the store has is for the caller to judge."""
        copies = self._copies
        data = copies.read(name, offset, length, is_right) if copies is not None else None
        if data is not None:
            with self._lock:
                self.local_bytes += length
            return data
        data = self._primary.read(name, offset, length)
        with self._lock:
            self.primary_bytes += length
        return data


class _Both:
    """A file and its copy. Only a file that is durable has a copy that counts."""

    def __init__(self, file: Writing, copy: _Copy) -> None:
        self._file = file
        self._copy = copy

    def write(self, chunk: bytes | memoryview) -> None:
        self._file.write(chunk)
        self._copy.write(chunk)

    def finish(self) -> int:
        size = self._file.finish()
        self._copy.finish()
        return size

    def discard(self) -> None:
        self._file.discard()
        self._copy.discard()
