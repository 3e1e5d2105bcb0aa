"""The command line: `tidings --help`."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tidings import settings as settings_module
from tidings.errors import OperatorError

if TYPE_CHECKING:
    from psycopg import Connection

    from tidings.delivery.ownership import Owner
    from tidings.delivery.stream import Stream

app = typer.Typer(
    help="Every change of a bucket reaches its destination: at least once, in order per key, through Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
project_app = typer.Typer(help="Tenants.", no_args_is_help=True)
access_app = typer.Typer(help="Keys for the S3 API.", no_args_is_help=True)
app.add_typer(project_app, name="project")
bucket_app = typer.Typer(help="Buckets, beyond what the S3 API offers.", no_args_is_help=True)
app.add_typer(bucket_app, name="bucket")
topic_app = typer.Typer(help="Topics of the embedded Pub/Sub, for trying things out.", no_args_is_help=True)
app.add_typer(access_app, name="access")
app.add_typer(topic_app, name="topic")

# What is printed is data: rich must not read a meaning into its brackets and colons. In a pipe nothing is cut off.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, width=None if sys.stdout.isatty() else 1000)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def main() -> None:
    try:
        app()
    except OperatorError as error:
        err.print(f"tidings: {error}", style="red")
        sys.exit(2)


@contextmanager
def database() -> Iterator[Connection]:
    """A connection for one command."""
    from psycopg.errors import UndefinedTable

    from tidings import bootstrap

    with bootstrap.connect(settings_module.load()) as connection:
        try:
            yield connection
        except UndefinedTable:
            raise OperatorError("The database has no tables of Tidings yet: run `tidings migrate` first.") from None


def stop_on_signals(event: threading.Event) -> None:
    """SIGINT and SIGTERM set the event; a second one kills as usual."""

    def handle(number: int, _frame: Any) -> None:
        event.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="The folder for everything that must survive.")] = Path("data"),
    port: Annotated[int, typer.Option(help="The port of the S3 API; 0 takes any free one.", min=0, max=65535)] = 9000,
    ready_file: Annotated[Path | None, typer.Option(help="Write endpoints, keys and process ids here when ready.")] = None,
) -> None:
    """Start everything on this machine, and start again what dies. Ctrl-C stops it."""
    from tidings import bootstrap
    from tidings.delivery.session import check_java
    from tidings.local.stack import Stack

    check_java()
    bootstrap.log_to_stderr()
    stop = threading.Event()
    stop_on_signals(stop)
    with err.status("starting") as status:
        stack = Stack(data, port, lambda part: status.update(f"starting {part}"))
        stack.start()
    try:
        out.print(how_to_use(stack.ready()))
        stack.supervise(stop.is_set, ready_file)
    finally:
        with err.status("stopping"):
            stack.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    err.print("stopped; the data is in " + str(data))


def how_to_use(ready: dict[str, Any]) -> str:
    """What to copy and paste to see a first event."""
    topic = "projects/my-project/topics/my-events"
    return f"""\
Tidings is ready: S3 at {ready["s3"]}, Pub/Sub at {ready["pubsub"]}. Ctrl-C stops it.

Copy and paste into another terminal, in the project's folder:

  . .venv/bin/activate
  export AWS_ENDPOINT_URL={ready["s3"]} AWS_DEFAULT_REGION={ready["region"]}
  export AWS_ACCESS_KEY_ID={ready["access_key_id"]}
  export AWS_SECRET_ACCESS_KEY={ready["secret_access_key"]}
  export PUBSUB_EMULATOR_HOST={ready["pubsub"]}

  tidings topic create {topic}
  aws s3api create-bucket --bucket my-bucket
  aws s3api put-bucket-notification-configuration --bucket my-bucket --notification-configuration \\
    '{{"TopicConfigurations": [{{"TopicArn": "arn:gcp:pubsub::my-project:my-events", "Events": ["s3:ObjectCreated:*"]}}]}}'
  echo hello | aws s3 cp - s3://my-bucket/hello.txt
  tidings topic read {topic}
