"""Nobody can make us call a private address: forms of URLs, forms of addresses, and resolvers that change their mind.

Every form is called for real, with http allowed, while a listener waits on loopback. What counts is who reaches it: nobody.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat

import aiohttp
import pytest

from tidings.local import kafka
from tidings.outgoing.addresses import parsed, special
from tidings.outgoing.connecting import Caller, caller
from tidings.outgoing.guard import Guard, _listening_below
from tidings.outgoing.settings import OutgoingSettings
from tidings.outgoing.urls import Refused, read
from tidings.settings import Settings

HTTP = OutgoingSettings(allow_http=True)

LITERALS = [
    # IPv4 as it is written, and in every other way that some resolver takes
    *("127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "127.255.255.254", "0.0.0.0", "0", "0.0", "00.0.0.0", "0.0.0.1"),
    *("2130706433", "02130706433", "017700000001", "0x7f000001", "0X7F000001", "0x7f.1", "0x7f.0.0.1", "0x7f.0x0.0x0.0x1"),
    *("0177.0.0.1", "0177.1", "0177.0.0.01", "127.0.0.01", "127.00.00.01", "127.000.000.001", "127.0x0.0.1", "0x7F.00.0.1"),
    *("127.0.0.1.", "127.0.0.1..", "127.1.", "2130706433.", ".127.0.0.1", "127..0.0.1", "127.0.0.256", "256.256.256.256"),
    *("4294967295", "4294967296", "0xffffffff", "0x100000000", "127.0.0.1.1", "1.2.3.4.5", "0x", "127.0.0.0x"),
    *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255", "100.64.0.1"),
    *("169.254.169.254", "169.254.170.2", "169.254.0.1", "168.63.129.16", "100.100.100.200", "192.0.0.192", "192.0.0.1"),
    *("0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "169.254.43518", "0xa9.0xfe.0xa9.0xfe"),
    *("192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "192.88.99.1", "192.31.196.1"),
    *("192.52.193.1", "192.175.48.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "255.255.255.254"),
    # IPv6: loopback, unspecified, embedded IPv4, local, multicast, documentation
    *("[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[::0001]", "[::127.0.0.1]", "[::7f00:1]", "[::ffff:127.0.0.1]"),
    *("[::ffff:7f00:1]", "[::FFFF:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]", "[::ffff:0:127.0.0.1]", "[::ffff:10.0.0.1]"),
    *("[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::7f00:1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]"),
    *("[64:ff9b:1::7f00:1]", "[64:ff9b:1:fffe::127.0.0.1]", "[2002:7f00:1::]", "[2002:7f00:1::1]", "[2002:a9fe:a9fe::]"),
    *("[2001::1]", "[2001:0:7f00:1::]", "[2001:0:4136:e378:8000:63bf:80ff:fffe]", "[2001:10::1]", "[2001:20::1]"),
    *("[2001:2::1]", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[5f00::1]", "[fc00::1]", "[fd00::1]", "[fd00:ec2::254]"),
    *("[fe80::1]", "[fe80::1%eth0]", "[fe80::1%25eth0]", "[::1%25lo]", "[::1%lo]", "[fec0::1]", "[ff02::1]", "[ff0e::1]"),
    *("[2620:4f:8000::1]", "[2606:4700::5efe:7f00:1]", "[2606:4700::200:5efe:127.0.0.1]", "[4000::1]", "[::2]"),
    *("[fd00::5efe:808:808]", "[fe80::200:5efe:8.8.8.8]", "[2001:db8::5efe:808:808]", "[fd00::100:5efe:1.1.1.1]"),
    *("[::ffff:127.1]", "[::ffff:0x7f000001]", "[127.0.0.1]", "[localhost]", "[::1", "::1]", "::1", "[]", "[::1]a", "[v1.a]"),
    # names that mean this machine, its network, or nothing
    *("localhost", "LOCALHOST", "localhost.", "localhost.localdomain", "a.localhost", "metadata", "metadata.google.internal"),
    *("ip6-localhost", "rebound.example", "127.0.0.1.nip.example", "a..b", ".example", "example.", "-a.example", "a-.example"),
    *("a_b.example", "xn--.example.1", "1.0x7f", "example.0", "example.00000000177", "%31%32%37.0.0.1", "127%2e0%2e0%2e1"),
    # digits, dots and letters that are not ASCII
    *("\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "127\uff0e0\uff0e0\uff0e1", "127\uff610\uff610\uff611"),
    *("\u2460\u2461\u2466.0.0.1"),
    *("\uff11\uff12\uff17\u3002\uff10\u3002\uff10\u3002\uff11", "\u24dbocalhost", "loca\u200blhost"),
    *("127.0.0.1\u3002", "\u0661\u0662\u0667.\u0660.\u0660.\u0661", "localhost\u00ad"),
    *("127.0.0.1\u00a0", "\uff4cocalhost", "127.0.0.1\uff0e"),
]  # fmt: skip
WHOLE = [
    "http://good.example@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@good.example/",
    "http://user:word@127.0.0.1:{port}/",
    "http://@127.0.0.1:{port}/",
    "http://good.example:80@127.0.0.1:{port}/",
    "http://good.example\\@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@good.example/",
    "http:\\\\127.0.0.1:{port}\\",
    "http:/\\127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "http:/127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "127.0.0.1:{port}",
    " http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/ ",
    "http ://127.0.0.1:{port}/",
    "ht\ttp://127.0.0.1:{port}/",
    "http://127.0.0.1\t:{port}/",
    "http://127.0.0.1:{port}/\r\nHost: good.example",
    "http://good.example/\r\nX: y",
    "http://good.example%0d%0a@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\r\n/",
    "http://good.example\n.127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@good.example/",
    "http://good.example#@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}?@good.example/",
    "http://127.0.0.1:{port}/?@good.example",
    "http://127.0.0.1:{port}/@good.example",
    "http://127.0.0.1:{port};good.example/",
    "http://127.0.0.1,good.example:{port}/",
    "http://127.0.0.1%00.good.example:{port}/",
    "http://127.0.0.1\0.good.example:{port}/",
    "http://127.0.0.1:0{port}/",
    "http://127.0.0.1:+{port}/",
    "http://127.0.0.1:/",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:{port}:80/",
    "HTTP://127.0.0.1:{port}/",
    "hTTp://127.0.0.1:{port}/",
    "ftp://127.0.0.1:{port}/",
    "file:///etc/passwd",
    "file://127.0.0.1:{port}/",
    "gopher://127.0.0.1:{port}/_GET",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "ws://127.0.0.1:{port}/",
    "data:text/plain,hello",
    "jar:http://127.0.0.1:{port}/!/",
    "javascript:alert(1)",
    "http://",
    "http:",
    "",
    "http://127.0.0.1:{port}/%",
    "http://127.0.0.1:{port}/%zz",
    "http://good.example/" + "a" * 3000,
]
URLS = [*(f"http://{host}:{{port}}/" for host in LITERALS), *WHOLE]
ANSWERS = [
    *("127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "::127.0.0.1", "0.0.0.0", "::", "fe80::1%lo", "10.0.0.1"),
    *("169.254.169.254", "2002:7f00:1::", "::ffff:0:127.0.0.1", "127.0.0.1%lo", "localhost", "2130706433", "127.1", ""),
]
"""What a name may resolve to."""


class Listener:
    """On loopback, over both families where there are two: counts who comes."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listener]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        servers = [server]
        with suppress(OSError):
            servers.append(await asyncio.start_server(self._serve, "::1", self.port))
        try:
            yield self
        finally:
            for each in servers:
                each.close()

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()


