"""What a worker process lives in: the bell, the network of its attempt, and the one place where it sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from penstock.protocol.ids import ChannelId
from penstock.shells.spark.network import TcpData, ZmqNetwork
from penstock.shells.spark.wakeup import WakeUp

LOOK_EVERY_MS = 200.0
"""How often a sleeping worker looks for channels that broke."""


class SparkHost:
    """`ports.control.Host`. `wake` is thread-safe; everything else is for the loop's thread."""

    def __init__(self, context: Any, tcp: TcpData | None = None) -> None:
        self._context = context
        self._tcp = tcp
        self._bell = WakeUp()
        self._networks: list[ZmqNetwork] = []

    def network(self, attempt: int) -> ZmqNetwork:
        """Endpoints are numbered by the process, so those of another attempt are never met again."""
        made = ZmqNetwork(self._context, self._tcp, self._networks.remove)
        self._networks.append(made)
        return made

    def wait(
        self,
        timeout_ms: float,
        *,
        waiting_for_room: Sequence[ChannelId],
        reading: Sequence[ChannelId] | None = None,
    ) -> None:
        """Sleeps until a control message, a background result, a frame in a channel of `reading` (None: in
        any), or room in one of `waiting_for_room`."""
        items: list[tuple[Any, int]] = [(self._bell.fileno(), zmq.POLLIN)]
        for network in self._networks:
            items += [(socket, zmq.POLLIN) for socket in network.readable(reading)]
            items += [(socket, zmq.POLLOUT) for socket in network.writable(waiting_for_room)]
        limit_ms = min(timeout_ms, LOOK_EVERY_MS) if self._networks else timeout_ms
        zmq.zmq_poll(items, max(0, int(limit_ms + 0.999)))
        self._bell.clear()

    def wake(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        for network in list(self._networks):
            network.close()
        self._bell.close()
