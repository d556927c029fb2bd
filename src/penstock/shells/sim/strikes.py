"""Faults from outside: at any step something may die, stand still, be asked for or be damaged."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from random import Random
from typing import TYPE_CHECKING

from penstock.shells.sim.cluster import DRIVERS_MAX, DriverProcess, Process
from penstock.shells.sim.faults import STRIKES, Faults
from penstock.storage.memory import MemoryStore
from penstock.wire import paths

if TYPE_CHECKING:
    from penstock.shells.sim.world import World

LOST_AFTER_MS = 1_000
"""A worker that stands still for longer is taken for lost by its driver."""


class Strikes:
    def __init__(self, world: World) -> None:
        self._world = world
        self._total = sum(getattr(world.faults, kind) for kind in STRIKES)
        self._steps_left = self._draw_steps()
        self._how: dict[str, Callable[[], None]] = {
            "crash": self._crash,
            "partition": self._partition,
            "pause": self._pause,
            "driver_crash": self._driver_crash,
            "second_driver": self._second_driver,
            "stop": self._stop,
            "cancel": self._cancel,
            "manual": self._manual,
            "damage": self._damage,
            "clock_jump": self._clock_jump,
        }

    def heal(self) -> None:
        self._steps_left = inf

    def _draw_steps(self) -> float:
        """Steps until the next fault: as if the dice were cast at every one of them."""
        if not self._total:
            return inf
        return 1 + log(1 - self._world.rng.random()) // log(1 - self._total)

    def strike(self) -> None:
        """At most one fault, by the rates that the seed has drawn."""
        self._steps_left -= 1
        if self._steps_left > 0:
            return
        self._steps_left = self._draw_steps()
        faults: Faults = self._world.faults
        dice = self._world.rng.random() * self._total
        for kind in STRIKES:
            dice -= getattr(faults, kind)
            if dice < 0:
                self._how[kind]()
                return

    # ---- processes

    def _any_process(self) -> Process | None:
        candidates = [p for p in self._world.cluster.alive if not p.link.cut]
        return self._world.rng.choice(candidates) if candidates else None

    def _crash(self) -> None:
        if process := self._any_process():
            self._world.cluster.kill(process, "crash")

    def _partition(self) -> None:
        if process := self._any_process():
            self._world.note(process.name, "loses its driver and does not know")
            self._world.cluster.tell_lost(process, "heartbeats missing")
            process.link.cut = False
            process.link.to_worker.clear()
            process.link.to_driver.clear()
            self._world.cluster.orphan(process)

    def _pause(self) -> None:
        if process := self._any_process():
            world = self._world
            process.paused_until_ms = world.clock.now_ms + world.rng.random() * 3_000
            world.note(process.name, f"stands still until {process.paused_until_ms:.0f}")
            if process.paused_until_ms > world.clock.now_ms + LOST_AFTER_MS:
                world.cluster.tell_lost(process, "heartbeats missing")

    # ---- drivers and people

    def _running(self) -> list[DriverProcess]:
        return list(self._world.cluster.running)

    def _driver_crash(self) -> None:
        """Only the one driver there is, and only where there is something to go on from."""
        cluster, running = self._world.cluster, self._running()
        can_go_on = self._world.durable and len(cluster.drivers) < DRIVERS_MAX
        if can_go_on and len(running) == 1 and not cluster.driver_is_planned:
            cluster.crash_driver(running[0])

    def _second_driver(self) -> None:
        if self._world.durable:
            self._world.cluster.plan_driver(0.0)

    def _stop(self) -> None:
        """The last driver there may be is not stopped: somebody has to finish the job."""
        for driver in self._running():
            if len(self._world.cluster.drivers) < DRIVERS_MAX:
                self._world.note("person", f"stops driver {driver.number}")
                driver.manager.request_stop()
                self._world.cluster.step_driver(driver)

    def _cancel(self) -> None:
        for driver in self._running():
            if len(self._world.cluster.drivers) < DRIVERS_MAX:
                self._world.note("person", f"cancels driver {driver.number}")
                driver.manager.request_cancel()
                self._world.cluster.step_driver(driver)

    def _manual(self) -> None:
        for driver in self._running():
            self._world.note("person", f"asks driver {driver.number} for a checkpoint")
            driver.manager.request_checkpoint()
            self._world.cluster.step_driver(driver)

    # ---- time and storage

    def _clock_jump(self) -> None:
        """The wall clock alone: what the engine waits for goes by the other one."""
        clock, rng = self._world.clock, self._world.rng
        jump_ms = (rng.random() * 2 - 1) * rng.choice((1e3, 1e6, 1e9))
        clock.jump(jump_ms)
        self._world.note("clock", f"the wall clock jumps by {jump_ms / 1000:.1f} s")

    def _damage(self) -> None:
        """One file of a completed checkpoint is no longer what was written."""
        disk, rng = self._world.disk, self._world.rng
        names = disk.list()
        complete = {n for name in names if (n := paths.metadata_of(name)) is not None}
        manifests = self._world.checkers.manifests
        shared = {file for n in complete if n in manifests for file in manifests[n].files}
        candidates = [n for n in names if n in shared or paths.checkpoint_of(n) in complete]
        if not candidates:
            return
        name = rng.choice(candidates)
        other = rng.choice(candidates)
        what = damage(disk, rng, name, other)
        for hit in {name, other} if what == "is swapped" else {name}:
            self._world.harmed.add(hit)
        self._world.note("disk", f"{name} {what} ({other})" if name != other else f"{name} {what}")


def damage(disk: MemoryStore, rng: Random, name: str, other: str) -> str:
    """What happened to the file, in words. Metadata is never lost: nobody could know that it was ever there."""
    data = disk.read(name)
    kinds = ["has a bit flipped", "is cut short", "is filled with zeros", "is swapped"]
    kind = rng.choice([*kinds, "is lost"] if paths.metadata_of(name) is None else kinds)
    if kind == "has a bit flipped" and data:
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        disk.write(name, [bytes(changed)])
    elif kind == "is cut short":
        disk.write(name, [data[: rng.randrange(max(1, len(data)))]])
    elif kind == "is filled with zeros":
        disk.write(name, [bytes(len(data))])
    elif kind == "is swapped":
        disk.write(name, [disk.read(other)])
        disk.write(other, [data])
    elif kind == "is lost":
        disk.delete(name)
    return kind
