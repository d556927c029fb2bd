"""Where files are: a path that means the same in every process, and what to say where it cannot be used."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec

from penstock.errors import ConfigError
from penstock.redaction import redacted, remember

_ANOTHER_PATH = "name another path"
_HINTS = {
    errno.EACCES: "give the user that runs the job the right to it, or name another path",
    errno.EPERM: "give the user that runs the job the right to it, or name another path",
    errno.EROFS: "the disk is mounted read-only; name another path",
    errno.ENOTDIR: "a part of the path is a file; name another path",
    errno.EEXIST: "a part of the path is a file; name another path",
    errno.EISDIR: "it is a folder where a file is needed; name another path",
    errno.ELOOP: "symbolic links lead in a circle; name another path",
    errno.ENAMETOOLONG: "the path is too long; name another path",
    errno.ENOENT: "the folder is not there and cannot be made; name another path",
}
"""What trying again does not mend. A full disk or a lost connection may pass, so they are not in here."""


def absolute(path: str | os.PathLike[str]) -> str:
    """Relative paths are taken from the program's own folder of work: workers may have another one."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ConfigError(f"{text!r} is not a path; give a file, a folder or a URL")
    if "://" in text or "::" in text:
        return text
    whole = str(Path(text).expanduser().absolute())
    return f"{whole}/" if text.endswith("/") and whole != "/" else whole


def open_filesystem(path: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """fsspec's file system for a path or URL, and the path within it."""
    remember(path, storage_options)
    try:
        fs, root = fsspec.core.url_to_fs(path, **storage_options)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(
            f"{redacted(path)} cannot be opened: {redacted(str(error))}; check the URL and storage_options, and"
            " that the package for it is installed, here and on the executors"
        ) from None
    return fs, str(root)


def is_permanent(error: OSError) -> bool:
    """Whether trying again is of no use."""
    return error.errno in _HINTS or isinstance(error, PermissionError)


def may_pass(error: BaseException) -> bool:
    """A failure of the disk or the network while a file was read, which says nothing about what is in the file."""
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    has_code = isinstance(error, OSError) and error.errno is not None
    return has_code and not is_permanent(error)  # type: ignore[arg-type]


def cannot(action: str, path: str, error: OSError) -> ConfigError:
    """An error that a restart does not mend: the job fails at once instead of being restarted for ever."""
    code = error.errno or (errno.EACCES if isinstance(error, PermissionError) else 0)
    reason = os.strerror(code) if code else redacted(str(error))
    name = errno.errorcode.get(code, "no code")
    hint = _HINTS.get(code, _ANOTHER_PATH)
    host = socket.gethostname()
    return ConfigError(f"cannot {action} {redacted(path)} on {host}: {reason} ({name}); {hint}")
