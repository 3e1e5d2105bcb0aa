"""Who may be called, by the operator's settings: judges endpoints as they are written, and the addresses behind their names."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

import psutil
from psycopg.conninfo import conninfo_to_dict

from tidings.outgoing.addresses import Address, Network, meanings, special, within
from tidings.outgoing.settings import OutgoingSettings
from tidings.outgoing.urls import Endpoint, Refused, read
from tidings.settings import Settings

_OWN_SECONDS = 60.0
_PORTS_SECONDS = 5.0
_LISTENS = ":0000 0A "
"""In a line of /proc/net/tcp: no peer, and the state."""
_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379, "postgresql": 5432}


class Guard:
    """Judges endpoints and addresses by the operator's settings. `own` are host:port of listeners of ours."""

    def __init__(self, settings: OutgoingSettings, own: Iterable[str] = ()) -> None:
        self._allow_http = settings.allow_http
        self._networks: list[Network] = []
        places = []
        for each in settings.allow:
            try:
                self._networks.append(ip_network(each))
            except ValueError:
                places.append(each)
        self._places = frozenset(places)
        self._own = frozenset(place for each in own for place in (each, *_meant_by(each)))
        self._machine: tuple[float, frozenset[Address]] = (0.0, frozenset())
        self._own_process = settings.own_process
        self._own_ports: tuple[float, frozenset[int]] = (0.0, frozenset())

    def endpoint(self, url: str) -> Endpoint:
        """A URL that may be called, as far as can be told without asking for its addresses."""
        endpoint = read(url)
        if endpoint.scheme == "http" and not self._allow_http:
            raise Refused(f"{url[:200]} is not called: only https:// is, unless the operator sets outgoing.allow_http")
        if endpoint.place in self._places:
            return endpoint
        if endpoint.place in self._own:
            raise Refused(f"{endpoint.place} is not called: this service itself listens there")
        if endpoint.address is not None:
            self.judge(endpoint.host, endpoint.port, endpoint.address)
        elif "." not in endpoint.host:
            raise Refused(f"{endpoint.place} is not called: the name is only known inside a network")
        return endpoint

    def judge(self, host: str, port: int, address: Address) -> None:
        """Refuse an address that is not to be called at this port, under whatever name."""
        place = _place(host, port)
        if place in self._places:
            return
        if self._is_ours(address, port):
            raise Refused(f"{place} is not called: this service itself listens there")
        what = special(address, self._networks)
        if what is None and any(m in self._addresses_here() and not within(m, self._networks) for m in meanings(address)):
            what = "an address of this machine"
        if what is not None:
            name = str(address) if host == str(address) else f"{host}, which is {address},"
            raise Refused(f"{name} is not called: {what}. The operator can allow it in outgoing.allow")

    def _is_ours(self, address: Address, port: int) -> bool:
        if any(_place(str(meant), port) in self._own for meant in meanings(address)):
            return True
        if not any(meant.is_loopback or meant in self._addresses_here() for meant in meanings(address)):
            return False
        return f"0.0.0.0:{port}" in self._own or f"[::]:{port}" in self._own or port in self._ports_of_descendants()

    def _ports_of_descendants(self) -> frozenset[int]:
        """Where the processes below `own_process` listen: Spark's ports are other ones each time, and in no setting."""
        if self._own_process and time.monotonic() >= self._own_ports[0]:
            self._own_ports = (time.monotonic() + _PORTS_SECONDS, frozenset(_listening_below(self._own_process)))
        return self._own_ports[1]

    def _addresses_here(self) -> frozenset[Address]:
        if time.monotonic() >= self._machine[0]:
            families = (socket.AF_INET, socket.AF_INET6)
            texts = [a.address for each in psutil.net_if_addrs().values() for a in each if a.family in families]
            here = frozenset(ip_address(text.partition("%")[0]) for text in texts)
            self._machine = (time.monotonic() + _OWN_SECONDS, here)
        return self._machine[1]


def _listening_below(pid: int) -> Iterator[int]:
    """Ports that the descendants of a process listen on. Whoever has a connection to call waits for this."""
    listening = _listening() if sys.platform == "linux" else {}
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error, OSError):  # it has ended meanwhile, or is another user's
                if sys.platform != "linux":
                    yield from (s.laddr.port for s in process.net_connections("inet") if s.status == psutil.CONN_LISTEN)
                    continue
                for descriptor in os.scandir(f"/proc/{process.pid}/fd"):
                    with suppress(OSError):
                        if (port := listening.get(os.readlink(descriptor))) is not None:
                            yield port


def _listening() -> dict[str, int]:
    """Ports by their sockets, as descriptors are linked to them. psutil would read all connections of the machine once for each
    process, and there may be tens of thousands."""
    found = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            for line in lines:
                if _LISTENS in line:
                    words = line.split()
                    found[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
    return found


def listeners(settings: Settings) -> Iterator[str]:
    """host:port of everything of ours that listens."""
    api = settings.api
    for port in (api.port, api.grpc_port):
        yield _place(api.host, port)
    for url in (api.url, settings.bucket_eventing.redis_url.get_secret_value()):
        parts = urlsplit(url)
        yield _place(str(parts.hostname), parts.port or _PORTS.get(parts.scheme, 0))
    database = conninfo_to_dict(settings.database.url.get_secret_value())
    yield _place(str(database.get("host")), database.get("port") or _PORTS["postgresql"])
    yield str(settings.pubsub.emulator_host)
    if settings.delivery.metrics_port:
        yield _place(settings.delivery.metrics_host, settings.delivery.metrics_port)
    for cluster in settings.kafka.clusters.values():
        yield from cluster.bootstrap.split(",")


def _meant_by(place: str) -> tuple[str, ...]:
    host, _, port = place.rpartition(":")
    return (f"127.0.0.1:{port}", f"[::1]:{port}") if host == "localhost" else ()


def _place(host: str, port: object) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
