"""The circle: what three registries know from events alone is what the store holds, whatever was killed on the way.

S3 operations → changes → stream → Kafka, topic and queue → inventory, files and uploads. Every process of ours is killed while
a random workload runs; only the Kafka stand-in, which keeps its messages in memory, is spared. Messages in Kafka come twice and
late. In the end each registry equals the listing of its buckets. Then events are withheld: reconcile finds what they were
about, neither less nor more, and repairs it.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import httpx
import psycopg
import pytest
from circle_parts import Echo, Kept, kill_tree, lag
from circle_writers import NULL, Bucket, Operations, Uploads

import canary
import cluster
import kafka_reader
from conftest import Running, Say, running_stack
from files_registry import add_atlas
from flight import ask, position
from tidings.access import api_keys
from tidings.delivery import overview
from tidings.local import kafka
from tidings.local.processes import free_port
from traffic import seeded, tidings
from waiting import until

TOPIC = "circle"
PARTITIONS = 4
UPLOADS, QUEUE = "uploads", "r2-upload-notifications"
FOLDERS = ("gut/gut-v1/source-datasets", "gut/gut-v1/integrated-objects", "eye/retina-v1-1/manifests")
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
KINDS = ("missing", "extra", "different")
OURS = ("api", "stream", "postgres")
"""Kept by the stack; the others by the test."""
START_SECONDS = 240.0
DRAIN_SECONDS = 600.0


@dataclass(frozen=True)
class Form:
    operations: int
    rounds: int
    """How often each process is killed."""
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


SHORT = Form(1_200, 1, 30, (0.5, 1.5), 0.05, 8, 60)
LONG = Form(20_000, 7, 150, (2, 6), 0.02, 20, 300)


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
        compared = 0
        for buckets, known in ((self.inventory, self.in_inventory), (self.files, self.in_files)):
            for bucket in buckets:
                listed, found = self.listing(bucket.name), known(bucket.name)
                # the registry of files does not keep whether a marker is the latest
                keeps = {place: each._replace(latest=None) if each.marker else each for place, each in listed.items()}
                assert difference(listed if known == self.in_inventory else keeps, found) == {}, bucket.name
                compared += len(listed)
        uploads = self.uploads()
        assert self.in_uploads() == uploads
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
            until(lambda: not self.waiting(f"{QUEUE}-dlq"), 120, "dead letters are brought back")
            moved += letters

    def _wait_until_nothing_is_under_way(self) -> None:
        try:
            until(lambda: not self.under_way(), DRAIN_SECONDS, "nothing is under way", every=0.25)
        except AssertionError as error:
            words = "\n\n".join(f"{role}: {part.last_words()}" for role, part in self.kept.items())
            raise AssertionError(f"{error}: {self.under_way()}\n{words}") from None

    # Faults.

    def kill(self, role: str) -> None:
        if role not in OURS:
            self.kept[role].kill()
            return
        pid, before = self.stack.pid(role), position(self.url)
        kill_tree(pid)
        until(lambda: self.stack.pid(role) != pid, 60, f"{role} was started again")
        if self.form.rounds > 1 and role != "api":  # else it might never get to deliver anything
            until(lambda: position(self.url) > before, START_SECONDS, f"it delivers again after {role}")


def difference(listed: Mapping[Any, Any], known: Mapping[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """What is not the same: as it is in the bucket, and in the registry."""
    return {each: (listed.get(each), known.get(each)) for each in listed.keys() | known if listed.get(each) != known.get(each)}


def findings(listed: Versions, known: Versions) -> Counter[str]:
    """What reconcile should say. What a registry does not keep is not compared."""
    found: Counter[str] = Counter()
    for each in listed.keys() | known:
        if each not in known or each not in listed:
            found["missing" if each not in known else "extra"] += 1
        else:
            pairs = zip(known[each], listed[each], strict=True)
            found["different"] += any(of_known is not None and of_known != of_listed for of_known, of_listed in pairs)
    return found


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
    until(lambda: _is_ready(f"http://127.0.0.1:{port}"), START_SECONDS, "the files' webhook is ready")
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"http://127.0.0.1:{port}/api/sns")

    def confirmed() -> bool:
        [each] = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        return str(each["SubscriptionArn"]).startswith(topic)

    until(confirmed, START_SECONDS, "the files' webhook is subscribed")
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


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("form", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.chaos)])
def test_what_the_registries_know_from_events_is_what_the_store_holds(form: Form, tmp_path: Path, say: Say) -> None:
    seed = seeded()
    print(f"SEED={seed}")
    with circle(form, tmp_path) as made:
        kills, work, uploads, echoes = _run(made, seed)
        moved = made.drain()
        compared = made.compare()
        _check_uploads(made, uploads)
        assert ask(made.url, "select reason from inventory_rejects limit 3") == []
        late = disorder(made)
        done = sum(work.done.values()) + sum(uploads.done.values())
        ended = {role: part.ended for role, part in made.kept.items() if part.ended}
        say(
            f"seed {seed}: {done} operations ({work.unanswered + uploads.unanswered} unanswered), {sum(kills.values())} kills,"
            f" {compared} versions and uploads compared; in Kafka {echoes} came twice, {late} after a later one of their key;"
            f" {moved} dead letters brought back; ended by themselves: {ended}"
        )
        assert late > 0
        say(_withheld_events_are_found_and_repaired(made, seed))


def _run(made: Circle, seed: int) -> tuple[Counter[str], Operations, Uploads, int]:
    """The workload, with every process killed meanwhile."""
    form, chance = made.form, random.Random(seed)
    _prime(made)
    work = Operations(made.stack.ready, [made.inventory, made.inventory, made.files], seed, threads=4, pace=form.pace)
    uploads = Uploads(made.front, made.api_key, seed, threads=2, pace=2 * form.pace)
    echo = Echo(made.stack.ready["kafka"], TOPIC, seed)
    roles = [*OURS, *made.kept] * form.rounds
    chance.shuffle(roles)
    kills: Counter[str] = Counter()

    def done() -> int:
        return sum(work.done.values()) + sum(uploads.done.values())

    with echo.echoing(), work.working(), uploads.working():
        for role in roles:
            time.sleep(chance.uniform(*form.pause))
            before = done()
            made.kill(role)
            kills[role] += 1
            until(lambda before=before: done() > before + 20, START_SECONDS, f"there are operations again after {role}")
        until(lambda: done() >= form.operations, 3600, f"{form.operations} operations", every=0.2)
    return kills, work, uploads, echo.count


def _prime(made: Circle) -> None:
    """Something in each registry: everybody is up."""
    s3 = made.stack.s3()
    for bucket in (made.toggled, made.files[1]):
        s3.put_object(Bucket=bucket.name, Key=bucket.keys[0], Body=b"first")
    until(lambda: _upload(made, "first"), START_SECONDS, "the front takes an upload")
    for table in ("inventory", "hat.files", "upload_registry"):
        until(lambda table=table: ask(made.url, f"select 1 from {table} limit 1"), START_SECONDS, f"something is in {table}")


def _check_uploads(made: Circle, uploads: Uploads) -> None:
    """The names that a create was headed for, less those that were removed, as far as one can know."""
    there = {key.partition("/")[2] for key in made.in_uploads()}
    of_one = {name: known for name, known in uploads.last.items() if known is not None}
    assert {name: name in there for name in of_one} == of_one
    assert uploads.posted - uploads.removed <= there
    assert there <= uploads.headed | {"first"}
    assert any(of_one.values())
    assert not all(of_one.values())


def disorder(made: Circle) -> int:
    """How many messages stand behind a later one of their key, in the same partition."""
    newest: dict[Any, str] = defaultdict(str)
    late, parts = 0, defaultdict(set)
    for message in kafka_reader.read(made.stack.ready["kafka"], TOPIC):
        said = json.loads(message.value())
        if said.get("Event") == "s3:TestEvent":
            continue
        key, sequencer = (said["bucket_name"], said["object_name"]), kafka_reader.headers(message)["sequencer"]
        parts[key].add(message.partition())
        late += sequencer < newest[key, message.partition()]
        newest[key, message.partition()] = max(sequencer, newest[key, message.partition()])
    assert max(map(len, parts.values())) == PARTITIONS, "a key is in all partitions"
    return late


# Events that nobody gets.


def _withheld_events_are_found_and_repaired(made: Circle, seed: int) -> str:
    chance = random.Random(f"{seed}/withheld")
    with _no_rules(made, (made.toggled.name, made.files[1].name, UPLOADS)):
        work = Operations(made.stack.ready, [[made.toggled], [made.files[1]]], seed + 1, threads=2)
        with work.working():
            until(lambda: sum(work.done.values()) >= made.form.withheld, START_SECONDS, "operations without a rule")
        for number in range(3):
            assert _upload(made, f"withheld {number}")
        for key in chance.sample(sorted(made.in_uploads()), 2):
            made.stack.s3().delete_object(Bucket=UPLOADS, Key=key)
    made.drain()
    _spoil(made, chance)
    registries: dict[str, tuple[str, Callable[[], Counter[str]]]] = {
        "inventory": (made.toggled.name, lambda: _findings(made, made.toggled.name, made.in_inventory)),
        "files": (made.files[1].name, lambda: _findings(made, made.files[1].name, made.in_files)),
        "uploads": (
            UPLOADS,
            lambda: Counter(missing=len(made.uploads() - made.in_uploads()), extra=len(made.in_uploads() - made.uploads())),
        ),
    }
    expected = {name: find() for name, (_, find) in registries.items()}
    assert all(found[kind] for found in expected.values() for kind in ("missing", "extra"))
    assert all(expected[name]["different"] for name in ("inventory", "files"))

    def reconcile(name: str, *more: str) -> dict[str, Any]:
        done = tidings("reconcile", registries[name][0], "--with", name, "--json", *more, **made.environment)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    with ThreadPoolExecutor(len(registries)) as pool:
        repaired = dict(zip(registries, pool.map(lambda name: reconcile(name, "--repair"), registries), strict=True))
        for name, found in repaired.items():
            assert {kind: found[kind] for kind in KINDS} == {kind: expected[name][kind] for kind in KINDS}, (name, found)
            assert found["repaired"] == expected[name].total(), (name, found)
        made.compare()
        for name, found in zip(registries, pool.map(reconcile, registries), strict=True):
            assert [found[kind] for kind in KINDS] == [0, 0, 0], (name, found)
    return "withheld, found and repaired: " + "; ".join(
        f"{name} " + ", ".join(f"{found[kind]} {kind}" for kind in KINDS) for name, found in expected.items()
    )


def _findings(made: Circle, bucket: str, known: Callable[[str], Versions]) -> Counter[str]:
    return findings(made.listing(bucket), known(bucket))


@contextmanager
def _no_rules(made: Circle, buckets: Sequence[str]) -> Iterator[None]:
    """While they have none, nothing that happens in them is told to anybody."""
    s3, rules = made.stack.s3(), {}
    for bucket in buckets:
        found = s3.get_bucket_notification_configuration(Bucket=bucket)
        found.pop("ResponseMetadata")
        rules[bucket] = found
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={})
    yield
    for bucket, found in rules.items():
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=found)


def _upload(made: Circle, name: str) -> bool:
    headers, file = {"authorization": f"Bearer {made.api_key}"}, {"file": ("f", b"content")}
    try:
        post = httpx.post(f"{made.front}/api/uploads", data={"name": name}, files=file, headers=headers, timeout=60)
    except httpx.TransportError:
        return False
    return post.status_code == 200


def _spoil(made: Circle, chance: random.Random) -> None:
    """What would be so if single events had been lost or had said something else."""
    toggled, files = made.toggled.name, made.files[1].name
    of_version = " where bucket = %s and key = %s and coalesce(version_id, 'null') = %s"
    with psycopg.connect(made.url, autocommit=True) as connection:
        cursor = connection.cursor()
        *lost, other, copied = chance.sample(_objects_in_order(made, toggled, made.in_inventory), 6)
        cursor.executemany(f"delete from inventory {of_version}".encode(), [(toggled, *each) for each in lost])
        cursor.execute(f"update inventory set etag = 'another' {of_version}".encode(), [toggled, *other])
        extra = (
            "insert into inventory select bucket, bucket_id, 'never there', version_id, sequencer, event_type, delete_marker,"
            " tombstone, size, etag, content_type, event_at from inventory"
        )
        cursor.execute(f"{extra} {of_version}".encode(), [toggled, *copied])

        *lost, other, copied = chance.sample(_objects_in_order(made, files, made.in_files), 5)
        cursor.executemany(f"delete from hat.files {of_version}".encode(), [(files, *each) for each in lost])
        # another ETag of a version that has an id is a conflict, which is for people to look at (seed 002)
        spoiled = "etag = 'another'" if other[1] == NULL else "size_bytes = size_bytes + 1"
        cursor.execute(f"update hat.files set {spoiled} {of_version}".encode(), [files, *other])
        extra = (
            "insert into hat.files (bucket, key, version_id, etag, size_bytes, sequencer, event_name, event_time, file_type,"
            " atlas_id, is_latest) select bucket, key || '.never', version_id, etag, size_bytes, sequencer, event_name,"
            " event_time, file_type, atlas_id, true from hat.files"
        )
        cursor.execute(f"{extra} {of_version}".encode(), [files, *copied])

        name = chance.choice(sorted(made.in_uploads() & made.uploads())).partition("/")[2]
        cursor.execute("delete from upload_registry where name = %s", [name])
        cursor.execute("insert into upload_registry values (%s, 'never there', now())", [made.stack.ready["project"]])


def _objects_in_order(made: Circle, bucket: str, known: Callable[[str], Versions]) -> list[tuple[str, str]]:
    """Versions that the registry has as they are."""
    listed, found = made.listing(bucket), known(bucket)
    return sorted(place for place, each in listed.items() if not each.marker and found.get(place) == each)