def answering(*answers: list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """A resolver that gives these answers one after another, and the last one for ever."""
    rest: Iterator[list[str]] = chain(answers, repeat(answers[-1]))

    async def resolve(_host: str, _port: int) -> list[str]:
        return next(rest)

    return resolve


async def attempt(calling: Caller, url: str) -> str:
    try:
        answer = await calling.post(url, b"{}", {}, 0.5)
    except Refused:
        return "refused"
    except (aiohttp.ClientError, OSError):
        return "failed"
    return str(answer.status)


def test_no_form_of_a_url_reaches_a_listener_on_loopback() -> None:
    async def go() -> tuple[int, int, list[str]]:
        async with Listener().running() as listener, Caller(HTTP, resolve=answering(["127.0.0.1"])) as calling:
            urls = [url.format(port=listener.port) if "{port}" in url else url for url in URLS]
            became = [(url, await attempt(calling, url)) for url in urls]
            return len(set(urls)), listener.connections, [url for url, what in became if what != "refused"]

    tried, connections, not_refused = asyncio.run(go())
    assert tried >= 150
    assert connections == 0
    assert not_refused == []


def test_no_answer_of_a_resolver_leads_to_a_listener_on_loopback_not_even_one_bad_address_among_good_ones() -> None:
    async def go() -> tuple[int, set[str]]:
        async with Listener().running() as listener:
            became = set()
            for text in ANSWERS:
                for answer in ([text], ["93.184.215.14", text], [text, "93.184.215.14"]):
                    async with Caller(HTTP, resolve=answering(answer)) as calling:
                        became.add(await attempt(calling, f"http://good.example:{listener.port}/"))
            return listener.connections, became

    assert asyncio.run(go()) == (0, {"refused"})


def test_a_name_that_is_rebound_between_two_questions_reaches_nobody() -> None:
    """The first answer passes; whoever asked a second time to connect would get loopback."""
    allowed = OutgoingSettings(allow_http=True, allow=("203.0.113.0/24",))
    asked = 0

    async def resolve(_host: str, _port: int) -> list[str]:
        nonlocal asked
        asked += 1
        return ["203.0.113.7"] if asked % 2 else ["127.0.0.1"]

    async def go() -> tuple[int, list[str]]:
        async with Listener().running() as listener, Caller(allowed, resolve=resolve) as calling:
            url = f"http://rebound.example:{listener.port}/"
            return listener.connections, [await attempt(calling, url) for _ in range(6)]

    connections, became = asyncio.run(go())
    assert connections == 0
    assert asked == 6, "once for each attempt, and for each attempt anew"
    assert became == ["failed", "refused"] * 3


def test_what_the_operator_allows_is_called_by_network_and_by_place_and_nothing_else() -> None:
    async def go(allow: str, url: str) -> tuple[str, int]:
        async with Listener().running() as listener:
            settings = OutgoingSettings(allow_http=True, allow=(allow.format(port=listener.port),))
            async with Caller(settings, resolve=answering(["127.0.0.1"])) as calling:
                return await attempt(calling, url.format(port=listener.port)), listener.connections

    assert asyncio.run(go("127.0.0.0/8", "http://127.0.0.1:{port}/")) == ("200", 1)
    assert asyncio.run(go("127.0.0.0/8", "http://hooks.example:{port}/a?b=c%20d")) == ("200", 1)
    assert asyncio.run(go("127.0.0.0/8", "http://[::ffff:127.0.0.1]:{port}/")) == ("200", 1)
    assert asyncio.run(go("hooks.example:{port}", "http://HOOKS.example:{port}/")) == ("200", 1)
    assert asyncio.run(go("127.0.0.1:{port}", "http://127.0.0.1:{port}/")) == ("200", 1)
    assert asyncio.run(go("localhost:{port}", "http://localhost:{port}/")) == ("200", 1)
    assert asyncio.run(go("localhost:{port}", "http://other.example:{port}/")) == ("refused", 0)
    assert asyncio.run(go("localhost:1", "http://localhost:{port}/")) == ("refused", 0)
    assert asyncio.run(go("10.0.0.0/8", "http://127.0.0.1:{port}/")) == ("refused", 0)


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async def go() -> tuple[str, int]:
        async with Listener().running() as listener:

            async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                place = f"http://127.0.0.1:{listener.port}/".encode()
                writer.write(b"HTTP/1.1 307 Over there\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()

            server = await asyncio.start_server(redirect, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            settings = OutgoingSettings(allow_http=True, allow=("127.0.0.0/8",))
            async with Caller(settings) as calling:
                became = await attempt(calling, f"http://127.0.0.1:{port}/")
            server.close()
            return became, listener.connections

    assert asyncio.run(go()) == ("307", 0)


def test_no_more_of_an_answer_is_read_than_the_settings_say() -> None:
    async def go() -> int:
        async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with suppress(ConnectionError):
                while True:
                    writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
                    await writer.drain()

        server = await asyncio.start_server(pour, "127.0.0.1", 0)
        settings = OutgoingSettings(allow_http=True, allow=("127.0.0.0/8",), max_response_bytes=100)
        async with Caller(settings) as calling:
            answer = await calling.post(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", b"", {}, 10.0)
        server.close()
        return len(answer.body)

    assert asyncio.run(go()) == 100


def test_http_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(Refused, match="allow_http"):
        Guard(OutgoingSettings()).endpoint("http://good.example/")
    assert Guard(OutgoingSettings()).endpoint("https://good.example/").port == 443
    assert Guard(HTTP).endpoint("http://good.example/").port == 80


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9000/",
        "http://events.example/",
        "http://db.example:5433/",
        "http://cache.example:6379/",
        "http://127.0.0.1:9001/",
        "http://127.0.0.1:9002/metrics",
        "http://kafka-2.example:9092/",
    ],
)
def test_our_own_listeners_are_refused_by_name_too(url: str) -> None:
    settings = Settings(
        api={"public_url": "http://events.example", "port": 9000, "grpc_port": 9001},
        database={"url": "postgresql://me:hush@db.example:5433/tidings"},
        bucket_eventing={"redis_url": "redis://cache.example"},
        delivery={"metrics_port": 9002},
        kafka={"clusters": {"one": {"bootstrap": "kafka-1.example:9092,kafka-2.example:9092", "projects": "*"}}},
        outgoing={"allow_http": True, "allow": ("127.0.0.0/8",)},
    )
    with pytest.raises(Refused, match="this service itself listens there"):
        caller(settings).guard.endpoint(url)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "localhost"])
