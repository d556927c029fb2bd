"""`python -m penstock.shells.sim`: many seeds, or one of them line by line."""

from __future__ import annotations

import argparse
import logging
import sys

from penstock.shells.sim.runner import Result, Summary, run_many, run_seed

LOOK_AT = {
    "I1": "rows are lost or repeated: follow one id from `prepared` to `commit` around the last restart",
    "I2": "a snapshot is no consistent cut: protocol.alignment, engine.worker.subtask, engine.worker.outputs",
    "I3": "rows in flight are lost, repeated or out of order: protocol.alignment, engine.worker.inputs and restoring",
    "I4": "rows of one channel came out of order: engine.worker.outputs, engine.worker.inputs, engine.worker.restoring",
    "I5": "a checkpoint is incomplete: protocol.coordinator.acked, engine.worker.snapshots",
    "I6": "a snapshot ended twice, or was given up and exists: protocol.coordinator, CheckpointFiles.persist",
    "I7": "ids or restore points went back: protocol.recovery, CheckpointFiles.claim",
    "I8": "a newer checkpoint did not end the older ones, or files stayed: Coordinator.persisted, CleanUp.discard",
    "I9": "something was told or committed too early: JobManager._persist, SinkOperator",
    "I10": "a promised transaction is gone, not committed, or committed again: SinkOperator, engine.worker.committing",
    "I11": "a transaction was forgotten: SinkOperator.open, CommitWork, abort_others",
    "I12": "a file was deleted that is needed: Coordinator._retire, CheckpointFiles.sweep",
    "I13": "a file was left: CheckpointFiles.discard and sweep, CleanUp.delete and at_end",
    "I15": "a key is in two places: plan.keyhash, engine.worker.partition, OperatorContext.key_groups",
    "I17": "a job went back behind rows that are out: protocol.recovery.decide, CheckpointFiles.claim",
    "I18": "an attempt or driver that was replaced still had an effect: fencing, CheckpointFiles.persist",
    "I24": "a damaged checkpoint was used: wire.document, CheckpointFiles._facts",
    "I25": "nothing moves any more: the last lines above, and what the phases below wait for",
    "I26": "more is open than may be: Attempt.close, Worker._drop_attempt, the coordinator's limits",
    "I27": "the job did not end as it should, or failed for no good reason: lifecycle.JobMachine, shells.sim.excuses",
}
"""Where a person who sees a violation begins to read."""
EVERY_S = 10.0
SHOWN_MAX = 20
"""Violations of one piece of a run that are shown."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="penstock.shells.sim")
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=100_000, help="how many schedules to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    if options.seed is not None:
        return _replay(options.seed)
    progress = Progress(options.seeds)
    summary = run_many(options.first, options.seeds, options.processes, progress.tell)
    _say(summary.line())
    if summary.failures:
        _say(f"replay one with: make sim SEED={summary.failures[0].seed}")
    return 1 if summary.failures else 0


class Progress:
    """Says every few seconds how far a run has come and how fast it is, and at once what went wrong."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._next_s = EVERY_S
        self._failures = 0

    def tell(self, so_far: Summary) -> None:
        for result in so_far.failures[self._failures :][:SHOWN_MAX]:
            _say(f"seed {result.seed}: {result.problem}")
        self._failures = len(so_far.failures)
        if so_far.seconds >= self._next_s and so_far.schedules < self._wanted:
            self._next_s = so_far.seconds + EVERY_S
            _say(f"{so_far.schedules * 100 // self._wanted:3d} %  {so_far.line()}")


def _replay(seed: int) -> int:
    result, trace = run_seed(seed, verbose=True)
    _say("\n".join(trace.lines()))
    _say(_ending(result, trace.hash))
    return 1 if result.problem else 0


def _ending(result: Result, trace_hash: str) -> str:
    facts = (
        f"seed {result.seed}: {result.attempts} attempts, {result.checkpoints} checkpoints, "
        f"{result.virtual_ms / 1000:.1f} s of virtual time, trace {trace_hash}"
    )
    if not result.problem:
        return f"\n{facts}\nno violation"
    hint = LOOK_AT.get(result.problem.partition(":")[0], "the traceback below the trace")
    return f"\n{facts}\nVIOLATION  {result.problem}\nlook at    {hint}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
