"""The real parts, started by the tests themselves and shared where sharing is safe."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import canary
import cluster
from tidings.db.migrate import migrate
from tidings.local.postgres import Postgres
from tidings.local.processes import free_port
from waiting import until_started

# The tests start some twenty JVMs, each for a minute or two: the second compiler and a collector with threads of its own would
# cost more than they ever gain.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Of every database in the tests. A stack that is to make its own is started without it.
os.environ.setdefault("TIDINGS_SECRETS__MASTER_KEY", base64.b64encode(os.urandom(32)).decode())

# pytest closes the folder of its temporary folders to other users whenever it starts. As root, that takes the databases of
# another run from under PostgreSQL, which is another user. So each checkout has such a folder of its own.
_temporary = Path(tempfile.gettempdir()) / f"tidings-tests-{zlib.crc32(os.fsencode(__file__)):08x}"
_temporary.mkdir(exist_ok=True)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_temporary))

_numbers = count(1)

_SHARING = (
    *("test_commands", "test_clients", "test_bad_input", "test_operating", "test_unread_rules", "test_configuration_race"),
    *("test_sns_stack", "test_traces", "test_own_machine", "test_down"),
)
"""Files whose tests share the fixture `stack`. It ends behind the last of them: idle, it takes a tenth of a core."""

_STACKS = (
    *("test_kill", "test_log_lines", "test_second_stream", *_SHARING, "test_kafka_stack", "test_cluster", "test_isolation"),
    *("test_catalog_stack", "test_circle", "test_faults", "test_backfill_stack", "test_demo", "test_up_consumers"),
    "test_sick_redis",
)
"""Files whose tests have whole stacks, in this order: `make test` runs them one after another in one process, the rest beside
them in two others, for much of their time is waiting. The last ones look at the clock, when the other processes are through."""


@pytest.hookimpl(tryfirst=True)  # before xdist looks for the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return _STACKS.index(item.path.stem) if item.path.stem in _STACKS else len(_STACKS)

    items.sort(key=place)
    for item in items:
        group = "stack" if item.path.stem in _STACKS else "spark" if "spark" in item.fixturenames else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    if cluster.wanted():
        others = [item for item in items if item.path.stem not in _STACKS and "spark" not in item.fixturenames]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without the groups, stacks would start in both processes and each would disturb what the other measures."""
    if os.environ.get("PYTEST_XDIST_WORKER") and session.items and "@" not in session.items[0].nodeid:
        pytest.exit("xdist does not see the groups of tests: use the versions in constraints.txt, and --dist loadgroup", 3)


Say = Callable[[str], None]


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Say:
    """Print a line when all tests have run: what was measured, and the seed."""
    return lambda line: record_property("said", line)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, line in getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ():
                if name == "said":
                    terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {line}")


