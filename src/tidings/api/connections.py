"""The connections of a server's process, as the kernel sees them. Granian accepts them and offers no look at them.

A thread looks at every socket of the process that is connected to the server's port. Where an address, or all together, have
too many, it closes those that never had a verified request, the oldest first, then the longest idle. It also closes those
whose client does not take its answer. It works on a duplicate of the descriptor, so the socket that it judges is the one
that it closes. Linux only; elsewhere there is no thread.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tidings.api.limits import Client, Door

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
_SHARE = 10
"""The thread rests ten times as long as it worked."""
_WARN_SECONDS = 60.0
_INFO_BYTES = 232
_LAST_RECEIVED = 52
_UNACKED = 24
_ACKED = 120
_UNSENT = 144
"""Where struct tcp_info (linux/tcp.h) has tcpi_last_data_recv, tcpi_unacked, tcpi_bytes_acked and tcpi_notsent_bytes."""
_RESET = struct.pack("ii", 1, 0)

Quiet = tuple[bool, float, Client]
"""A connection without a verified request under way: whether it never had one, since when, and its client."""


@dataclass(slots=True)
class Taken:
    """How much of its answer a client had taken at a time. It is kept while something is waiting for the client."""

    at: float
    acked: int


class Connections:
    """What `watch` knows of the connections of this process."""

    def __init__(self, port: int, door: Door) -> None:
        self._port = port
        self._limits = door.limits
        self._door = door
        self._came: dict[Client, float] = {}
        self._taken: dict[Client, Taken] = {}
        self._absent: set[Client] = set()
        self.closed = 0

    def look(self, now: float) -> int:
        """Look at all connections once, and close those that are over a limit. Returns how many there are."""
        idle: dict[str, list[Quiet]] = defaultdict(list)
        number: dict[str, int] = defaultdict(int)
        came: dict[Client, float] = {}
        taken: dict[Client, Taken] = {}
        slow: set[Client] = set()
        for client, connection in _connected(self._port):
            with connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES).ljust(_INFO_BYTES, b"\0")
            number[client[0]] += 1
            came[client] = self._came.get(client, now)
            if client not in self._door.busy:
                served = client in self._door.served
                quiet = _u32(info, _LAST_RECEIVED) / 1000 if served else now - came[client]
                idle[client[0]].append((not served, quiet, client))
            if _u32(info, _UNACKED) or _u32(info, _UNSENT):
                before = self._taken.get(client) or Taken(now, _u64(info, _ACKED))
                if now - before.at >= self._limits.idle_seconds:
                    if _u64(info, _ACKED) - before.acked < self._limits.least_rate * (now - before.at):
                        slow.add(client)
                    before = Taken(now, _u64(info, _ACKED))
                taken[client] = before
        self._came, self._taken = came, taken
        self._forget(self._door.served.difference(came))
        over = _over(idle, number, self._limits.connections_per_address, self._limits.connections)
        if over or slow:
            self._close(over, slow)
        return sum(number.values())

    def _forget(self, absent: set[Client]) -> None:
        """Who is missing for the first time may have come during the look."""
        self._door.served.difference_update(absent & self._absent)
        self._absent = absent

    def _close(self, idle: set[Client], slow: set[Client]) -> None:
        for client, connection in _connected(self._port):
            with connection:
                if client in slow:  # what waits to be sent is thrown away, else the kernel would keep it
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                elif client not in idle or client in self._door.busy:
                    continue
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # the client was faster
                    continue
                self.closed += 1


def watch(port: int, door: Door) -> None:
    """Start the thread, in the process that serves. It ends with the process."""
    if sys.platform == "linux":
        threading.Thread(target=_watch, args=(Connections(port, door),), name="connections", daemon=True).start()


def _watch(connections: Connections) -> None:
    warned, closed = 0.0, 0
    while True:
        started = time.monotonic()
        try:
            open_now = connections.look(started)
        except OSError as error:  # no descriptor is left for a moment: the next look may find one
            open_now = 0
            _log.debug("connections cannot be looked at: %s", error)
        if connections.closed > closed and started > warned:
            words = "%d connections were over a limit and were closed; %d are open"
            _log.warning(words, connections.closed - closed, open_now)
            warned, closed = started + _WARN_SECONDS, connections.closed
        time.sleep(max(_PAUSE_SECONDS, _SHARE * (time.monotonic() - started)))


def _connected(port: int) -> Iterator[tuple[Client, socket.socket]]:
    """Duplicates of this process's sockets that a client is connected to at this port; whoever gets one closes it."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            duplicate = os.dup(int(name))
        except OSError:
            continue
        connection = socket.socket(fileno=duplicate)
        try:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port:
                address, number = connection.getpeername()[:2]
                yield (address, number), connection
                continue
        except OSError:  # the listening one, or one that has just ended
            pass
        connection.close()


def _over(idle: dict[str, list[Quiet]], number: dict[str, int], per_address: int, most: int) -> set[Client]:
    """The connections to close: of each address with too many, then of all."""
    over: set[Client] = set()
    for address, quiet in idle.items():
        if (excess := number[address] - per_address) > 0:
            over |= {client for *_, client in sorted(quiet, reverse=True)[:excess]}
    if (excess := sum(number.values()) - len(over) - most) > 0:
        left = sorted((each for quiet in idle.values() for each in quiet if each[2] not in over), reverse=True)
        over |= {client for *_, client in left[:excess]}
    return over


def _u32(info: bytes, at: int) -> int:
    found: int = struct.unpack_from("=I", info, at)[0]
    return found


def _u64(info: bytes, at: int) -> int:
    found: int = struct.unpack_from("=Q", info, at)[0]
    return found
