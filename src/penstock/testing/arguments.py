"""What users give to `simulate` and to the suites, checked where it comes in.

An argument that cannot be meant is a `ConfigError` with an example of what can. `simulate` itself then knows that what
it has been given is right.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from penstock.api.config import CheckpointConfig, whole_number
from penstock.api.keyed import KeyedStream
from penstock.api.pipeline import Pipeline
from penstock.api.stream import Stream
from penstock.connectors.base import Sink, Source
from penstock.connectors.sinks.collect import CollectSink
from penstock.errors import ConfigError, SimulationFailed
from penstock.shells.sim import faults as sim
from penstock.testing.compare import LastPer
from penstock.testing.finding import short

if TYPE_CHECKING:
    from penstock.testing.report import Report

__tracebackhide__ = True
"""pytest shows what is wrong, and not how it was found."""
Arguments = ParamSpec("Arguments")
Complaints = list[ConfigError]
SEED_MAX = 1 << 62


def checks_arguments(simulate: Callable[Arguments, Report]) -> Callable[Arguments, Report]:
    """`simulate`, for arguments that nobody has looked at yet."""
    signature = inspect.signature(simulate)

    @wraps(simulate)
    def run(*given: Arguments.args, **options: Arguments.kwargs) -> Report:
        try:
            bound = signature.bind(*given, **options)
        except TypeError as wrong:
            raise TypeError(f"simulate() {wrong}") from None
        complaints: Complaints = []
        bound.arguments = _checked(bound.arguments, complaints)
        try:
            return simulate(*bound.args, **bound.kwargs)
        except SimulationFailed as failed:
            error = _complaint_behind(failed, complaints)
            if error is None:
                raise
            cause = error.__cause__
        raise error from cause

    return run


def _checked(given: dict[str, Any], complaints: Complaints) -> dict[str, Any]:
    made = dict(given)
    for name, check in (
        ("seeds", checked_seeds),
        ("faults", checked_faults),
        ("checkpoint", _checked_checkpoint),
    ):
        if name in made:
            made[name] = check(made[name])
    by_name: dict[str, Iterable[str]] = {}
    for name in PER_SINK:
        option = made.get(name)
        if isinstance(option, Mapping):
            by_name[name] = tuple(option)
        made[name] = None if option is None else _checked_per_sink(name, option, complaints)
    made["pipeline"] = _checked_pipeline(made["pipeline"], by_name)
    return made


def _complaint_behind(failed: SimulationFailed, complaints: Complaints) -> ConfigError | None:
    """A function of the user that cannot be used, where that is what a schedule ended with."""
    finding = getattr(failed.report, "finding", None)
    told = str(failed) if finding is None else finding.what
    return next((complaint for complaint in complaints if str(complaint) in told), None)


# ---- the pipeline


def _checked_pipeline(given: Any, by_name: Mapping[str, Iterable[str]]) -> Any:
    """The same; a function that builds one looks at what it has built."""
    if isinstance(given, Pipeline | Stream):
        _check_names(given, by_name)
        return given
    if isinstance(given, Source | Sink | KeyedStream) or not callable(given):
        raise _no_pipeline(given)
    _check_builder(given)

    @wraps(given)
    def build(*folder: Any) -> Pipeline | Stream:
        made = given(*folder)
        if not isinstance(made, Pipeline | Stream):
            raise _no_pipeline(made)
        _check_names(made, by_name)
        return made

    return build


def _no_pipeline(given: object) -> ConfigError:
    advice = ""
    if isinstance(given, Source):
        advice = f"; read the source with pen.from_source({type(given).__name__}(...))"
    if isinstance(given, KeyedStream):
        advice = '; go on with .agg(n=pen.count()) or .process(...) behind key_by("...")'
    return ConfigError(
        f"simulate: {short(given)} ({type(given).__name__}) is no pipeline; give a pen.Pipeline, a stream, or a"
        f" function that returns one{advice}"
    )


def _check_builder(function: Callable[..., object]) -> None:
    if not _can_be_called(function, 0) and not _can_be_called(function, 1):
        raise ConfigError(
            f"simulate: {_name_of(function)} needs more than one argument; a function that builds a pipeline takes"
            " nothing, or one folder (a Path)"
        )


def _check_names(made: Pipeline | Stream, by_name: Mapping[str, Iterable[str]]) -> None:
    """An option for a sink that is not there would silently count for nothing."""
    if not by_name:
        return
    pipeline = made.to(CollectSink()) if isinstance(made, Stream) else made
    sinks = [node.name for node in pipeline.graph().nodes if node.role == "sink"]
    for option, names in by_name.items():
        for name in names:
            if name not in sinks:
                raise ConfigError(
                    f"simulate: {option} has {name!r}, and there is no sink of that name;"
                    f" {_likeliest(name, sinks)}"
                )


# ---- seeds, faults, checkpoints


def checked_seeds(seeds: Any, what: str = "simulate: seeds") -> list[int]:
    """As a list."""
    example = "seeds=range(100) for a hundred schedules, seeds=[17] for one of them"
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        raise ConfigError(
            f"{what}={seeds!r}: write seeds=range({seeds}) for that many, or seeds=[{seeds}] for that one"
        )
    if isinstance(seeds, str | bytes | Mapping) or not isinstance(seeds, Iterable):
        raise ConfigError(f"{what}={seeds!r}: write {example}, or leave it out")
    made = [whole_number(seed, f"{what}, of which each is a number", 0, SEED_MAX) for seed in seeds]
    if not made:
        raise ConfigError(f"{what}: there are none, so nothing would be tried; write {example}")
    return made


def checked_faults(faults: Any) -> Any:
    """None, rates, or names in an order that a seed can rely on."""
    if faults is None or isinstance(faults, str):
        return faults
    if isinstance(faults, sim.Faults):
        check_rates({each.name: getattr(faults, each.name) for each in fields(faults)})
        return faults
    if isinstance(faults, Mapping):
        rates = ", ".join(f"{name}={rate!r}" for name, rate in faults.items())
        raise ConfigError(
            f"simulate: faults={faults!r}: rates are given as faults=Faults({rates}), with"
            " `from penstock.testing import Faults`"
        )
    if not isinstance(faults, Iterable):
        raise ConfigError(
            f"simulate: faults={short(faults)}: name the kinds, as in faults=['crash', 'commit_error'], or fix their"
            " rates, as in faults=Faults(crash=0.01)"
        )
    names = tuple(faults)
    return tuple(sorted(names, key=str)) if isinstance(faults, set | frozenset) else names


class Faults(sim.Faults):
    """How often each kind of fault strikes, per occasion: `Faults(crash=0.01, commit_error=0.3)`."""

    def __init__(self, *unnamed: object, **rates: float) -> None:
        if unnamed:
            raise ConfigError(
                f"Faults: whose rate is {unnamed[0]!r}? Name it, as in Faults(crash=0.01)"
            )
        check_rates(rates)
        super().__init__(**rates)


def check_rates(rates: Mapping[str, object]) -> None:
    known = [each.name for each in fields(sim.Faults)]
    for name, rate in rates.items():
        if name not in known:
            raise ConfigError(f"Faults: there is no fault {name!r}; {_likeliest(name, known)}")
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not is_number or not 0 <= rate <= 1:  # type: ignore[operator]
            raise ConfigError(
                f"Faults: {name}={rate!r} is no rate; it is the share of occasions where it strikes, from 0 to 1, as"
                f" in Faults({name}=0.01)"
            )
    at_any_step = [float(rates.get(name, 0.0)) for name in sim.STRIKES]  # type: ignore[arg-type]
    if sum(at_any_step) >= 1:
        raise ConfigError(
            f"Faults: the rates of {', '.join(sim.STRIKES)} are per step of a schedule, and there is at most one of"
            f" them at a step: together they must stay below 1, and are {sum(at_any_step):g}"
        )


def _checked_checkpoint(checkpoint: Any) -> Any:
    if checkpoint is None or isinstance(checkpoint, CheckpointConfig):
        return checkpoint
    raise ConfigError(
        f"simulate: checkpoint={short(checkpoint)} ({type(checkpoint).__name__}) is no CheckpointConfig; write"
        ' checkpoint=pen.CheckpointConfig("chk/", mode="at_least_once"), or leave it out: the times are drawn'
    )


# ---- read, staged and compare


PER_SINK = {
    "read": "read=lambda sink: sink.table.rows",
    "staged": "staged=lambda sink: len(sink.table.staged)",
    "compare": 'compare=last_per("user") or compare=lambda rows: len(rows)',
}


def _checked_per_sink(option: str, given: Any, complaints: Complaints) -> Mapping[str, Any]:
    every = given.values() if isinstance(given, Mapping) else [given]
    for each in every:
        is_left_to_compare = option == "compare" and not callable(each)
        if each is not None and not is_left_to_compare:
            argument = "the rows" if option == "compare" else "the sink"
            check_function(
                each, f"simulate: {option}", 1, f"takes {argument}, as in {PER_SINK[option]}"
            )
    return _PerSink(option, given, complaints)


class _PerSink(Mapping[str, Any]):
    """An option by the names of sinks, also where one was given for all: what goes wrong in it is told with the
    name."""

    def __init__(self, option: str, given: Any, complaints: Complaints) -> None:
        self._option = option
        self._given = given
        self._complaints = complaints

    def __getitem__(self, sink: str) -> Any:
        by_name = isinstance(self._given, Mapping)
        function = self._given[sink] if by_name else self._given
        if not callable(function) or isinstance(function, LastPer):
            return function
        what = f"simulate: {self._option}, for sink {sink!r},"
        if self._option == "read":
            return lambda its: self._read(function, its, what)
        if self._option == "compare":
            return lambda rows: self._compared(function, rows, what)
        return function

    def __iter__(self) -> Iterator[str]:
        return iter(self._given if isinstance(self._given, Mapping) else ())

    def __len__(self) -> int:
        return len(self._given) if isinstance(self._given, Mapping) else 0

    def _read(self, function: Callable[[Any], Any], sink: Any, what: str) -> Any:
        rows = function(sink)
        if rows is None:
            raise self._complaint(
                f"{what} returned None; it must return the rows that a reader sees, as a pa.Table, a DataFrame, or a"
                " list of dicts or tuples ([] where there are none)"
            )
        return rows

    def _compared(self, function: Callable[[Any], Any], rows: Sequence[Any], what: str) -> Any:
        try:
            return function(rows)
        except Exception as error:
            first = f", the first of which is {short(rows[0])}" if rows else ""
            raise self._complaint(
                f"{what} raised {type(error).__name__}: {error}. It was given {len(rows)} rows, as dicts{first}"
            ) from error

    def _complaint(self, text: str) -> ConfigError:
        made = ConfigError(text)
        self._complaints.append(made)
        return made


# ---- functions


def check_function(function: object, what: str, arguments: int, how: str) -> None:
    """Refuses what cannot be called like that. `how` goes on from "give a function that"."""
    if not callable(function):
        raise ConfigError(
            f"{what}={short(function)} ({type(function).__name__}) is no function; give one that {how}"
        )
    if not _can_be_called(function, arguments):
        raise ConfigError(
            f"{what}: {_name_of(function)} cannot be called with {arguments or 'no'}"
            f" argument{'s' if arguments != 1 else ''}; give a function that {how}"
        )


def _can_be_called(function: Callable[..., object], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "the lambda" if name == "<lambda>" else f"{name}()"


def _likeliest(name: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
