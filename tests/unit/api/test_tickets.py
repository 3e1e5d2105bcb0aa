from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from tidings.api.limits import Door, LimitSettings, OverLimit, Ticket, UnderWay, network, plain
from tidings.db import context

CLIENT = ("192.0.2.1", 4000)
MIB = 1 << 20


def counts(under_way: UnderWay) -> list[dict[Any, int]]:
    counters = ("addresses", "unproven", "requests", "waits", "bytes", "busy")
    return [dict(getattr(under_way, name)) for name in counters]


@pytest.mark.parametrize(
    ("address", "written", "whose"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0:1::0001", "2001:db8:0:1::1", "2001:db8:0:1::"),
        ("2001:db8:0:1:ffff::2", "2001:db8:0:1:ffff::2", "2001:db8:0:1::"),
        ("fe80::1%eth0", "fe80::1", "fe80::"),
        ("", "", ""),
    ],
)
def test_an_address_has_one_spelling_and_a_network_of_ipv6_counts_as_one(address: str, written: str, whose: str) -> None:
    assert plain(address) == written
    assert network(plain(address)) == whose


def test_addresses_of_one_network_share_its_limit() -> None:
    under_way = UnderWay(LimitSettings(connections_per_address=2))
    for host in (1, 2):
        Ticket(under_way, (f"2001:db8::{host}", 4000)).enter()
    with pytest.raises(OverLimit):
        Ticket(under_way, ("2001:db8::3", 4000)).enter()
    Ticket(under_way, ("2001:db8:0:1::1", 4000)).enter()


def test_a_connection_is_busy_until_the_last_of_its_requests_has_ended() -> None:
    under_way = UnderWay(LimitSettings())
    first, second = Ticket(under_way, CLIENT), Ticket(under_way, CLIENT)
    first.admit("project")
    second.admit("project")
    first.leave()
    assert CLIENT in under_way.busy
    second.leave()
    assert counts(under_way) == [{}] * 6


def test_bytes_that_nobody_has_proven_have_a_limit_for_each_address_and_for_all() -> None:
    under_way = UnderWay(LimitSettings(unproven_bytes=16 * MIB))
    free = 64 * 1024
    tickets = [Ticket(under_way, (f"192.0.2.{number % 5}", number)) for number in range(20)]

    def is_refused(ticket: Ticket, size: int) -> bool:
        try:
            ticket.hold(size)
        except OverLimit:
            return True
        return False

    for ticket in tickets[0:20:5]:  # one address has its quarter
        assert not is_refused(ticket, free)
        assert not is_refused(ticket, free + MIB)
    assert is_refused(tickets[0], free + MIB + 1)
    for ticket in tickets[1:20:5] + tickets[2:20:5] + tickets[3:20:5]:
        assert not is_refused(ticket, free + MIB)
    assert is_refused(tickets[4], free + 1)
    assert not is_refused(tickets[4], free)
    tickets[1].admit("project")
    assert not is_refused(tickets[4], free + MIB)
    for ticket in tickets:
        ticket.leave()
    assert counts(under_way) == [{}] * 6


def test_who_needs_no_key_takes_nothing_from_who_has_one() -> None:
    under_way = UnderWay(LimitSettings(requests_per_project=1))
    Ticket(under_way, CLIENT).admit("project", proven=False)
    with pytest.raises(OverLimit):
        Ticket(under_way, CLIENT).admit("project", proven=False)
    assert under_way.served == set()
    Ticket(under_way, CLIENT).admit("project")


@pytest.mark.parametrize("failure", [None, RuntimeError, OverLimit])
def test_nothing_stays_under_way_however_a_request_ends(failure: type[Exception] | None) -> None:
    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        ticket = scope["tidings.ticket"]
        ticket.hold(MIB)
        ticket.admit("project")
        with ticket.wait():
            if failure:
                raise failure("SlowDown", "x")

    under_way = UnderWay(LimitSettings())
    scope = {"type": "http", "headers": [(b"content-length", b"9")], "client": ("192.0.2.1", "4000")}
    run = Door(app, under_way)(scope, None, None)  # type: ignore[arg-type]
    if failure:
        with pytest.raises(failure):
            asyncio.run(run)
    else:
        asyncio.run(run)
    assert counts(under_way) == [{}] * 6


def test_where_the_system_allows_few_files_a_process_takes_fewer_connections() -> None:
    program = """
import resource
from tidings.api.limits import LimitSettings
from tidings.serving import _within_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 3000))
print(_within_descriptors(LimitSettings()).connections, _within_descriptors(LimitSettings(connections=500)).connections)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1171 500\n(3000, 3000)\n"
    assert "too few for 4096 connections: 1171 are served" in done.stderr


def test_a_project_has_a_limit_of_bytes_of_which_a_body_takes_no_more_than_is_held_of_it() -> None:
    under_way = UnderWay(LimitSettings(bytes_per_project=16 * MIB))
    tickets = [Ticket(under_way, ("192.0.2.1", number), 6 * MIB) for number in range(4)]
    for ticket in tickets[:2]:
        ticket.admit("large")
    with pytest.raises(OverLimit, match="bytes of this project"):
        tickets[2].admit("large")
    tickets[3].admit("another")
    for ticket in tickets:
        ticket.leave()
    assert counts(under_way) == [{}] * 6


def test_a_request_has_the_share_of_its_address_until_its_key_is_verified() -> None:
    ticket = Ticket(UnderWay(LimitSettings()), ("2001:db8::1", 4000))
    assert context.share.get() == "address 2001:db8::"
    ticket.admit("project")
    assert context.share.get() == "project"
