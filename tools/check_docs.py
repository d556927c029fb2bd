"""Checks the documentation: every relative link leads to a file, every Python block compiles.

    python tools/check_docs.py [folder]

Says what is wrong and where, and exits with 1 when anything is.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^([ ]*)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
ANY_FENCE = re.compile(r"^[ ]*```.*?^[ ]*```", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("http://", "https://", "mailto:", "#")


def pages(root: Path) -> list[Path]:
    """The pages of the project itself, not of what is installed in it."""
    folders = [root / name for name in ("docs", "examples", "bench")]
    found = [path for folder in folders for path in folder.rglob("*.md")]
    return sorted([*root.glob("*.md"), *found])


def problems(page: Path) -> Iterator[str]:
    text = page.read_text("utf-8")
    yield from broken_links(page, text)
    yield from broken_blocks(page, text)


def broken_links(page: Path, text: str) -> Iterator[str]:
    prose = ANY_FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for found in LINK.finditer(prose):
        target = found[1] or found[2]
        path = target.partition("#")[0]
        if not target.startswith(ELSEWHERE) and not (page.parent / path).exists():
            yield f"{page}:{line_of(prose, found.start())}: the link to {target} leads nowhere"


def broken_blocks(page: Path, text: str) -> Iterator[str]:
    for found in FENCE.finditer(text):
        try:
            ast.parse(textwrap.dedent(found[2]))
        except SyntaxError as error:
            line = line_of(text, found.start()) + (error.lineno or 0)
            yield f"{page}:{line}: this Python does not compile: {error.msg}"


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def main(root: Path) -> int:
    found = [problem for page in pages(root) for problem in problems(page)]
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{len(pages(root))} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
