"""Options as keys of Spark: every option has one, the program wins over it, and what is wrong is said at once."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.api import keys
from penstock.api.config import JobSettings, RestartStrategy, given_in_code
from penstock.api.keys import PREFIX, known, read
from penstock.api.pipeline import job_settings
from penstock.protocol import restart

SOURCES = Path(keys.__file__).parents[1]
TABLE = known(job_settings)
SECRET = "hunter2-hunter2"


def conf(**by_key: str) -> dict[str, str]:
    """`checkpoint__every` stands for `spark.penstock.checkpoint.every`."""
    return {PREFIX + name.replace("__", "."): text for name, text in by_key.items()}


def settled(given: Mapping[str, Any], by_key: Mapping[str, str]) -> JobSettings:
    """What a job would be started with."""
    pipeline = pen.from_rows([("a", 1)], "k STRING, v INT").to(pen.CollectSink())
    return pipeline._settings(given, by_key)


def names_of(config: Any) -> list[str]:
    return [spec.name for spec in dataclasses.fields(config)]


# ---- every option has a key


def test_every_option_every_field_and_every_strategy_has_a_key_of_its_own_name() -> None:
    """U5."""
    options = [*inspect.signature(job_settings).parameters]
    options.remove("checkpoint")
    checkpoint = [f"checkpoint.{name}" for name in names_of(pen.CheckpointConfig)]
    checkpoint[checkpoint.index("checkpoint.storage_options")] += ".<name>"
    strategies = [
        f"restart.{name}" for kind in get_args(RestartStrategy) for name in names_of(kind)
    ]
    assert set(TABLE) == {*options, *checkpoint, *strategies, *keys.OF_THE_SHELL}
    assert set(keys.STRATEGIES.values()) == set(get_args(RestartStrategy))
    assert get_args(TABLE["restart"]) == (
        "exponential_delay",
        "fixed_delay",
        "failure_rate",
        "none",
    )


def test_start_takes_the_options_that_have_keys_and_no_others() -> None:
    """U5: whoever adds an option adds it to both."""
    start = inspect.signature(pen.Pipeline.start).parameters
    assert [*start][2:] == [*inspect.signature(job_settings).parameters]
    assert {start[name].default for name in [*start][1:]} == {None}, "None: left to the key"


def test_a_new_option_has_its_key_by_itself() -> None:
    def options(*, name: str, brand_new: int = 1) -> None: ...

    options.__annotations__ = {"name": str, "brand_new": int}
    assert read(conf(brand_new="7"), options) == {"brand_new": 7}


def test_every_key_that_the_code_speaks_of_is_known() -> None:
    """A key that is read and not in the table would be refused."""
    spelled = re.compile(rf"{re.escape(PREFIX)}([a-z_.]*[a-z_])")
    found = {
        name
        for path in SOURCES.rglob("*.py")
        for name in spelled.findall(path.read_text("utf-8"))
        if path.name != "keys.py"
    }
    assert {"transport", "control.port", "data.ports"} <= found
    assert found <= {*TABLE, "checkpoint"}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that an option of this type may be."""
    kinds = get_args(hint) if NoneType in get_args(hint) or timedelta in get_args(hint) else (hint,)
    if get_origin(kinds[0]) is Mapping:
        return st.text(st.characters(categories=["L", "N"])).map("x{}".format)
    if timedelta in kinds:
        units = st.sampled_from(["ms", "s", "seconds", "minutes", "h"])
        one: st.SearchStrategy[Any] = st.builds("{} {}".format, st.integers(0, 10**6), units)
    elif get_origin(kinds[0]) is Literal:
        one = st.sampled_from(get_args(kinds[0]))
    else:
        one = {
            bool: st.booleans(),
            int: st.integers(-(10**17), 10**17),
            float: st.floats(allow_nan=False),
        }.get(kinds[0], st.text(st.characters(categories=["L", "N", "P", "S"])))
    return st.none() | one if NoneType in kinds else one


def text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


@pytest.mark.parametrize("name", TABLE)
@given(st.data())
def test_every_key_is_read_as_the_type_of_its_option(name: str, data: st.DataObject) -> None:
    """U5: text there, value here."""
    value = data.draw(values(TABLE[name]))
    key = name.replace(keys.ANY_NAME, "region")
    padded = f" {text_of(value)} "
    assert read({PREFIX + key: padded}, job_settings) == {key: value}


