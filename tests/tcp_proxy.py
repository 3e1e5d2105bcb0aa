"""A way to a server on this machine that can be cut, and that can go silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Mode = Literal["open", "cut", "silent"]


class Proxy:
    """`open` passes everything on, `cut` ends every connection at once, `silent` takes connections and answers nothing."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._mode: Mode = "open"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listening.close()
            self._end_all()

    def set(self, mode: Mode) -> None:
        self._mode = mode
        if mode != "silent":
            self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            ending, self._sockets = self._sockets, set()
        for each in ending:
            with suppress(OSError):  # it has ended by itself
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._mode == "cut":
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if self._mode != "silent":
                    target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
