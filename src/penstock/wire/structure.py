"""Frozen dataclasses to plain trees (dicts, lists, numbers, text) and back, led by their type hints.

What comes from a disk or a socket is never trusted: every field is checked for its type, an unknown or a
missing one is refused, and the error says where in the tree it is. No code travels, only data.

A dialect says how bytes are spelled: msgpack has them, JSON needs text. Mappings with keys other than text
become sorted lists of pairs, which both formats can say.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, NewType, TypeAlias, Union, get_args, get_origin, get_type_hints

PLAIN_DEPTH_MAX = 32


class Malformed(Exception):
    """A tree does not fit its type. `where` is the way to it, like `snapshots[2].timings`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where or 'the message'}: {self.problem}"


Dump: TypeAlias = Callable[[Any, str], Any]
Load: TypeAlias = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """Both directions for one type; the text is the way to the value, for errors."""

    dump: Dump
    load: Load


class _PlainMarker:
    """Stands for the recursive alias `Plain` when type hints are resolved."""


class Structure:
    """Makes and keeps the codecs of one dialect."""

    def __init__(self, bytes_codec: Codec) -> None:
        self._made: dict[Any, Codec] = {
            bool: Codec(_exactly(bool), _exactly(bool)),
            int: Codec(_dump_int, _load_int),
            float: Codec(_dump_float, _load_float),
            str: Codec(_dump_str, _exactly(str)),
            bytes: bytes_codec,
            type(None): Codec(_exactly(type(None)), _exactly(type(None))),
            _PlainMarker: Codec(_plain, _plain),
        }

    def of(self, kind: Any) -> Codec:
        """The codec of a type, made once."""
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: Any) -> Codec:
        if isinstance(kind, NewType):
            return self.of(kind.__supertype__)
        origin = get_origin(kind)
        if origin in (Union, types.UnionType):
            return self._optional(kind)
        if origin is tuple:
            return self._tuple(get_args(kind))
        if origin is Mapping:
            return self._mapping(*get_args(kind))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _enum(kind)
        if is_dataclass(kind) and isinstance(kind, type):
            return self._dataclass(kind)
        raise TypeError(f"no codec for fields of type {kind!r}")

    def _optional(self, kind: Any) -> Codec:
        members = [member for member in get_args(kind) if member is not type(None)]
        if len(members) != 1 or len(get_args(kind)) != 2:
            raise TypeError(f"a union other than with None cannot be told apart: {kind!r}")
        inner = self.of(members[0])
        return Codec(
            lambda value, where: None if value is None else inner.dump(value, where),
            lambda tree, where: None if tree is None else inner.load(tree, where),
        )

    def _tuple(self, members: tuple[Any, ...]) -> Codec:
        if len(members) == 2 and members[1] is Ellipsis:
            return _sequence(self.of(members[0]))
        return _fixed(tuple(self.of(member) for member in members))

    def _mapping(self, key: Any, value: Any) -> Codec:
        if key is str:
            return _text_mapping(self.of(value))
        return _pair_mapping(self.of(key), self.of(value))

    def _dataclass(self, kind: type) -> Codec:
        hints = get_type_hints(kind, localns={"Plain": _PlainMarker})
        members = {field.name: (field, self.of(hints[field.name])) for field in fields(kind)}
        return _record(kind, members)


# ---- single values


