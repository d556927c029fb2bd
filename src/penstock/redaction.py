"""Keeps passwords and tokens out of all that people can read: messages, tracebacks, logs, representations.

    redacted("s3://me:pw@bucket/in?token=abc")   ->   "s3://***@bucket/in?token=***"

Two ways work together. What stands where a URL has its secrets is hidden in any text. And what this process was
given as a secret (`remember`) is hidden in any form: a library's error may spell it without the URL around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from penstock.errors import PenstockError, StorageError

HIDDEN = "***"
_SECRET_CHARS_MIN = 4
"""Shorter texts are hidden in URLs only: elsewhere they would hide half of every message."""
_TOKEN_CHARS_MIN = 16
"""A name before an `@`, without a password, may be a token if it is that long."""
_KNOWN_MAX = 1_000
_CONTAINER_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
"""Here `name@` is a container, not a user."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s'\"<>]+)")
_WHO = re.compile(r"(?P<who>[^/@:]*:.*|[^/@]+)@", re.DOTALL)
_PARAMETER = re.compile(
    r"(?P<name>[?&#;][^=&#;?/\s]+)=(?P<value>[^&#;\s]*?)(?=[:,.)\]]*(?:[&#;\s]|$))"
)
_SECRET_NAME = re.compile(
    r"secret|token|passw|passphrase|pwd|credential|signature|\bsig\b|key|auth|sas|cookie|connection_string",
    re.IGNORECASE,
)


class _Known:
    """What this process must not show, and what is shown instead; the longest first."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}

    def add(self, found: Mapping[str, str]) -> None:
        """Replaces the whole table at once: other threads read it at any time."""
        newest = list((self.secrets | dict(found)).items())[-_KNOWN_MAX:]
        self.secrets = dict(sorted(newest, key=lambda each: (-len(each[0]), each[0])))


_known = _Known()


def redacted(text: str, also: Iterable[str] = ()) -> str:
    """The text, fit to be shown. `also` are further secrets of whoever asks."""
    for secret in also:
        text = text.replace(secret, HIDDEN)
    for secret, shown in _known.secrets.items():
        text = text.replace(secret, shown)
    return _URL.sub(_clean_url, text)


def remember(url: str, options: Mapping[str, Any] | None = None) -> None:
    """From now on this process hides what is secret in a URL and in the options that belong to it."""
    found: dict[str, str] = {}
    for part in url.split("::"):
        scheme, separator, rest = part.partition("://")
        if separator:
            found.update(_secrets_of_url(scheme, rest))
    found.update((text, HIDDEN) for text in _secret_options(options or {}))
    if found:
        _known.add(found)


def texts_in(options: Any) -> tuple[str, ...]:
    """Every text in some options, longest first; any of them may be a password."""
    found: set[str] = set()
    waiting: list[Any] = [options]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, str) and len(value) >= _SECRET_CHARS_MIN:
            found.add(value)
    return tuple(sorted(found, key=lambda text: (-len(text), text)))


def has_parameters(url: str) -> bool:
    """True for a URL that ends with `?name=value`; a question mark of a file pattern has no `=` behind it."""
    return "://" in url and _PARAMETER.search(url) is not None


@contextmanager
def errors_without_secrets(doing: str) -> Iterator[None]:
    """An error of a library whose text has a secret in it becomes one without; all others stay as they are."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if (clean := redacted(text)) == text:
            raise
        raise StorageError(f"{redacted(doing)}: {clean}") from None


def _clean_url(match: re.Match[str]) -> str:
    scheme, rest = match["scheme"], match["rest"]
    who = _WHO.match(rest)
    if who is not None and not _is_container(scheme, who["who"]):
        rest = f"{HIDDEN}@{rest[who.end() :]}"
    return f"{scheme}://" + _PARAMETER.sub(rf"\g<name>={HIDDEN}", rest)


def _secrets_of_url(scheme: str, rest: str) -> Iterator[tuple[str, str]]:
    """A password may have an `@` in it, and so may a path: each `@` may be the one that ends the password."""
    for end in (place for place, letter in enumerate(rest) if letter == "@"):
        who = rest[:end]
        name, colon, password = who.partition(":")
        if "/" in name or _is_container(scheme, who):
            continue
        yield f"{who}@", f"{HIDDEN}@"
        token = password if colon else who if len(who) >= _TOKEN_CHARS_MIN else ""
        yield from _hidden(token)
    for parameter in _PARAMETER.finditer(rest):
        if _SECRET_NAME.search(parameter["name"]):
            yield from _hidden(parameter["value"])


def _hidden(secret: str) -> Iterator[tuple[str, str]]:
    for form in {secret, unquote(secret)}:
        if len(form) >= _SECRET_CHARS_MIN:
            yield form, HIDDEN


def _secret_options(options: Mapping[str, Any]) -> Iterator[str]:
    """The texts below a name that promises a secret; other options (a region, a flag) may be shown."""
    for name, value in options.items():
        if _SECRET_NAME.search(str(name)):
            yield from texts_in(value)
        elif isinstance(value, Mapping):
            yield from _secret_options(value)


def _is_container(scheme: str, who: str) -> bool:
    return scheme in _CONTAINER_SCHEMES and ":" not in who
