"""How long and how large the benchmarks run: for real, and just long enough to see that they work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    repetitions: int
    """How often each figure is measured; the median counts."""
    warm_s: float
    """Left out at the start of a job."""
    steady_s: float
    """Measured after that."""
    keys: int
    limit_s: float
    """How long each run of the single-process loop takes."""
    latency_s: float
    latency_warm_s: float
    buffer_timeouts_ms: tuple[int, ...]
    faults: int
    """How often each kind of fault is made."""
    large_keys: int
    """Keys in the state whose snapshot is timed."""
    snapshots: int
    frames: int
    """Batches sent from process to process."""
    loop_batches: int
    slow_rows_s: float
    """What the slow sink of each subtask takes."""
    slow_checkpoints: int
    checkpoint_pairs: int
    """Seconds with a checkpoint, each beside one without."""
    frame_rows: int
    """Rows of a batch DataFrame."""
    paused_snapshots: int
    """Of much state, in each way to keep it."""
    stretches: int
    """Of a few seconds with checkpoints, each beside one without."""
    stretch_s: int
    changelog_checkpoints: int
    restores: int
    """Of much state, in each way to keep it."""
    state_memory_bytes: int
    """For state that is larger than that."""
    larger_times: int
    """So many times."""
    larger_s: float
    """How long that is watched."""
    scale_keys: tuple[int, ...]
    scale_s: float
    """How long each of those is timed."""
    scale_jobs: int
    """With the fewest and the most of those."""


FULL = Sizes(
    repetitions=5,
    warm_s=3.0,
    steady_s=8.0,
    keys=100_000,
    limit_s=3.0,
    latency_s=10.0,
    latency_warm_s=3.0,
    buffer_timeouts_ms=(1, 5, 10),
    faults=7,
    large_keys=5_000_000,
    snapshots=5,
    frames=3_000,
    loop_batches=50_000,
    slow_rows_s=50_000.0,
    slow_checkpoints=3,
    checkpoint_pairs=120,
    frame_rows=10_000_000,
    paused_snapshots=2,
    stretches=8,
    stretch_s=3,
    changelog_checkpoints=8,
    restores=2,
    state_memory_bytes=64 << 20,
    larger_times=4,
    larger_s=15.0,
    scale_keys=(100_000, 1_000_000, 5_000_000, 20_000_000),
    scale_s=1.0,
    scale_jobs=3,
)

TINY = Sizes(
    repetitions=1,
    warm_s=0.2,
    steady_s=0.8,
    keys=10_000,
    limit_s=0.1,
    latency_s=2.0,
    latency_warm_s=0.5,
    buffer_timeouts_ms=(5,),
    faults=1,
    large_keys=100_000,
    snapshots=1,
    frames=30,
    loop_batches=500,
    slow_rows_s=400_000.0,
    slow_checkpoints=1,
    checkpoint_pairs=1,
    frame_rows=20_000,
    paused_snapshots=1,
    stretches=1,
    stretch_s=2,
    changelog_checkpoints=1,
    restores=1,
    state_memory_bytes=16 << 20,
    larger_times=1,
    larger_s=1.0,
    scale_keys=(10_000, 100_000),
    scale_s=0.1,
    scale_jobs=1,
)
