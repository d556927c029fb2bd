"""Options as keys of Spark: `--conf spark.penstock.parallelism=4` sets what a program leaves open.

A key is called as its option is: `spark.penstock.<option of start>`, `spark.penstock.checkpoint.<field>`,
`spark.penstock.restart` and `spark.penstock.restart.<field>`. The table of keys is made from the signature and the
fields themselves, so that an option has its key as soon as it is there, and its annotation says how the text is read.

What the program gives wins, then the key, then the default. `Pipeline.start` asks the shell what Spark is set to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.api.config import (
    CheckpointConfig,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
    given_in_code,
)
from penstock.errors import ConfigError
from penstock.plan.duration import parse_duration_ms
from penstock.redaction import HIDDEN, redacted

PREFIX = "spark.penstock."
STRATEGIES: dict[str, type[RestartStrategy]] = {
    "exponential_delay": ExponentialDelay,
    "fixed_delay": FixedDelay,
    "failure_rate": FailureRate,
    "none": NoRestart,
}
OF_THE_SHELL = {"transport": Literal["auto", "tcp"], "control.port": str, "data.ports": str}
"""Keys that are no options of a program: how the processes of a job reach each other."""
MARKS = ("local",)
"""Set by Penstock on its own Spark, for itself."""
ANY_NAME = "<name>"
"""Stands in the table for names that are not ours, such as those of storage options."""

_JSON_BEGINS = ("{", "[", '"')
_JSON_WORDS = re.compile(r"true|false|null|-?(0|[1-9][0-9]{0,17})")


# ---- which keys there are


@cache
def known(options: Callable[..., object]) -> Mapping[str, Any]:
    """Every key without its prefix, and the type of what it sets. `options` is the function that takes them all."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(options).items():
        if CheckpointConfig in get_args(hint):
            found.update(_fields_of(name, CheckpointConfig))
        elif NoRestart in get_args(hint):
            found[name] = Literal[tuple(STRATEGIES)]
            for strategy in STRATEGIES.values():
                found.update(_fields_of(name, strategy))
        elif name != "return":
            found[name] = hint
    return found | OF_THE_SHELL


def _fields_of(
    group: str, kind: type[CheckpointConfig | RestartStrategy]
) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for spec in fields(kind):
        hint = hints[spec.name]
        below = f".{ANY_NAME}" if _is_mapping(hint) else ""
        yield f"{group}.{spec.name}{below}", hint


# ---- from texts to values


def read(settings: Mapping[str, str], options: Callable[..., object]) -> dict[str, Any]:
    """The values of all keys that are set, by name without the prefix. Raises ConfigError for a key that there is
    not, and for a value that is not what its key takes."""
    table = known(options)
    ours = {
        key.removeprefix(PREFIX): text
        for key, text in sorted(settings.items())
        if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in MARKS
    }
    entries = {name: _entry(name, table) for name in ours}
    unknown = [_unknown(name, list(table)) for name, entry in entries.items() if entry is None]
    if unknown:
        raise ConfigError("\n".join(unknown))
    return {
        name: _value(name, ours[name], table[entry]) for name, entry in entries.items() if entry
    }


def _entry(name: str, table: Mapping[str, Any]) -> str | None:
    """The line of the table that a key belongs to."""
    group, _, last = name.rpartition(".")
    any_name = f"{group}.{ANY_NAME}"
    if last.isidentifier() and any_name in table:
        return any_name
    return name if name in table else None


def _unknown(name: str, names: list[str]) -> str:
    plain = {_plain(each): each for each in names}
    begun = [each for each in plain if each.startswith(_plain(name))]
    close = begun or get_close_matches(_plain(name), plain, 1)
    advice = (
        f"did you mean {PREFIX}{plain[close[0]]}?"
        if close
        else f"there are {', '.join(PREFIX + each for each in names)}"
    )
    return f"{PREFIX}{name}: there is no such key; {advice}"


def _plain(name: str) -> str:
    """People write `maxParallelism` and `max-parallelism`."""
    return re.sub("[_-]", "", name.lower())


def _value(name: str, text: str, hint: Any) -> Any:
    kind = _kind_of(hint)
    try:
        return kind.read(text.strip())
    except ValueError:
        shown = HIDDEN if _is_mapping(hint) else redacted(text)
        raise ConfigError(f"{PREFIX}{name}: {shown!r} is not {kind.expected}") from None


@dataclass(frozen=True)
class _Kind:
    """How the text of a key is read."""

    expected: str
    read: Callable[[str], Any]
    """Raises ValueError for a text that is not what is expected."""


