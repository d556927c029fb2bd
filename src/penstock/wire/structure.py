"""Frozen dataclasses to plain trees (dicts, lists, numbers, text) and back, led by their type hints.

What comes from a disk or a socket is never trusted: every field is checked for its type, an unknown or a
missing one is refused, and the error says where in the tree it is. No code travels, only data.

A dialect says how bytes are spelled: msgpack has them, JSON needs text. Mappings with keys other than text
become sorted lists of pairs, which both formats can say.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any, NewType, TypeAlias, Union, get_args, get_origin, get_type_hints

INT_MAX = 1 << 63
PLAIN_DEPTH_MAX = 32


class Malformed(Exception):
    """A tree does not fit its type. `where` is the way to it, like `snapshots[2].timings`: it grows from the inside
    out while the error passes through what is around the value, so that a good tree pays nothing for it."""

    def __init__(self, problem: str, where: str = "") -> None:
        super().__init__(problem, where)
        self.problem = problem
        self.where = where

    def within(self, step: str) -> Malformed:
        """The same, seen from one step further out."""
        inside = self.where
        joint = "." if inside and inside[0] not in "[," else ""
        return Malformed(self.problem, f"{step}{joint}{inside}")

    def __str__(self) -> str:
        return f"{self.where or 'the message'}: {self.problem}"


Dump: TypeAlias = Callable[[Any], Any]
Load: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """Both directions for one type."""

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
            lambda value: None if value is None else inner.dump(value),
            lambda tree: None if tree is None else inner.load(tree),
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
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise Malformed(f"expected {kind.__name__}, got {_kind(value)}")
        return value

    return check


def _dump_int(value: Any) -> int:
    try:
        return int(operator.index(value))  # NumPy's integers, too
    except TypeError:
        raise Malformed(f"expected an integer, got {_kind(value)}") from None


def _load_int(tree: Any) -> int:
    if type(tree) is not int:
        raise Malformed(f"expected an integer, got {_kind(tree)}")
    if not -(2**63) <= tree < 2**64:
        raise Malformed("an integer of more than 64 bits")
    return tree


def _dump_float(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise Malformed(f"expected a number, got {_kind(value)}")
    return _to_float(value)


def _load_float(tree: Any) -> float:
    if type(tree) not in (int, float):
        raise Malformed(f"expected a number, got {_kind(tree)}")
    return _to_float(tree)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise Malformed(f"expected a number, got {_kind(value)}") from None


def _dump_str(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed(f"expected text, got {_kind(value)}")
    return str(value)


def _enum(kind: type[Enum]) -> Codec:
    def load(tree: Any) -> Enum:
        for member in kind:
            if type(tree) is type(member.value) and tree == member.value:
                return member
        raise Malformed(f"{str(tree)[:50]!r} is not a {kind.__name__}")

    def dump(value: Any) -> Any:
        if not isinstance(value, kind):
            raise Malformed(f"expected a {kind.__name__}, got {_kind(value)}")
        return str(value.value)

    return Codec(dump, load)


def check_plain(value: Any) -> None:
    """Raises `Malformed` where a value is not plain data to the bottom, or is none that every document can hold."""
    _plain(value)
    _check_leaves(value)


def _check_leaves(value: Any) -> None:
    if isinstance(value, dict):
        for key, member in value.items():
            _check_leaves(key)
            _check_leaves(member)
    elif isinstance(value, list):
        for member in value:
            _check_leaves(member)
    elif type(value) is int and not -INT_MAX <= value < INT_MAX:
        raise Malformed(f"{value} does not fit into 64 bits")
    elif isinstance(value, float) and not isfinite(value):
        raise Malformed(f"{value} is no finite number")
    elif isinstance(value, str) and not _is_text(value):
        raise Malformed(f"{ascii(value)[:80]} is no valid text")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any, depth: int = 0) -> Any:
    """Plain data as it is, checked to the bottom."""
    if depth > PLAIN_DEPTH_MAX:
        raise Malformed(f"nested deeper than {PLAIN_DEPTH_MAX} levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return _each(lambda item: _plain(item, depth + 1), value)
    if type(value) is dict:
        return _each_of_text(lambda item: _plain(item, depth + 1), value)
    raise Malformed(f"{_kind(value)} is not plain data (None, bool, int, float, str, list, dict)")


# ---- things made of others


def _each(convert: Dump, members: Iterable[Any]) -> list[Any]:
    made: list[Any] = []
    try:
        for member in members:
            made.append(convert(member))  # noqa: PERF401 (how many there are says which one is wrong)
    except Malformed as error:
        raise error.within(f"[{len(made)}]") from None
    return made


def _each_of_text(convert: Dump, members: Mapping[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    key: Any = None
    try:
        for key, member in members.items():
            if type(key) is not str:
                raise Malformed(f"expected str, got {_kind(key)}", ", a key")
            made[key] = convert(member)
    except Malformed as error:
        raise (error if error.where == ", a key" else error.within(str(key))) from None
    return made


def _sequence(item: Codec) -> Codec:
    def load(tree: Any) -> tuple[Any, ...]:
        return tuple(_each(item.load, _list(tree)))

    return Codec(lambda value: _each(item.dump, value), load)


def _fixed(items: tuple[Codec, ...]) -> Codec:
    dumps = [item.dump for item in items]
    loads = [item.load for item in items]

    def load(tree: Any) -> tuple[Any, ...]:
        if len(_list(tree)) != len(items):
            raise Malformed(f"expected {len(items)} items, got {len(tree)}")
        return tuple(_each(_apply, zip(loads, tree, strict=True)))

    return Codec(lambda value: _each(_apply, zip(dumps, value, strict=False)), load)


def _apply(pair: tuple[Dump, Any]) -> Any:
    return pair[0](pair[1])


def _text_mapping(item: Codec) -> Codec:
    def dump(value: Mapping[str, Any]) -> dict[str, Any]:
        return _each_of_text(item.dump, {key: value[key] for key in sorted(value)})

    return Codec(dump, lambda tree: _each_of_text(item.load, _dict(tree)))


def _pair_mapping(key: Codec, item: Codec) -> Codec:
    def dump(value: Mapping[Any, Any]) -> list[Any]:
        return [[_key(key.dump, k), _value_of(k, item.dump, value[k])] for k in sorted(value)]

    def load(tree: Any) -> dict[Any, Any]:
        pairs = [_pair(pair) for pair in _list(tree)]
        made = {_key(key.load, k): _value_of(k, item.load, v) for k, v in pairs}
        if len(made) != len(pairs):
            raise Malformed("the same key twice")
        return made

    return Codec(dump, load)


def _pair(tree: Any) -> tuple[Any, Any]:
    if type(tree) is not list or len(tree) != 2:
        raise Malformed(f"expected pairs of key and value, got {_kind(tree)}")
    return tree[0], tree[1]


def _key(convert: Dump, key: Any) -> Any:
    try:
        return convert(key)
    except Malformed as error:
        raise error.within(", a key") from None


def _value_of(key: Any, convert: Dump, value: Any) -> Any:
    try:
        return convert(value)
    except Malformed as error:
        raise error.within(f"[{key}]") from None


def _record(kind: type, members: Mapping[str, tuple[Field[Any], Codec]]) -> Codec:
    dumps = [(name, codec.dump) for name, (_, codec) in members.items()]
    loads = {name: codec.load for name, (_, codec) in members.items()}
    needed = [name for name, (field, _) in members.items() if not _has_default(field)]

    def dump(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise Malformed(f"expected {kind.__name__}, got {_kind(value)}")
        made, name = {}, ""
        try:
            for name, convert in dumps:
                made[name] = convert(getattr(value, name))
        except Malformed as error:
            raise error.within(name) from None
        return made

    def load(tree: Any) -> Any:
        made, name = {}, ""
        _check_fields(_dict(tree), loads, needed)
        try:
            for name, member in tree.items():
                made[name] = loads[name](member)
        except Malformed as error:
            raise error.within(name) from None
        return kind(**made)

    return Codec(dump, load)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _check_fields(found: dict[Any, Any], known: Mapping[str, Load], needed: list[str]) -> None:
    for name in found:
        if name not in known:
            raise Malformed(f"unknown field {str(name)[:50]!r}")
    for name in needed:
        if name not in found:
            raise Malformed(f"the field {name!r} is missing")


def _list(tree: Any) -> list[Any]:
    if type(tree) is not list:
        raise Malformed(f"expected list, got {_kind(tree)}")
    return tree


def _dict(tree: Any) -> dict[Any, Any]:
    if type(tree) is not dict:
        raise Malformed(f"expected dict, got {_kind(tree)}")
    return tree


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__qualname__