def test_our_own_listeners_are_refused_under_whatever_name_they_are_reached(host: str) -> None:
    async def go() -> tuple[int, str, str]:
        async with Listener().running() as listener:
            settings = Settings(
                api={"host": host, "port": listener.port}, outgoing={"allow_http": True, "allow": ("127.0.0.0/8", "::1/128")}
            )
            async with caller(settings, answering(["127.0.0.1"])) as calling:
                by_name = await attempt(calling, f"http://friendly.example:{listener.port}/")
                by_address = await attempt(calling, f"http://127.0.0.1:{listener.port}/")
                return listener.connections, by_name, by_address

    assert asyncio.run(go()) == (0, "refused", "refused")


def test_no_port_of_a_process_below_ours_is_called_and_others_on_this_machine_are() -> None:
    """The control port of the brokers, and the brokers, are in no setting. The listener is in the process above them."""

    async def go() -> tuple[int, list[str]]:
        with kafka.running() as brokers:
            ports = [each.rpartition(":")[2] for each in (brokers.address, *brokers.bootstrap.split(","))]
            async with Listener().running() as listener:
                outgoing = {"allow_http": True, "allow": ("127.0.0.0/8",), "own_process": os.getpid()}
                async with caller(Settings(outgoing=outgoing), answering(["127.0.0.1"])) as calling:
                    places = [f"{host}:{port}" for port in ports for host in ("127.0.0.1", "friendly.example")]
                    ended = [await attempt(calling, f"http://{place}/") for place in places]
                    await attempt(calling, f"http://127.0.0.1:{listener.port}/")
                    return listener.connections, ended

    reached, ended = asyncio.run(go())
    assert (reached, set(ended), len(ended)) == (1, {"refused"}, 8)


