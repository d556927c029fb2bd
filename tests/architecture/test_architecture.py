"""Rules about the code itself, so that they hold without anyone watching."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/penstock").rglob("*.py"))
LINES_MAX = 600
CODE_NEVER_FROM = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
WORLD = {"time", "random", "os", "threading"}
MAY_TOUCH_THE_WORLD = {"shells", "storage", "connectors", "cli", "testing"}
READ_BACK = {"wire", "storage", "state", "protocol", "engine", "ports", "plan"}


def layer(path: Path) -> str:
    return path.relative_to(ROOT / "src/penstock").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_there_is_code_to_look_at() -> None:
    assert len(SOURCES) > 20


def test_imports_point_down() -> None:
    """The layers, checked by import-linter as `make lint` does."""
    ended = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 broken" in ended.stdout


def test_every_file_opens_with_what_it_is_for() -> None:
    filled = [path for path in SOURCES if path.read_text("utf-8").strip()]
    silent = [path for path in filled if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert named(silent) == []


def test_no_file_is_too_long_to_read() -> None:
    long = [p for p in SOURCES if len(p.read_text("utf-8").splitlines()) > LINES_MAX]
    assert named(long) == []


def test_nothing_that_is_read_back_is_pickled() -> None:
    """S9: no pickle, nor anything like it, near a disk or a socket."""
    guilty = [p for p in SOURCES if layer(p) in READ_BACK and imports(p) & CODE_NEVER_FROM]
    assert named(guilty) == []


def test_the_outside_world_comes_through_ports() -> None:
    guilty = [p for p in SOURCES if layer(p) not in MAY_TOUCH_THE_WORLD and imports(p) & WORLD]
    assert named(guilty) == []


def test_only_the_spark_shell_imports_pyspark() -> None:
    shell = ROOT / "src/penstock/shells/spark"
    guilty = [p for p in SOURCES if shell not in p.parents and "pyspark" in imports(p)]
    assert named(guilty) == []


def test_no_test_sleeps() -> None:
    tests = sorted(p for p in (ROOT / "tests").rglob("test_*.py") if "chaos" not in p.parts)
    guilty = [path for path in tests if path != Path(__file__) and _sleeps(path)]
    assert named(guilty) == []


def _sleeps(path: Path) -> bool:
    calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
    return any(ast.unparse(call.func) in ("time.sleep", "sleep") for call in calls)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os.path", {"os"}),
        ("def f():\n  from time import x", {"time"}),
        ("import a, b", {"a", "b"}),
    ],
)
def test_the_rules_see_every_way_to_import(tmp_path: Path, code: str, found: set[str]) -> None:
    (tmp_path / "x.py").write_text(code)
    assert imports(tmp_path / "x.py") == found


def test_make_lists_its_targets() -> None:
    """One command tells a newcomer what there is."""
    shown = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    for target in ("help", "demo", "test", "lint", "sim", "chaos", "bench", "docs", "clean"):
        assert f"make {target}" in shown.stdout


def test_a_missing_java_is_explained_before_anything_runs() -> None:
    ended = subprocess.run(
        ["make", "check-java"],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 2
    for way in ("apt install", "dnf install", "brew install", "sdk install", "JAVA_HOME"):
        assert way in ended.stderr
