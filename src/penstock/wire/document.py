"""Small durable documents: JSON that proves itself.

    {"body":{...},"digest":"<sha256>","format":"<what it is>","version":1}

A document is one line of JSON that anyone can open, in exactly one spelling: sorted keys, no spaces, ASCII.
The digest covers format, version and every byte of the body, and the rest is compared byte by byte, so any
change at all is found when it is read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import Any

from penstock.errors import CheckpointCorrupt, InvariantBroken
from penstock.wire.structure import Codec, Malformed, Structure

DOCUMENT_BYTES_MAX = 256 * 1024 * 1024

_HEAD = b'{"body":'
_TAIL = re.compile(
    rb',"digest":"([0-9a-f]{64})","format":"([a-z-]{1,40})","version":([1-9][0-9]{0,5})\}\n'
)
_TAIL_BYTES_MAX = 160


def write(value: Any, kind: str, version: int) -> bytes:
    """The bytes of a dataclass as a document of this kind."""
    try:
        tree = _STRUCTURE.of(type(value)).dump(value)
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (Malformed, ValueError) as error:
        raise InvariantBroken(f"a {kind} cannot be written: {error}") from error
    body = text.encode("ascii")
    if len(body) > DOCUMENT_BYTES_MAX:
        raise InvariantBroken(f"a {kind} of {len(body)} bytes: the limit is {DOCUMENT_BYTES_MAX}")
    tail = f',"digest":"{_digest(kind, version, body)}","format":"{kind}","version":{version}}}\n'
    return _HEAD + body + tail.encode("ascii")


def read(data: bytes, kind: str, versions: dict[int, type], where: str) -> Any:
    """The value in a document; `versions` has the dataclass for each version that can be read."""
    body, version = _open(data, kind, where)
    if version not in versions:
        raise CheckpointCorrupt(
            f"{where}: a {kind} of version {version}; this Penstock reads up to {max(versions)}. "
            "Use the Penstock that wrote it, or a newer one"
        )
    try:
        return _STRUCTURE.of(versions[version]).load(json.loads(body))
    except Malformed as error:
        raise CheckpointCorrupt(f"{where}: not a valid {kind}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"{where}: the body of this {kind} is not JSON") from error


def _open(data: bytes, kind: str, where: str) -> tuple[bytes, int]:
    if len(data) > DOCUMENT_BYTES_MAX + 1024:
        raise CheckpointCorrupt(f"{where}: {len(data)} bytes are too many for a {kind}")
    start = max(len(data) - _TAIL_BYTES_MAX, 0)
    found = _TAIL.search(data, data.rfind(b',"digest":"', start))
    if not data.startswith(_HEAD) or found is None or found.end() != len(data):
        raise CheckpointCorrupt(
            f"{where}: not a whole {kind}: cut off, overwritten or another file"
        )
    digest, found_kind, version = found[1].decode(), found[2].decode(), int(found[3])
    if found_kind != kind:
        raise CheckpointCorrupt(f"{where}: this is a {found_kind}, not a {kind}")
    body = data[len(_HEAD) : found.start()]
    if _digest(kind, version, body) != digest:
        raise CheckpointCorrupt(f"{where}: the {kind} has changed since it was written (digest)")
    return body, version


def _digest(kind: str, version: int, body: bytes) -> str:
    return hashlib.sha256(f"{kind} {version}\n".encode() + body).hexdigest()


def _dump_bytes(value: Any) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Malformed(f"expected bytes, got {type(value).__name__}")
    return base64.b64encode(value).decode("ascii")


def _load_bytes(tree: Any) -> bytes:
    try:
        return base64.b64decode(tree, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise Malformed("expected bytes as base64 text") from None


_STRUCTURE = Structure(Codec(_dump_bytes, _load_bytes))
