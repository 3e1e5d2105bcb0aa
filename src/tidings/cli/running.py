"""Commands that run Tidings: `up`, `serve`, `stream`, `migrate`, `demo`."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings import log
from tidings import settings as settings_module
from tidings.cli.acts import audited
from tidings.cli.printing import err, out

if TYPE_CHECKING:
    from tidings.delivery.ownership import Owner
    from tidings.delivery.stream import Stream

_LOGGED = ("s3", "grpc", "pubsub", "kafka", "files", "uploads", "pids")
"""Of what a stack says when it is ready: no secrets."""


def stop_on_signals(event: threading.Event) -> None:
    """SIGINT and SIGTERM set the event; a second one kills as usual."""

    def handle(number: int, _frame: Any) -> None:
        event.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def up(
    data: Annotated[Path, typer.Option(help="The folder for everything that must survive.")] = Path("data"),
    port: Annotated[int, typer.Option(help="The port of the S3 API; 0 takes any free one.", min=0, max=65535)] = 9000,
    ready_file: Annotated[Path | None, typer.Option(help="Write endpoints, keys and process ids here when ready.")] = None,
    consumers: Annotated[
        bool, typer.Option("--consumers", help="Beside it the registries of files and uploads, and the inventory.")
    ] = False,
) -> None:
    """Start everything on this machine, and start again what dies. Ctrl-C stops it."""
    from tidings.delivery.session import check_java
    from tidings.local.stack import Stack

    log.to_stderr(settings_module.load())
    check_java()
    stop = threading.Event()
    stop_on_signals(stop)
    with err.status("starting") as status:
        stack = Stack(data, port, lambda part: status.update(f"starting {part}"), consumers)
        stack.start()
    try:
        ready = stack.ready()
        if log.is_json():
            logging.getLogger("tidings").info("ready", extra={name: ready[name] for name in _LOGGED if name in ready})
        else:
            out.print(how_to_use(ready) + (how_to_use_consumers(ready) if consumers else ""))
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
    kafka = f", Kafka at {ready['kafka']} (arn:tidings:kafka::local:TOPIC)" if "kafka" in ready else ""
    return f"""\
Tidings is ready: S3 at {ready["s3"]}, gRPC at {ready["grpc"]}, Pub/Sub at {ready["pubsub"]}{kafka}. Ctrl-C stops it.

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


def how_to_use_consumers(ready: dict[str, Any]) -> str:
    """What to copy and paste after that, so that the three consumers have something to hear of."""
    from tidings.local.consumers import FILES_BUCKET, FILES_TOPIC, files_topic, inventory_topic

    topic = files_topic(ready["project"]).arn
    file = ready.get("master_key_file")
    master_key = f"\n  export TIDINGS_SECRETS__MASTER_KEY_FILE='{file}'" if file else ""
    return f"""
Beside it: the inventory of what is sent to {inventory_topic().arn}; the registry of files in {FILES_BUCKET}, which the
topic {FILES_TOPIC} tells of at {ready["files"]}; the upload registry, at {ready["uploads"]}.
In the same terminal, with a second or two for an event to arrive:

  export TIDINGS_DATABASE__URL='{ready["database"]}'{master_key}
  rule() {{ aws s3api put-bucket-notification-configuration --bucket "$1" --notification-configuration \\
    '{{"TopicConfigurations": [{{"Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"], "TopicArn": "'"$2"'"}}]}}'; }}

  aws s3api create-bucket --bucket my-stock
  rule my-stock {inventory_topic().arn}
  echo bolt | aws s3 cp - s3://my-stock/bolt.txt
  tidings inventory list my-stock

  aws sns create-topic --name {FILES_TOPIC}
  aws sns subscribe --topic-arn {topic} --protocol http --notification-endpoint {ready["files"]}
  aws s3api create-bucket --bucket {FILES_BUCKET}
  rule {FILES_BUCKET} {topic}

  export TIDINGS_UPLOADS__ENDPOINT=$AWS_ENDPOINT_URL
  export TIDINGS_UPLOADS__ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID TIDINGS_UPLOADS__SECRET=$AWS_SECRET_ACCESS_KEY
  tidings uploads init
  API_KEY=$(tidings access create --project {ready["project"]} --json | sed -E 's/.*"api_key": "([^"]+)".*/\\1/')
  echo hello | curl -H "Authorization: Bearer $API_KEY" -F name=hello -F file=@- {ready["uploads"]}
"""


def serve() -> None:
    """Serve the S3 API, and gRPC where it has a port. Needs a database: see `tidings settings`."""
    from tidings.api.server import serve as serve_api

    serve_api(settings_module.load())


@audited("stream --rebase", when="rebase")
def stream(
    rebase: Annotated[bool, typer.Option(help="Go on after the database was restored or failed over.")] = False,
    ready_file: Annotated[Path | None, typer.Option(help="Write the epoch and the position here when active.")] = None,
) -> None:
    """Deliver changes with Spark. A second stream on the same database waits for the first to end."""
    from tidings import audit, bootstrap

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
    audit.only_looked()  # what a rebase changes is written down with it


@audited("migrate")
def migrate() -> None:
    """Bring the database up to date."""
    import psycopg

    from tidings import audit, bootstrap
    from tidings.changestream.retention import make_ahead
    from tidings.db.migrate import migrate as migrate_database

    effective = settings_module.load()
    bootstrap.connect(effective).close()  # one sentence if it does not answer
    applied = migrate_database(effective.database_url)
    audit.about(", ".join(applied)) if applied else audit.only_looked()
    with psycopg.connect(effective.database_url, autocommit=True) as connection:
        make_ahead(connection, effective.changestream, datetime.now(UTC))
    for name in applied:
        out.print(f"applied {name}")
    out.print(f"{len(applied)} migrations applied" if applied else "nothing to do: the database is up to date")


def demo() -> None:
    """The whole path once: an S3 call, Spark, Pub/Sub; then a row in each of three registries. Leaves nothing behind."""
    from tidings.delivery.session import check_java
    from tidings.local.circle import check_aws
    from tidings.local.demo import run

    check_java()
    check_aws()
    sys.exit(run(err, out))
