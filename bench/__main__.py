"""`python -m bench [--peers 1] [--tiny] [names...]`: a table, and one JSON object as the last line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from bench import (
    backpressure,
    dataframes,
    engine_loop,
    latency,
    machine,
    modes,
    pause,
    peers,
    recovery,
    state_read,
    throughput,
    transport,
)
from bench.figures import Figure, as_json, show
from bench.sizes import FULL, TINY, Sizes
from bench.state import parts as state

Bench = Callable[[Sizes, Sequence[peers.Peer]], list[Figure]]

BENCHES: dict[str, Bench] = {
    "w1": lambda sizes, others: throughput.run("W1", "int", sizes, others),
    "w1s": lambda sizes, others: throughput.run("W1s", "text", sizes, ()),
    "w3": lambda sizes, others: latency.run(sizes),
    "recovery": lambda sizes, others: recovery.run(sizes),
    "pause": lambda sizes, others: pause.run(sizes),
    "transport": lambda sizes, others: transport.run(sizes),
    "backpressure": lambda sizes, others: backpressure.run(sizes),
    "modes": lambda sizes, others: modes.run(sizes),
    "dataframe": lambda sizes, others: dataframes.run(sizes),
    "state": lambda sizes, others: state.run(sizes, bool(others)),
    "state_read": lambda sizes, others: state_read.run(sizes),
    "engine": lambda sizes, others: engine_loop.run(sizes),
}
PARTS: dict[str, Bench] = {
    f"state_{name}": lambda sizes, others, part=part: part(sizes, bool(others))  # type: ignore[misc]
    for name, part in state.PARTS.items()
}
"""Of `state`: each alone."""
NAMES = {**BENCHES, **PARTS}


def main() -> None:
    chosen = _arguments()
    console = Console(width=None if Console().is_terminal else 150)
    facts = machine.about(machine.command_line())
    for line in machine.lines(facts):
        console.print(line, highlight=False, markup=False)
    others = _peers(console) if chosen.peers else ()
    figures: list[Figure] = []
    for name in chosen.names or BENCHES:
        console.print(f"{name} ...", highlight=False)
        figures += NAMES[name](_sizes(chosen), others)
    show(figures, console)
    print(as_json(figures, facts))


def _sizes(chosen: argparse.Namespace) -> Sizes:
    sizes = TINY if chosen.tiny else FULL
    return replace(sizes, repetitions=chosen.repetitions) if chosen.repetitions else sizes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    parser.add_argument("--peers", type=int, default=0, help="1: run other systems beside it")
    parser.add_argument("--tiny", action="store_true", help="just see that everything works")
    parser.add_argument(
        "--repetitions", type=int, help=f"of each run; {FULL.repetitions} if not given"
    )
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    return chosen


def _peers(console: Console) -> Sequence[peers.Peer]:
    scripts = peers.folder()
    if scripts is None:
        console.print(
            "peers: skipped, because their scripts are not beside the repository; let PENSTOCK_PEERS name their folder"
        )
        return ()
    console.print(f"peers: from {scripts}, installed in {peers.WORKING}")
    peers.prepare(scripts)
    return peers.W1_PEERS


if __name__ == "__main__":
    main()
