"""Kafka brokers for laptops and tests: librdkafka's own mock cluster, real protocol over TCP, in a process of its own.

Not a Kafka for production: records live in memory, at most 5 MiB or 100,000 record sets of each partition, the oldest go
first, and a topic is made when somebody first asks for it. The brokers take whatever ports are free: each start has others.

`TIDINGS_BROKERS_TOKEN=TOKEN python -m tidings.local.kafka --port 9091` runs them. Its port is not Kafka's: with the address
TOKEN@127.0.0.1:9091 `ask` hears where the brokers are and `set_fault` disturbs them, one line of JSON each way. Every line
carries the token. Whoever sends another line is hung up on: a page can make a browser send lines to any port, but not
choose the first.

    down                      no broker accepts a connection
    delay  `seconds`          every answer comes that much later
    error  `error`, `times`   the next produce requests (`request`: produce, metadata, producer_id) are answered with that code
    topic  `topic`, `error`   the metadata of a topic has that error

To hang them, stop their process (SIGSTOP).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from confluent_kafka import cimpl

from tidings.errors import OperatorError
from tidings.local.processes import die_with_parent, end

PARTITIONS = 4
"""Of a topic for which nobody says how many."""
TOKEN_VARIABLE = "TIDINGS_BROKERS_TOKEN"  # noqa: S105 the name of a variable
"""What whoever controls the brokers must know."""
_MAX_LINE = 64 * 1024
_PRODUCER = 0
_ALL = -1
REQUESTS = {"produce": 0, "metadata": 3, "producer_id": 22}
"""The numbers of requests in Kafka's protocol (kafka.apache.org/protocol)."""


def _library() -> Any:
    """librdkafka as confluent-kafka brings it: a symbol that is not in the extension is looked up in what it is linked with."""
    library = ctypes.CDLL(cimpl.__file__)
    handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("conf_new", handle, ()),
        ("conf_set", number, (handle, text, text, text, ctypes.c_size_t)),
        ("new", handle, (number, handle, text, ctypes.c_size_t)),
        ("mock_cluster_new", handle, (handle, number)),
        ("mock_cluster_bootstraps", text, (handle,)),
        ("mock_topic_create", number, (handle, text, number, number)),
        ("mock_topic_set_error", None, (handle, text, number)),
        ("mock_broker_set_down", number, (handle, ctypes.c_int32)),
        ("mock_broker_set_up", number, (handle, ctypes.c_int32)),
        ("mock_broker_set_rtt", number, (handle, ctypes.c_int32, number)),
        ("mock_clear_request_errors", None, (handle, ctypes.c_int16)),
        ("mock_push_request_errors_array", None, (handle, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number))),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Brokers:
    """The mock cluster. It ends with the process: librdkafka's threads hold it."""

    def __init__(self, count: int = 3) -> None:
        self._library = library = _library()
        said = ctypes.create_string_buffer(512)
        conf = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set(conf, b"log_level", b"0", said, len(said))  # it has no brokers of its own, and says so
        handle = library.rd_kafka_new(_PRODUCER, conf, said, len(said))
        if not handle:
            raise OperatorError(f"librdkafka did not start: {said.value.decode(errors='replace')}")
        self._cluster = library.rd_kafka_mock_cluster_new(handle, count)
        self._sick_topics: set[bytes] = set()

    @property
    def bootstrap(self) -> str:
        where: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return where.decode()

    def create_topic(self, topic: str, partitions: int) -> None:
        self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def set_fault(
        self,
        fault: str | None,
        *,
        seconds: float = 0.0,
        error: int = 0,
        times: int = 1,
        topic: str = "",
        request: str = "produce",
    ) -> None:
        """None lifts whatever stands in the way."""
        library, cluster = self._library, self._cluster
        if fault is None:
            library.rd_kafka_mock_broker_set_up(cluster, _ALL)
            library.rd_kafka_mock_broker_set_rtt(cluster, _ALL, 0)
            for number in REQUESTS.values():
                library.rd_kafka_mock_clear_request_errors(cluster, number)
            for name in self._sick_topics:
                library.rd_kafka_mock_topic_set_error(cluster, name, 0)
            self._sick_topics.clear()
        elif fault == "down":
            library.rd_kafka_mock_broker_set_down(cluster, _ALL)
        elif fault == "delay":
            library.rd_kafka_mock_broker_set_rtt(cluster, _ALL, round(seconds * 1000))
        elif fault == "error":
            errors = (ctypes.c_int * times)(*[error] * times)
            library.rd_kafka_mock_push_request_errors_array(cluster, REQUESTS[request], times, errors)
        elif fault == "topic":
            library.rd_kafka_mock_topic_set_error(cluster, topic.encode(), error)
            self._sick_topics.add(topic.encode())
        else:
            raise OperatorError(f"There is no fault {fault!r}. Choose one of down, delay, error, topic, or None for none.")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, brokers: Brokers, token: str) -> None:
        self.brokers = brokers
        self.token = token
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Answer)


