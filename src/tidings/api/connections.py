"""The connections of a server's process, as the kernel sees them. Granian and gRPC accept them and offer no look at them.

A thread looks at every socket of the process that is connected to the server's port. Where an address, or all together, have
too many, it closes those that never had a verified request, the oldest first, then the longest idle. It also closes those
whose client does not take its answer, and those whose client does not let it out: HTTP/2 sends no data into a window of 0, so
the kernel knows nothing of such an answer. What it closes is a duplicate of the descriptor, whose inode says that it is the
socket that was judged. Linux only; elsewhere there is no thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import socket
import stat
import struct
import sys
import termios
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from tidings.api.limits import Client, UnderWay, network, plain

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
_SHARE = 10
"""The thread rests ten times as long as it worked."""
_HURRIED_SECONDS, _HURRIED_SHARE = 0.05, 2
"""While connections are over a limit: new clients wait behind them until the server accepts them."""
_WARN_SECONDS = 60.0
_TRIM_SECONDS, _TRIMMED_FOR_SECONDS = 5.0, 60.0
_TRIMMED_AFTER = 16
"""After many connections have ended, what their answers held goes back to the system: the C library keeps it for the next."""
_HEAVY = 16
"""Where all together have too many, addresses with more than a sixteenth of them give first."""
_MOST_UNSENT = 1024
"""Answers that gRPC could not send yet: a quarter of the calls that may be open in a process (`grpc_server.MOST_CALLS`)."""
_INFO_BYTES = 232
_LAST_RECEIVED = 52
_ACKED = 120
"""Where struct tcp_info (linux/tcp.h) has tcpi_last_data_recv and tcpi_bytes_acked."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Connection:
    """A socket of this process; without a client it is none of ours. `inode` tells it from others with its descriptor."""

    descriptor: int
    inode: int
    client: Client | None
    came: float
    taken: Taken | None = None

    def is_slow(self, now: float, idle_seconds: float, least_rate: int) -> bool:
        """Whether the client takes too little of what waits for it."""
        waiting = struct.unpack("i", fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, bytes(4)))[0]
        if not waiting:
            self.taken = None
            return False
        acked, slow = _u64(_info(self.descriptor), _ACKED), False
        if self.taken is not None and acked < self.taken.all:
            if now - self.taken.at < idle_seconds:
                return False
            slow = acked - self.taken.acked < least_rate * (now - self.taken.at)
        self.taken = Taken(now, acked, acked + waiting)
        return slow


@dataclass(slots=True)
class Taken:
    """How much of its answers a client had taken at a time, and when it will have taken `all` that waited for it then.

    Who takes all of it is not slow, however little it was: a far client always has a small answer on its way.
    """

    at: float
    acked: int
    all: int


Quiet = tuple[bool, float, Client, Connection]
"""A connection without a verified request under way: whether it never had one, since when, and whose it is."""


class Connections:
    """What `watch` knows of the connections of this process."""

    def __init__(self, port: int, under_way: UnderWay) -> None:
        self._port = port
        self._limits = under_way.limits
        self._under_way = under_way
        self._sockets: dict[int, Connection] = {}
        self._absent: set[Client] = set()
        self.open = 0
        self.closed = 0

    def look(self, now: float) -> bool:
        """Look at all connections once, and close those that are over a limit. Returns whether there were any."""
        self._sockets = self._found(now)
        limits, under_way = self._limits, self._under_way
        idle: dict[str, list[Quiet]] = defaultdict(list)
        number: dict[str, int] = defaultdict(int)
        slow: list[Connection] = []
        starved, many = _starved(list(under_way.unsent_answers.values()), now - limits.idle_seconds)
        for connection in self._sockets.values():
            client = connection.client
            if client is None:
                continue
            address = network(client[0])
            number[address] += 1
            try:
                if connection.is_slow(now, limits.idle_seconds, limits.least_rate) or client in starved:
                    slow.append(connection)
                if client not in under_way.busy:
                    served = client in under_way.served
                    quiet = _u32(_info(connection.descriptor), _LAST_RECEIVED) / 1000 if served else now - connection.came
                    idle[address].append((not served, quiet, client, connection))
            except OSError:  # it has just ended
                continue
        self.open = sum(number.values())
        self._forget(under_way.served.difference(each.client for each in self._sockets.values() if each.client))
        over = _over(idle, number, limits.connections_per_address, limits.connections)
        self._close(slow, slow=True)
        self._close(over.values(), slow=False)
        return bool(over) or many

    def _found(self, now: float) -> dict[int, Connection]:
        """All sockets of this process, by their descriptors. What was known of one that is still there is kept."""
        found = {}
        for name in os.listdir("/proc/self/fd"):
            descriptor = int(name)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                known = self._sockets.get(descriptor)
                if known is None or known.inode != status.st_ino:
                    known = Connection(descriptor, status.st_ino, _client(descriptor, status.st_ino, self._port), now)
            except OSError:  # it has just ended
                continue
            found[descriptor] = known
        return found

    def _forget(self, absent: set[Client]) -> None:
        """Who is missing for the first time may have come during the look."""
        self._under_way.served.difference_update(absent & self._absent)
        self._absent = absent

    def _close(self, connections: Iterable[Connection], *, slow: bool) -> None:
        for connection in connections:
            if not slow and connection.client in self._under_way.busy:
                continue
            try:
                with _duplicate(connection.descriptor, connection.inode) as duplicate:
                    if slow:  # what waits to be sent is thrown away, else the kernel would keep it
                        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    duplicate.shutdown(socket.SHUT_RDWR)
            except OSError:  # the client was faster
                continue
            self.closed += 1


