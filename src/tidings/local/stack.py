"""The whole of Tidings on one machine: starts every part, starts again one that dies, stops them in order."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tidings import audit, settings
from tidings.access.keys import create_key
from tidings.access.projects import create_project, find_project
from tidings.api import exposure
from tidings.changestream.retention import make_ahead
from tidings.consumers.inventory import offsets
from tidings.db.migrate import migrate
from tidings.errors import OperatorError
from tidings.local.consumers import KNOWS_BROKERS, Consumers
from tidings.local.data_folder import close_to_others
from tidings.local.parts import Part, answers, listens
from tidings.local.postgres import Postgres
from tidings.local.processes import Starting, free_port
from tidings.outgoing.settings import OutgoingSettings
from tidings.secrets.master_key import make_file

if TYPE_CHECKING:
    from tidings.local.redis import Redis

log = logging.getLogger(__name__)

PROJECT = "default"
_MASTER_KEY = "TIDINGS_SECRETS__MASTER_KEY_FILE"
_CLUSTER = "local"
_LOOPBACK = ("127.0.0.0/8", "::1/128")
_STOP_ORDER = (("api", "uploads-front"), ("stream",), ("files", "uploads", "inventory"), ("pubsub",))
"""Roles; those that stand together do not wait for each other."""
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 5.0


class Stack:
    """`data` holds everything that must survive; `port` is the S3 API's, 0 for any. With `consumers`, they are parts of it."""

    def __init__(
        self, data: Path, port: int = 0, on_progress: Callable[[str], None] = lambda _: None, consumers: bool = False
    ) -> None:
        self.data = data.resolve()
        self._ports = {"s3": port or free_port(), **{part: free_port() for part in ("grpc", "database", "pubsub", "metrics")}}
        self._progress = on_progress
        self._postgres = Postgres(self.data / "postgres", self._ports["database"])
        self._kafka_token = secrets.token_urlsafe(24)
        self._redis = self._own_redis()
        self._kafka = self._own_kafka()
        self.kafka = self.master_key = ""
        self.consumers = Consumers() if consumers else None
        self._parts: list[Part] = []
        self.credentials: dict[str, str] = {}

    def start(self) -> None:
        """Start every part; if one does not start, those before it are stopped again."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        if listens(self._ports["s3"]):
            raise OperatorError(f"Port {self._ports['s3']} is taken: choose another with --port; 0 takes any free one.")
        os.umask(0o077)  # for all that we and our children write
        self.data.mkdir(parents=True, exist_ok=True)
        self._claim_the_folder()
        for sentence in exposure.warnings(settings.load().api, self._outgoing):
            log.warning("%s", sentence)
        close_to_others(self.data)
        (self.data / "logs").mkdir(exist_ok=True)
        self._find_master_key()
        self._progress("PostgreSQL")
        self._postgres.start()
        if self._redis is not None:
            self._progress("Redis")
            self._redis.start()
        applied = migrate(self._postgres.url)
        for name in applied:
            log.info("migrated: %s", name)
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            if applied:
                audit.append(connection, audit.act_of_command("up", target=", ".join(applied)))
            make_ahead(connection, settings.load().changestream, datetime.now(UTC))
        self.credentials = self._default_key()
        if self._kafka is not None:
            self._progress("Kafka")
            self._kafka.start()
            self._find_brokers(self._kafka)
        self._parts = [self._pubsub(), self._api(), self._stream()]
        for part in self._parts:
            part.start()
        for part in self._parts:
            self._progress({"pubsub": "Pub/Sub", "api": "the S3 API", "stream": "Spark"}[part.role])
            self._wait(part)
        if self.consumers is not None:
            self._progress("the consumers")
            self._start_beside(self.consumers.parts(self.environment, self._log))

    def _start_beside(self, parts: list[Part]) -> None:
        """When the stream is there: until then they would only be in its way."""
        self._parts += parts
        for part in parts:
            part.start()
        for part in parts:
            self._wait(part)

    def _own_redis(self) -> Redis | None:
        """One of our own, if the settings ask for a cache and name none."""
        wanted = settings.load().bucket_eventing
        if wanted.lookup != "redis" or wanted.redis_url.get_secret_value():
            return None
        from tidings.local.redis import Redis

        return Redis(self.data / "redis", free_port())

    def _own_kafka(self) -> Part | None:
        """Brokers of our own, if tenants may send to Kafka and the settings name no cluster."""
        wanted = settings.load()
        if "kafka" not in wanted.bucket_eventing.destinations or wanted.kafka.clusters:
            return None
        from tidings.local.kafka import TOKEN_VARIABLE

        port = self._ports["kafka"] = free_port()
        command = [sys.executable, "-m", "tidings.local.kafka", "--port", str(port)]
        token = {TOKEN_VARIABLE: self._kafka_token}
        return Part("kafka", command, lambda: listens(port), self._log("kafka"), token)

    @property
    def _kafka_control(self) -> str:
        return f"{self._kafka_token}@127.0.0.1:{self._ports['kafka']}"

    def _find_brokers(self, part: Part) -> None:
        from tidings.local.kafka import ask

        self._wait(part)
        self.kafka = ask(self._kafka_control)["bootstrap"]
        if self.consumers is not None:
            with psycopg.connect(self._postgres.url) as connection:
                offsets.forget(connection, _CLUSTER)  # new brokers hold nothing of what was read from those before them

    def _claim_the_folder(self) -> None:
        """Two stacks over one folder would stop each other's database for ever. The claim ends with the process."""
        self._claim = (self.data / "in-use").open("w")
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OperatorError(f"{self.data} is in use by another `tidings up`: stop it, or choose another --data.") from None

    def _find_master_key(self) -> None:
        """The one that the settings name, or one of our own: beside the database, not in it."""
        if settings.load().secrets.is_given:
            return
        file = self.data / "master.key"
        if not file.exists():
            make_file(file)
        self.master_key = str(file)
        os.environ[_MASTER_KEY] = self.master_key  # for what we do ourselves in the database

    @property
    def environment(self) -> dict[str, str]:
        """The settings of every part, as environment variables."""
        return {
            "TIDINGS_DATABASE__URL": self._postgres.url,
            **({_MASTER_KEY: self.master_key} if self.master_key else {}),
            "TIDINGS_STORE__BLOBS": (self.data / "blobs").as_uri(),
            "TIDINGS_API__PORT": str(self._ports["s3"]),
            "TIDINGS_API__GRPC_PORT": str(self._ports["grpc"]),
            "TIDINGS_API__METRICS": "loopback" if (asked := settings.load().api.metrics) == "off" else asked,
            "TIDINGS_PUBSUB__EMULATOR_HOST": self.pubsub,
            "TIDINGS_DELIVERY__METRICS_PORT": str(self._ports["metrics"]),
            "TIDINGS_DELIVERY__ARCHIVE": settings.load().delivery.archive or (self.data / "archive").as_uri(),
            "TIDINGS_OUTGOING__ALLOW": json.dumps(self._outgoing.allow),
            "TIDINGS_OUTGOING__ALLOW_HTTP": json.dumps(self._outgoing.allow_http),
            "TIDINGS_OUTGOING__OWN_PROCESS": str(os.getpid()),
            "TIDINGS_BUCKET_EVENTING__PROJECTS": settings.load().bucket_eventing.projects or "*",
            **({"TIDINGS_BUCKET_EVENTING__REDIS_URL": self._redis.url} if self._redis is not None else {}),
            **({"TIDINGS_KAFKA__CLUSTERS": _local_cluster(self.kafka)} if self._kafka is not None else {}),
            **(self.consumers.environment(self.s3, self.credentials) if self.consumers is not None else {}),
        }

    @property
    def _outgoing(self) -> OutgoingSettings:
        """For trying things out: webhooks on this machine, unless the settings say who may be called. None of our own, but
        for that of the file registry."""
        given = settings.load().outgoing
        files = (self.consumers.files,) if self.consumers is not None else ()
        if given.allow:
            return given.model_copy(update={"allow": (*given.allow, *files)})
        return given.model_copy(update={"allow": (*_LOOPBACK, *files), "allow_http": True})

    @property
    def s3(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def pubsub(self) -> str:
        return f"127.0.0.1:{self._ports['pubsub']}"

    def _pubsub(self) -> Part:
        command = [sys.executable, "-m", "tidings.local.pubsub", "--port", str(self._ports["pubsub"])]
        return Part("pubsub", command, lambda: listens(self._ports["pubsub"]), self.data / "logs" / "pubsub.log")

    def _api(self) -> Part:
        command = [sys.executable, "-m", "tidings", "serve"]
        return Part("api", command, lambda: answers(f"{self.s3}/-/ready"), self._log("api"), self.environment)

    def _stream(self) -> Part:
        ready = self.data / "stream.ready"
        command = [sys.executable, "-m", "tidings", "stream", "--ready-file", str(ready)]
        # Whoever writes waits for an answer, an event does not: on one machine the stream leaves the processor to the API.
        return Part("stream", command, ready.exists, self._log("stream"), self.environment, steps_back=True, ready_file=ready)

    def _log(self, role: str) -> Path:
        return self.data / "logs" / f"{role}.log"

    def _default_key(self) -> dict[str, str]:
        """The key that is made with the data folder, kept there for the next start."""
        file = self.data / "credentials.json"
        if file.exists():
            kept: dict[str, str] = json.loads(file.read_text())
            return kept
        with psycopg.connect(self._postgres.url) as connection:
            project = find_project(connection, PROJECT) or create_project(connection, PROJECT)
            access_key_id, secret = create_key(connection, project)
            audit.append(connection, audit.act_of_command("up", project, access_key_id))
        made = {"project": project, "access_key_id": access_key_id, "secret_access_key": secret}
        partial = file.with_suffix(".new")
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(made))
        partial.rename(file)
        return made

    def _wait(self, part: Part) -> None:
        assert part.process is not None
        starting = Starting(part.process, _START_SECONDS)
        while not part.ready():
            if part.process.poll() is not None:
                raise OperatorError(f"{part.role} did not start: {part.last_words()}")
            if starting.is_stuck():
                raise OperatorError(f"{part.role} did nothing for {_START_SECONDS:g} s and is not ready: {part.last_words()}")
            time.sleep(_LOOK_SECONDS)
        part.settle()

    def last_words(self, role: str) -> str:
        return next(part for part in self._parts if part.role == role).last_words()

    def supervise(self, stopped: Callable[[], bool], ready_file: Path | None = None) -> None:
        """Until told to stop: start again what dies, and keep the ready file true."""
        self.write_ready_file(ready_file)
        while not stopped():
            if self._revive():
                self.write_ready_file(ready_file)
            for part in self._parts:
                part.settle()
            time.sleep(_LOOK_SECONDS)

    def _revive(self) -> bool:
        changed = False
        if self._postgres.process is not None and self._postgres.process.poll() is not None:
            log.warning("postgres died (%s): starting it again", self._postgres.process.returncode)
            changed = True
            try:
                self._postgres.start()
            except (OperatorError, psycopg.Error) as error:  # its old processes may still be ending
                log.warning("%s", error)
                time.sleep(1.0)
        if self._redis is not None and self._redis.process is not None and self._redis.process.poll() is not None:
            log.warning("redis died (%s): starting it again", self._redis.process.returncode)
            changed = True
            self._redis.start()
        if self._kafka is not None and self._kafka.process is not None and self._kafka.process.poll() is not None:
            changed = self._revive_kafka() or changed
        for part in self._parts:
            if part.process is not None and part.process.poll() is not None:
                changed = self._revive_part(part) or changed
        return changed

    def _revive_kafka(self) -> bool:
        """New brokers have other ports: those who know the old ones start again."""
        assert self._kafka is not None
        if not self._revive_part(self._kafka):
            return False
        for part in self._parts:
            if part.role == KNOWS_BROKERS:
                part.stop()  # before its positions are forgotten
        self._find_brokers(self._kafka)
        for part in self._parts:
            if part.role in ("api", "stream", KNOWS_BROKERS):
                part.stop()
                part.environment = self.environment
                part.start()
        return True

    def _revive_part(self, part: Part) -> bool:
        """Start a part again, later and later if it keeps dying soon after its start."""
        assert part.process is not None
        lived = time.monotonic() - part.started_at
        part.failures = 0 if lived > 2 * _MAX_BACKOFF_SECONDS else part.failures
        if lived < min(0.2 * 2**part.failures, _MAX_BACKOFF_SECONDS):
            return False
        fields = {"part": part.role, "status": part.process.returncode}
        log.warning("%s died (%s): starting it again", part.role, part.process.returncode, extra=fields)
        part.failures += 1
        part.start()
        return True

    def ready(self) -> dict[str, Any]:
        """What scripts need to use this stack."""
        redis = {"redis": self._redis.pid} if self._redis is not None else {}
        kafka = {"kafka": self.kafka, "kafka_faults": self._kafka_control} if self._kafka is not None else {}
        parts = [*self._parts, *([self._kafka] if self._kafka is not None else [])]
        pids = {part.role: part.process.pid for part in parts if part.process is not None}
        return {
            "s3": self.s3,
            "grpc": f"127.0.0.1:{self._ports['grpc']}",
            "pubsub": self.pubsub,
            "metrics": f"http://127.0.0.1:{self._ports['metrics']}/metrics",
            **kafka,
            **(self.consumers.urls if self.consumers is not None else {}),
            "database": self._postgres.url,
            **({"master_key_file": self.master_key} if self.master_key else {}),
            **self.credentials,
            "region": settings.load().api.region,
            "pids": {"up": os.getpid(), "postgres": self._postgres.pid, **pids, **redis},
        }

    def write_ready_file(self, file: Path | None) -> None:
        if file is None:
            return
        partial = file.with_name(file.name + ".new")
        partial.touch(mode=0o600)  # it holds a secret
        partial.write_text(json.dumps(self.ready(), indent=2) + "\n")
        partial.rename(file)

    def stop(self) -> None:
        """In the order of the path: nobody writes, then nothing is read, then the database ends."""
        for roles in _STOP_ORDER:
            going = [part for part in self._parts if part.role in roles]
            with ThreadPoolExecutor(len(roles)) as pool:
                list(pool.map(Part.stop, going))
        if self._kafka is not None:
            self._kafka.stop()
        if self._redis is not None:
            self._redis.stop()
        self._postgres.stop()
        if self.master_key and os.environ.get(_MASTER_KEY) == self.master_key:
            del os.environ[_MASTER_KEY]


def _local_cluster(bootstrap: str) -> str:
    """As the setting `kafka.clusters` has it: one cluster, `local`, every topic of it for everybody."""
    return json.dumps({_CLUSTER: {"bootstrap": bootstrap, "topics": {"": ["*"]}}})
