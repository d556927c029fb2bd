"""What happened in a simulated run, line by line: readable for people, and a hash for machines."""

from __future__ import annotations

import hashlib


class Trace:
    """Keeps every line when `verbose`, else only the last ones; the hash covers all of them."""

    def __init__(self, verbose: bool = False) -> None:
        self._digest = hashlib.sha256()
        self._lines: list[str] = []
        self._verbose = verbose

    def note(self, now_ms: float, who: str, what: str) -> None:
        line = f"{now_ms:10.3f}  {who:<12} {what}"
        self._digest.update(line.encode())
        self._lines.append(line)
        if not self._verbose and len(self._lines) > 400:
            del self._lines[:200]

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()[:16]

    def lines(self) -> list[str]:
        return list(self._lines)