"""


@app.command()
def serve() -> None:
    """Serve the S3 API. Needs a database: see `tidings settings`."""
    from tidings.api.server import serve as serve_api

    serve_api(settings_module.load())


@app.command()
def stream(
    rebase: Annotated[bool, typer.Option(help="Go on after the database was restored or failed over.")] = False,
    ready_file: Annotated[Path | None, typer.Option(help="Write the epoch and the position here when active.")] = None,
) -> None:
    """Deliver changes with Spark. A second stream on the same database waits for the first to end."""
    from tidings import bootstrap

    settings = settings_module.load()
    bootstrap.log_to_stderr()
    stop = threading.Event()
    stop_on_signals(stop)

    def made(running: Stream) -> None:
        def end() -> None:
            stop.wait()
            running.stop()

        threading.Thread(target=end, daemon=True).start()

    def started(owner: Owner) -> None:
        if ready_file is not None:
            ready_file.write_text(json.dumps({"epoch": owner.epoch, "position": owner.position}))

    bootstrap.run_stream(settings, rebase, made, started)


@app.command()
def migrate() -> None:
    """Bring the database up to date."""
    from datetime import UTC, datetime

    import psycopg

    from tidings import bootstrap
    from tidings.changestream.retention import make_ahead
    from tidings.db.migrate import migrate as migrate_database

    effective = settings_module.load()
    bootstrap.connect(effective).close()  # one sentence if it does not answer
    applied = migrate_database(effective.database_url)
    with psycopg.connect(effective.database_url, autocommit=True) as connection:
        make_ahead(connection, effective.changestream, datetime.now(UTC))
    for name in applied:
        out.print(f"applied {name}")
    out.print(f"{len(applied)} migrations applied" if applied else "nothing to do: the database is up to date")


@project_app.command("create")
def project_create(name: str, as_json: AsJson = False) -> None:
    """Create a project; prints its public id."""
    from tidings.access.projects import create_project

    with database() as connection:
        public_id = create_project(connection, name)
    out.print(json.dumps({"project": public_id, "name": name}) if as_json else f"project {name}: {public_id}")


@access_app.command("create")
def access_create(
    project: Annotated[str, typer.Option(help="The project's public id, or its name.")], as_json: AsJson = False
) -> None:
    """Create an access key for a project; the secret is shown only now."""
    from tidings.access.keys import create_key
    from tidings.access.projects import find_project

    with database() as connection:
        access_key_id, secret = create_key(connection, find_project(connection, project) or project)
    if as_json:
        out.print(json.dumps({"access_key_id": access_key_id, "secret_access_key": secret}))
    else:
        out.print(f"access key id      {access_key_id}\nsecret access key  {secret}")


@topic_app.command("create")
def topic_create(topic: Annotated[str, typer.Argument(help="projects/PROJECT/topics/TOPIC")]) -> None:
    """Create a topic, with a subscription that `tidings topic read` reads."""
    from tidings.local import topics

    out.print(f"topic {topics.create(topic)}")


@topic_app.command("read")
def topic_read(
    topic: Annotated[str, typer.Argument(help="projects/PROJECT/topics/TOPIC")],
    seconds: Annotated[float, typer.Option(help="How long to wait for messages.")] = 5.0,
) -> None:
    """Print the messages that have arrived at a topic, and acknowledge them."""
    from tidings.local import topics

    count = 0
    for body in topics.read(topic, seconds):
        out.print(body)
        count += 1
    err.print(f"{count} messages")


Project = Annotated[str, typer.Option("--project", help="The project's name or public id.")]


@bucket_app.command("empty")
def bucket_empty(name: str, project: Project, as_json: AsJson = False) -> None:
    """Remove every version of every object. Each removal is a change, and reaches who asked for it."""
    from tidings import bootstrap

    removed = bootstrap.empty_bucket(settings_module.load(), project, name, _counting("removed"))
    _say(as_json, {"bucket": name, "keys": removed}, f"bucket {name} is empty: {removed} keys removed with all their versions")


@bucket_app.command("delete")
def bucket_delete(
    name: str,
    project: Project,
    force: Annotated[bool, typer.Option(help="Empty it first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a bucket."""
    from tidings import bootstrap

    removed = bootstrap.delete_bucket(settings_module.load(), project, name, force, _counting("removed"))
    _say(as_json, {"bucket": name, "keys": removed}, f"bucket {name} is deleted, with {removed} keys")


@app.command()
def sweep(
    min_age_minutes: Annotated[float, typer.Option(help="Leave younger blobs alone. Less than 60 is not safe.", min=0)] = 360,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="The blobs were another database's, and this one has taken its place.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove blobs that nothing refers to, and end multipart uploads that were abandoned. `serve` does it regularly."""
    from tidings import bootstrap

    done = bootstrap.sweep(settings_module.load(), min_age_minutes, adopt, _counting("looked at"))
    words = f"{done.seen} blobs looked at, {done.removed} orphans and {done.expired_parts} parts of old uploads removed"
    _say(as_json, {"seen": done.seen, "removed": done.removed, "expired_parts": done.expired_parts}, words)


def _counting(what: str) -> Callable[[int], None]:
    """Progress for long work, for a person at a terminal."""

    def show(number: int) -> None:
        if sys.stderr.isatty():
            err.print(f"\r{number} {what}", end="")

    return show


def _say(as_json: bool, values: dict[str, Any], words: str) -> None:
    out.print(json.dumps(values) if as_json else words)


@app.command()
def lanes(as_json: AsJson = False) -> None:
    """Show how far each destination has got."""
    from tidings.delivery import lanes as lanes_table

    with database() as connection:
        listed = lanes_table.listed(connection)
    if as_json:
        out.print(json.dumps(listed, default=str))
        return
    table = Table("lane", "destination", "state", "cursor", "owed", "tries", "error", box=None)
    for lane in listed:
        cells = (lane["id"], lane["destination"], lane["state"], lane["cursor"], lane["owed"], lane["attempts"])
        table.add_row(*map(str, cells), lane["error"] or "")
    out.print(table if listed else "no lanes: no bucket has a notification configuration yet")


@app.command()
def settings(as_json: AsJson = False) -> None:
    """Print the effective settings, secrets masked, each with what it means."""
    effective = settings_module.load()
    values = settings_module.masked(effective)
    if as_json:
        out.print(json.dumps(values, indent=2, default=str))
        return
    table = Table("setting", "value", "meaning", box=None)
    for section, inner in values.items():
        fields = type(getattr(effective, section)).model_fields
        for name, value in inner.items():
            table.add_row(f"TIDINGS_{section}__{name}".upper(), str(value), fields[name].description or "")
    out.print(table)


@app.command()
def demo() -> None:
    """The whole path once: an S3 call, the change stream, Spark, Pub/Sub. Leaves nothing behind."""
    from tidings.delivery.session import check_java
    from tidings.local.demo import run

    check_java()
    sys.exit(run(err, out))
