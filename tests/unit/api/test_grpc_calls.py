from __future__ import annotations

import pytest

from tidings.api.grpc_calls import client_of, limits_of_port
from tidings.api.limits import LimitSettings


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:192.0.2.1:4000", ("192.0.2.1", 4000)),
        ("ipv6:%5B2001:db8::1%5D:4000", ("2001:db8::1", 4000)),
        ("ipv6:[::ffff:192.0.2.1]:4000", ("192.0.2.1", 4000)),
        ("unix:", ("", 0)),
    ],
)
def test_grpc_names_the_same_client(peer: str, client: tuple[str, int]) -> None:
    assert client_of(peer) == client


def test_the_port_has_a_quarter_of_the_connections() -> None:
    limits = limits_of_port(LimitSettings())
    assert (limits.connections, limits.connections_per_address, limits.requests_per_project) == (1024, 256, 25)
    assert limits_of_port(LimitSettings(connections=16, connections_per_address=1)).connections_per_address == 1
