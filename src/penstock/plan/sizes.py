"""Sizes of memory as people write them: 512 MiB, 2g, 1_000_000."""

from __future__ import annotations

import re

from penstock.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(size: str | int, what: str = "a size") -> int:
    """The number of bytes. `512m` is what Spark means by it, 512 MiB."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ConfigError(
            f"{what}: {size!r} is no size of memory; write it as '512 MiB', '2 GiB' or '512m', or as a number of bytes"
        )
    return int(float(found[1]) * unit)
