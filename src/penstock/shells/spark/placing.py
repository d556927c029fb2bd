"""Where a worker goes: to the executor with the most room, if it answers.

Spark takes minutes to give up an executor whose host is gone, and would put the next worker there, where its cores look
free. So an executor is asked first, at the port by which Spark's own blocks come: one that does not answer is left out,
and a worker waits for room elsewhere rather than going there. Where none answers at all, driver and executors may just
not reach each other this way, and nothing can be told from it.

Where workers keep copies of their state on their hosts (`local_recovery`), the one that replaces a lost worker goes to
the host that this one was on, as long as it answers and has room.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.shells.spark.executors import Executor, executors
from penstock.shells.spark.session import is_one_process

ANSWER_WITHIN_S = 1.0
QUIET_S = 1.5
"""As long as executors keep coming in shorter steps than this, more may come."""
EXECUTORS_WITHIN_S = 10.0
ROOM_WITHIN_S = 60.0
LOOK_EVERY_S = 0.2


def answers(executor: Executor) -> bool:
    """Whether its host is there."""
    try:
        address = (executor.host.strip("[]"), executor.port)
        socket.create_connection(address, timeout=ANSWER_WITHIN_S).close()
    except ConnectionRefusedError:
        return True  # by the host itself: the executor is gone, and Spark hears of that at once
    except OSError:
        return False
    return True


class Places:
    """`known` and `answers` are how Spark and the network are asked. Every call may take seconds."""

    def __init__(
        self,
        context: Any,
        total: int,
        known: Callable[[], Sequence[Executor]] | None = None,
        answers: Callable[[Executor], bool] = answers,
    ) -> None:
        self._known = known or (lambda: executors(context))
        self._answers = answers
        self._total = total
        self._alone = context is not None and is_one_process(context)
        self._asked = 0 if context is None else _asked_for(context)
        self._lock = threading.Lock()
        self._settled = False

    def choose(
        self,
        ours: Callable[[], Sequence[str]],
        wanted: Callable[[], bool],
        copies: Callable[[], Sequence[str]] = tuple,
    ) -> Executor | None:
        """The executor for one more worker. `ours` are those of our workers that are under way, `copies` the hosts with
        state that somebody has to take over; None: Spark may choose. Waits for executors that are just coming, and for
        room on one that answers, while the worker is `wanted`."""
        with self._lock:
            if self._alone:
                return None
            self._await_executors(wanted)
            end_s = time.monotonic() + ROOM_WITHIN_S
            while wanted() and time.monotonic() < end_s:
                chosen, is_sure = self._look(ours(), copies())
                if is_sure:
                    return chosen
                time.sleep(LOOK_EVERY_S)
            return None

    def _look(
        self, ours: Sequence[str], copies: Sequence[str] = ()
    ) -> tuple[Executor | None, bool]:
        """The best place now, and whether that is better than waiting. A copy is worth more than room."""
        known = self._known()
        if len(known) < 2:
            return None, True
        free = [each for each in _by_room(known, ours) if _load(each, ours) < each.cores]
        free.sort(key=lambda each: each.host not in copies)
        for each in free:
            if self._answers(each):
                return each, True
        if not free:
            return None, True
        others = [each for each in known if each not in free]
        network_tells = any(self._answers(each) for each in others)
        return (None, False) if network_tells else (free[0], True)

    def crowded(self, ours: Mapping[int, str]) -> list[int]:
        """Those of our workers that would be better elsewhere: a place has at least two more than another with room."""
        known = [each for each in self._known() if self._answers(each)]
        places, moved = dict(ours), []
        while len(known) > 1:
            load = {e.id: e.running + _moved_to(e, ours, places) for e in known}
            crowd = [e for e in known if e.id in places.values()]
            room = [e for e in known if load[e.id] < e.cores]
            emptiest = min(room, key=lambda e: (load[e.id] / e.cores, e.id), default=None)
            fullest = max(crowd, key=lambda e: (load[e.id] / e.cores, e.id), default=None)
            if emptiest is None or fullest is None:
                break
            if load[emptiest.id] / emptiest.cores >= (load[fullest.id] - 1) / fullest.cores:
                break  # `choose` would bring it back
            launch = max(each for each, place in places.items() if place == fullest.id)
            places[launch] = emptiest.id
            moved.append(launch)
        return moved

    def _await_executors(self, wanted: Callable[[], bool]) -> None:
        """At the start executors come one after the other: who does not wait a moment has all workers on the first."""
        end_s = time.monotonic() + EXECUTORS_WITHIN_S
        seen, since_s = -1, time.monotonic()
        while not self._settled and wanted() and time.monotonic() < end_s:
            known = self._known()
            if len(known) != seen:
                seen, since_s = len(known), time.monotonic()
            enough = sum(each.cores for each in known) >= self._total
            quiet = enough and time.monotonic() - since_s > QUIET_S
            if quiet or len(known) >= (self._asked or self._total):
                break
            time.sleep(LOOK_EVERY_S)
        self._settled = True


class Copies:
    """The hosts where workers were whose state somebody has to take over. For any thread."""

    def __init__(self) -> None:
        self._hosts: list[str] = []
        self._lock = threading.Lock()

    def __call__(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._hosts)

    def left(self, host: str) -> None:
        """By a worker that is lost."""
        with self._lock:
            self._hosts.append(host)

    def taken(self, host: str) -> None:
        """A worker goes there. Where none of the copies is, it takes over what was left first, from elsewhere."""
        with self._lock:
            if self._hosts:
                self._hosts.remove(host if host in self._hosts else self._hosts[0])


def _moved_to(executor: Executor, before: Mapping[int, str], now: Mapping[int, str]) -> int:
    return list(now.values()).count(executor.id) - list(before.values()).count(executor.id)


def _load(executor: Executor, ours: Sequence[str]) -> int:
    """Those of ours that are just starting are no tasks yet."""
    return max(executor.running, list(ours).count(executor.id))


def _by_room(known: Sequence[Executor], ours: Sequence[str]) -> list[Executor]:
    return sorted(known, key=lambda e: (_load(e, ours) / e.cores, e.id))


def _asked_for(context: Any) -> int:
    """How many executors Spark was told to get; 0 where that is open."""
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return 1  # more come only when there is work for them
    text = conf.get("spark.executor.instances", "") or "0"
    return int(text) if text.isdigit() else 0
