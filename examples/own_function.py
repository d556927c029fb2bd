"""A function of your own with state per key: tells when a sensor's value jumps.

python examples/own_function.py
"""

from collections.abc import Iterator

import penstock as pen


class Jumps:
    """Remembers the last value of each sensor, and gives a row when the next one is far from it."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def open(self, ctx: pen.ProcessContext) -> None:
        self.last = ctx.value_state("last", "value DOUBLE")

    def process(
        self, key: pen.Row, rows: list[pen.Row], ctx: pen.ProcessContext
    ) -> Iterator[tuple[str, float, float]]:
        for row in rows:
            before = self.last.get()
            if before is not None and abs(row.value - before.value) > self.limit:
                yield key.sensor, before.value, row.value
            self.last.update((row.value,))


READINGS = [("door", 20.0), ("roof", 5.0), ("door", 20.5), ("door", 35.0), ("roof", 5.5)]


def jumps() -> pen.Stream:
    return (
        pen.from_rows(READINGS, "sensor STRING, value DOUBLE")
        .key_by("sensor")
        .process(Jumps(limit=10), "sensor STRING, before DOUBLE, after DOUBLE")
        .named("jumps")
    )


def main() -> None:
    jumps().show()


if __name__ == "__main__":
    main()
