"""State: what its checkpoints cost, how it is restored, and how it behaves when there is much of it."""
