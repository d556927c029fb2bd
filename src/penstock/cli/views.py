"""How the demo shows itself: live on a terminal, as plain lines everywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from penstock.api.job import status_text
from penstock.api.records import CheckpointInfo
from penstock.cli.watching import Watch

LINES_KEPT = 12
CHECKPOINTS_KEPT = 5
PROGRESS_EVERY_S = 1.0


class Lines:
    """One line per thing that happens, and one a second for the throughput."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._told_s = 0.0

    def say(self, text: str, style: str = "") -> None:
        self._console.print(self._line(text, style), soft_wrap=True)

    def _line(self, text: str, style: str) -> Text:
        return Text(f"{time.monotonic() - self._began_s:5.1f} s  ", "dim") + Text(text, style)

    def checkpoint(self, info: CheckpointInfo) -> None:
        self.say(checkpoint_text(info), "green")

    def killed(self, pid: int, slot: int) -> None:
        self.say(killed_text(pid, slot), "bold red")

    def healed(self, seconds: float, checkpoint: int) -> None:
        self.say(healed_text(seconds, checkpoint), "bold green")

    def progress(self, watch: Watch) -> None:
        now_s = time.monotonic()
        if watch.first_row_s is not None and now_s - self._told_s >= PROGRESS_EVERY_S:
            self._told_s = now_s
            self.say(progress_text(watch))


class Screen(Lines):
    """The same, as a picture that stays in its place: the state, what happened, the newest checkpoints."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self._live = live
        self._state = "starting ..."
        self._news: deque[Text] = deque(maxlen=LINES_KEPT)
        self._checkpoints: deque[Text] = deque(maxlen=CHECKPOINTS_KEPT)

    def say(self, text: str, style: str = "") -> None:
        self._news.append(self._line(text, style))
        self._live.update(self._picture())

    def checkpoint(self, info: CheckpointInfo) -> None:
        self._checkpoints.append(self._line(checkpoint_text(info), "green"))
        self._live.update(self._picture())

    def progress(self, watch: Watch) -> None:
        self._state = (
            progress_text(watch) if watch.first_row_s is not None else status_text(watch.job)
        )
        self._live.update(self._picture())

    def _picture(self) -> RenderableType:
        return Group(Text(f"▶ {self._state}", "bold cyan"), *self._checkpoints, *self._news)


@contextmanager
def open_view(console: Console) -> Iterator[Lines]:
    """What fits where the output goes. What is on the screen at the end stays there."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, refresh_per_second=8) as live:
        yield Screen(console, live)


# ---- texts


def checkpoint_text(info: CheckpointInfo) -> str:
    duration = f"{info.duration_ms:.0f} ms" if info.duration_ms is not None else "?"
    kind = "last checkpoint" if info.kind == "final" else "checkpoint"
    return f"{kind} {info.id} completed in {duration}, {bytes_text(info.bytes_full)}"


def killed_text(pid: int, slot: int) -> str:
    return f"kill -9 {pid}: the worker of slot {slot} is gone"


def healed_text(seconds: float, checkpoint: int) -> str:
    return f"healed after {seconds:.2f} s, going on from checkpoint {checkpoint}"


def progress_text(watch: Watch) -> str:
    return (
        f"{status_text(watch.job)}: {watch.rows_per_second:,.0f} transfers/s, "
        f"{watch.checkpoints_seen} checkpoints, {watch.kills} kills"
    )


def bytes_text(count: float) -> str:
    """A size as people say it."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
