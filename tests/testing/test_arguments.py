"""What `simulate` and `Faults` say to arguments that cannot be meant, and to functions that return nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.shells.sim import faults as sim
from penstock.testing import Faults, SimulationFailed, simulate
from tests.testing.shop import Numbers, NumbersReader, ShopSink, orders, shop, shown, staged


def refused(told: str, given: Any = None, **options: Any) -> str:
    options = {"seeds": range(3), "read": shown, **options}
    with pytest.raises(pen.ConfigError, match=told) as failed:
        simulate(shop() if given is None else given, **options)
    return str(failed.value)


# ---- the pipeline


@pytest.mark.parametrize("given", [42, "orders", [], Numbers(), ShopSink()])
def test_what_is_no_pipeline_is_refused_as_what_a_function_returns_is(given: Any) -> None:
    told = rf"\({type(given).__name__}\) is no pipeline; give a pen.Pipeline, a stream, or a funct"
    refused(told, given)
    refused(told, lambda: given)


def test_nothing_is_no_pipeline() -> None:
    with pytest.raises(pen.ConfigError, match=r"None \(NoneType\) is no pipeline"):
        simulate(None)  # type: ignore[arg-type]


def test_a_source_and_a_keyed_stream_are_told_how_to_go_on() -> None:
    refused(r"pen.from_source\(Numbers\(\.\.\.\)\)", Numbers())
    keyed = orders().key_by("customer")
    refused(r"KeyedStream\[by customer\] .* go on with \.agg\(n=pen\.count\(\)\) or", keyed)
    refused(r"go on with \.agg", lambda: keyed)


def test_a_function_with_two_arguments_builds_nothing() -> None:
    refused("the lambda needs more than one argument", lambda folder, name: shop())


def test_functions_that_build_a_pipeline_are_called_as_ever() -> None:
    def in_a_folder(folder: Path) -> pen.Pipeline:
        assert folder.is_dir()
        return shop()

    for build in (shop, lambda: shop(), in_a_folder):
        assert simulate(build, read={"shop": shown}, seeds=range(2)).ok


# ---- seeds, faults, checkpoints


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        (None, r"seeds=None: write seeds=range\(100\) for a hundred"),
        (-3, r"seeds=-3: write seeds=range\(100\) for a hundred"),
        (0, r"seeds=0: write seeds=range\(100\) for a hundred schedules, seeds=\[17\] for one"),
        (10, r"seeds=10: write seeds=range\(10\) for that many, or seeds=\[10\] for that one"),
        ("abc", r"seeds='abc': write seeds=range"),
        ([-1], "-1 is out of range"),
        ([1.5], "1.5 .* is not a whole number"),
        ([], "there are none"),
    ],
)
def test_seeds_are_numbers_in_a_row(seeds: Any, told: str) -> None:
    refused(told, seeds=seeds)


def test_seeds_may_come_from_a_generator() -> None:
    assert simulate(orders(), seeds=(seed for seed in range(3))).schedules == 3


@pytest.mark.parametrize(
    "kind", [Faults, lambda **rates: simulate(orders(), faults=sim.Faults(**rates))]
)
@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ({"crash": 7}, r"crash=7 is no rate; .* from 0 to 1, as in Faults\(crash=0.01\)"),
        ({"crash": -0.1}, "crash=-0.1 is no rate"),
        ({"crash": "x"}, "crash='x' is no rate"),
        ({"crash": True}, "crash=True is no rate"),
        ({"crash": float("nan")}, "crash=nan is no rate"),
        ({"crash": 0.5, "pause": 0.5}, "together they must stay below 1, and are 1"),
    ],
)
def test_rates_are_shares(kind: Any, rates: dict[str, Any], told: str) -> None:
    with pytest.raises(pen.ConfigError, match=told):
        kind(**rates)


def test_a_fault_that_does_not_exist_is_told_with_the_likeliest() -> None:
    with pytest.raises(pen.ConfigError, match="there is no fault 'crsh'; did you mean 'crash'"):
        Faults(crsh=0.1)  # type: ignore[call-arg]
    with pytest.raises(pen.ConfigError, match="whose rate is 0.1"):
        Faults(0.1)


def test_faults_are_what_the_simulator_has() -> None:
    made = Faults(crash=0.01, late_write=1.0)
    assert isinstance(made, sim.Faults)
    assert replace(made, crash=0.5).crash == 0.5
    assert repr(made).startswith("Faults(crash=0.01, partition=0.0")


def test_rates_in_a_dict_are_not_taken_for_names() -> None:
    refused(
        r"rates are given as faults=Faults\(crash=0.1, stall=1\)", faults={"crash": 0.1, "stall": 1}
    )
    refused(r"faults=7: name the kinds, as in faults=\['crash', 'commit_error'\]", faults=7)


def test_names_in_a_set_mean_the_same_in_every_process() -> None:
    names = ("crash", "commit_error", "storage_error", "slow_user")
    first = simulate(orders(), faults=sorted(names), seeds=range(6))
    assert simulate(orders(), faults=set(names), seeds=range(6)).faults == first.faults


def test_a_checkpoint_is_a_config() -> None:
    refused("'1 second' .* is no CheckpointConfig; write checkpoint=pen", checkpoint="1 second")


# ---- read, staged and compare


@pytest.mark.parametrize("option", ["read", "staged", "compare"])
def test_options_for_a_sink_that_is_not_there_are_told_with_the_likeliest(option: str) -> None:
    by_name = {option: {"shpo": lambda anything: []}}
    told = f"{option} has 'shpo', and there is no sink of that name; did you mean 'shop'"
    refused(told, **by_name)
    refused(told, lambda: shop(), **by_name)
    refused("there are collect-sink", orders(), **by_name)


@pytest.mark.parametrize("option", ["read", "staged"])
def test_what_is_no_function_of_a_sink_is_refused(option: str) -> None:
    refused(rf"{option}=3 \(int\) is no function; give one that takes the sink", **{option: 3})
    refused(rf"{option}=3 \(int\) is no function", **{option: {"shop": 3}})
    refused(f"{option}: the lambda cannot be called with 1 argument", **{option: lambda: [1]})
    refused("cannot be called with 1 argument; give a", **{option: lambda sink, schema: [1]})


def test_a_comparison_is_a_function_of_the_rows() -> None:
    refused("compare: the lambda cannot be called with 1 argument; .* the rows", compare=lambda: 1)


def test_a_read_that_returns_nothing_is_told_with_the_sink() -> None:
    told = "read, for sink 'shop', returned None; it must return the rows that a reader sees"
    refused(told, read=lambda sink: None)
    refused(told, read={"shop": lambda sink: None})


def test_a_comparison_that_raises_is_told_with_the_sink() -> None:
    def total(rows: Any) -> int:
        return sum(row["amuont"] for row in rows)

    text = refused(r"compare, for sink 'shop', raised KeyError: 'amuont'", compare=total)
    assert "It was given 40 rows, as dicts, the first of which is {'customer': " in text


def test_a_comparison_that_raises_in_the_middle_is_no_bug_of_penstock() -> None:
    calls: list[int] = []

    def picky(rows: Any) -> int:
        calls.append(len(rows))
        if len(calls) > 8:
            raise ValueError("no more")
        return len(rows)

    refused("compare, for sink 'shop', raised ValueError: no more", compare=picky, seeds=range(20))


def test_options_by_the_names_of_sinks_count() -> None:
    by_name = {"read": {"shop": shown}, "staged": {"shop": staged}, "compare": {"shop": "rows"}}
    assert simulate(shop(), seeds=range(3), **by_name).ok
    with pytest.raises(SimulationFailed, match="I11"):
        simulate(shop("never aborts"), seeds=range(50), **by_name)


# ---- what sources and sinks return


def failed_at_once(given: Any) -> str:
    with pytest.raises(SimulationFailed, match="without any fault") as failed:
        simulate(given, read=shown, seeds=range(3))
    return str(failed.value)


def test_a_committer_or_writer_that_is_none_is_told() -> None:
    class NoCommitter(ShopSink):
        def committer(self, context: pen.SinkContext) -> Any:
            return None

    class NoWriter(ShopSink):
        def writer(self, context: pen.SinkContext) -> Any:
            return None

    told = failed_at_once(orders().to(NoCommitter()))
    assert "committer() returned None (NoneType), which has no commit(); it must return" in told
    assert "a pen.SinkWriter" in failed_at_once(orders().to(NoWriter()))


def test_a_poll_or_reader_that_is_none_is_told() -> None:
    class NoReader(Numbers):
        def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> Any:
            return None

    class NoAnswer(Numbers):
        def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> Any:
            return Forgetful(context, positions, 0)

    class Forgetful(NumbersReader):
        def poll(self, max_rows: int) -> Any:
            super().poll(max_rows)

    told = failed_at_once(pen.from_source(NoAnswer()))
    assert "poll() returned None (NoneType); it must return a pa.RecordBatch, pen.Wait" in told
    assert "it must return a pen.SourceReader" in failed_at_once(pen.from_source(NoReader()))


# ---- simulate itself


def test_simulate_still_says_what_it_takes() -> None:
    assert list(inspect.signature(simulate).parameters)[:3] == ["pipeline", "seeds", "faults"]
    assert (simulate.__doc__ or "").startswith("Runs a pipeline through one crash schedule")
    with pytest.raises(TypeError, match=r"simulate\(\) got an unexpected keyword argument 'seed'"):
        simulate(orders(), seed=4)  # type: ignore[call-arg]
