"""What every store checks about a name before it touches anything."""

from __future__ import annotations

from uuid import uuid4

from penstock.errors import StorageError

TEMP_PREFIX = ".tmp-"


def checked(name: str) -> str:
    """`name`, proved to be relative and to stay below the root of its store."""
    if not _is_safe(name) or is_temp(name):
        raise StorageError(
            f"{name[:200]!r} is not a storage name: parts of it could lead elsewhere"
        )
    return name


def checked_folder(prefix: str) -> str:
    """A folder's name without a slash at its end; '' is the root."""
    folder = prefix[:-1] if prefix.endswith("/") else prefix
    return checked(folder) if folder else ""


def checked_for_delete(name: str) -> str:
    """Like `checked`; leftovers of unfinished writes may be deleted, too."""
    if not _is_safe(name):
        raise StorageError(
            f"{name[:200]!r} is not a storage name: parts of it could lead elsewhere"
        )
    return name


def check_range(name: str, offset: int, length: int | None) -> None:
    if offset < 0 or (length is not None and length < 0):
        raise StorageError(f"cannot read {length} bytes at {offset} of {name}: both must be >= 0")


def temp_beside(path: str) -> str:
    """A name in the same folder that nobody else will ever use."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{TEMP_PREFIX}{uuid4().hex}"


def is_temp(name: str) -> bool:
    """True for a file that is still being written, or was when its writer died."""
    return name.rpartition("/")[2].startswith(TEMP_PREFIX)


def _is_safe(name: str) -> bool:
    if not name or len(name) > 1000 or "\\" in name or not name.isprintable():
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))
