"""commits_with_events and commits_with_bad_subscribers: what telling of a commit costs who commits.

Three servers over one PostgreSQL, started as users start them: one that tells nobody, one with events in the change stream, one
that has subscribers as well. Three of these misbehave (one sleeps 10 s for each event, one always throws, one never returns);
the healthy one must get everything. Eight committers, each with a connection and a branch of its own, one table in each commit.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from bench import bad_subscribers
from bench.changes import database
from bench.measure import Bar, CannotMeasure, Figure, Progress, interleaved, ratios
from bench.requests import Refused, await_answer
from tidings.access import api_keys
from tidings.access.projects import create_project
from tidings.changestream.retention import keep_up
from tidings.changestream.settings import ChangestreamSettings
from tidings.local.processes import die_with_parent, free_port

NAMES = ("commits_with_events", "commits_with_bad_subscribers")
_COMMITTERS = 8
_WAIT_SECONDS = 60.0
_EVENTS_OF_A_COMMIT = 2
_REST_SECONDS = 0.5
"""After each run: what it leaves to subscribers falls on none of the others."""


def measure(names: Sequence[str], quick: bool, progress: Progress) -> Iterator[Figure]:
    commits, pairs = (200, 3) if quick else (1000, 15)
    with database(progress) as url, TemporaryDirectory(prefix="tidings-bench-") as folder, ExitStack() as servers:
        with psycopg.connect(url, autocommit=True) as connection:
            keep_up(connection, ChangestreamSettings())
            project = create_project(connection, "bench")
            key = api_keys.create(connection, project).api_key
        path = os.pathsep.join(filter(None, [str(bad_subscribers.installed(Path(folder))), os.environ.get("PYTHONPATH")]))
        environments = {
            "no events": {"TIDINGS_CATALOG__EVENTS": "false"},
            "events": {},
            "bad subscribers": {"PYTHONPATH": path},
        }
        served = {
            name: servers.enter_context(_serving(url, Path(folder) / f"{place}.log", environment))
            for place, (name, environment) in enumerate(environments.items())
        }
        committers = _Committers(served, key, commits)
        committers.begin("no events")
        seconds = interleaved({name: partial(committers.run, name) for name in served}, pairs, 1, progress)
        if NAMES[0] in names:
            yield _figure(NAMES[0], commits, seconds, ("events", "no events"), Bar(">=", 0.9), "")
        if NAMES[1] in names:
            note = _heard(served["bad subscribers"], commits * (pairs + 1) * _EVENTS_OF_A_COMMIT + _COMMITTERS * (pairs + 1))
            yield _figure(NAMES[1], commits, seconds, ("bad subscribers", "events"), Bar(">=", 1 / 1.1), note)


@contextmanager
def _serving(url: str, log: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """The port of a `tidings serve`."""
    port = free_port()
    own = {
        "TIDINGS_DATABASE__URL": url,
        "TIDINGS_API__PORT": str(port),
        "TIDINGS_STORE__BLOBS": log.with_suffix("").as_uri(),
        **environment,
    }
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tidings", "serve"]
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **own}, preexec_fn=die_with_parent())
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise CannotMeasure(f"The server did not start: {log.read_text(errors='replace').strip()[-300:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(_WAIT_SECONDS)


def _is_ready(port: int) -> bool:
    try:
        return b"ready" in _page(port, "ready")
    except OSError:
        return False


def _page(port: int, name: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/{name}", timeout=10) as answer:
        page: bytes = answer.read()
        return page


class _Committers:
    """So many commits, again and again: each run on new branches, so that all find the same."""

    def __init__(self, ports: Mapping[str, int], key: str, commits: int) -> None:
        self._ports, self._key, self._each = ports, key, commits // _COMMITTERS
        self._runs = itertools.count()

    def begin(self, server: str) -> None:
        """The repository begins with its first request, which is an event of its own."""
        with self._connected(server) as connection:
            connection.sendall(self._requests("first")[-1])
            await_answer(connection)

    def run(self, server: str) -> float:
        """Seconds."""
        run = next(self._runs)
        with ExitStack() as open_ones:
            seconds = _seconds(
                [
                    (open_ones.enter_context(self._connected(server)), self._requests(f"run-{run}-{number}"))
                    for number in range(_COMMITTERS)
                ]
            )
        time.sleep(_REST_SECONDS)
        return seconds

    def _connected(self, server: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._ports[server]), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _requests(self, branch: str) -> list[bytes]:
        """Last first: after the branch was made, its commits."""
        commits = []
        for number in range(self._each):
            content = {"type": "ICEBERG_TABLE", "metadataLocation": f"s3://elsewhere/{number}", "snapshotId": number}
            put = {"type": "PUT", "key": {"elements": ["sales", f"table-{number}"]}, "content": content}
            document = {"commitMeta": {"message": f"load {number}"}, "operations": [put]}
            commits.append(self._request(f"trees/branch/{branch}/commit", document))
        return [*reversed(commits), self._request("trees/tree?sourceRefName=main", {"type": "BRANCH", "name": branch})]

    def _request(self, path: str, document: object) -> bytes:
        body = json.dumps(document).encode()
        head = f"POST /-/catalog/api/v1/{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self._key}\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _seconds(lines: Sequence[tuple[socket.socket, list[bytes]]]) -> float:
    """How long all commits take. The first request of each line, which makes the branch, comes before the clock starts."""
    for connection, requests in lines:
        connection.sendall(requests.pop())
        await_answer(connection)
    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        for connection, requests in lines:
            connection.sendall(requests.pop())
            selector.register(connection, selectors.EVENT_READ, requests)
        while selector.get_map():
            for key, _ in selector.select(_WAIT_SECONDS) or _too_long():
                connection, requests = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                await_answer(connection)
                if requests:
                    connection.sendall(requests.pop())
                else:
                    selector.unregister(connection)
        return time.perf_counter() - began


def _too_long() -> list[tuple[selectors.SelectorKey, int]]:
    raise Refused(f"No answer for {_WAIT_SECONDS:g} s.")


def _heard(port: int, expected: int) -> str:
    """What the server's metrics say of the subscribers, once the healthy one has everything."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while (heard := _counted(port, "healthy")["delivered"]) != expected:
        if time.monotonic() > deadline:
            raise CannotMeasure(f"The healthy subscriber got {heard} of {expected} events.")
        time.sleep(0.2)
    others = ((name, _counted(port, name)) for name in ("sleeps", "throws", "hangs"))
    said = ", ".join(f"{name}: {found['dropped']} dropped, {found['rejected']} rejected" for name, found in others)
    return f"; the healthy one got all {expected:,} events; {said}"


def _counted(port: int, subscriber: str) -> dict[str, int]:
    found = re.findall(
        rf'tidings_subscriber_events_total{{outcome="(\w+)",subscriber="{subscriber}"}} ([0-9.e+]+)',
        _page(port, "metrics").decode(),
    )
    return dict.fromkeys(("delivered", "dropped", "rejected"), 0) | {outcome: int(float(value)) for outcome, value in found}


def _figure(name: str, commits: int, seconds: dict[str, list[float]], ways: tuple[str, str], bar: Bar, more: str) -> Figure:
    rates = {way: [commits / value for value in values] for way, values in seconds.items()}
    middle = ", ".join(f"{way} {sorted(rates[way])[len(rates[way]) // 2]:.0f} commits/s" for way in ways)
    note = f"{middle}; {commits:,} commits in a run, {_COMMITTERS} committers{more}"
    return Figure.median(name, ratios(rates[ways[0]], rates[ways[1]]), bar, "", note)