def test_every_port_that_a_descendant_listens_on_is_found_and_nobody_looks_for_them_for_an_address_elsewhere() -> None:
    program = (
        "import socket; a, b = (socket.create_server((h, 0), family=f) for h, f in (('127.0.0.1', socket.AF_INET), ('::1', "
    )
    program += "socket.AF_INET6))); print(a.getsockname()[1], b.getsockname()[1], flush=True); input()"
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_connection(ours.getsockname()) as connected,
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        ports = {int(port) for port in child.stdout.readline().split()}
        assert len(ports) == 2
        found = set(_listening_below(os.getpid()))
        assert found >= ports
        assert not {ours.getsockname()[1], connected.getsockname()[1]} & found
        guard = Guard(OutgoingSettings(allow=("127.0.0.0/8",), own_process=os.getpid()))
        guard.judge("1.1.1.1", min(ports), parsed("1.1.1.1"))
        assert guard._own_ports[0] == 0.0
        with pytest.raises(Refused, match="this service itself listens there"):
            guard.judge("127.0.0.1", min(ports), parsed("127.0.0.1"))
        child.communicate(b"\n")


@pytest.mark.parametrize(
    "url", ["https://a.example", "https://a.example:8443/x?y=%20z&t=@", "https://[2606:4700::1111]/", "https://1.1.1.1/"]
)
def test_plain_urls_of_the_public_internet_are_taken(url: str) -> None:
    Guard(OutgoingSettings()).endpoint(url)


def test_a_host_is_written_in_one_way() -> None:
    assert read("https://EXAMPLE.com").url == "https://example.com/"
    assert read("https://[2606:4700:0:0:0:0:0:1111]:8443/A").url == "https://[2606:4700::1111]:8443/A"


@pytest.mark.parametrize("text", ["64:ff9b::5db8:d70e", "::ffff:93.184.215.14", "2a00:1450:4001::1", "93.184.215.14"])
def test_embedded_public_addresses_are_public(text: str) -> None:
    assert special(parsed(text)) is None


@pytest.mark.parametrize("text", ["fd00::5efe:808:808", "fe80::200:5efe:808:808", "2606:4700::5efe:7f00:1"])
def test_an_isatap_address_is_judged_by_itself_and_by_what_it_embeds(text: str) -> None:
    assert special(parsed(text)) is not None


def test_an_allowed_network_speaks_for_what_lies_in_it_and_not_for_what_looks_like_it() -> None:
    def refused(allow: tuple[str, ...], host: str) -> bool:
        try:
            Guard(OutgoingSettings(allow=allow)).endpoint(f"https://{host}/")
        except Refused:
            return True
        return False

    assert refused(("10.0.0.0/8",), "[fd00::5efe:10.0.0.1]"), "the address itself is another private network's"
    assert refused(("fd00::/8",), "[fd00::5efe:10.0.0.1]"), "what it embeds was not allowed"
    assert not refused(("fd00::/8", "10.0.0.0/8"), "[fd00::5efe:10.0.0.1]")
    assert not refused(("fd00::/8",), "[fd00::5efe:8.8.8.8]")
    assert not refused(("10.0.0.0/8",), "[2606:4700::5efe:10.0.0.1]")
    assert not refused(("10.0.0.0/8",), "[::ffff:10.0.0.1]")
