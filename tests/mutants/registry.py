"""What a mutant is: a known bug that can be put into the running code and taken out again.

A mutant is a function without arguments that gives a context manager: while it is entered, something in the engine or
the protocol is replaced by a version with the bug. Its docstring says what the bug is and which rule it breaks.
`simulated` registers one that the simulator must find, `tested` one that the named tests must find.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any

Bug = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Mutant:
    name: str
    enter: Bug
    bug: str
    """What is wrong, in words."""
    tests: tuple[str, ...] = ()
    """The tests that must find it; none: the simulator must."""


MUTANTS: dict[str, Mutant] = {}


def simulated(bug: Bug) -> Bug:
    """For bugs that show in some schedule of the simulator."""
    return _register(bug, ())


def tested(*tests: str) -> Callable[[Bug], Bug]:
    """For bugs that no schedule can show, because they only cost time, or because the simulator has no such part."""
    return lambda bug: _register(bug, tests)


def _register(bug: Bug, tests: tuple[str, ...]) -> Bug:
    name = bug.__name__
    if name in MUTANTS:
        raise ValueError(f"two mutants are called {name}: give one of them another name")
    MUTANTS[name] = Mutant(name, bug, cleandoc(bug.__doc__ or ""), tests)
    return bug


@contextmanager
def swapped(owner: Any, name: str, value: Any, *, new: bool = False) -> Iterator[None]:
    """Has another value for an attribute of a class or module while it is entered. `new`: of its objects alone."""
    if not new and not hasattr(owner, name) and not hasattr(builtins, name):
        raise ValueError(f"{owner.__name__} has no {name}: this mutant changes nothing any more")
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def together(*swaps: AbstractContextManager[None]) -> Iterator[None]:
    """Several replacements that make one bug."""
    with ExitStack() as stack:
        for swap in swaps:
            stack.enter_context(swap)
        yield
