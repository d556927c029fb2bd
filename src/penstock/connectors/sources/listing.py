"""Which files there are: a single file, a folder or a pattern, on the local disk or behind any fsspec URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate, infer_compression

from penstock.connectors.location import cannot, is_permanent, open_filesystem
from penstock.errors import DataError
from penstock.redaction import errors_without_secrets, has_parameters, redacted

_MAGIC = ("*", "?", "[")


@dataclass(frozen=True, order=True)
class Listed:
    """A file: its name relative to the source's folder, and its size."""

    name: str
    bytes_total: int


class Listing:
    """The files of one source. Names that start with `_` or `.`, in any folder of the path, do not count, nor do
    empty files. `path` is fit to be shown. A `literal` one is no pattern, whatever marks are in it."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any], *, literal: bool = False
    ) -> None:
        self._fs, root = open_filesystem(path, storage_options)
        self.path = redacted(path)
        root, mark, parameters = root.partition("?") if has_parameters(path) else (root, "", "")
        self._parameters = mark + parameters
        """What stands behind a URL (`?token=...`): no part of a name, so that it is in no checkpoint."""
        self._root = root.rstrip("/") or "/"
        self._pattern = not literal and any(mark in self._root for mark in _MAGIC)
        self._local = isinstance(self._fs, LocalFileSystem)

    def files(self) -> list[Listed]:
        """All files there are now, sorted by name. What cannot be listed is an error, never an empty folder."""
        with errors_without_secrets(f"cannot list {self.path}"):
            self._fs.invalidate_cache()
            found = [file for file in self._find() if file.bytes_total and _counts(file.name)]
        for file in found:
            self._require_text(file.name)
        return sorted(found, key=lambda file: file.name)

    def _require_text(self, name: str) -> None:
        """A checkpoint keeps names of files."""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{self.path}: the name of the file {name!a} is no valid UTF-8, so no checkpoint can keep it; "
                "rename the file, or let a pattern leave it out"
            ) from None

    def require_readable(self) -> None:
        """Raises where a local path can never be read; what is below it is not looked at."""
        if self._local:
            self._require_local()

    def size(self, name: str) -> int | None:
        """The size of a file now; None when it is gone."""
        with errors_without_secrets(f"cannot look at {self.shown(name)}"):
            self._fs.invalidate_cache()
            try:
                return int(self._fs.info(self._full(name))["size"])
            except FileNotFoundError:
                return None

    def open_bytes(self, name: str) -> Any:
        """The file as a binary stream; one whose name says so (.gz) is unpacked."""
        return self._open(name, infer_compression(name))

    def open_random(self, name: str) -> Any:
        """The file for reads at any place."""
        return self._open(name, None)

    def shown(self, name: str) -> str:
        """Where a file is, for people."""
        return redacted(self._folder + name)

    def _open(self, name: str, compression: str | None) -> Any:
        full, shown = self._full(name), self.shown(name)
        with errors_without_secrets(f"cannot open {shown}"):
            try:
                if self._local and compression is None:
                    return pa.OSFile(full)
                return self._fs.open(full, "rb", compression=compression)
            except FileNotFoundError:
                raise DataError(
                    f"{shown}: the file was listed and is gone; do not move input files"
                ) from None
            except OSError as error:
                if is_permanent(error):
                    raise cannot("read", shown, error) from None
                raise

    def _find(self) -> Iterator[Listed]:
        self.require_readable()
        if self._pattern:
            return self._listed(self._glob())
        if self._local:
            return self._walk(Path(self._root))
        root = self._root + self._parameters
        if self._fs.isfile(root):
            return self._listed({root: self._fs.info(root)})
        if not self._fs.exists(root):
            raise self._missing()
        return self._listed(self._search(root) if self._walks else self._fs.find(root, detail=True))

    @property
    def _walks(self) -> bool:
        """fsspec's own walk passes in silence over every folder that it cannot list. Stores that list all in one go
        have a search of their own, and raise."""
        kind = type(self._fs)
        if isinstance(self._fs, AsyncFileSystem):
            return bool(kind._find is AsyncFileSystem._find)
        return bool(kind.find is AbstractFileSystem.find)

    def _glob(self) -> Mapping[str, Mapping[str, Any]]:
        if not self._walks:
            found: Mapping[str, Mapping[str, Any]] = self._fs.glob(self._root, detail=True)
            return found
        depth = None if "**" in self._root else self._root.removeprefix(self._folder).count("/") + 1
        matches = re.compile(glob_translate(self._root)).match
        below = self._search(self._folder.rstrip("/") or "/", depth)
        return {path: information for path, information in below.items() if matches(path)}

    def _search(self, folder: str, depth: int | None = None) -> dict[str, Mapping[str, Any]]:
        """All files below a folder, so many folders deep."""
        found: dict[str, Mapping[str, Any]] = {}
        for information in self._entries_of(folder):
            path = information["name"].rstrip("/")
            if information["type"] != "directory":
                found[path] = information
            elif path != folder and depth != 1:
                found |= self._search(path, None if depth is None else depth - 1)
        return found

    def _entries_of(self, folder: str) -> list[Mapping[str, Any]]:
        """What is in a folder; nothing when it went away meanwhile."""
        try:
            return list(self._fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []
        except OSError as error:
            if is_permanent(error):
                raise cannot("list", folder, error) from None
            raise

    def _listed(self, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Listed]:
        for path, information in found.items():
            if information["type"] == "file":
                name = path.removeprefix(self._folder).removesuffix(self._parameters)
                yield Listed(name, int(information["size"] or 0))

    def _walk(self, folder: Path) -> Iterator[Listed]:
        """A local folder with all below it. Hidden ones are not entered, links are not followed."""
        if folder.is_file():
            yield Listed(folder.name, folder.stat().st_size)
            return
        for entry in _entries(folder):
            if not _counts(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(Path(entry.path))
            elif entry.is_file(follow_symlinks=False) and (size := _size(entry)) is not None:
                yield Listed(entry.path.removeprefix(self._folder), size)

    def _require_local(self) -> None:
        path = Path(self._folder if self._pattern else self._root)
        try:
            if path.is_file():
                path.open("rb").close()
            else:
                os.scandir(path).close()
        except FileNotFoundError:
            if not self._pattern:
                raise self._missing() from None
        except OSError as error:
            if is_permanent(error):
                raise cannot("read", str(path), error) from error
            raise

    def _missing(self) -> DataError:
        return DataError(f"{self.path}: there is no such file or folder; check the path")

    def _full(self, name: str) -> str:
        return self._folder + name + self._parameters

    @cached_property
    def _folder(self) -> str:
        """The part of the path that is the same for all files, with its slash."""
        if self._pattern:
            first = min(self._root.index(mark) for mark in _MAGIC if mark in self._root)
            return self._root[: self._root.rfind("/", 0, first) + 1]
        if self._fs.isfile(self._root + self._parameters):
            return self._root[: self._root.rfind("/") + 1]
        return self._root.rstrip("/") + "/"


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing when it went away meanwhile."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        if is_permanent(error):
            raise cannot("list", str(folder), error) from error
        raise


def _size(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return None


def _counts(name: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in name.split("/"))
