"""Folders that all hosts of a cluster must share: the driver leaves a mark in each, and every worker looks for it.

A folder that only has the same name on every host seems to work at first: each worker writes into its own. It shows
when one of them has to go on with what another one wrote, and by then rows are scattered over disks. So it is looked
at before anything runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.connectors.location import cannot
from penstock.errors import ConfigError

VISIBLE_WITHIN_S = 5.0
"""How long a network file system may take to show a new file to other hosts."""
LOOK_EVERY_S = 0.2
STALE_S = 24 * 3600.0
"""Marks of drivers that were killed are removed when they are so old."""


@dataclass(frozen=True)
class Mark:
    """`what` lies in a folder that must be shared; the driver's `host` has this content in `file`."""

    what: str
    file: str
    content: str
    host: str
    is_ours: bool = True
    """It goes when the job has ended."""


def is_on_disk(location: str) -> bool:
    """Whether a path or URL means something else on every host that does not share it."""
    return location.startswith("file://") or not ("://" in location or "::" in location)


def existing_mark(what: str, file: str) -> Mark:
    """A file that is there anyway."""
    path = file.removeprefix("file://")
    return Mark(what, path, Path(path).read_text(), socket.gethostname(), is_ours=False)


def leave_mark(what: str, folder: str, job: str) -> Mark:
    """A file of the driver's own, in a folder for what is hidden from readers."""
    path, token = Path(folder.removeprefix("file://")), uuid.uuid4().hex
    file = path / f"shared-{job}-{token}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.glob(f"shared-{job}-{'[0-9a-f]' * len(token)}"))
        file.write_text(token)
    except OSError as error:
        raise cannot("write to", str(path), error) from error
    return Mark(what, str(file), token, socket.gethostname())


def remove_marks(marks: Iterable[Mark]) -> None:
    for mark in marks:
        if mark.is_ours:
            with contextlib.suppress(OSError):
                os.unlink(mark.file)


def check_marks(marks: Sequence[Mark]) -> None:
    """On a worker: raises ConfigError where it does not see what the driver sees."""
    end_s = time.monotonic() + VISIBLE_WITHIN_S
    for mark in marks:
        while not _sees(mark):
            if time.monotonic() >= end_s:
                raise ConfigError(_not_shared(mark))
            time.sleep(LOOK_EVERY_S)


def _sees(mark: Mark) -> bool:
    """A disk that fails is another trouble, which the job meets and tells by itself."""
    try:
        return Path(mark.file).read_text() == mark.content
    except (FileNotFoundError, NotADirectoryError):
        return False


def _not_shared(mark: Mark) -> str:
    here = socket.gethostname()
    return (
        f"{mark.what} is not the same folder on {here} as on {mark.host}, where the driver runs: {here} does not see "
        f"{mark.file}. Give a path that all hosts share (NFS and the like, mounted at the same place), or a URL "
        "(hdfs://..., s3://...)"
    )


def _remove_stale(files: Iterable[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > STALE_S:
                file.unlink()