def watch(port: int, under_way: UnderWay) -> None:
    """Start the thread, in the process that serves. It ends with the process."""
    if sys.platform == "linux":
        connections = Connections(port, under_way)
        threading.Thread(target=_watch, args=(connections,), name=f"connections-{port}", daemon=True).start()


def _watch(connections: Connections) -> None:
    warned, closed, trimmed, trim_until = 0.0, 0, 0.0, 0.0
    while True:
        started, over, closed_before, open_before = time.monotonic(), False, connections.closed, connections.open
        try:
            over = connections.look(started)
        except Exception:  # without this thread there would be no limits
            _log.exception("connections cannot be looked at")
        if connections.closed > closed_before or connections.open < open_before - _TRIMMED_AFTER:
            trim_until = started + _TRIMMED_FOR_SECONDS
        if trimmed + _TRIM_SECONDS < started < trim_until:
            _trim()
            trimmed = started
        if connections.closed > closed and started > warned:
            words = "%d connections were over a limit and were closed; %d are open"
            _log.warning(words, connections.closed - closed, connections.open)
            warned, closed = started + _WARN_SECONDS, connections.closed
        least, share = (_HURRIED_SECONDS, _HURRIED_SHARE) if over else (_PAUSE_SECONDS, _SHARE)
        time.sleep(max(least, share * (time.monotonic() - started)))


def _trim() -> None:
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _duplicate(descriptor: int, inode: int) -> socket.socket:
    """Another descriptor of the same socket, whatever becomes of the first; an OSError if that is another one by now."""
    duplicate = socket.socket(fileno=os.dup(descriptor))
    if os.fstat(duplicate.fileno()).st_ino != inode:
        duplicate.close()
        raise OSError
    return duplicate


def _client(descriptor: int, inode: int, port: int) -> Client | None:
    """Who is connected to the port by this socket."""
    with _duplicate(descriptor, inode) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            return None
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        address, number = connection.getpeername()[:2]
        return plain(address), number


def _info(descriptor: int) -> bytes:
    """Without a duplicate, which would cost more than the question: of another socket it would be a wrong answer, no harm."""
    looked_at = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        return looked_at.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES).ljust(_INFO_BYTES, b"\0")
    finally:
        looked_at.detach()


def _starved(unsent: list[tuple[Client, float]], long_ago: float) -> tuple[set[Client], bool]:
    """The connections with an answer that could not be sent since long ago, and whether there are too many such answers.

    Then the address that has most of them loses the connections with its oldest ones.
    """
    starved = {client for client, since in unsent if since <= long_ago}
    excess = len(unsent) - _MOST_UNSENT
    if excess > 0:
        clients = [client for client, _ in unsent]
        [(largest, _)] = Counter(network(address) for address, _ in clients).most_common(1)
        starved.update([client for client in clients if network(client[0]) == largest][:excess])
    return starved, excess > 0


def _over(idle: dict[str, list[Quiet]], number: dict[str, int], per_address: int, most: int) -> dict[Client, Connection]:
    """The connections to close: of each address with too many, then of all."""
    over: dict[Client, Connection] = {}
    for address, quiet in idle.items():
        if (excess := number[address] - per_address) > 0:
            over |= {client: connection for *_, client, connection in sorted(quiet, key=_rank, reverse=True)[:excess]}
    if (excess := sum(number.values()) - len(over) - most) > 0:
        left = {address: sorted((each for each in quiet if each[2] not in over), key=_rank) for address, quiet in idle.items()}
        held = {address: min(number[address], per_address) for address in left}
        given = _of_the_largest(left, held, most // _HEAVY, excess)
        rest = sorted((each for quiet in left.values() for each in quiet), key=_rank, reverse=True)
        given += rest[: excess - len(given)]
        over |= {client: connection for *_, client, connection in given}
    return over


def _of_the_largest(left: dict[str, list[Quiet]], held: dict[str, int], heavy: int, excess: int) -> list[Quiet]:
    """Of whoever has most at the time the one that ranks last, until nobody has more than `heavy`. They leave `left`.

    Somebody who comes anew with one connection is not closed for others who keep very many, however busy those look.
    """
    largest = [(-number, address) for address, number in held.items() if number > heavy and left[address]]
    heapify(largest)
    given: list[Quiet] = []
    while largest and len(given) < excess:
        number, address = largest[0]
        given.append(left[address].pop())
        if -number - 1 > heavy and left[address]:
            heapreplace(largest, (number + 1, address))
        else:
            heappop(largest)
    return given


def _rank(quiet: Quiet) -> tuple[bool, float]:
    return quiet[:2]


def _u32(info: bytes, at: int) -> int:
    found: int = struct.unpack_from("=I", info, at)[0]
    return found


def _u64(info: bytes, at: int) -> int:
    found: int = struct.unpack_from("=Q", info, at)[0]
    return found
