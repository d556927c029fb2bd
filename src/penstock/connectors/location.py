"""Where files are: a path that means the same in every process."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(path: str | os.PathLike[str]) -> str:
    """Relative paths are taken from the program's own folder of work: workers may have another one."""
    text = os.fspath(path)
    if "://" in text or "::" in text:
        return text
    whole = str(Path(text).expanduser().absolute())
    return f"{whole}/" if text.endswith("/") and whole != "/" else whole
