"""What the kernel says of connections, and which are closed: real sockets, and a clock that the test sets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tidings.api.connections import Connections
from tidings.api.limits import LimitSettings, Ticket, UnderWay
from waiting import until

LIMITS = LimitSettings(connections=16, connections_per_address=8, idle_seconds=20, least_rate=1024)


@dataclass
class Listener:
    socket: socket.socket
    sockets: ExitStack
    under_way: UnderWay = field(default_factory=lambda: UnderWay(LIMITS))

    def __post_init__(self) -> None:
        self.port = self.socket.getsockname()[1]
        self.connections = Connections(self.port, self.under_way)

    def connected(self, address: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
        """A client that has hardly any room for an answer, and the server's end."""
        client = self.sockets.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.bind((address, 0))
        client.connect(("127.0.0.1", self.port))
        return client, self.sockets.enter_context(self.socket.accept()[0])

    def admit(self, client: socket.socket) -> Ticket:
        ticket = Ticket(self.under_way, client.getsockname())
        ticket.admit("project")
        return ticket


@pytest.fixture
def listener() -> Iterator[Listener]:
    with ExitStack() as sockets:
        yield Listener(sockets.enter_context(socket.create_server(("127.0.0.1", 0))), sockets)


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def read(client: socket.socket, number: int) -> None:
    client.setblocking(True)
    while number:
        number -= len(client.recv(number))


def test_who_takes_all_that_waits_for_it_is_not_slow_however_little_it_was(listener: Listener) -> None:
    """A client at the other end of the world that asks one small question after the other: something is always on its way."""
    client, server = listener.connected()
    for second in range(0, 100, 10):
        server.sendall(bytes(8000))
        listener.connections.look(second)
        assert listener.connections.closed == 0
        read(client, 8000)
    assert is_open(client)


@pytest.mark.parametrize("taken", [0, 4000])
def test_who_takes_too_little_of_what_waits_is_reset(listener: Listener, taken: int) -> None:
    client, server = listener.connected()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    server.sendall(bytes(200_000))
    listener.connections.look(0)
    read(client, taken)
    listener.connections.look(19)
    assert listener.connections.closed == 0
    listener.connections.look(20)
    assert listener.connections.closed == 1


def test_a_connection_whose_answer_could_not_be_sent_for_long_is_reset(listener: Listener) -> None:
    clients = [listener.connected()[0] for _ in range(2)]
    working = listener.admit(clients[0])  # it has other calls
    listener.under_way.unsent_answers = {number: (client.getsockname(), number) for number, client in enumerate(clients)}
    listener.connections.look(19.9)
    assert listener.connections.closed == 0
    listener.connections.look(20)
    assert [is_open(client) for client in clients] == [False, True]
    working.leave()


def test_of_too_many_answers_that_could_not_be_sent_those_go_whose_address_has_most(listener: Listener) -> None:
    clients = [listener.connected(f"127.0.0.{network}")[0] for network in (2, 3, 3)]
    owners = [0] + [1] * 512 + [2] * 512
    listener.under_way.unsent_answers = {number: (clients[owner].getsockname(), 0) for number, owner in enumerate(owners[:-1])}
    assert not listener.connections.look(1)
    listener.under_way.unsent_answers[1024] = clients[2].getsockname(), 0
    assert listener.connections.look(1)
    assert [is_open(client) for client in clients] == [True, False, True]


def test_an_address_loses_its_unproven_connections_first_then_the_idle_ones_and_never_one_at_work(listener: Listener) -> None:
    clients = [listener.connected()[0] for _ in range(10)]
    beside = listener.connected("127.0.0.2")[0]
    working = [listener.admit(client) for client in clients[:2]]
    listener.admit(clients[2]).leave()
    assert listener.connections.look(0)
    until(lambda: sum(map(is_open, clients)) == 8, "two are closed")
    assert all(map(is_open, [*clients[:3], beside]))
    for ticket in working:
        ticket.leave()


def test_one_who_comes_anew_is_not_closed_for_two_who_keep_many_connections_that_were_served(listener: Listener) -> None:
    many = [listener.connected(f"127.0.0.{network}")[0] for network in (2, 3) for _ in range(8)]
    for client in many:
        listener.admit(client).leave()
    new = listener.connected("127.0.0.4")[0]
    assert listener.connections.look(0)
    until(lambda: sum(map(is_open, many)) == 15, "one is closed")
    assert is_open(new)


def test_among_many_who_have_one_each_those_go_first_that_were_never_served(listener: Listener) -> None:
    clients = [listener.connected(f"127.0.0.{network}")[0] for network in range(2, 20)]
    for client in clients[2:]:
        listener.admit(client).leave()
    assert listener.connections.look(0)
    until(lambda: not any(map(is_open, clients[:2])), "two are closed")
    assert all(map(is_open, clients[2:]))


def test_a_descriptor_that_has_become_another_connection_is_not_closed_for_the_first(listener: Listener) -> None:
    client, server = listener.connected()
    listener.connections.look(0)
    [known] = [each for each in listener.connections._sockets.values() if each.client == client.getsockname()]
    again, other = listener.connected()
    os.dup2(other.fileno(), server.fileno())
    listener.connections._close([known], slow=False)
    assert listener.connections.closed == 0
    assert is_open(again)
    listener.connections.look(1)
    assert listener.connections._sockets[known.descriptor].client == again.getsockname()