def test_keys_of_others_and_the_mark_of_our_own_spark_are_left_alone() -> None:
    assert read({"spark.master": "local", "spark.penstocks.x": "1"}, job_settings) == {}
    assert read(conf(local="true"), job_settings) == {}


# ---- what the program gives wins


def test_every_option_of_start_can_come_from_its_key() -> None:
    """U5."""
    made = settled(
        {},
        conf(
            name="by key",
            parallelism="3",
            max_parallelism="64",
            restore="fresh",
            allow_non_restored_state="true",
            spare_workers="1",
            buffer_timeout="5 ms",
            slot_timeout="1 minute",
            driver_timeout="7 seconds",
            checkpoint__directory="s3://bucket/chk",
            checkpoint__every="1 second",
            checkpoint__unaligned="true",
            checkpoint__storage_options__key="me",
            restart="failure_rate",
            restart__failures="9",
        ),
    )
    assert (made.name, made.parallelism, made.max_parallelism) == ("by key", 3, 64)
    assert (made.restore, made.spare_workers, made.buffer_timeout_ms) == ("fresh", 1, 5)
    assert (made.slot_timeout_ms, made.driver_timeout_ms) == (60_000, 7_000)
    assert made.allow_non_restored_state
    assert made.checkpoint == pen.CheckpointConfig(
        "s3://bucket/chk", every="1 second", unaligned=True, storage_options={"key": "me"}
    )
    assert made.restart == restart.Rate(failures_max=9)
    assert not made.unnamed


def test_without_keys_everything_is_as_usual() -> None:
    usual = job_settings(name="job")
    assert settled({}, {}) == dataclasses.replace(usual, unnamed=True)
    assert (usual.parallelism, usual.max_parallelism, usual.checkpoint) == (2, 128, None)


def test_what_the_program_gives_wins_over_its_key() -> None:
    """U5: as Spark itself has it."""
    given = {
        "name": "by code",
        "parallelism": 5,
        "slot_timeout": "9 seconds",
        "restart": pen.FixedDelay(attempts=4),
    }
    by_key = conf(
        name="by key",
        parallelism="3",
        slot_timeout="none",
        spare_workers="1",
        restart="failure_rate",
        restart__interval="1 minute",
    )
    made = settled(given, by_key)
    assert (made.name, made.parallelism, made.slot_timeout_ms) == ("by code", 5, 9_000)
    assert made.restart == restart.Fixed(4, 1_000)
    assert made.spare_workers == 1, "it says nothing about them"


FIELDS: dict[str, tuple[Any, str, Any]] = {
    "every": ("10 seconds", "7 seconds", "7 seconds"),
    "timeout": ("3 minutes", "4 minutes", "4 minutes"),
    "min_pause": (timedelta(seconds=2), "1 second", "1 second"),
    "tolerable_failures": (0, "8", 8),
    "keep": (2, "9", 9),
    "retain": ("delete_on_cancel", "never_retain", "never_retain"),
    "incremental": (True, "false", False),
    "compression": (None, "zstd", "zstd"),
    "materialize_every": ("10 minutes", "3 minutes", "3 minutes"),
    "backend": ("heap", "rocksdb", "rocksdb"),
    "state_memory": ("1 GiB", "64m", "64m"),
    "inflight_bytes_max": (1 << 20, "12345", 12345),
    "aligned_timeout": (None, "5 seconds", "5 seconds"),
}
"""Per field: what the program gives, also where that is the default; the text of its key, and its value."""


@given(st.sets(st.sampled_from([*FIELDS])), st.sets(st.sampled_from([*FIELDS])))
def test_a_checkpoint_takes_each_field_from_the_program_then_from_its_key(
    in_code: set[str], by_key: set[str]
) -> None:
    """U5: per field; what is given wins also where it is the default."""
    config = pen.CheckpointConfig("here/", **{name: FIELDS[name][0] for name in in_code})
    texts = {f"checkpoint__{name}": FIELDS[name][1] for name in by_key}
    made = settled({"checkpoint": config}, conf(checkpoint__directory="there/", **texts)).checkpoint
    assert made is not None and made.directory == "here/"
    for name in FIELDS:
        usual = getattr(pen.CheckpointConfig("x"), name)
        from_key = FIELDS[name][2] if name in by_key else usual
        assert getattr(made, name) == (FIELDS[name][0] if name in in_code else from_key)


