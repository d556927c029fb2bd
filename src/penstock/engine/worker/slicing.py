"""How many rows a subtask works on before it looks at anything else: barriers, other channels, the driver."""

from __future__ import annotations

ROWS_MAX = 65_536
SLICE_MS = 10.0
"""A slice that takes longer was too large, if a smaller one is faster."""
AS_LONG = 0.75
"""So much of the time, for half of the rows or less, is as long."""
TRIES = 5
"""So many smaller slices that take as long say that all do."""
SLICES_HELD = 256
"""So many whole batches go by before smaller slices are tried again."""


class Slicing:
    """Learns from how long slices took. Where rows are cheap a slice is a whole batch; where each of them needs a disk
    it is a few; where a call takes its time however few rows it is given, it is a whole batch again."""

    def __init__(self) -> None:
        self.rows = ROWS_MAX
        self._slow: tuple[int, float] | None = None
        """Rows and milliseconds of a slice that was too large, while smaller ones are tried."""
        self._tried = 0
        self._held = 0
        """For so many slices that take too long none is made smaller: that was tried."""

    def took(self, rows: int, ms: float) -> None:
        if ms <= SLICE_MS:
            self._slow = None
            if ms < SLICE_MS / 2 and self.rows <= rows:
                self.rows = min(ROWS_MAX, self.rows + self.rows // 4 + 1)
        elif self._held:
            self._held -= 1
        else:
            self._make_smaller(rows, ms)

    def _make_smaller(self, rows: int, ms: float) -> None:
        slow = self._slow
        if slow is None or rows * 2 > slow[0] or ms <= slow[1] * AS_LONG:
            self._slow, self._tried = (rows, ms), 0
        else:
            self._tried += 1
        if slow is not None and self._tried == TRIES:
            self.rows, self._held, self._slow = slow[0], SLICES_HELD, None
        else:
            self.rows = max(1, min(self.rows, int(rows * SLICE_MS / 2 / ms)))
