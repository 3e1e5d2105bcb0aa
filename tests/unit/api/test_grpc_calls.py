from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tidings.api.grpc_calls import Calls, client_of, limits_of_port
from tidings.api.limits import LimitSettings, OverLimit


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


def test_an_address_has_a_limit_of_calls_and_another_has_its_own() -> None:
    calls = Calls(LimitSettings(connections_per_address=8))  # two at this port
    with ExitStack() as open_:
        for port in (1, 2):
            open_.enter_context(calls.place(f"ipv4:192.0.2.1:{port}"))
        with pytest.raises(OverLimit, match="from your address"), calls.place("ipv4:192.0.2.1:3"):
            pass
        with calls.place("ipv4:192.0.2.2:1"):
            pass
    with calls.place("ipv4:192.0.2.1:4"):
        pass


class Context:
    """A call's context, as far as `Calls.answered` needs it."""

    def __init__(self) -> None:
        self.sent: list[Callable[[Context], object]] = []

    def add_done_callback(self, callback: Callable[[Context], object]) -> None:
        self.sent.append(callback)


def test_an_answer_is_unsent_until_grpc_has_sent_it() -> None:
    calls, context = Calls(LimitSettings()), Context()
    calls.answered(context, "ipv4:192.0.2.1:4000")
    assert [client for client, _ in calls.under_way.unsent_answers.values()] == [("192.0.2.1", 4000)]
    for callback in context.sent:
        callback(context)
    assert not calls.under_way.unsent_answers