def test_storage_options_of_the_program_are_not_mixed_with_those_of_keys() -> None:
    by_key = conf(checkpoint__storage_options__secret=SECRET)
    config = pen.CheckpointConfig("s3://b/chk", storage_options={"anon": True})
    made = settled({"checkpoint": config}, by_key).checkpoint
    assert made is not None and made.storage_options == {"anon": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("eu-west-1", "eu-west-1"),
        ("true", True),
        ("8020", 8020),
        ("null", None),
        ('"8020"', "8020"),
        ('{"endpoint_url": "http://x"}', {"endpoint_url": "http://x"}),
        ("[1, 2]", [1, 2]),
        ("0123", "0123"),
        ("12e3", "12e3"),
        ("1.5", "1.5"),
        ("NaN", "NaN"),
        ("True story", "True story"),
    ],
)
def test_a_storage_option_is_json_where_it_is_meant_and_text_where_not(
    text: str, value: Any
) -> None:
    """A token of digits with an `e` among them must not become a number."""
    name = "checkpoint.storage_options.option"
    assert read({PREFIX + name: text}, job_settings)[name] == value


def test_a_job_has_the_name_of_its_key_before_that_of_an_operator() -> None:
    named = pen.from_rows([(1,)], "v INT").named("operator").to(pen.CollectSink())
    assert named._settings({}, {}).name == "operator"
    assert named._settings({}, conf(name="by key")).name == "by key"
    assert not settled({}, conf(name="job")).unnamed


# ---- what is wrong


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("maxParallelism", "max_parallelism"),
        ("max-parallelism", "max_parallelism"),
        ("paralellism", "parallelism"),
        ("checkpoint.dir", "checkpoint.directory"),
        ("checkpoint.alignedTimeout", "checkpoint.aligned_timeout"),
        ("checkpointing.every", "checkpoint.every"),
        ("checkpoint.storage_options", "checkpoint.storage_options.<name>"),
        ("checkpoint.storage_options.a-b", "checkpoint.storage_options.<name>"),
        ("restart.attempt", "restart.attempts"),
        ("data.port", "data.ports"),
    ],
)
def test_a_key_that_there_is_not_is_refused_with_the_likeliest(written: str, meant: str) -> None:
    """U5: a typo that is ignored is believed."""
    with pytest.raises(pen.ConfigError) as caught:
        settled({}, {PREFIX + written: "1", PREFIX + "parallelism": "3"})
    assert str(caught.value) == (
        f"{PREFIX}{written}: there is no such key; did you mean {PREFIX}{meant}?"
    )


def test_all_keys_that_there_are_not_are_told_at_once() -> None:
    with pytest.raises(pen.ConfigError) as caught:
        settled({}, conf(nam="x", qqqqq="y"))
    assert f"did you mean {PREFIX}name?" in str(caught.value)
    assert f"{PREFIX}qqqqq: there is no such key; there are {PREFIX}name, " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("parallelism", "four", "a whole number"),
        ("parallelism", "4.0", "a whole number"),
        ("parallelism", "1_000", "a whole number"),
        ("parallelism", "none", "a whole number"),
        ("parallelism", "", "a whole number"),
        ("slot_timeout", "5", "a duration in whole milliseconds.*, or none"),
        ("checkpoint.every", "soon", "a duration in whole milliseconds, such as 500 ms"),
        ("checkpoint.unaligned", "yes", "true or false"),
        ("checkpoint.mode", "exactly-once", "one of exactly_once, at_least_once"),
        ("restart", "always", "one of exponential_delay, fixed_delay, failure_rate, none"),
        ("restart.multiplier", "twice", "a number"),
        ("restart.same_failures", "often", "a whole number, or none"),
        ("transport", "udp", "one of auto, tcp"),
    ],
)
def test_a_value_that_is_not_what_its_key_takes_is_told_with_both(
    name: str, text: str, expected: str
) -> None:
    message = f"^{re.escape(PREFIX + name)}: '{text}' is not {expected}"
    with pytest.raises(pen.ConfigError, match=message):
        settled({"name": "a", "parallelism": 2, "restart": pen.NoRestart()}, {PREFIX + name: text})


