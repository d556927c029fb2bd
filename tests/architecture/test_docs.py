"""The documentation keeps its promises, and the tool that checks it would notice if it did not."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from penstock.api.config import CheckpointConfig, ExponentialDelay, FailureRate, FixedDelay
from penstock.api.keys import PREFIX, known, read
from penstock.api.pipeline import job_settings
from tools import check_docs

ROOT = Path(__file__).parents[2]


def test_every_link_leads_somewhere_and_every_block_compiles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check_docs.main(ROOT) == 0, capsys.readouterr().err


def test_a_broken_link_and_a_broken_block_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/ok.md").write_text("[up](../README.md#top) [web](https://example.org/x)\n")
    (tmp_path / "README.md").write_text(
        "[good](docs/ok.md)\n[bad](docs/gone.md)\n\n```python\nx = 1\ny = = 2\n```\n\n"
        "```text\n[not a link](nowhere.md)\n```\n"
    )
    assert check_docs.main(tmp_path) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "README.md:2: the link to docs/gone.md leads nowhere" in said[0]
    assert "README.md:6: this Python does not compile" in said[1]


def test_the_table_for_contributors_has_the_packages_that_there_are() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z/]+)`", row)}
    packages = {path.parent for path in (ROOT / "src/penstock").glob("*/__init__.py")}
    assert {name.partition("/")[0] for name in named} == {path.name for path in packages}
    assert all((ROOT / "src/penstock" / name).is_dir() for name in named)


def test_an_extra_is_only_there_for_what_can_be_used() -> None:
    """What it installs is told of where paths and stores are."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    told = (ROOT / "docs/connectors.md").read_text("utf-8")
    for extra, packages in project.get("optional-dependencies", {}).items():
        assert f"penstock[{extra}]" in told
        assert all(re.split(r"[<>=\[]", package)[0] in told for package in packages)


KEY = re.compile(rf"^\| `{re.escape(PREFIX)}(?P<key>[^`]+)` \| (?P<usual>[^|]+) \|", re.MULTILINE)


def test_the_page_on_configuration_has_every_key_and_no_other() -> None:
    """U5."""
    told = (ROOT / "docs/configuration.md").read_text("utf-8")
    listed = [found["key"] for found in KEY.finditer(told)]
    assert sorted(listed) == sorted(known(job_settings))


def test_the_defaults_on_that_page_are_those_of_the_code() -> None:
    """Those that are values and not words, each written as its key takes it."""
    told = (ROOT / "docs/configuration.md").read_text("utf-8")
    written = {found["key"]: found["usual"] for found in KEY.finditer(told)}
    usual = defaults()
    values = {key: text.strip("`") for key, text in written.items() if text.startswith("`")}
    assert set(usual) - set(values) <= {"checkpoint.storage_options"}
    for key, text in values.items():
        if key in usual:
            assert read({PREFIX + key: text}, job_settings) == {key: usual[key]}


def defaults() -> dict[str, Any]:
    found = {
        name: option.default
        for name, option in signature(job_settings).parameters.items()
        if option.default is not option.empty and name not in ("checkpoint", "restart")
    }
    groups = (("checkpoint", CheckpointConfig), ("restart", ExponentialDelay))
    for group, config in (*groups, ("restart", FixedDelay), ("restart", FailureRate)):
        for spec in fields(config):
            if spec.default is not MISSING:
                found[f"{group}.{spec.name}"] = spec.default
    return found
