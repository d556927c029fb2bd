"""Checkpoints that only add the tail: most of what they need was written before.

A state in a checkpoint is a chain of segments, as ever (`changes.py`). Two more kinds of links come to it here, both
written in the background when somebody asks for them, of a view of their own that has a mark of its own:

- what changed since the last mark that is written, ahead of the next barrier (`cut`);
- all rows (`materialize`), over as many checkpoints as it takes. When they are durable the next chain begins with them.

A delta between two marks may be applied to the rows of any mark between them: what did not change in it is the same at
all of them, and of the rest it has the last. So a chain is right when every link begins where the one before it ends,
or earlier. A link that is not there in time, or never, leaves a gap: what comes behind it is not used, and the
checkpoint writes all of it itself. It always can, because what changed since its base stays noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.protocol.snapshot import Segment
from penstock.state.changes import Chain, Link, put_all, put_delta, restored_links
from penstock.state.frozen import Out
from penstock.state.intervals import Interval, Noted, changed_cells, since
from penstock.state.segments import schema_message
from penstock.state.tracking import HoldsNothing, View

INTERVALS_MAX = 32
"""No more are kept: the oldest become one."""
SMALL_MAX = 7
"""So many small deltas of checkpoints; the next one takes their place, if together they are small."""
TOGETHER_BYTES_MAX = 4 << 20
DELTAS_MAX = 64
"""With more in its chain a table wants to be materialized, or when they are larger than all rows were."""
DELTA_BYTES_MIN = 1 << 20
"""So much is never too large."""
NOTHING = Chain(0, ())
"""Of a table that no checkpoint knows: as it was before anything was in it."""


@dataclass(frozen=True)
class Weight:
    """Of the newest chain."""

    base: int
    """The mark of its base."""
    base_bytes: int
    deltas: int
    delta_bytes: int


class Changelog(Noted):
    """Meets the contract `Tracker`."""

    def __init__(self) -> None:
        super().__init__()
        self._chains: dict[int, Chain] = {}
        """By checkpoint: those of this attempt, and the one that it began with."""
        self.newest = 0
        """The newest checkpoint that the table was frozen for."""
        self._frozen = 0
        """Its mark."""
        self._weight = Weight(0, 0, 0, 0)
        self.ahead: tuple[Link, ...] = ()
        """What was written in the background and is durable, in the order of its marks. Replaced whole: a writer on
        another thread may look at any time."""
        self._begun_with: dict[int, int] = {}
        """By the mark of all rows: the first checkpoint that begins with them."""

    # ---- as a tracker

    def restored(self, checkpoint: int, segments: Sequence[Segment], groups: range) -> None:
        """Where it cannot be built on all rows count as changed, since there was nothing."""
        links = restored_links(segments, groups, self._mark + 1)
        if links is None:
            self.dirty[:] = True
            return
        mark = self._begin_anew()
        self._frozen = mark
        self.written(checkpoint, Chain(mark, links))

    def plan(self, base: int, checkpoint: int) -> Tail:
        mark = self._frozen = self._end_interval()
        self.newest = max(self.newest, checkpoint)
        self._forget(base)
        chain = self._chains.get(base, NOTHING)
        return Tail(self, checkpoint, mark, chain, tuple(self._intervals))

    def written(self, checkpoint: int, chain: Chain) -> None:
        """By the writer, on its own thread, before anybody can name this checkpoint as a base."""
        first = self._begun_with.get(_base_mark(chain), checkpoint)
        self._begun_with[_base_mark(chain)] = min(first, checkpoint)
        self._chains[checkpoint] = chain
        self._weight = _weight(chain)

    def _forget(self, base: int) -> None:
        """No later checkpoint has an older base than this one."""
        for older in [n for n in list(self._chains) if n < base]:
            del self._chains[older]
        if base in self._chains:
            chain = self._chains[base]
            self._intervals = [each for each in self._intervals if each.until > chain.reach]
            self.ahead = tuple(link for link in self.ahead if self._may_serve(link, base, chain))
            oldest = min((link.until for link in self.ahead), default=self._mark)
            self._begun_with = {m: n for m, n in list(self._begun_with.items()) if m >= oldest}
        self._join_oldest()

    def _may_serve(self, link: Link, base: int, chain: Chain) -> bool:
        """A checkpoint that builds on this base, or a later one, may use it. All rows that an older one began with, and
        this one does not, nobody may come back to: see `protocol.retention`."""
        if link.segment.delta:
            return link.until > chain.mark
        first = self._begun_with.get(link.until, base)
        return link.until > _base_mark(chain) and first >= base

    def _join_oldest(self) -> None:
        """Nothing is forgotten, unless so much has gone meanwhile that to write all rows is less."""
        while len(self._intervals) > INTERVALS_MAX:
            first, second, *others = self._intervals
            joined = first.joined(second)
            self._intervals = others if joined.gone > len(self.dirty) else [joined, *others]

    # ---- ahead of checkpoints

    @property
    def unwritten_rows(self) -> int:
        """So many changed since the last mark that is written, or is a checkpoint's to write."""
        done = self._written_until
        behind = sum(each.rows for each in self._intervals if each.until > done)
        gone = sum(len(groups) for _, groups in self._removed)
        return behind + gone + int(np.count_nonzero(self.dirty))

    @property
    def _written_until(self) -> int:
        return max(self._frozen, *(link.until for link in self.ahead if link.segment.delta), 0)

    def cut(self) -> Cut | None:
        """The table is frozen, and what changed is written ahead. None: nobody knows all of it any more."""
        first = self._written_until
        mark = self._end_interval()
        intervals = since(self._intervals, first, mark)
        self._join_oldest()
        return Cut(first, mark, intervals) if intervals is not None else None

    def materialize(self) -> Whole:
        """The table is frozen, and all its rows are written."""
        mark = self._end_interval()
        self._join_oldest()
        return Whole(mark)

    def add(self, links: Sequence[Link]) -> None:
        """They are durable."""
        self.ahead = tuple(sorted((*self.ahead, *links), key=lambda link: link.until))

    @property
    def is_long(self) -> bool:
        """The chain wants another base."""
        weight = self._weight
        large = weight.delta_bytes > max(weight.base_bytes, DELTA_BYTES_MIN)
        return self.has_deltas and (large or weight.deltas > DELTAS_MAX)

    @property
    def has_deltas(self) -> bool:
        """The chain does not only have all rows, and there are none that wait for the next checkpoint."""
        waits = any(x.until > self._weight.base for x in self.ahead if not x.segment.delta)
        return self._weight.deltas > 0 and not waits


