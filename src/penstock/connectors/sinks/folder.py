"""The few things that `FileSink` does with files, on the local disk and behind fsspec URLs.

Names are relative to the sink's folder. On the local disk everything is synced before it counts, and a move is
one rename. Behind a URL a move is what the store offers: a rename (HDFS), or a copy that appears whole and the
removal of the original (object stores).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

_OPEN_TRIES = 10


class Folder(Protocol):
    def create(self, name: str) -> Any:
        """A new file to write into; folders above it are made."""
        ...

    def seal(self, name: str) -> int:
        """Makes a closed file durable; its size."""
        ...

    def size(self, name: str) -> int | None:
        """None when there is no such file."""
        ...

    def move(self, name: str, target: str) -> None:
        """Moves a file; it appears whole or not at all, and durably."""
        ...

    def list(self, folder: str) -> list[str]:
        """The names of the files right in a folder; none when there is no such folder."""
        ...

    def delete(self, name: str) -> None:
        """No error when it is gone already."""
        ...

    def prune(self, folder: str) -> None:
        """Removes a folder if it is surely empty."""
        ...


def open_folder(path: str, storage_options: Mapping[str, Any]) -> Folder:
    fs, root = fsspec.core.url_to_fs(path, **storage_options)
    if isinstance(fs, LocalFileSystem):
        return LocalFolder(Path(root))
    return RemoteFolder(fs, root.rstrip("/"))


class LocalFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str) -> Any:
        path = self._root / name
        for tries_left in reversed(range(_OPEN_TRIES)):
            try:
                self._make_folder(path.parent)
                return pa.OSFile(str(path), "wb")
            except (FileNotFoundError, FileExistsError):
                # Another subtask has just removed the empty folder.
                if not tries_left:
                    raise
        raise AssertionError("the last try has returned or raised")

    def seal(self, name: str) -> int:
        path = self._root / name
        _sync(path)
        _sync(path.parent)
        return path.stat().st_size

    def size(self, name: str) -> int | None:
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            return None

    def move(self, name: str, target: str) -> None:
        source, destination = self._root / name, self._root / target
        source.rename(destination)
        _sync(destination.parent)
        with suppress(FileNotFoundError):
            _sync(source.parent)

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / folder).iterdir() if path.is_file())
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def prune(self, folder: str) -> None:
        with suppress(OSError):
            (self._root / folder).rmdir()

    def _make_folder(self, folder: Path) -> None:
        """Makes the folders above a file, each durable in the one above it."""
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for each in missing:
            with suppress(FileNotFoundError):
                _sync(each.parent)


class RemoteFolder:
    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._root = root

    def create(self, name: str) -> Any:
        path = self._path(name)
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        return self._fs.open(path, "wb")

    def seal(self, name: str) -> int:
        size = self.size(name)
        if size is None:
            raise FileNotFoundError(f"{self._path(name)}: not there after it was written")
        return size

    def size(self, name: str) -> int | None:
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def move(self, name: str, target: str) -> None:
        self._fs.mv(self._path(name), self._path(target))

    def list(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        return sorted(each["name"].rsplit("/", 1)[-1] for each in found if each["type"] == "file")

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def prune(self, folder: str) -> None:
        """Nothing: object stores have no folders, and some file systems remove a folder with all that is in it."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
