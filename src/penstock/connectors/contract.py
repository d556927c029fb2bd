"""What sources and sinks of users must give: said here in words, before the engine stumbles over something else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from penstock.connectors.base import EndOfInput, Wait
from penstock.errors import PlanError

ANSWERS = (pa.RecordBatch, Wait, EndOfInput)
SHOWN = 60


def wrong_reader(made: object) -> str:
    """What is wrong with it, or nothing; so are the next ones."""
    return _lacks(made, ("poll", "positions", "close"), "reader()", "a pen.SourceReader")


def wrong_writer(made: object) -> str:
    return _lacks(made, ("write", "prepare", "close"), "writer()", "a pen.SinkWriter")


def wrong_committer(made: object) -> str:
    return _lacks(made, ("commit", "abort_others", "close"), "committer()", "a pen.SinkCommitter")


def wrong_answer(answer: object) -> str:
    """Of `poll`."""
    if isinstance(answer, Wait) and not isinstance(answer.until_ms, int | float):
        return f"poll() returned pen.Wait with {_shown(answer.until_ms)}; it takes milliseconds, as now_ms() has them"
    if isinstance(answer, ANSWERS):
        return ""
    return (
        f"poll() returned {_shown(answer)}; it must return a pa.RecordBatch, pen.Wait(until_ms) when there are no "
        "rows yet, or pen.END when there will be none any more"
    )


def wrong_positions(positions: object, lanes: Collection[int]) -> str:
    """Of `positions`, for a reader that has these lanes."""
    if not isinstance(positions, Mapping):
        return f"positions() returned {_shown(positions)}; it must return a dict with a position for each lane"
    strange = [lane for lane in positions if lane not in lanes]
    if strange:
        return (
            f"positions() has the lane {_shown(strange[0])}, which is not one of this subtask's; they are in "
            "SourceContext.lanes"
        )
    return ""


def refuse(problem: str) -> None:
    if problem:
        raise PlanError(problem)


def _lacks(made: object, methods: Iterable[str], call: str, kind: str) -> str:
    missing = [name for name in methods if not callable(getattr(made, name, None))]
    if not missing:
        return ""
    return f"{call} returned {_shown(made)}, which has no {missing[0]}(); it must return {kind}"


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
    return f"{text} ({type(value).__name__})"
