"""Tracebacks for people: the frames of the user's own program, without ours and Spark's.

`user_traceback` is used wherever an exception is shown: by workers, who send it to the driver, and on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import CodeType
from typing import Any

from penstock.errors import ConfigError, DataError, PlanError

_PENSTOCK = f"{Path(__file__).parents[1]}/"
_STANDARD = f"{Path(json.__file__).parents[1]}/"
_PACKAGES = "-packages/"
_SPARK = (
    f"{_PACKAGES}pyspark/",
    f"{_PACKAGES}py4j/",
    "/python/pyspark/",
    "/pyspark.zip/",
    "/py4j-",
)
_BELOW_US = ("click", "fsspec", "msgpack", "numpy", "pandas", "pyarrow", "rich", "typer", "zmq")
"""What Penstock itself calls: user code only where the user calls it, too."""
_MENDABLE = (ConfigError, DataError, PlanError)
"""Errors whose message says everything: where no user code was running, our frames would only hide it."""


def user_traceback(error: BaseException) -> str:
    """As Python prints it, from the user's first frame on.

    Where there are no user frames in the whole chain of exceptions, it is all of it, because then somebody has to
    look into Penstock; or just the notes, if there are any, of an error that the user can mend.
    """
    shown = TracebackException.from_exception(error)
    if not any(_users(link.stack) for link in _chain(shown)):
        if not isinstance(error, _MENDABLE):
            return "".join(shown.format())
        return "\n".join(getattr(error, "__notes__", ()))
    _trim(shown)
    return "".join(shown.format())


def user_frames(error: BaseException) -> str:
    """Only the user's lines that led to the error, as in a traceback; empty where there are none."""
    frames = _users(TracebackException.from_exception(error).stack)
    return "".join(StackSummary.from_list(frames).format())


def place_of(function: Any) -> str:
    """Where a function of the user's is written; empty where Python does not know."""
    code = _code_of(function)
    if code is None:
        return ""
    return f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}'


def _chain(link: TracebackException | None) -> Iterator[TracebackException]:
    """An exception and those behind it, as far as Python would print them."""
    while link is not None:
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _trim(link: TracebackException) -> None:
    """Keeps what the user wrote. Exceptions behind this one that never were in user code are left out."""
    link.stack = StackSummary.from_list(_users(link.stack))
    for name in ("__cause__", "__context__"):
        earlier = getattr(link, name)
        if earlier is not None and any(_users(each.stack) for each in _chain(earlier)):
            _trim(earlier)
        else:
            setattr(link, name, None)


def _users(stack: Sequence[FrameSummary]) -> list[FrameSummary]:
    """From the first frame of user code on, without what is Penstock's and Spark's in between."""
    start = next((i for i, each in enumerate(stack) if not _is_library(each.filename)), len(stack))
    return [each for each in stack[start:] if not _is_host(each.filename)]


def _is_library(file: str) -> bool:
    _, installed, inside = file.rpartition(_PACKAGES)
    if installed:
        return _is_host(file) or inside.partition("/")[0] in _BELOW_US
    compiled = file.endswith((".pyx", ".pxi"))
    return compiled or _is_host(file) or file.startswith((_STANDARD, "<frozen "))


def _is_host(file: str) -> bool:
    return file.startswith(_PENSTOCK) or any(part in file for part in _SPARK)


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, partial):
        function = function.func
    methods = ("process", "process_batch", "__call__")
    for candidate in (function, *(getattr(type(function), name, None) for name in methods)):
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
