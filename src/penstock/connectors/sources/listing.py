"""Which files there are: a single file, a folder or a pattern, on the local disk or behind any fsspec URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from penstock.errors import DataError

_MAGIC = ("*", "?", "[")


@dataclass(frozen=True, order=True)
class Listed:
    """A file: its name relative to the source's folder, and its size."""

    name: str
    bytes_total: int


class Listing:
    """The files of one source. Names that start with `_` or `.`, in any folder of the path, do not count, nor do
    empty files."""

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self.path = path
        self._fs, root = fsspec.core.url_to_fs(path, **storage_options)
        self._root = root.rstrip("/") or "/"
        self._pattern = any(mark in self._root for mark in _MAGIC)

    def files(self) -> list[Listed]:
        """All files there are now, sorted by name."""
        self._fs.invalidate_cache()
        found = self._find()
        folder = self._folder()
        listed = [
            Listed(path.removeprefix(folder), int(info["size"] or 0))
            for path, info in found.items()
            if info["type"] == "file"
        ]
        return sorted(file for file in listed if file.bytes_total and _counts(file.name))

    def size(self, name: str) -> int | None:
        """The size of a file now; None when it is gone."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self.full(name))["size"])
        except FileNotFoundError:
            return None

    def open_bytes(self, name: str) -> Any:
        """The file as a binary stream; one whose name says so (.gz) is unpacked."""
        return self._fs.open(self.full(name), "rb", compression="infer")

    def open_random(self, name: str) -> Any:
        """The file for reads at any place."""
        if isinstance(self._fs, LocalFileSystem):
            return pa.OSFile(self.full(name))
        return self._fs.open(self.full(name), "rb")

    def full(self, name: str) -> str:
        return self._folder() + name

    def _find(self) -> dict[str, dict[str, Any]]:
        if self._pattern:
            found: dict[str, dict[str, Any]] = self._fs.glob(self._root, detail=True)
            return found
        if not self._fs.exists(self._root):
            raise DataError(f"{self.path}: there is no such file or folder; check the path")
        return dict(self._fs.find(self._root, detail=True))

    def _folder(self) -> str:
        """The part of the path that is the same for all files, with its slash."""
        if self._pattern:
            first = min(self._root.index(mark) for mark in _MAGIC if mark in self._root)
            return self._root[: self._root.rfind("/", 0, first) + 1]
        if self._fs.isfile(self._root):
            return self._root[: self._root.rfind("/") + 1]
        return self._root.rstrip("/") + "/"


def _counts(name: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in name.split("/"))
