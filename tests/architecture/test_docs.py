"""The documentation keeps its promises, and the tool that checks it would notice if it did not."""

from __future__ import annotations

from pathlib import Path

import pytest

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
