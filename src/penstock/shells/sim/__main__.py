"""`python -m penstock.shells.sim`: many seeds, or one of them line by line."""

from __future__ import annotations

import argparse
import logging
import sys

from penstock.shells.sim.runner import run_many, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="penstock.shells.sim")
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many schedules to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    if options.seed is not None:
        return _replay(options.seed)
    summary = run_many(options.first, options.seeds, options.processes)
    for result in summary.failures[:20]:
        print(f"seed {result.seed}: {result.problem}")
    print(summary.line())
    if summary.failures:
        print(f"replay one with: make sim SEED={summary.failures[0].seed}")
    return 1 if summary.failures else 0


def _replay(seed: int) -> int:
    result, lines = run_seed(seed, verbose=True)
    print("\n".join(lines))
    print(f"seed {seed}: {result.problem or 'no violation'} (trace {result.trace_hash})")
    return 1 if result.problem else 0


if __name__ == "__main__":
    sys.exit(main())