def _exactly(kind: type) -> Load:
    def check(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise Malformed(where, f"expected {kind.__name__}, got {_kind(value)}")
        return value

    return check


def _dump_int(value: Any, where: str) -> int:
    try:
        return int(operator.index(value))  # NumPy's integers, too
    except TypeError:
        raise Malformed(where, f"expected an integer, got {_kind(value)}") from None


def _load_int(tree: Any, where: str) -> int:
    if type(tree) is not int:
        raise Malformed(where, f"expected an integer, got {_kind(tree)}")
    if not -(2**63) <= tree < 2**64:
        raise Malformed(where, "an integer of more than 64 bits")
    return tree


def _dump_float(value: Any, where: str) -> float:
    if isinstance(value, str | bytes):
        raise Malformed(where, f"expected a number, got {_kind(value)}")
    return _to_float(value, where)


def _load_float(tree: Any, where: str) -> float:
    if type(tree) not in (int, float):
        raise Malformed(where, f"expected a number, got {_kind(tree)}")
    return _to_float(tree, where)


def _to_float(value: Any, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise Malformed(where, f"expected a number, got {_kind(value)}") from None


def _dump_str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Malformed(where, f"expected text, got {_kind(value)}")
    return str(value)


def _enum(kind: type[Enum]) -> Codec:
    def load(tree: Any, where: str) -> Enum:
        for member in kind:
            if type(tree) is type(member.value) and tree == member.value:
                return member
        raise Malformed(where, f"{str(tree)[:50]!r} is not a {kind.__name__}")

    def dump(value: Any, where: str) -> Any:
        if not isinstance(value, kind):
            raise Malformed(where, f"expected a {kind.__name__}, got {_kind(value)}")
        return str(value.value)

    return Codec(dump, load)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Plain data as it is, checked to the bottom."""
    if depth > PLAIN_DEPTH_MAX:
        raise Malformed(where, f"nested deeper than {PLAIN_DEPTH_MAX} levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if type(value) is dict:
        return {
            _exactly(str)(key, f"{where}, a key"): _plain(item, f"{where}.{key}", depth + 1)
            for key, item in value.items()
        }
    raise Malformed(
        where, f"{_kind(value)} is not plain data (None, bool, int, float, str, list, dict)"
    )


# ---- things made of others


def _sequence(item: Codec) -> Codec:
    def dump(value: Any, where: str) -> list[Any]:
        return [item.dump(member, f"{where}[{i}]") for i, member in enumerate(value)]

    def load(tree: Any, where: str) -> tuple[Any, ...]:
        members = _exactly(list)(tree, where)
        return tuple(item.load(member, f"{where}[{i}]") for i, member in enumerate(members))

    return Codec(dump, load)


def _fixed(items: tuple[Codec, ...]) -> Codec:
    def dump(value: Any, where: str) -> list[Any]:
        return [c.dump(member, f"{where}[{i}]") for i, (c, member) in enumerate(zip(items, value))]

    def load(tree: Any, where: str) -> tuple[Any, ...]:
        members = _exactly(list)(tree, where)
        if len(members) != len(items):
            raise Malformed(where, f"expected {len(items)} items, got {len(members)}")
        return tuple(
            c.load(member, f"{where}[{i}]") for i, (c, member) in enumerate(zip(items, members))
        )

    return Codec(dump, load)


def _text_mapping(item: Codec) -> Codec:
    def dump(value: Mapping[str, Any], where: str) -> dict[str, Any]:
        return {
            _dump_str(key, f"{where}, a key"): item.dump(value[key], f"{where}.{key}")
            for key in sorted(value)
        }

    def load(tree: Any, where: str) -> dict[str, Any]:
        members = _exactly(dict)(tree, where)
        return {
            _exactly(str)(key, f"{where}, a key"): item.load(member, f"{where}.{key}")
            for key, member in members.items()
        }

    return Codec(dump, load)


def _pair_mapping(key: Codec, item: Codec) -> Codec:
    def dump(value: Mapping[Any, Any], where: str) -> list[Any]:
        return [
            [key.dump(k, f"{where}, a key"), item.dump(value[k], f"{where}[{k}]")]
            for k in sorted(value)
        ]

    def load(tree: Any, where: str) -> dict[Any, Any]:
        pairs = [_pair(pair, where) for pair in _exactly(list)(tree, where)]
        made = {key.load(k, f"{where}, a key"): item.load(v, f"{where}[{k}]") for k, v in pairs}
        if len(made) != len(pairs):
            raise Malformed(where, "the same key twice")
        return made

    return Codec(dump, load)


def _pair(tree: Any, where: str) -> tuple[Any, Any]:
    if type(tree) is not list or len(tree) != 2:
        raise Malformed(where, f"expected pairs of key and value, got {_kind(tree)}")
    return tree[0], tree[1]


def _record(kind: type, members: Mapping[str, tuple[Field[Any], Codec]]) -> Codec:
    def dump(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not kind:
            raise Malformed(where, f"expected {kind.__name__}, got {_kind(value)}")
        return {
            name: codec.dump(getattr(value, name), _below(where, name))
            for name, (_, codec) in members.items()
        }

    def load(tree: Any, where: str) -> Any:
        found = _exactly(dict)(tree, where)
        _check_fields(found, members, where)
        return kind(
            **{name: members[name][1].load(found[name], _below(where, name)) for name in found}
        )

    return Codec(dump, load)


def _check_fields(
    found: dict[Any, Any], members: Mapping[str, tuple[Field[Any], Codec]], where: str
) -> None:
    unknown = [name for name in found if name not in members]
    if unknown:
        raise Malformed(where, f"unknown field {str(unknown[0])[:50]!r}")
    for name, (field, _) in members.items():
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if name not in found and not has_default:
            raise Malformed(where, f"the field {name!r} is missing")


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__qualname__
