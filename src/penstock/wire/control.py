"""Messages of the control plane to bytes and back: msgpack, one tag per type, nothing but data.

    [tag, {field: value, ...}]

The tag is the name of the message's class. The other side may be anyone: a message that does not fit its
type in every field is a `WireError`, whatever its bytes were.
"""

from __future__ import annotations

from typing import Any, get_args

import msgpack

from penstock.errors import PenstockError
from penstock.protocol.messages import FromWorker, ToWorker
from penstock.wire.structure import Codec, Malformed, Structure

MESSAGE_BYTES_MAX = 256 * 1024 * 1024


class WireError(PenstockError):
    """A control message cannot be spelled, or is not one."""


def encode(message: ToWorker | FromWorker) -> bytes:
    """The bytes of a message. Raises `WireError` when it holds something that is not plain data."""
    tag = type(message).__name__
    if tag not in _CODECS:
        raise WireError(f"{tag} is not a control message")
    try:
        tree = _CODECS[tag].dump(message)
        data = bytes(msgpack.packb([tag, tree], use_bin_type=True))
    except (Malformed, ValueError, TypeError, OverflowError) as error:
        raise WireError(f"{tag} cannot be sent: {error}") from error
    _check_size(len(data), tag)
    return data


def decode(data: bytes | memoryview) -> Any:
    """The message in these bytes: one of `ToWorker` or `FromWorker`. Raises `WireError` for all else."""
    _check_size(len(data), "a message")
    tag, tree = _open(data)
    try:
        return _CODECS[tag].load(tree)
    except Malformed as error:
        raise WireError(f"a broken {tag} was received: {error}") from error


def _open(data: bytes | memoryview) -> tuple[str, Any]:
    try:
        tree = msgpack.unpackb(data, raw=False, strict_map_key=True, ext_hook=_no_extension)
    except Exception as error:  # the unpacker has a dozen ways to say that bytes are not msgpack
        raise WireError(f"{len(data)} bytes that are no control message: {error!s:.200}") from error
    if type(tree) is not list or len(tree) != 2 or type(tree[0]) is not str:
        raise WireError("bytes that are no control message: not a tag with its fields")
    if tree[0] not in _CODECS:
        raise WireError(f"an unknown kind of control message: {tree[0][:50]!r}")
    return tree[0], tree[1]


def _no_extension(code: int, _data: bytes) -> Any:
    raise ValueError(f"msgpack extension {code}")


def _check_size(size: int, what: str) -> None:
    if size > MESSAGE_BYTES_MAX:
        raise WireError(f"{what} has {size} bytes; at most {MESSAGE_BYTES_MAX} can be sent")


def _dump_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Malformed(f"expected bytes, got {type(value).__name__}")
    return bytes(value)


def _load_bytes(tree: Any) -> bytes:
    if type(tree) is not bytes:
        raise Malformed(f"expected bytes, got {type(tree).__name__}")
    return tree


_STRUCTURE = Structure(Codec(_dump_bytes, _load_bytes))
_CODECS: dict[str, Codec] = {
    kind.__name__: _STRUCTURE.of(kind) for kind in (*get_args(ToWorker), *get_args(FromWorker))
}