@pytest.mark.parametrize(
    ("given", "by_key", "message"),
    [
        ({}, conf(parallelism="0"), "parallelism: 0 is out of range.* (by spark.penstock.paral"),
        ({"parallelism": 9}, conf(max_parallelism="4"), "(by spark.penstock.max_parallelism)"),
        ({}, conf(name=" "), "(by spark.penstock.name)"),
        (
            {"checkpoint": pen.CheckpointConfig("c/", max_concurrent=2)},
            conf(checkpoint__unaligned="true", checkpoint__max_concurrent="1"),
            "(by spark.penstock.checkpoint.unaligned)",
        ),
        ({}, conf(restart="fixed_delay", restart__attempts="0"), "(by spark.penstock.restart.att"),
    ],
)
def test_an_error_about_what_a_key_has_set_names_the_key(
    given: dict[str, Any], by_key: dict[str, str], message: str
) -> None:
    with pytest.raises(pen.ConfigError, match=re.escape(message).replace(r"\.\*", ".*")):
        settled(given, by_key)


def test_an_error_of_the_program_itself_blames_no_key() -> None:
    with pytest.raises(pen.ConfigError) as caught:
        settled({"parallelism": 0}, conf(parallelism="3", spare_workers="1"))
    assert PREFIX not in str(caught.value)


@pytest.mark.parametrize(
    ("by_key", "message"),
    [
        (
            conf(checkpoint__every="1 s", checkpoint__keep="3"),
            "spark.penstock.checkpoint.every is set, and nothing says where checkpoints go: set"
            " spark.penstock.checkpoint.directory, too",
        ),
        (
            conf(restart__attempts="3"),
            "spark.penstock.restart.attempts goes with spark.penstock.restart=fixed_delay, which is not set",
        ),
        (
            conf(restart="none", restart__delay="3 s"),
            "spark.penstock.restart=fixed_delay or failure_rate, which is none",
        ),
    ],
)
def test_keys_that_go_with_others_say_with_which(by_key: dict[str, str], message: str) -> None:
    with pytest.raises(pen.ConfigError, match=re.escape(message)):
        settled({}, by_key)


def test_what_is_no_checkpoint_config_is_refused_as_without_keys() -> None:
    with pytest.raises(pen.ConfigError, match="'chk/' is not a CheckpointConfig"):
        settled({"checkpoint": "chk/"}, conf(checkpoint__every="1 s"))


@pytest.mark.parametrize(
    "by_key",
    [
        conf(checkpoint__storage_options__secret='{"' + SECRET),
        conf(checkpoint__storage_options__secret=SECRET),
        {f"{PREFIX}checkpoint.storage_option.secret": SECRET},
        conf(checkpoint__directory=f"s3://me:{SECRET}@b", checkpoint__keep="0"),
        conf(checkpoint__every=f"s3://me:{SECRET}@b"),
    ],
)
def test_no_error_shows_a_secret(by_key: dict[str, str]) -> None:
    """Security."""
    with pytest.raises(pen.ConfigError) as caught:
        settled({}, by_key)
    assert SECRET not in str(caught.value)


# ---- a checkpoint config knows what it was given


def test_a_checkpoint_config_knows_what_it_was_given_also_after_a_copy() -> None:
    config = pen.CheckpointConfig("chk/", "1 second", keep=2)
    for each in (
        config,
        copy.copy(config),
        copy.deepcopy(config),
        pickle.loads(pickle.dumps(config)),
    ):
        assert each == config
        assert given_in_code(each) == {"directory", "every", "keep"}
    changed = dataclasses.replace(config, keep=3)
    assert (changed.directory, changed.every, changed.keep) == ("chk/", "1 second", 3)
    assert given_in_code(changed) == set(names_of(config))


def test_a_checkpoint_config_looks_as_before() -> None:
    """What it remembers is no field: it is not shown, compared or asked for."""
    assert pen.CheckpointConfig("c/", keep=2) == pen.CheckpointConfig("c/")
    assert hash(pen.CheckpointConfig("c/", keep=2)) == hash(pen.CheckpointConfig("c/"))
    assert "given" not in repr(pen.CheckpointConfig("c/"))
    assert [*inspect.signature(pen.CheckpointConfig).parameters] == names_of(pen.CheckpointConfig)
    with pytest.raises(TypeError, match="unexpected keyword argument 'evry'"):
        pen.CheckpointConfig("c/", evry="1 s")  # type: ignore[call-arg]
