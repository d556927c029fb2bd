"""Floors that are RocksDB databases, one for each state, in a folder on the worker's own disk.

Nothing is compressed and files are mapped: a row that the operating system has in its page cache is read without being
copied into a cache of our own, and what memory is left over is used without anybody having to say how much. There is
no log: what is not flushed when a worker dies is in no checkpoint either. Files are merged with others of about their
size, not with all of the next level: what is written anew is what checkpoints have to upload.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from threading import RLock
from time import sleep
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, StorageError
from penstock.ports.floor import FIRST_MEMBER, Members

if TYPE_CHECKING:
    from rocksdict import Options, Rdict

WRITE_ROWS_MAX = 128
"""Written in one go: the interpreter is not free for others meanwhile."""
PIECE_BYTES = 4 << 20
WRITE_BUFFER_BYTES = 16 << 20
LEAVING = "-leaving"
_BLOOM_BITS = 10


class RocksFloors:
    """`folder` is this attempt's alone; it goes with `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._open: list[RocksFloor] = []

    def open(self, members: Members | None = None) -> RocksFloor:
        path = self._folder / str(next(self._numbers))
        with told(self._folder, "open"):
            path.mkdir(0o700, parents=True)
            for name, pieces in (members or {}).items():
                with (path / name).open("xb") as file:
                    for piece in pieces():
                        file.write(piece)
            floor = RocksFloor(path)
        self._open.append(floor)
        return floor

    def close(self) -> None:
        for floor in self._open:
            with suppress(Exception):
                floor.close()
        self._open = []
        remove_at_once(self._folder)


def remove_at_once(folder: Path) -> None:
    """Under another name, so that threads which still work for a snapshot can put nothing more into it meanwhile: a
    folder that is not empty stays."""
    leaving = folder.with_name(f"{folder.name}{LEAVING}")
    with suppress(OSError):
        folder.rename(leaving)
    shutil.rmtree(leaving, ignore_errors=True)


class RocksFloor:
    def __init__(self, path: Path) -> None:
        from rocksdict import Rdict, WriteOptions

        self._path = path
        self.alone: Any = RLock()
        self._numbers = count()
        self._db: Rdict = Rdict(str(path), _options())
        options: Any = WriteOptions()
        options.disable_wal = True
        self._db.set_write_options(options)

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        with told(self._path, "read"):
            found: Any = self._db.get(list(keys)) if keys else []
            values: Sequence[bytes | None] = found
            return values

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._apply("put", keys, values)

    def remove(self, keys: Sequence[bytes]) -> None:
        self._apply("delete", keys)

    def remove_range(self, first: bytes, end: bytes) -> None:
        with told(self._path, "write"):
            self._db.delete_range(first, end)

    def scan(self, first: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        with told(self._path, "read"):
            items: Any = self._db.items(from_key=first)
            yield from items if end is None else takewhile(lambda item: item[0] < end, items)

    def below(self, prefixes: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
        with told(self._path, "read"):
            rows: Any = self._db.iter()
            return [list(_beginning_with(prefix, rows)) for prefix in prefixes]

    def moment(self) -> RocksMoment:
        return RocksMoment(self._db.snapshot(), self._path)

    def keep(self) -> KeptFiles:
        from rocksdict import Checkpoint

        folder = self._path.with_name(f"{self._path.name}-kept-{next(self._numbers)}")
        with told(self._path, "write"):
            self._db.flush()
            Checkpoint(self._db).create_checkpoint(str(folder))
        return KeptFiles(folder)

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def _apply(self, call: str, *columns: Sequence[bytes]) -> None:
        from rocksdict import WriteBatch

        with told(self._path, "write"):
            for start in range(0, len(columns[0]), WRITE_ROWS_MAX):
                batch = WriteBatch(raw_mode=True)
                rows = (column[start : start + WRITE_ROWS_MAX] for column in columns)
                deque(map(getattr(batch, call), *rows), maxlen=0)
                self._db.write(batch)
                sleep(0)


class RocksMoment:
    def __init__(self, snapshot: Any, path: Path) -> None:
        self._snapshot = snapshot
        self._path = path

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        with told(self._path, "read"):
            return [self._one(key) for key in keys]

    def _one(self, key: bytes) -> bytes | None:
        """Key by key: the iterators of a snapshot see what was written later, too (rocksdict 0.3)."""
        try:
            value: bytes = self._snapshot[key]
        except Exception as error:
            if str(error) == "key not found":
                return None
            raise
        return value


class KeptFiles:
    """Links to the files, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        sizes = {
            entry.name: entry.stat().st_size
            for entry in os.scandir(folder)
            if not entry.name.startswith("LOG")
        }
        self.members: Mapping[str, int] = {
            name: sizes[name] for name in sorted(sizes, key=_first_first) if sizes[name]
        }

    def is_lasting(self, member: str) -> bool:
        return member.endswith(".sst")

    def read(self, member: str) -> Iterator[bytes]:
        with told(self._folder, "read"), (self._folder / member).open("rb") as file:
            yield from iter(partial(file.read, PIECE_BYTES), b"")

    def release(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def temporary_floors() -> Iterator[RocksFloors]:
    """For whoever looks at a checkpoint. Nothing is made unless one is opened."""
    floors = RocksFloors(Path(tempfile.gettempdir()) / f"penstock-look-{uuid.uuid4().hex}")
    try:
        yield floors
    finally:
        floors.close()


def check_installed() -> None:
    """Raises ConfigError where RocksDB cannot be used."""
    try:
        import rocksdict  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'backend="rocksdb" needs the package rocksdict, which cannot be imported here ({error}); install it with'
            ' "pip install rocksdict" on the driver and on every worker, or use backend="heap"'
        ) from error


@contextmanager
def told(path: Path, what: str) -> Iterator[None]:
    """RocksDB says all that is wrong with plain exceptions."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        raise StorageError(
            f"RocksDB could not {what} state in {path}: {error}. It lies on the worker's own disk, in Spark's local"
            " directories: see that there is room (spark.local.dir, SPARK_LOCAL_DIRS)"
        ) from error


def _beginning_with(prefix: bytes, rows: Any) -> Iterator[tuple[bytes, bytes]]:
    rows.seek(prefix)
    while rows.valid():
        key = rows.key()
        if not key.startswith(prefix):
            return
        yield key, rows.value()
        rows.next()


def _first_first(name: str) -> tuple[bool, str]:
    return name != FIRST_MEMBER, name


def _options() -> Options:
    from rocksdict import BlockBasedOptions, DBCompactionStyle, DBCompressionType, Options

    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    blocks.disable_cache()
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())
    options.set_allow_mmap_reads(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    return options
