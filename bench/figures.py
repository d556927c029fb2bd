"""What a benchmark hands back: figures, each beside what it is compared with, and how they are printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """`reference` is a peer's, a limit's or a target's value of the same kind, from the same run."""

    bench: str
    what: str
    value: float
    unit: str
    against: str
    reference: float
    at_least: float | None = None
    """The ratio must be this or more."""
    at_most: float | None = None
    """The ratio must be this or less."""
    samples: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        return self.value / self.reference if self.reference else float("nan")

    @property
    def met(self) -> bool | None:
        """None where there is no target."""
        if self.at_least is None and self.at_most is None:
            return None
        above = self.at_least is None or self.ratio >= self.at_least
        return above and (self.at_most is None or self.ratio <= self.at_most)


def middle(samples: Sequence[float]) -> float:
    return float(median(samples))


def within(bench: str, what: str, samples: Sequence[float], unit: str, target: float) -> Figure:
    """A figure whose only yardstick is a target that it must not exceed."""
    return Figure(
        bench, what, middle(samples), unit, "target", target, at_most=1.0, samples=tuple(samples)
    )


def show(figures: Sequence[Figure], console: Console) -> None:
    table = Table(title="Penstock, measured", title_justify="left")
    for heading in ("benchmark", "figure", "value", "", "compared with", "ratio", "target", ""):
        right = heading in ("value", "ratio", "target")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    last = ""
    for figure in figures:
        if last and figure.bench != last:
            table.add_section()
        table.add_row(*_cells(figure, figure.bench if figure.bench != last else ""))
        last = figure.bench
    console.print(table)


def _cells(figure: Figure, bench: str) -> list[str]:
    against = f"{figure.against} ({_number(figure.reference)})"
    verdict = {None: "", True: "[green]ok[/]", False: "[red]missed[/]"}[figure.met]
    return [
        *(bench, figure.what, _number(figure.value), figure.unit, against),
        *(f"{figure.ratio:.3g}", _target(figure), verdict),
    ]


def _target(figure: Figure) -> str:
    if figure.at_least is not None:
        return f">= {figure.at_least:g}"
    return f"<= {figure.at_most:g}" if figure.at_most is not None else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def as_json(figures: Sequence[Figure], about: dict[str, Any]) -> str:
    """One line: all that was measured and on what."""
    rows = [{**asdict(f), "ratio": f.ratio, "met": f.met} for f in figures]
    return json.dumps({**about, "figures": rows})
