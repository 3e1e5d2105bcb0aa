"""The command line: `tidings --help`."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tidings import log
from tidings import settings as settings_module
from tidings.errors import OperatorError

if TYPE_CHECKING:
    from psycopg import Connection

    from tidings.access.api_keys import Access, Known
    from tidings.access.macaroons import Caveat
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
        if log.is_json():
            logging.getLogger("tidings").critical("%s", error)
        else:
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
    from tidings.delivery.session import check_java
    from tidings.local.stack import Stack

    log.to_stderr(settings_module.load())
    check_java()
    stop = threading.Event()
    stop_on_signals(stop)
    with err.status("starting") as status:
        stack = Stack(data, port, lambda part: status.update(f"starting {part}"))
        stack.start()
    try:
        ready = stack.ready()
        if log.is_json():
            logging.getLogger("tidings").info("ready", extra={name: ready[name] for name in ("s3", "pubsub", "pids")})
        else:
            out.print(how_to_use(ready))
        stack.supervise(stop.is_set, ready_file)
    finally:
        with err.status("stopping"):
            stack.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    if log.is_json():
        logging.getLogger("tidings").info("stopped", extra={"data": str(data)})
    else:
        err.print("stopped; the data is in " + str(data))


def how_to_use(ready: dict[str, Any]) -> str:
    """What to copy and paste to see a first event."""
    topic = "projects/my-project/topics/my-events"
    return f"""\
Tidings is ready: S3 at {ready["s3"]}, gRPC at {ready["grpc"]}, Pub/Sub at {ready["pubsub"]}. Ctrl-C stops it.

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
    """Serve the S3 API, and gRPC where it has a port. Needs a database: see `tidings settings`."""
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
    log.to_stderr(settings)
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


Key = Annotated[str, typer.Argument(help="An API key, or the access key id that stands for it.")]
Actions = Annotated[list[str] | None, typer.Option("--action", help="Only this; again for more. Default: everything.")]
Buckets = Annotated[list[str] | None, typer.Option("--bucket", help="Only in this bucket; again for more.")]
Prefixes = Annotated[list[str] | None, typer.Option("--prefix", help="Only below BUCKET/PREFIX; again for more.")]
NotBefore = Annotated[datetime | None, typer.Option(help="Not before this time (UTC).")]
NotAfter = Annotated[datetime | None, typer.Option(help="Not after this time (UTC).")]


def _limit(
    actions: list[str] | None,
    buckets: list[str] | None,
    prefixes: list[str] | None,
    not_before: datetime | None,
    not_after: datetime | None,
) -> Caveat:
    from tidings.access.macaroons import Caveat

    def seconds(moment: datetime | None) -> int | None:
        return None if moment is None else int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())

    pairs = [tuple(each.partition("/")[::2]) for each in prefixes or ()]
    return Caveat(
        frozenset(actions) if actions else None,
        frozenset(buckets) if buckets else None,
        frozenset((bucket, prefix) for bucket, prefix in pairs) if pairs else None,
        seconds(not_before),
        seconds(not_after),
    )


@access_app.command("create")
def access_create(
    project: Annotated[str, typer.Option(help="The project's public id, or its name.")],
    action: Actions = None,
    bucket: Buckets = None,
    prefix: Prefixes = None,
    not_before: NotBefore = None,
    not_after: NotAfter = None,
    as_json: AsJson = False,
) -> None:
    """Create a key for a project, in two forms: an API key, and an access key for S3. The secret is shown only now."""
    from tidings.access import api_keys
    from tidings.access.permissions import ACTIONS
    from tidings.access.projects import find_project

    limit = _limit(None, bucket, prefix, not_before, not_after)
    with database() as connection:
        made = api_keys.create(connection, find_project(connection, project) or project, action or ACTIONS, limit)
    _show_access(made, as_json)


@access_app.command("restrict")
def access_restrict(
    key: Key,
    action: Actions = None,
    bucket: Buckets = None,
    prefix: Prefixes = None,
    not_before: NotBefore = None,
    not_after: NotAfter = None,
    as_json: AsJson = False,
) -> None:
    """Make a narrower key of a key. When the key is revoked, so is what was made of it."""
    from tidings.access import api_keys
    from tidings.access.macaroons import Caveat

    limit = _limit(action, bucket, prefix, not_before, not_after)
    if limit == Caveat():
        raise OperatorError("Say what the new key is limited to: --action, --bucket, --prefix, --not-before, --not-after.")
    with database() as connection:
        made = api_keys.restrict(connection, key, limit)
    _show_access(made, as_json)


def _show_access(made: Access, as_json: bool) -> None:
    values = {"access_key_id": made.access_key_id, "secret_access_key": made.secret, "api_key": made.api_key}
    lines = f"access key id      {made.access_key_id}\nsecret access key  {made.secret}\napi key            {made.api_key}"
    _say(as_json, values, lines)


@access_app.command("inspect")
def access_inspect(key: Key, as_json: AsJson = False) -> None:
    """Show what a key may do, and whether it was revoked."""
    from tidings.access import api_keys

    with database() as connection:
        known = api_keys.inspect(connection, key)
    _say(as_json, _described(known), "\n".join(f"{name:14} {value}" for name, value in _described(known).items()))


@access_app.command("revoke")
def access_revoke(key: Key, as_json: AsJson = False) -> None:
    """End a key and every key that was made of it, within five seconds."""
    from tidings.access import api_keys

    with database() as connection:
        api_keys.revoke(connection, key)
    _say(
        as_json,
        {"revoked": True},
        "revoked, with every key that was made of it; known to all servers in five seconds",
    )


@access_app.command("list")
def access_list(
    project: Annotated[str, typer.Option(help="The project's public id, or its name.")], as_json: AsJson = False
) -> None:
    """List a project's keys and what they may do."""
    from tidings.access import api_keys
    from tidings.access.projects import find_project

    with database() as connection:
        found = [_described(each) for each in api_keys.listed(connection, find_project(connection, project) or project)]
    if as_json:
        out.print(json.dumps(found))
    for each in [] if as_json else found:
        limits = "; ".join(each["limits"]) or "no limits"
        out.print(f"{each['access_key_id']}  {', '.join(each['actions'])}; {limits}{'; REVOKED' if each['revoked'] else ''}")
    err.print(f"{len(found)} keys")


def _described(known: Known) -> dict[str, Any]:
    return {
        "access_key_id": known.access_key_id,
        "project": known.project,
        "actions": known.actions,
        "limits": [caveat.encode().decode() for caveat in known.caveats],
        "revoked": known.revoked,
        "created_at": known.created_at.isoformat(),
    }


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