@pytest.fixture(scope="session", autouse=True)
def _noting(tmp_path_factory: pytest.TempPathFactory) -> None:
    canary.begin(tmp_path_factory.mktemp("canary"))
    cluster.begin(tmp_path_factory.mktemp("cluster"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """When all processes are through: what was kept secret has come out nowhere, or the run has failed."""
    cluster.stop()
    if os.environ.get("PYTEST_XDIST_WORKER") or session.config.option.collectonly:
        return
    planted, found = canary.leaks(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"\ncanary: {planted} private ids and secrets looked for in every output, {len(found)} found")
    for leak in found:
        reporter.write_line(f"canary: {leak}", red=True)
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One embedded server for the whole run."""
    server = Postgres(tmp_path_factory.mktemp("postgres"), free_port())
    server.start()
    yield server
    server.stop()


def fresh_database(postgres: Postgres, name: str) -> str:
    """A migrated, empty database; one of that name is dropped first. Returns its URL."""
    server = postgres.url.removesuffix("/tidings")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        if not connection.execute("select from pg_database where datname = 'template'").rowcount:
            connection.execute("create database template")
            migrate(f"{server}/template")
        connection.execute(f"drop database if exists {name} with (force)".encode())
        connection.execute(f"create database {name} template template".encode())
    return f"{server}/{name}"


@pytest.fixture
def database_url(postgres: Postgres) -> str:
    """A database of the test's own."""
    return fresh_database(postgres, f"test_{next(_numbers)}")


@pytest.fixture
def database(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to `database_url`, in autocommit."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def spark(postgres: Postgres) -> Iterator[SparkSession]:
    """One session for the whole run, made as the stream makes its own. Its workers know the database `spark_test`."""
    from tidings import settings
    from tidings.delivery import session

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TIDINGS_DATABASE__URL", postgres.url.removesuffix("/tidings") + "/spark_test")
        for name, value in cluster.environment().items():
            environment.setenv(name, value)
        running = session.start(settings.load())
    yield running
    running.stop()


@pytest.fixture
def spark_database(spark: SparkSession, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """The database that Spark's workers read, empty."""
    assert spark.version
    url = fresh_database(postgres, "spark_test")
    monkeypatch.setenv("TIDINGS_DATABASE__URL", url)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


class Running:
    """A stack started with `tidings up`, as a user would, and what its ready file says."""

    def __init__(self, process: subprocess.Popen[bytes], ready_file: Path, data: Path) -> None:
        self.process = process
        self.data = data
        self._ready_file = ready_file

    @property
    def ready(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._ready_file.read_text())
        return values

    def pid(self, role: str) -> int:
        return int(self.ready["pids"][role])

    def kill(self, role: str, how: signal.Signals = signal.SIGKILL) -> int:
        pid = self.pid(role)
        os.kill(pid, how)
        return pid

    def s3(self) -> Any:
        import boto3
        from botocore.config import Config

        client = boto3.client(
            "s3",
            endpoint_url=self.ready["s3"],
            region_name=self.ready["region"],
            aws_access_key_id=self.ready["access_key_id"],
            aws_secret_access_key=self.ready["secret_access_key"],
            config=Config(retries={"max_attempts": 10, "mode": "standard"}, max_pool_connections=50),
        )
        return canary.watched(client)


@contextmanager
def running_stack(folder: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    """`tidings up` on any free port, its data in `folder`."""
    ready_file = folder / "ready.json"
    command = [sys.executable, "-m", "tidings", "up", "--data", str(folder / "data"), "--port", "0", *arguments]
    log = folder / "up.log"
    with log.open("wb") as out:
        settings = {**os.environ, **cluster.environment(), **_without_kafka(environment), **environment}
        process = subprocess.Popen([*command, "--ready-file", str(ready_file)], stdout=out, stderr=out, env=settings)
    try:
        until_started(process, ready_file.exists, log.read_text)
        running = Running(process, ready_file, folder / "data")
        database = running.ready["database"]
        master_key_file = running.ready.get("master_key_file")
        canary.plant(database, master_key_file)
        yield running
        canary.plant(database, master_key_file)
    finally:
        process.terminate()
        process.wait(120)


def _without_kafka(environment: dict[str, str]) -> dict[str, str]:
    """Brokers are started only where a test asks for them; the seed's profile has Pub/Sub alone."""
    kinds = '["pubsub", "sns", "queue", "log"]'
    return (
        {}
        if environment.get("TIDINGS_BUCKET_EVENTING__PROFILE") == "storj"
        else {"TIDINGS_BUCKET_EVENTING__DESTINATIONS": kinds}
    )


_shared = ExitStack()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One stack for every test that breaks nothing. Its folder is one that others could read, as earlier versions made it."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "data" / "blobs").mkdir(parents=True)
    for path in (folder / "data", folder / "data" / "blobs"):
        path.chmod(0o755)
    yield _shared.enter_context(running_stack(folder))
    _shared.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if item.path.stem in _SHARING and (nextitem is None or nextitem.path.stem not in _SHARING):
        _shared.close()
