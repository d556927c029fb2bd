"""Settings: what is taken, what is refused and what is not there yet."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.api.config import JobSettings
from penstock.api.pipeline import job_settings
from penstock.protocol import restart


def settings(**changes: Any) -> JobSettings:
    given: dict[str, Any] = {
        "name": "totals",
        "parallelism": 2,
        "checkpoint": None,
        "restart": None,
    }
    return job_settings(**(given | changes))


def test_a_checkpoint_config_has_the_documented_defaults() -> None:
    config = pen.CheckpointConfig("chk/")
    assert config.mode == "exactly_once"
    assert (config.timeout_ms, config.min_pause_ms) == (600_000, 0)
    assert (config.max_concurrent, config.tolerable_failures, config.keep) == (1, 0, 2)
    assert config.retain == "retain_on_cancel"


def test_durations_are_read_as_text_or_timedelta() -> None:
    config = pen.CheckpointConfig(Path("chk"), every=timedelta(milliseconds=250), min_pause="1.5 s")
    assert (config.directory, config.every_ms, config.min_pause_ms) == ("chk", 250, 1_500)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("every", "soon", "CheckpointConfig.every: 'soon' is not a duration"),
        ("every", 5, "CheckpointConfig.every: 5 has no unit"),
        ("every", "0 s", "longer than zero"),
        ("timeout", "0 ms", "longer than zero"),
        ("min_pause", "-1 s", "CheckpointConfig.min_pause"),
        ("mode", "exactly-once", "choose one of exactly_once, at_least_once"),
        ("retain", "keep", "choose one of retain_on_cancel"),
        ("max_concurrent", 0, "CheckpointConfig.max_concurrent: 0 is out of range"),
        ("tolerable_failures", -1, "out of range"),
        ("tolerable_failures", 100_001, "out of range"),
        ("keep", 0, "out of range"),
        ("keep", "2", "not a whole number"),
        ("keep", True, "not a whole number"),
        ("incremental", 1, "neither True nor False"),
        ("changelog", "yes", "neither True nor False"),
        ("materialize_every", "0 s", "longer than zero"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: Any, message: str) -> None:
    with pytest.raises(pen.ConfigError, match=message):
        pen.CheckpointConfig("chk/", **{field: value})


def test_checkpoints_in_memory_are_asked_for_by_one_word() -> None:
    """T1: what looks like a place in memory is none."""
    assert pen.CheckpointConfig("memory:").in_memory
    assert not pen.CheckpointConfig("memory").in_memory
    for place in ("memory:chk", "memory://chk"):
        with pytest.raises(pen.ConfigError, match=r"CheckpointConfig\('memory:'\)"):
            pen.CheckpointConfig(place)


@pytest.mark.parametrize("directory", ["", "  ", None, 3])
def test_a_checkpoint_needs_a_directory(directory: Any) -> None:
    with pytest.raises(pen.ConfigError, match="CheckpointConfig.directory"):
        pen.CheckpointConfig(directory)


def test_local_copies_need_files_to_copy() -> None:
    """R4: a setting that could have no effect is refused."""
    assert pen.CheckpointConfig("chk/", local_recovery=True).local_recovery
    with pytest.raises(pen.ConfigError, match="local_recovery=True needs a directory"):
        pen.CheckpointConfig("memory:", local_recovery=True)
    with pytest.raises(pen.ConfigError, match="neither True nor False"):
        pen.CheckpointConfig("chk/", local_recovery="yes")  # type: ignore[arg-type]


def test_a_changelog_needs_files_that_several_checkpoints_refer_to() -> None:
    """S7: a setting that could have no effect is refused."""
    assert pen.CheckpointConfig("chk/", changelog=True).materialize_every_ms == 600_000
    with pytest.raises(pen.ConfigError, match="changelog=True needs a directory"):
        pen.CheckpointConfig("memory:", changelog=True)
    with pytest.raises(pen.ConfigError, match="changelog=True needs incremental=True"):
        pen.CheckpointConfig("chk/", changelog=True, incremental=False)


def test_unaligned_goes_alone_or_with_a_timeout_after_which_it_applies() -> None:
    """B7, B8."""
    assert pen.CheckpointConfig("chk/", unaligned=True).unaligned_at_once
    both = pen.CheckpointConfig("chk/", unaligned=True, aligned_timeout="500 ms")
    assert (both.unaligned_at_once, both.aligned_timeout_ms) == (False, 500)
    assert pen.CheckpointConfig("chk/", aligned_timeout="1 second").aligned_timeout_ms == 1_000


@pytest.mark.parametrize("chosen", [{"unaligned": True}, {"aligned_timeout": "1 second"}])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"max_concurrent": 2}, "goes with max_concurrent=1 only, not 2"),
        ({"mode": "at_least_once"}, "needs mode='exactly_once'"),
    ],
)
def test_unaligned_checkpoints_are_taken_one_at_a_time_and_for_exactly_once(
    chosen: dict[str, Any], other: dict[str, Any], message: str
) -> None:
    """B7, bug-B14: refused before anything runs."""
    with pytest.raises(pen.ConfigError, match=message):
        pen.CheckpointConfig("chk/", **chosen, **other)


def test_a_compression_that_is_not_there_is_refused_by_name() -> None:
    assert pen.CheckpointConfig("chk/", compression="zstd").compression == "zstd"
    with pytest.raises(pen.ConfigError, match=r"CheckpointConfig.compression: 'lz4' is not known"):
        pen.CheckpointConfig("chk/", compression="lz4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("aligned_timeout", "10 minutes", "must be shorter than timeout='10 minutes'"),
        ("aligned_timeout", "soon", "aligned_timeout"),
        ("unaligned", "yes", "neither True nor False"),
        ("inflight_bytes_max", 0, "out of range"),
    ],
)
def test_a_wrong_field_of_unaligned_checkpoints_is_refused_by_name(
    field: str, value: Any, message: str
) -> None:
    with pytest.raises(pen.ConfigError, match=message):
        pen.CheckpointConfig("chk/", **{field: value})


def test_secrets_for_the_storage_are_never_shown() -> None:
    config = pen.CheckpointConfig("s3://b/chk", storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr(settings(checkpoint=config))


@pytest.mark.parametrize(
    ("public", "strategy"),
    [
        (pen.ExponentialDelay(), restart.Exponential()),
        (pen.ExponentialDelay(same_failures=3), restart.Exponential(same_failures_max=3)),
        (pen.ExponentialDelay(same_failures=None), restart.Exponential(same_failures_max=None)),
        (
            pen.ExponentialDelay("1 s", "1 h", 3, "2 h"),
            restart.Exponential(1_000, 3_600_000, 3.0, 7_200_000),
        ),
        (pen.FixedDelay(5, "2 s"), restart.Fixed(5, 2_000)),
        (pen.FailureRate(2, "1 min", "0 s"), restart.Rate(2, 60_000, 0)),
        (pen.NoRestart(), restart.Never()),
    ],
)
def test_every_restart_strategy_reaches_the_protocol(public: Any, strategy: Any) -> None:
    """R2: exponential delay, fixed delay, failure rate, none."""
    assert settings(checkpoint=pen.CheckpointConfig("c/"), restart=public).restart == strategy


@pytest.mark.parametrize(
    "make",
    [
        lambda: pen.ExponentialDelay(initial="x"),
        lambda: pen.ExponentialDelay(same_failures=0),
        lambda: pen.ExponentialDelay(multiplier=0.5),
        lambda: pen.ExponentialDelay(multiplier="2"),  # type: ignore[arg-type]
        lambda: pen.ExponentialDelay(initial="2 s", max="1 s"),
        lambda: pen.FixedDelay(attempts=0),
        lambda: pen.FixedDelay(delay=3),  # type: ignore[arg-type]
        lambda: pen.FailureRate(interval="0 s"),
    ],
)
def test_a_wrong_restart_strategy_is_refused(make: Any) -> None:
    with pytest.raises(pen.ConfigError):
        make()


def test_restarts_are_on_with_checkpoints_and_off_without() -> None:
    """B5: without checkpointing nothing is ever replayed; R2: exponential delay is the default."""
    off = settings().restart
    assert isinstance(off, restart.Never) and "nothing to restore" in off.why
    assert "checkpoint=pen.CheckpointConfig(" in off.why
    assert settings(checkpoint=pen.CheckpointConfig("c/")).restart == restart.Exponential()
    assert settings(restart=pen.NoRestart()).restart == off


def test_a_strategy_that_is_asked_for_is_honoured_without_checkpoints_too() -> None:
    """R2: whoever asks for restarts gets them; the job then begins from scratch."""
    assert settings(restart=pen.FixedDelay(attempts=2)).restart == restart.Fixed(2, 1_000)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("parallelism", 0, "parallelism: 0 is out of range"),
        ("parallelism", 200, r"parallelism: 200 is more than max_parallelism \(128\)"),
        ("parallelism", 1.5, "not a whole number"),
        ("max_parallelism", 0, "max_parallelism: 0 is out of range"),
        ("spare_workers", -1, "spare_workers: -1"),
        ("buffer_timeout", 10, "buffer_timeout: 10 has no unit"),
        ("slot_timeout", "0 s", "slot_timeout"),
        ("name", "", "not a name for a job"),
        ("name", "a\nb", "not a name for a job"),
        ("checkpoint", "chk/", r"pen.CheckpointConfig\("),
        ("restart", "always", "is no strategy"),
        ("restore", "", "neither"),
        ("restore", None, "neither"),
        ("restore", "chk/chk-3", "needs a checkpoint directory"),
        ("allow_non_restored_state", "yes", "neither True nor False"),
    ],
)
def test_a_wrong_setting_of_a_job_is_refused_by_name(field: str, value: Any, message: str) -> None:
    with pytest.raises(pen.ConfigError, match=message):
        settings(**{field: value})


def test_settings_hold_milliseconds() -> None:
    made = settings(buffer_timeout="5 ms", slot_timeout="1 min")
    assert (made.buffer_timeout_ms, made.slot_timeout_ms) == (5, 60_000)
    assert settings().slot_timeout_ms is None
