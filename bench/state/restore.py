"""How long a job with much state stands still when a worker is killed: 5 million keys, each with a text of 90 bytes and
two numbers; restored from where the checkpoints are, and from the workers' own copies of them.

From the kill to the first row that is processed again, as `bench.recovery` measures it, without a spare worker.
"""

from __future__ import annotations

import sys
import tempfile

from bench.figures import Figure, middle, within
from bench.recovery import Healing, Patient, healed, kill_a_worker
from bench.sizes import Sizes
from bench.state.pairs import checkpoint
from bench.state.rows import Rows, much_state, wait_for_all_keys

PRIMARY_S, LOCAL_S = 2.0, 1.0
LOAD_RATE = 1_000_000.0
CHANGED = 0.005


def run(sizes: Sizes) -> list[Figure]:
    keys = sizes.large_keys
    name = f"state: {keys:,} keys of 100 B, kill -9"
    figures = []
    for backend in ("heap", "rocksdb"):
        for local, target_s in ((False, PRIMARY_S), (True, LOCAL_S)):
            healing, from_copies = _measured(sizes, backend, local)
            what = f"{backend}, {'local copy' if local else 'primary'}"
            figures += [
                within(name, f"{what}: first batch", healing.first_s, "s", target_s),
                Figure(
                    *(name, f"{what}: all subtasks", middle(healing.all_s), "s"),
                    *("the first", middle(healing.first_s)),
                    samples=tuple(healing.all_s),
                ),
            ]
            if local:
                figures.append(
                    Figure(
                        *(name, f"{what}: bytes from copies", from_copies, "of those read"),
                        *("all", 1.0),
                        at_least=0.99,
                    )
                )
            took = ", ".join(f"{each:.2f}" for each in healing.first_s)
            print(f"  {what}: {took} s", file=sys.stderr, flush=True)
    return figures


def _measured(sizes: Sizes, backend: str, local: bool) -> tuple[Healing, float]:
    """And how much of what was read back came from copies."""
    keys = sizes.large_keys
    window = max(1, round(CHANGED * keys))
    rows = Rows(keys, window=window, moves_s=window, texts=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        patient = Patient(
            folder,
            totals=much_state(rows, LOAD_RATE),
            every="1 second",
            backend=backend,
            local_recovery=local,
        )
        job = patient.job
        try:
            wait_for_all_keys(job, keys)
            checkpoint(job)
            healing = healed(patient, folder, kill_a_worker, sizes.restores)
            restored = [info for info in job.checkpoints() if info.restored_bytes]
            read = sum(info.restored_bytes for info in restored)
            copies = sum(info.restored_local_bytes for info in restored)
            return healing, copies / read if read else 0.0
        finally:
            job.cancel(timeout=30)