def _kind_of(hint: Any) -> _Kind:
    if _is_mapping(hint):  # a key for each of its names
        return _Kind(
            'JSON; a text that begins as JSON does is put in quotes: "{..."', _json_or_text
        )
    alternatives = _alternatives(hint)
    kind = _kind_of_one([each for each in alternatives if each is not NoneType])
    if NoneType not in alternatives:
        return kind
    return _Kind(
        f"{kind.expected}, or none",
        lambda text: None if text.lower() == "none" else kind.read(text),
    )


def _kind_of_one(kinds: list[Any]) -> _Kind:
    if timedelta in kinds:
        return _Kind("a duration in whole milliseconds, such as 500 ms or 10 minutes", _duration)
    if str in kinds:
        return _Kind("a text", str)
    if kinds == [bool]:
        return _Kind(
            "true or false", lambda text: _one_of(("false", "true"), text.lower()) == "true"
        )
    if kinds == [int]:
        return _Kind("a whole number", _whole_number)
    if kinds == [float]:
        return _Kind("a number", float)
    if get_origin(kinds[0]) is Literal:
        words = get_args(kinds[0])
        return _Kind(f"one of {', '.join(words)}", lambda text: _one_of(words, text))
    raise TypeError(f"{kinds}: say in api/keys.py how the text of a key becomes such a value")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def _is_mapping(hint: Any) -> bool:
    return any(get_origin(kind) is Mapping for kind in _alternatives(hint))


def _duration(text: str) -> str:
    try:
        parse_duration_ms(text)
    except ConfigError as error:
        raise ValueError from error
    return text


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError
    return int(text)


def _one_of(words: tuple[str, ...], text: str) -> str:
    if text not in words:
        raise ValueError
    return text


def _json_or_text(text: str) -> Any:
    """Libraries want numbers, flags and tables as such; everything else is the text that it is."""
    if text.startswith(_JSON_BEGINS) or _JSON_WORDS.fullmatch(text):
        return json.loads(text)
    return text


# ---- what the program gives wins


def left_open(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that count: those of options, and of fields of its checkpoints, that the program does not give."""
    settled = {*given, *OF_THE_SHELL}
    config = given.get("checkpoint")
    if isinstance(config, CheckpointConfig):
        settled.remove("checkpoint")
        settled.update(f"checkpoint.{name}" for name in given_in_code(config))
    return {name: value for name, value in values.items() if not settled & set(_paths(name))}


def _paths(name: str) -> list[str]:
    """`a.b.c` with all that it is a part of: `a`, `a.b`, `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def combined(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options that have a value, by the program or by the keys that it leaves open."""
    found = {name: value for name, value in values.items() if "." not in name}
    restart = _restart(found.pop("restart", None), _group(values, "restart"))
    checkpoint = _checkpoint(given.get("checkpoint"), _group(values, "checkpoint"))
    return found | {"restart": restart} | dict(given) | {"checkpoint": checkpoint}


def _group(values: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The fields of one group; `a.options.x` and `a.options.y` are one field of the group `a`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        field, _, below = rest.partition(".")
        if head == group and below:
            found.setdefault(field, {})[below] = value
        elif head == group and field:
            found[field] = value
    return found


def _checkpoint(config: Any, by_key: dict[str, Any]) -> Any:
    """What is no CheckpointConfig is passed on, to be refused with everything else that is wrong."""
    if not by_key:
        return config
    if config is not None:
        in_code = {name: getattr(config, name) for name in given_in_code(config)}
        return CheckpointConfig(**by_key | in_code)
    if "directory" not in by_key:
        raise ConfigError(
            f"{PREFIX}checkpoint.{min(by_key)} is set, and nothing says where checkpoints go: set"
            f" {PREFIX}checkpoint.directory, too, or give checkpoint=pen.CheckpointConfig(...) in the program"
        )
    return CheckpointConfig(**by_key)


def _restart(chosen: str | None, by_key: dict[str, Any]) -> RestartStrategy | None:
    for name in sorted(by_key):
        having = [each for each, kind in STRATEGIES.items() if _has_field(kind, name)]
        if chosen not in having:
            raise ConfigError(
                f"{PREFIX}restart.{name} goes with {PREFIX}restart={' or '.join(having)}, which is"
                f" {'not set' if chosen is None else chosen}"
            )
    return None if chosen is None else STRATEGIES[chosen](**by_key)


def _has_field(kind: type[RestartStrategy], name: str) -> bool:
    return any(spec.name == name for spec in fields(kind))


@contextmanager
def named_in_errors(values: Mapping[str, Any]) -> Iterator[None]:
    """An error about an option that a key has set names the key: nobody looks for it in the program."""
    try:
        yield
    except ConfigError as error:
        told = str(error)
        guilty = [PREFIX + name for name in sorted(values) if _tells_of(told, name)]
        if not guilty or PREFIX in told:
            raise
        raise ConfigError(f"{told} (by {', '.join(guilty)})") from None


def _tells_of(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text) is not None
