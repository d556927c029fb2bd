"""Copies of user code, as every process of a job has one: through the pickler that sends it to Spark's workers.

What a function keeps in a closure, in `self` or in a variable of the program is its process's own on Spark, so it must
not outlive a simulated crash. A copy leaves alone what stands outside of the processes: fakes that derive from
`Outside`, and the simulated world. Another world has fakes of its own.

Classes are copied where Penstock calls their methods. All others stay what they are, because a fake may raise, keep or
compare their instances. Modules that can be imported are never copied, nor what is in them: they may hold connections,
locks and gigabytes, and other modules refer to them by name. Who changes their globals is told so.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkWriter, Source, SourceReader
from penstock.errors import ConfigError, PlanError
from penstock.shells.sim.world import World
from penstock.shells.spark.shipping import Packer, pack_with
from penstock.testing.outside import Outside

__tracebackhide__ = True
"""pytest shows the report, and not how it came about."""
Thing = TypeVar("Thing")
CALLED = (Sink, SinkCommitter, SinkWriter, Source, SourceReader)
FUNCTIONS = ("process", "process_batch")
"""Methods that make a class a function of the user's own."""
SHARED = (Outside, World, pa.Schema, pa.DataType, pa.Table, pa.RecordBatch)
"""What stands outside of a process, and what nobody can change."""
COLLECTIONS = (dict, list, set, deque, bytearray)
TRACKER = 4
"""Which argument of a pickled class names the class that it was, for a process that knows it already."""


class Template(Generic[Thing]):
    """Something of which copies are wanted, as it is when the first one is made."""

    def __init__(self, thing: Thing, *, new_world: bool = False) -> None:
        self._thing = thing
        self._new_world = new_world
        self._kept: list[Any] = []

    def copy(self) -> Thing:
        """A copy of its own: nothing that is done to it shows in another one."""
        unpacker = _Unpacker(io.BytesIO(self._data), self._kept)
        return cast("Thing", unpacker.load())

    @cached_property
    def _data(self) -> bytes:
        target = io.BytesIO()
        packer = _NewWorldPacker if self._new_world else _ProcessPacker
        try:
            pack_with(packer(target, self._kept), self._thing)
        except PlanError as error:
            raise ConfigError(
                f"simulate: each schedule needs a copy of the pipeline, and it cannot be made: {error.__cause__}. Give"
                " simulate a function that builds the pipeline together with its fakes."
            ) from error
        return target.getvalue()


class SharedGlobals:
    """Numbers and collections that are globals of the user's own modules. Simulated processes share them and those on
    Spark do not, so what is kept there outlives a simulated crash, and would not outlive a real one."""

    def __init__(self) -> None:
        sized = [(name, where, _size(where)) for name, where in _globals_of_the_user()]
        self._before = [entry for entry in sized if entry[2] is not None]
        self.changed: set[str] = set()

    def look(self) -> None:
        """What is put there is often gone at the end, so this is called while the job runs."""
        for name, where, before in self._before:
            if _size(where) != before:
                self.changed.add(name)


def _globals_of_the_user() -> Iterator[tuple[str, tuple[Mapping[str, Any], str]]]:
    for name, module in list(sys.modules.items()):
        if not _is_of_the_user(name, getattr(module, "__file__", None)):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == name and _is_called(value):
                yield from ((f"{name}.{key}.{each}", (vars(value), each)) for each in vars(value))
            else:
                yield f"{name}.{key}", (vars(module), key)


def _size(where: tuple[Mapping[str, Any], str]) -> int | None:
    """Of a collection, or the number itself; None for what is neither, such as a connection that is opened late."""
    value = where[0].get(where[1])
    if isinstance(value, COLLECTIONS):
        return len(value)
    return value if type(value) is int else None


@lru_cache(maxsize=10_000)
def _is_of_the_user(name: str, file: str | None) -> bool:
    """Not Penstock's, not Python's, not installed, and not the program itself, which is copied."""
    if file is None or name.partition(".")[0] in ("penstock", "__main__"):
        return False
    path = Path(file)
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(
        path.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")
    )


def check_can_be_sent(thing: object) -> None:
    """Raises the error that `start` would raise."""
    pack_with(_OutsidePacker(io.BytesIO(), []), thing)


class _OutsidePacker(Packer):
    """Takes everything along but what stands outside."""

    def __init__(self, target: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(target)
        self._kept = kept
        self._numbers: dict[int, int] = {}

    def persistent_id(self, thing: object) -> int | None:
        if not self.stays(thing):
            return None
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._kept)
            self._kept.append(thing)
        return number

    def stays(self, thing: object) -> bool:
        """Whether copies have this very object."""
        return isinstance(thing, Outside)


class _ProcessPacker(_OutsidePacker):
    """A copy for another process of the same world."""

    def stays(self, thing: object) -> bool:
        if isinstance(thing, type):
            return not _is_called(thing)
        return isinstance(thing, SHARED)

    def reducer_override(self, thing: object) -> Any:
        made = super().reducer_override(thing)
        if isinstance(thing, type) and isinstance(made, tuple):
            return _as_a_new_class(made)
        return made


class _NewWorldPacker(_ProcessPacker):
    """A copy with an outside of its own."""

    def stays(self, thing: object) -> bool:
        return super().stays(thing) and not isinstance(thing, Outside)

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, Outside):
            return copyreg.__newobj__, (type(thing),), thing.in_new_world()  # type: ignore[attr-defined]
        return super().reducer_override(thing)


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(data)
        self._kept = kept

    def persistent_load(self, number: int) -> Any:
        return self._kept[number]


def _is_called(thing: type) -> bool:
    """Whether Penstock calls its methods: what they remember outside of state is the process's own."""
    if issubclass(thing, Outside | Enum):
        return False
    return issubclass(thing, CALLED) or any(hasattr(thing, name) for name in FUNCTIONS)


def _as_a_new_class(made: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without its number: the process that unpickles it, which is this one, would change the class that it has."""
    function, arguments, *rest = made
    return (function, (*arguments[:TRACKER], None, *arguments[TRACKER + 1 :]), *rest)
