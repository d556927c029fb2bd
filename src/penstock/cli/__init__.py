"""The command line: `penstock demo`, `run`, `checkpoints`, `inspect`, `state` and `verify`.

This file stays small, because workers import it, too, when they run the demo's functions.
"""

from __future__ import annotations


def main() -> None:
    """The console script."""
    from penstock.cli.app import app

    app()