class _Answer(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline(_MAX_LINE):
            asked = _request(line, self.server.token)
            if asked is None:
                return
            self.wfile.write(json.dumps(self._obey(asked)).encode() + b"\n")

    def _obey(self, asked: dict[str, Any]) -> dict[str, Any]:
        brokers = self.server.brokers
        try:
            with self.server.lock:
                if "create" in asked:
                    brokers.create_topic(asked["create"], asked["partitions"])
                elif "fault" in asked:
                    brokers.set_fault(asked.pop("fault"), **asked)
        except (OperatorError, ValueError, TypeError, KeyError, AttributeError) as error:
            return {"problem": f"{type(error).__name__}: {error}"}
        return {"bootstrap": brokers.bootstrap, "pid": os.getpid()}


def _request(line: bytes, token: str) -> dict[str, Any] | None:
    """What a line asks for, without its token; None if it is not ours to answer."""
    try:
        asked = json.loads(line)
    except ValueError:
        return None
    if not isinstance(asked, dict) or not secrets.compare_digest(str(asked.pop("token", "")).encode(), token.encode()):
        return None
    return asked


def ask(address: str, **request: Any) -> dict[str, Any]:
    """What the process behind `address` answers; without a request, where its brokers are (`bootstrap`)."""
    token, _, place = address.rpartition("@")
    host, _, port = place.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rwb") as lines:
        lines.write(json.dumps(request | {"token": token}).encode() + b"\n")
        lines.flush()
        answer: dict[str, Any] = json.loads(lines.readline() or b'{"problem": "it hung up"}')
    if "problem" in answer:
        raise OperatorError(f"The brokers behind {place} did not obey: {answer['problem']}")
    return answer


def set_fault(address: str, fault: str | None, **options: Any) -> None:
    ask(address, fault=fault, **options)


def create_topic(address: str, topic: str, partitions: int = PARTITIONS) -> None:
    ask(address, create=topic, partitions=partitions)


@dataclass(frozen=True)
class Running:
    """The brokers in their process: `address` is for faults, `bootstrap` for Kafka's clients."""

    process: subprocess.Popen[bytes]
    address: str
    bootstrap: str

    def set_fault(self, fault: str | None, **options: Any) -> None:
        set_fault(self.address, fault, **options)

    def hang(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        while psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:  # a busy one goes on for a moment
            time.sleep(0.01)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def running() -> Iterator[Running]:
    """Brokers in a process of their own, for as long as the block lasts."""
    command, token = [sys.executable, "-m", "tidings.local.kafka", "--port", "0"], secrets.token_urlsafe(24)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, TOKEN_VARIABLE: token},
        preexec_fn=die_with_parent(signal.SIGKILL),
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise OperatorError("The Kafka brokers did not start: see what their process said on stderr.")
            said = json.loads(line)
            yield Running(process, f"{token}@127.0.0.1:{said['port']}", said["bootstrap"])
        finally:
            end(process, 5)


def main(port: int) -> None:
    """Serves until SIGTERM or SIGINT. One line of JSON on stdout tells the port and the brokers."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # there is nothing to save
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise SystemExit(f"The control port obeys whoever has a token: set {TOKEN_VARIABLE} to a long random text.")
    brokers = Brokers()
    with _Server(port, brokers, token) as server:
        print(json.dumps({"port": server.server_address[1], "bootstrap": brokers.bootstrap}), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kafka brokers in memory, for tests and development.")
    parser.add_argument("--port", type=int, default=9091, help="where it tells its brokers' ports; 0 takes any free one")
    main(parser.parse_args().port)
