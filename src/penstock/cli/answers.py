"""How every command answers: text for people, one JSON object for programs, and errors that a person can read.

With `--json` the last line on standard output is one JSON object, whatever happens. A command that could not do its
work says why in `error`, and nowhere else; only what is no answer goes to standard error: the demo's progress, and the
traceback of an error that nobody expected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from penstock.engine.tracebacks import user_frames, user_traceback
from penstock.errors import PenstockError
from penstock.redaction import redacted

FAILED = 1
INTERRUPTED = 130


class Answer:
    """What a command says: `console` is for people, `give` for programs."""

    def __init__(self, as_json: bool, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr or as_json, highlight=False)
        self.as_json = as_json

    def show(self, text: str, style: str = "") -> None:
        """For people alone."""
        if not self.as_json:
            self.console.print(text, style=style, markup=False, soft_wrap=True)

    def give(self, result: dict[str, Any]) -> None:
        if self.as_json:
            print_json(result)

    def refuse(self, text: str, kind: str) -> None:
        """The work could not be done."""
        self.show(text, "red")
        self.give({"error": text, "kind": kind})


@contextmanager
def answering(as_json: bool = False, stderr: bool = False) -> Iterator[Answer]:
    """An error that a user can mend is a message, any other one a traceback from the user's own code on."""
    answer = Answer(as_json, stderr)
    try:
        yield answer
    except (PenstockError, OSError) as error:
        if frames := user_frames(error).rstrip("\n"):
            answer.show(frames)
        answer.refuse(redacted(_message(error)), type(error).__name__)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        answer.refuse("interrupted", "KeyboardInterrupt")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("typer", "click"):
            raise  # typer's own ways to end
        answer.console.print(redacted(user_traceback(error)), end="", markup=False, soft_wrap=True)
        answer.give({"error": redacted(_message(error)), "kind": type(error).__name__})
        raise typer.Exit(FAILED) from error


class Commands(TyperGroup):
    """Commands whose wrong use is answered in JSON, too, where JSON was asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._given = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            tell = getattr(error, "format_message", None)
            if tell is not None and "--json" in self._given:
                print_json({"error": tell(), "kind": type(error).__name__})
            raise


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _message(error: BaseException) -> str:
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"