# ---- what is written


@dataclass(frozen=True)
class Tail(HoldsNothing):
    """For a checkpoint that was frozen at this mark: what nobody has written ahead."""

    log: Changelog
    checkpoint: int
    mark: int
    base: Chain
    intervals: tuple[Interval, ...]

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        """Links that came to be durable since the freeze count, too; not those of a later mark."""
        covered = covering(self.base, self.log.ahead, self.mark)
        chain = self._without_small(covered)
        made = self._written(view, out, chain, small=chain is covered)
        self.log.written(self.checkpoint, made)
        return made.segments

    def _without_small(self, chain: Chain) -> Chain:
        """Without the last few, if their place is to be taken."""
        small = chain.small
        weight = sum(link.segment.bytes_total for link in small)
        if len(small) < SMALL_MAX or weight > TOGETHER_BYTES_MAX:
            return chain
        if since(self.intervals, chain.reach, self.mark) is None:
            return chain
        return Chain(chain.reach, chain.links[: -len(small)])

    def _written(self, view: View, out: Out, chain: Chain, *, small: bool) -> Chain:
        """All rows only where there are no more of them than of changes."""
        intervals = since(self.intervals, chain.mark, self.mark)
        if intervals is None:
            return self._whole(view, out)
        cells, gone = changed_cells(intervals, view.end), sum(each.gone for each in intervals)
        if chain.links and not len(cells) and not gone:
            return Chain(self.mark, begun(chain.links, view))
        if len(cells) + gone >= view.rows:
            return self._whole(view, out)
        made = Link(put_delta(view, out, cells, intervals), chain.mark, self.mark, small)
        return Chain(self.mark, (*begun(chain.links, view), made))

    def _whole(self, view: View, out: Out) -> Chain:
        return Chain(self.mark, (Link(put_all(view, out), 0, self.mark),))


@dataclass(frozen=True)
class Cut(HoldsNothing):
    """What changed between two marks, ahead of the checkpoints that will need it."""

    since: int
    mark: int
    intervals: tuple[Interval, ...]

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        cells = changed_cells(self.intervals, view.end)
        return (put_delta(view, out, cells, self.intervals),)

    def links(self, segments: Sequence[Segment]) -> tuple[Link, ...]:
        return tuple(Link(segment, self.since, self.mark) for segment in segments)


@dataclass(frozen=True)
class Whole(HoldsNothing):
    """All rows at a mark."""

    mark: int

    def write(self, view: View, out: Out) -> tuple[Segment, ...]:
        return (put_all(view, out),)

    def links(self, segments: Sequence[Segment]) -> tuple[Link, ...]:
        return tuple(Link(segment, 0, self.mark) for segment in segments)


def begun(links: tuple[Link, ...], view: View) -> tuple[Link, ...]:
    """Deltas of a table that no base was written of begin with no rows."""
    if links and not links[0].segment.delta:
        return links
    nothing = Segment(view.state, schema_message(view.schema), (), inline=b"")
    return (Link(nothing, 0, 0), *links)


def covering(base: Chain, ahead: Sequence[Link], mark: int) -> Chain:
    """The chain of the base, with all that was written ahead, up to the mark, and fits behind it or in its place."""
    there = [link for link in ahead if link.until <= mark]
    chain = base
    newest = max((link.until for link in there if not link.segment.delta), default=0)
    if newest > _base_mark(base):
        wholes = tuple(x for x in there if x.until == newest and not x.segment.delta)
        behind = tuple(link for link in base.links if link.until > newest)
        chain = Chain(max(base.mark, newest), (*wholes, *behind))
    for link in there:
        if link.segment.delta and link.since <= chain.mark < link.until:
            chain = Chain(link.until, (*chain.links, link))
    return chain


def _base_mark(chain: Chain) -> int:
    return max((link.until for link in chain.links if not link.segment.delta), default=0)


def _weight(chain: Chain) -> Weight:
    deltas = [link.segment.bytes_total for link in chain.links if link.segment.delta]
    wholes = [link.segment.bytes_total for link in chain.links if not link.segment.delta]
    return Weight(_base_mark(chain), sum(wholes), len(deltas), sum(deltas))
