"""A store behind fsspec that remembers listings, as those of object stores do: what other processes do meanwhile is not
in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem


class RemembersListings(MemoryFileSystem):  # type: ignore[misc]
    """Answers from what it has listed before, until it is told to forget. Its own writes make it forget, too."""

    find = AbstractFileSystem.find
    isfile = AbstractFileSystem.isfile

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.listed: dict[str, list[dict[str, Any]]] = {}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        folder = self._strip_protocol(path).rstrip("/")
        if folder not in self.listed:
            self.listed[folder] = super().ls(path, detail=True, **options)
        found = self.listed[folder]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **options: Any) -> Any:
        name = self._strip_protocol(path)
        folder = name.rpartition("/")[0]
        if folder in self.listed or self._is_there(folder):
            for entry in self.ls(folder):
                if entry["name"] == name:
                    return entry
            raise FileNotFoundError(path)
        return super().info(path, **options)

    def _is_there(self, folder: str) -> bool:
        return bool(folder) and MemoryFileSystem().isdir(folder)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listed.clear()

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        if mode != "rb":
            self.listed.clear()
        return super()._open(path, mode, *arguments, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self.listed.clear()
        super().cp_file(path1, path2, **options)

    def rm_file(self, path: str) -> None:
        self.listed.clear()
        super().rm_file(path)


@contextmanager
def remembered_listings() -> Iterator[MemoryFileSystem]:
    """While it is entered `memory://` remembers listings. Hands out what another process has: it does not."""
    before = fsspec.get_filesystem_class("memory")
    fsspec.register_implementation("memory", RemembersListings, clobber=True)
    try:
        yield MemoryFileSystem()
    finally:
        fsspec.register_implementation("memory", before, clobber=True)
        RemembersListings.clear_instance_cache()
        MemoryFileSystem.store.clear()
