"""Several hosts on this one machine: each has its own network, process numbers, host name and temporary folder.

A host is a set of Linux namespaces behind a virtual switch, which is a namespace of its own: nothing is changed on the
machine itself, and all of it is gone when the processes are. Networks can be cut, silently, as a broken cable does it:
nobody gets an error, packets just do not arrive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

NETWORK = "10.77.0"
NOWHERE = "02:00:00:00:00:fe"
"""A hardware address that nobody has."""
_NEEDED = ("ip", "nsenter", "ps", "ss", "unshare")
_FIRST = "ip link set lo up && {own_tmp} && hostname {name} && {extra} && echo ready"
_KEEP = "/mnt/kept"
_REAP = "while :; do sleep 3600 & wait $!; done"


def why_not() -> str:
    """Empty, or why there can be no such hosts here."""
    if missing := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"these commands are missing: {', '.join(missing)}"
    try:
        with Hosts(["probe"]):
            return ""
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        told = getattr(error, "stderr", None) or error
        return f"network namespaces cannot be made here: {str(told).strip()}"


@dataclass(eq=False)
class Host:
    name: str
    number: int
    init: int
    """The first process of the host, as this machine numbers it: the host lives as long as it does."""

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def hardware(self) -> str:
        return f"02:00:00:00:00:{self.number:02x}"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs these arguments on the host."""
        return ["nsenter", "-t", str(self.init), "-n", "-u", "-m", "-p", "--", *arguments]

    def run(self, *arguments: str) -> str:
        return _run(self.command(arguments))

    def start(self, arguments: Sequence[str], **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(arguments), text=True, **options)  # type: ignore[call-overload,no-any-return]

    def kill(self, pid: int, signal: str = "KILL") -> None:
        """`pid` as the host numbers it."""
        self.run("kill", f"-{signal}", str(pid))

    def processes(self) -> list[tuple[int, str]]:
        """Number and command line of every process of the host."""
        lines = self.run("ps", "-ww", "-eo", "pid=,args=").splitlines()
        return [(int(line.split(None, 1)[0]), line.split(None, 1)[1]) for line in lines if line]

    def python_ports(self) -> list[int]:
        """The tcp ports that Python processes of the host listen at."""
        lines = self.run("ss", "-Hltnp").splitlines()
        return sorted({_port(line.split()[3]) for line in lines if "python" in line})

    def callers(self) -> set[str]:
        """The other ends of the open tcp connections from other hosts to Python processes of this one. Python also
        listens at ports that only Spark's own process on this host knows: those have no such callers."""
        lines = self.run("ss", "-Htn", "state", "established").splitlines()
        ends = [line.split()[2:4] for line in lines if line.strip()]
        ports = set(self.python_ports())
        return {
            far
            for near, far in ends
            if _port(near) in ports and NETWORK in far and f"{self.address}:" not in far
        }


@dataclass
class Hosts:
    """`hidden` are folders of this machine that the hosts named in it do not have, `kept` those that all have, also
    where they are below /tmp, which every host has for itself."""

    names: Sequence[str]
    hidden: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    kept: Sequence[Path] = ()

    def __enter__(self) -> Self:
        self._inits: list[subprocess.Popen[str]] = []
        self._all: dict[str, Host] = {}
        self._cuts: list[tuple[Host, Host]] = []
        try:
            self._switch = self._begin("true", "--net")
            self._on_switch("ip", "link", "add", "br0", "type", "bridge")
            self._on_switch("ip", "link", "set", "br0", "up")
            for number, name in enumerate(self.names, start=1):
                self._all[name] = self._make(name, number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for init in self._inits:
            for child in _children(init.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            init.kill()
            init.wait()
            if init.stdout is not None:
                init.stdout.close()

    def __getitem__(self, name: str) -> Host:
        return self._all[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._all.values())

    # ---- faults

    def cut(self, one: str, other: str) -> None:
        """From now on these two do not hear from each other."""
        for a, b in ((self[one], self[other]), (self[other], self[one])):
            a.run("ip", "neigh", "replace", b.address, "lladdr", NOWHERE, "dev", "eth0")
        self._cuts.append((self[one], self[other]))

    def heal(self) -> None:
        for one, other in self._cuts:
            for a, b in ((one, other), (other, one)):
                a.run("ip", "neigh", "replace", b.address, "lladdr", b.hardware, "dev", "eth0")
        self._cuts.clear()

    def crash(self, name: str) -> None:
        """The host is gone in one moment, without a word to anybody."""
        host = self._all.pop(name)
        self._on_switch("ip", "link", "set", f"port{host.number}", "down")
        os.kill(host.init, 9)

    # ---- making them

    def _make(self, name: str, number: int) -> Host:
        hide = " && ".join(f"mount -t tmpfs tmpfs {path}" for path in self.hidden.get(name, ()))
        first = _FIRST.format(name=name, own_tmp=_own_tmp(self.kept), extra=hide or "true")
        kinds = ("--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc")
        host = Host(name, number, self._begin(first, *kinds))
        port = f"port{number}"
        peer = ("peer", "name", "eth0", "address", host.hardware, "netns", str(host.init))
        self._on_switch("ip", "link", "add", port, "type", "veth", *peer)
        self._on_switch("ip", "link", "set", port, "master", "br0", "up")
        host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def _begin(self, first: str, *kinds: str) -> int:
        """The first process of new namespaces, once it has said that it is ready."""
        script = f"{first}; {_REAP}" if "echo" in first else f"{first} && echo ready; {_REAP}"
        init = subprocess.Popen(
            ["unshare", *kinds, "sh", "-c", script], text=True, stdout=-1, stderr=subprocess.STDOUT
        )
        self._inits.append(init)
        assert init.stdout is not None
        told = init.stdout.readline().strip()
        if told != "ready":
            raise RuntimeError(told)
        return _children(init.pid)[0].pid if "--fork" in kinds else init.pid

    def _on_switch(self, *arguments: str) -> str:
        return _run(["nsenter", "-t", str(self._switch), "-n", "--", *arguments])


def _own_tmp(kept: Sequence[Path]) -> str:
    """Shell commands for a fresh /tmp in which these folders are still there."""
    below = [path for path in kept if path.is_relative_to("/tmp")]
    steps = ["mount -t tmpfs tmpfs /mnt"]
    for number, path in enumerate(below):
        steps.append(f"mkdir {_KEEP}{number} && mount --bind {path} {_KEEP}{number}")
    steps.append("mount -t tmpfs tmpfs /tmp")
    for number, path in enumerate(below):
        steps.append(f"mkdir -p {path} && mount --bind {_KEEP}{number} {path}")
    return " && ".join(steps)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
