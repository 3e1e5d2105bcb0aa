"""The stack with every consumer as a process of its own: what it holds, what is under way in it, and how it is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import httpx
import psycopg
from circle_parts import Kept, kill_tree, lag
from circle_writers import Bucket

import canary
import cluster
from conftest import Running, running_stack
from files_registry import add_atlas
from flight import ask, position
from tidings.access import api_keys
from tidings.delivery import overview
from tidings.local import kafka
from tidings.local.processes import free_port
from traffic import tidings
from waiting import until

TOPIC = "circle"
PARTITIONS = 4
UPLOADS, QUEUE = "uploads", "r2-upload-notifications"
FOLDERS = ("gut/gut-v1/source-datasets", "gut/gut-v1/integrated-objects", "eye/retina-v1-1/manifests")
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
OURS = ("api", "stream", "postgres")
"""Kept by the stack; the others by the test."""
PROGRESS = {
    "inventory": "select sum(next_offset) from inventory_offsets",
    "files": "select count(*) from hat.messages",
    "uploads": "select max(created_at) from upload_registry",
}
BUSY_SECONDS = 20.0
DRAIN_SECONDS = 600.0


@dataclass(frozen=True)
class Form:
    operations: int
    kills: int
    """In turns, of the processes in an order that chance decides."""
    keys: int
    """Of each bucket."""
    pause: tuple[float, float]
    """Seconds between two kills."""
    pace: float
    """Seconds between two operations of a writer."""
    visibility: int
    """Seconds after which a message that its receiver has not acknowledged comes again."""
    withheld: int
    """Operations without a rule."""


class Version(NamedTuple):
    """Of an object, as a listing or a registry has it. None: a registry does not say."""

    latest: bool | None
    marker: bool
    etag: str | None
    size: int | None


Versions = dict[tuple[str, str], Version]
"""By key and version id."""


@dataclass
class Circle:
    stack: Running
    form: Form
    environment: dict[str, str]
    api_key: str
    front: str
    kept: dict[str, Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keys = [f"folder {number % 3}/ß {number:03}" for number in range(self.form.keys)]
        names = [f"{FOLDERS[number % 3]}/file {number:03}.h5ad" for number in range(self.form.keys)]
        both = ("Enabled", "Suspended")
        self.plain = [Bucket("never-versioned", keys), Bucket("versioned", keys), Bucket("suspended", keys)]
        self.toggled = Bucket("toggled", keys, both)
        self.files = [Bucket("files-never-versioned", names), Bucket("files-toggled", names, both)]

    @property
    def url(self) -> str:
        return str(self.stack.ready["database"])

    @property
    def inventory(self) -> list[Bucket]:
        return [*self.plain, self.toggled]

    def client(self, service: str) -> Any:
        ready = self.stack.ready
        keys = {"aws_access_key_id": ready["access_key_id"], "aws_secret_access_key": ready["secret_access_key"]}
        return boto3.client(service, endpoint_url=ready["s3"], region_name=ready["region"], **keys)

    # What there is: in the store, and in the registries.

    def listing(self, bucket: str) -> Versions:
        found: Versions = {}
        for page in self.stack.s3().get_paginator("list_object_versions").paginate(Bucket=bucket):
            for each in page.get("Versions", []):
                version = Version(each["IsLatest"], False, each["ETag"].strip('"'), each["Size"])
                found[each["Key"], each["VersionId"]] = version
            for each in page.get("DeleteMarkers", []):
                found[each["Key"], each["VersionId"]] = Version(each["IsLatest"], True, None, None)
        return found

    def in_inventory(self, bucket: str) -> Versions:
        columns = "key, version_id, is_latest, delete_marker, etag, case when not delete_marker then size end"
        rows = ask(self.url, f"select {columns} from inventory_versions where bucket = %s", [bucket])
        found = {(key, version): Version(*rest) for key, version, *rest in rows}
        assert len(found) == len(rows), "two buckets of one name"
        return found

    def in_files(self, bucket: str) -> Versions:
        """A marker of the registry does not say whether it is the latest; a file does."""
        query = (
            "select key, coalesce(version_id, 'null'), is_latest, false, etag, size_bytes from hat.files where bucket = %(of)s"
            " union all select key, coalesce(version_id, 'null'), null, true, null, null from hat.removals"
            " where bucket = %(of)s and is_marker"
        )
        rows = ask(self.url, query, {"of": bucket})
        found = {(key, version): Version(*rest) for key, version, *rest in rows}
        assert len(found) == len(rows), "a version is a file and a marker"
        return found

    def uploads(self) -> set[str]:
        pages = self.stack.s3().get_paginator("list_objects_v2").paginate(Bucket=UPLOADS)
        return {each["Key"] for page in pages for each in page.get("Contents", [])}

    def in_uploads(self) -> set[str]:
        return {f"{org}/{name}" for org, name in ask(self.url, "select organisation, name from upload_registry")}

    def compare(self) -> int:
        """Every registry against its buckets; returns how many versions were compared."""
        compared, wrong = 0, {}
        for bucket in self.inventory:
            listed = self.listing(bucket.name)
            wrong[bucket.name] = difference(listed, self.in_inventory(bucket.name))
            compared += len(listed)
        for bucket in self.files:
            listed = self.listing(bucket.name)
            kept = {place: each._replace(latest=None) if each.marker else each for place, each in listed.items()}
            wrong[bucket.name] = difference(kept, self.in_files(bucket.name))
            compared += len(listed)
        uploads = self.uploads()
        wrong[UPLOADS] = difference(dict.fromkeys(uploads, True), dict.fromkeys(self.in_uploads(), True))
        words = [f"{bucket}: {len(found)}, as {dict(islice(found.items(), 2))}" for bucket, found in wrong.items() if found]
        assert not words, "in the bucket, and in the registry: " + "; ".join(words)
        return compared + len(uploads)

    # Waiting.

    def under_way(self) -> dict[str, Any]:
        """What is not at its end yet."""
        unseen = (
            "select count(*) from changes where rules is not null and not pg_visible_in_snapshot("
            " xid, coalesce((select snapshot from windows order by id desc limit 1), '1:1:'))"
        )
        try:
            with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
                lanes = overview.lanes(connection)
                [(changes,)] = connection.execute(unseen).fetchall()
                offsets = connection.execute("select part, next_offset from inventory_offsets").fetchall()
            behind = {lane["destination"]: (lane["state"], lane["owed"]) for lane in lanes}
            found: dict[str, Any] = {name: lane for name, lane in behind.items() if lane != ("live", 0)}
            found |= {"changes": changes, "inventory": lag(self.stack.ready["kafka"], TOPIC, dict(offsets))}
            found |= {"queue": self.waiting(QUEUE)}
        except Exception as error:
            return {"error": repr(error)}
        return {name: each for name, each in found.items() if each}

    def waiting(self, queue: str) -> int:
        sqs = self.client("sqs")
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"]
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        return sum(map(int, sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"].values()))

    def drain(self) -> int:
        """Until nothing is under way; returns how many dead letters of the uploads were brought back.

        A message that was received four times in bad moments is one of these: they are for the operator to bring back.
        """
        moved = 0
        while True:
            self._wait_until_nothing_is_under_way()
            letters = self.waiting(f"{QUEUE}-dlq")
            if not letters:
                return moved
            sqs = self.client("sqs")
            url = sqs.get_queue_url(QueueName=f"{QUEUE}-dlq")["QueueUrl"]
            arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            sqs.start_message_move_task(SourceArn=arn)
            until(lambda: not self.waiting(f"{QUEUE}-dlq"), "dead letters are brought back")
            moved += letters

    def _wait_until_nothing_is_under_way(self) -> None:
        try:
            until(lambda: not self.under_way(), "nothing is under way", every=0.25, seconds=DRAIN_SECONDS)
        except AssertionError as error:
            words = "\n\n".join(f"{role}: {part.last_words()}" for role, part in self.kept.items())
            raise AssertionError(f"{error}: {self.under_way()}\n{words}") from None

    # Faults.

    def kill(self, role: str) -> None:
        """One of our consumers is killed when it has just done something: then it is in the middle of the next."""
        if role not in OURS:
            done, deadline = self._done(role), time.monotonic() + BUSY_SECONDS
            while self._done(role) == done and time.monotonic() < deadline:
                time.sleep(0.02)
            self.kept[role].kill()
            return
        pid, before = self.stack.pid(role), position(self.url)
        kill_tree(pid)
        until(lambda: self.stack.pid(role) != pid, f"{role} was started again")
        if role != "api":  # whoever is killed next should have something to do
            until(lambda: position(self.url) > before, f"it delivers again after {role}")

    def _done(self, role: str) -> Any:
        return ask(self.url, PROGRESS[role]) if role in PROGRESS else time.monotonic()


def difference(listed: Mapping[Any, Any], known: Mapping[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """What is not the same: as it is in the bucket, and in the registry."""
    return {each: (listed.get(each), known.get(each)) for each in listed.keys() | known if listed.get(each) != known.get(each)}


@contextmanager
def circle(form: Form, folder: Path) -> Iterator[Circle]:
    """The whole stack, and every consumer as a process of its own."""
    kinds = '["kafka", "sns", "queue"]'
    with running_stack(folder, TIDINGS_BUCKET_EVENTING__DESTINATIONS=kinds) as stack:
        ready = stack.ready
        with psycopg.connect(ready["database"], autocommit=True) as connection:
            api_key = api_keys.create(connection, ready["project"]).api_key
            add_atlas(connection, "gut", "Gut", "1.0")
            add_atlas(connection, "eye", "Retina", "1.1")
        canary.plant(ready["database"])
        ports = {"files": free_port(), "uploads": free_port()}
        topic = f"arn:aws:sns:{ready['region']}:{ready['project']}:files"
        environment = {
            **cluster.environment(),
            "TIDINGS_DATABASE__URL": ready["database"],
            "TIDINGS_STORE__BLOBS": (stack.data / "blobs").as_uri(),
            "TIDINGS_API__WORKERS": "1",
            "TIDINGS_KAFKA__CLUSTERS": json.dumps({"local": {"bootstrap": ready["kafka"], "projects": "*"}}),
            "TIDINGS_INVENTORY__TOPICS": json.dumps([TOPIC]),
            "TIDINGS_FILES__PORT": str(ports["files"]),
            "TIDINGS_FILES__TRUSTED": json.dumps([ready["s3"]]),
            "TIDINGS_FILES__MISSING_SHA256": "await",  # an object may be gone before its event arrives
            "TIDINGS_FILES__S3_ENDPOINT": ready["s3"],
            "TIDINGS_FILES__S3_ACCESS_KEY_ID": ready["access_key_id"],
            "TIDINGS_FILES__S3_SECRET": ready["secret_access_key"],
            "TIDINGS_UPLOADS__ENDPOINT": ready["s3"],
            "TIDINGS_UPLOADS__ACCESS_KEY_ID": ready["access_key_id"],
            "TIDINGS_UPLOADS__SECRET": ready["secret_access_key"],
            "TIDINGS_UPLOADS__PORT": str(ports["uploads"]),
            "TIDINGS_UPLOADS__VISIBILITY_SECONDS": str(form.visibility),
            "TIDINGS_UPLOADS__BATCH_SECONDS": "1",
        }
        names = [bucket.name for bucket in Circle(stack, form, {}, "", "").files]
        environment["AWS_RESOURCE_CONFIG"] = json.dumps({"sns_topics": [topic], "s3_buckets": names})
        made = Circle(stack, form, environment, api_key, f"http://127.0.0.1:{ports['uploads']}")
        try:
            _start(made, folder, topic, ports["files"])
            yield made
        finally:
            for part in made.kept.values():
                part.stop()


def _start(made: Circle, folder: Path, topic: str, port: int) -> None:
    commands = {
        "inventory": ("consume", "inventory"),
        "files": ("consume", "files"),
        "front": ("uploads", "serve"),
        "uploads": ("consume", "uploads"),
    }
    kafka.create_topic(made.stack.ready["kafka_faults"], TOPIC, PARTITIONS)
    for role in ("inventory", "files", "front"):
        made.kept[role] = Kept(commands[role], made.environment, folder / f"{role}.log")
    done = tidings("uploads", "init", **made.environment)
    assert done.returncode == 0, done.stderr
    made.kept["uploads"] = Kept(commands["uploads"], made.environment, folder / "uploads.log")
    sns = made.client("sns")
    assert sns.create_topic(Name="files")["TopicArn"] == topic
    for bucket in made.inventory:
        _bucket(made, bucket, f"arn:tidings:kafka::local:{TOPIC}")
    until(lambda: _is_ready(f"http://127.0.0.1:{port}"), "the files' webhook is ready")
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"http://127.0.0.1:{port}/api/sns")

    def confirmed() -> bool:
        [each] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        return str(each["SubscriptionArn"]).startswith(topic)

    until(confirmed, "the files' webhook is subscribed")
    for bucket in made.files:
        _bucket(made, bucket, topic)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _bucket(made: Circle, bucket: Bucket, arn: str) -> None:
    s3 = made.stack.s3()
    s3.create_bucket(Bucket=bucket.name)
    rule = {"Id": "all", "TopicArn": arn, "Events": EVENTS}
    s3.put_bucket_notification_configuration(Bucket=bucket.name, NotificationConfiguration={"TopicConfigurations": [rule]})
    states = {"versioned": ["Enabled"], "suspended": ["Enabled", "Suspended"]}
    for state in states.get(bucket.name, []):
        s3.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": state})
