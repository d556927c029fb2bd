"""Which driver a job belongs to: the one with the highest attempt number.

Numbers are taken by exclusive creation, and whoever is about to do something that others would suffer from looks again
whether it is still the owner. Records of older numbers are deleted, the newest never is: whoever takes a number that is
free again, because he was asleep for long, finds a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.errors import CheckpointCorrupt, JobFenced
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import AttemptId
from penstock.wire import paths, records


class Ownership:
    def __init__(
        self, store: CheckpointStore, job: str, driver: str, wall_ms: Callable[[], float]
    ) -> None:
        self.attempt: AttemptId | None = None
        """The newest that this driver has taken."""
        self.mine: set[AttemptId] = set()
        """All that it has taken: it knows itself which checkpoint ids they have used."""
        self._store = store
        self._job = job
        self._driver = driver
        self._wall_ms = wall_ms

    def take_next(self) -> AttemptId:
        """The next attempt number, created exclusively."""
        while True:
            claimed = self._claimed()
            self._check(claimed)
            attempt = AttemptId(max(claimed, default=0) + 1)
            record = records.OwnerRecord(attempt, self._driver, self._wall_ms())
            if self._store.create(paths.owner(attempt), records.encode_owner(record)):
                self.attempt = attempt
                self.mine.add(attempt)
                self.check()
                return attempt

    def _claimed(self) -> list[AttemptId]:
        names = self._store.list(paths.OWNER_FOLDER)
        return [attempt for name in names if (attempt := paths.owner_of(name)) is not None]

    def check(self, *, thoroughly: bool = False) -> None:
        """Raises when a driver other than this one has claimed a newer attempt than ours, or has deleted ours. It may
        even have counted up to ours again since: `thoroughly` looks at that, too."""
        self._check(self._claimed(), thoroughly)

    def _check(self, claimed: Collection[AttemptId], thoroughly: bool = False) -> None:
        own = self.attempt
        if own is None:
            return
        for attempt in sorted(claimed, reverse=True):
            if attempt < own or (attempt == own and not thoroughly):
                break
            driver = self._driver_of(attempt)
            if driver is None:
                self.check(thoroughly=thoroughly)
            elif driver != self._driver:
                raise JobFenced(
                    f"job {self._job!r} was taken over by another driver ({driver}) with "
                    f"attempt {attempt}; this one stops. Run each job name from one driver only."
                )
        if own not in claimed:
            raise JobFenced(
                f"job {self._job!r}: its directory was deleted, or emptied by another driver; this one stops. "
                "Run each job name from one driver only."
            )

    def _driver_of(self, attempt: AttemptId) -> str | None:
        """Who claimed it; None when it is gone meanwhile, because somebody has claimed a newer one."""
        name = paths.owner(attempt)
        try:
            return records.decode_owner(self._store.read(name), name).driver
        except CheckpointCorrupt:
            if attempt in self._claimed():
                raise
            return None
