"""The few things that the sinks with files do with them, on the local disk and behind fsspec URLs.

Names are relative to the sink's folder. On the local disk everything is synced before it counts, and a move is
one rename. Behind a URL a move is what the store offers: a rename (HDFS), or a copy that appears whole and the
removal of the original (object stores).
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from penstock.connectors.location import cannot, is_permanent, open_filesystem

_OPEN_TRIES = 100
"""Subtasks remove the staging folder when it is empty; so often it is made again under the hands of others."""
_EFFECTIVE = os.access in os.supports_effective_ids


class Folder(Protocol):
    def require_writable(self) -> None:
        """Raises `ConfigError` where nothing can ever be written, as far as that can be told without writing."""
        ...

    def create(self, name: str) -> Any:
        """A new file to write into; folders above it are made."""
        ...

    def seal(self, name: str) -> int:
        """Makes a closed file durable; its size."""
        ...

    def open(self, name: str) -> Any:
        """A file to read; `FileNotFoundError` where it is gone, now or while it is read."""
        ...

    def size(self, name: str) -> int | None:
        """None when there is no such file."""
        ...

    def move(self, name: str, target: str) -> None:
        """Moves a file; it appears whole or not at all, and durably, with the folders above it."""
        ...

    def settle(self, name: str) -> None:
        """Makes the name of a file durable that was moved by someone who may not have got that far."""
        ...

    def list(self, folder: str) -> list[str]:
        """The names of the files right in a folder; none when there is no such folder."""
        ...

    def folders(self, folder: str) -> builtins.list[str]:
        """The names of the folders right in a folder; none when there is no such folder."""
        ...

    def delete(self, name: str) -> None:
        """No error when it is gone already."""
        ...

    def prune(self, folder: str) -> None:
        """Removes a folder if it is surely empty."""
        ...


def open_folder(path: str, storage_options: Mapping[str, Any]) -> Folder:
    fs, root = open_filesystem(path, storage_options)
    if isinstance(fs, LocalFileSystem):
        return LocalFolder(Path(root))
    return RemoteFolder(fs, root.rstrip("/"))


class LocalFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def require_writable(self) -> None:
        try:
            _sync_above(_make_folder(self._root))
            if not os.access(self._root, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            if is_permanent(error):
                raise cannot("write to", str(self._root), error) from error
            raise

    def create(self, name: str) -> Any:
        path = self._root / name
        for tries_left in reversed(range(_OPEN_TRIES)):
            try:
                return self._create(path)
            except OSError as error:
                is_race = isinstance(error, FileNotFoundError | FileExistsError)
                if is_race and tries_left:
                    continue  # another subtask has just removed the empty folder
                if is_permanent(error):
                    raise cannot("write to", str(self._root), error) from error
                raise
        raise AssertionError("the last try has returned or raised")

    def seal(self, name: str) -> int:
        path = self._root / name
        _sync(path)
        _sync(path.parent)
        return path.stat().st_size

    def open(self, name: str) -> Any:
        return pa.OSFile(str(self._root / name), "rb")

    def size(self, name: str) -> int | None:
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            return None

    def move(self, name: str, target: str) -> None:
        source, destination = self._root / name, self._root / target
        destination.parent.mkdir(parents=True, exist_ok=True)
        source.rename(destination)
        self.settle(target)
        with suppress(FileNotFoundError):
            _sync(source.parent)

    def settle(self, name: str) -> None:
        """With all folders above it: whoever made them may not have got that far either."""
        for folder in Path(name).parents:
            _sync(self._root / folder)

    def list(self, folder: str) -> list[str]:
        return self._names(folder, os.DirEntry.is_file)

    def folders(self, folder: str) -> builtins.list[str]:
        return self._names(folder, os.DirEntry.is_dir)

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def prune(self, folder: str) -> None:
        with suppress(OSError):
            (self._root / folder).rmdir()

    def _names(
        self, folder: str, is_wanted: Callable[[os.DirEntry[str]], bool]
    ) -> builtins.list[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if is_wanted(entry))
        except FileNotFoundError:
            return []

    def _create(self, path: Path) -> Any:
        """First the file, so that nobody finds the folder empty, then the folders are made durable."""
        made = _make_folder(path.parent)
        handle = pa.OSFile(str(path), "wb")
        try:
            _sync_above(made)
        except BaseException:
            handle.close()
            raise
        return handle


class RemoteFolder:
    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._root = root

    def require_writable(self) -> None:
        """Nothing: whether a store takes a file is known when it is given one."""

    def create(self, name: str) -> Any:
        path = self._path(name)
        try:
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            return self._fs.open(path, "wb")
        except OSError as error:
            if is_permanent(error):
                raise cannot("write to", self._root, error) from None
            raise

    def seal(self, name: str) -> int:
        size = self.size(name)
        if size is None:
            raise FileNotFoundError(f"{self._path(name)}: not there after it was written")
        return size

    def open(self, name: str) -> Any:
        self._fs.invalidate_cache()
        return self._fs.open(self._path(name), "rb")

    def size(self, name: str) -> int | None:
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def move(self, name: str, target: str) -> None:
        if "/" in target:
            self._fs.makedirs(self._path(target).rsplit("/", 1)[0], exist_ok=True)
        self._fs.mv(self._path(name), self._path(target))

    def settle(self, name: str) -> None:
        """Nothing: what a store shows is durable."""

    def list(self, folder: str) -> list[str]:
        return self._names(folder, "file")

    def folders(self, folder: str) -> builtins.list[str]:
        return self._names(folder, "directory")

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def prune(self, folder: str) -> None:
        """Nothing: object stores have no folders, and some file systems remove a folder with all that is in it."""

    def _names(self, folder: str, kind: str) -> builtins.list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder).rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        names = [each["name"].rstrip("/") for each in found if each["type"] == kind]
        return sorted(name.rsplit("/", 1)[-1] for name in names)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _make_folder(folder: Path) -> list[Path]:
    """Makes a folder and those above it; those that were not there."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _sync_above(folders: Iterable[Path]) -> None:
    """Makes each folder durable in the one above it."""
    for each in folders:
        with suppress(FileNotFoundError):
            _sync(each.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
