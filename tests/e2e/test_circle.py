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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from circle_parts import Echo
from circle_stack import OURS, PARTITIONS, TOPIC, UPLOADS, Circle, Form, Versions, circle
from circle_writers import NULL, Operations, Uploads

import kafka_reader
from conftest import Say
from flight import ask
from traffic import seeded, tidings
from waiting import until

CERTAIN = ("missing", "extra", "different")
KINDS = (*CERTAIN, "misplaced")
SHORT = Form(800, 3, 30, (0.5, 1.5), 0.05, 8, 60)
LONG = Form(20_000, 49, 150, (2, 6), 0.02, 20, 300)


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("form", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.chaos)])
def test_what_the_registries_know_from_events_is_what_the_store_holds(form: Form, tmp_path: Path, say: Say) -> None:
    seed = seeded()
    print(f"SEED={seed}")
    with circle(form, tmp_path) as made:
        times = [time.monotonic()]
        kills, work, uploads, echoes = _run(made, seed)
        times.append(time.monotonic())
        moved = made.drain()
        compared = made.compare()
        times.append(time.monotonic())
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
        say(f"withheld, found and repaired: {_withheld_events_are_found_and_repaired(made, seed)}")
        times.append(time.monotonic())
        phases = ("work", "drain", "reconcile")
        say(", ".join(f"{phase} {end - begin:.0f} s" for phase, (begin, end) in zip(phases, pairwise(times), strict=True)))


def _run(made: Circle, seed: int) -> tuple[Counter[str], Operations, Uploads, int]:
    """The workload, with every process killed meanwhile."""
    form, chance = made.form, random.Random(seed)
    _prime(made)
    work = Operations(made.stack.ready, [made.inventory, made.inventory, made.files], seed, threads=4, pace=form.pace)
    uploads = Uploads(made.front, made.api_key, seed, threads=2, pace=2 * form.pace)
    echo = Echo(made.stack.ready["kafka"], TOPIC, seed)
    everybody = [*OURS, *made.kept]
    roles = [role for _ in range(0, form.kills, len(everybody)) for role in chance.sample(everybody, len(everybody))]
    kills: Counter[str] = Counter()

    def done() -> int:
        return sum(work.done.values()) + sum(uploads.done.values())

    with echo.echoing():
        with work.working(), uploads.working():
            for role in roles[: form.kills]:
                time.sleep(chance.uniform(*form.pause))
                before = done()
                made.kill(role)
                kills[role] += 1
                until(lambda before=before: done() > before + 20, f"there are operations again after {role}")
            until(lambda: done() >= form.operations, f"{form.operations} operations", every=0.2)
        made.drain()  # what is under way comes twice, too
    return kills, work, uploads, echo.count


def _prime(made: Circle) -> None:
    """Something in each registry: everybody is up."""
    s3 = made.stack.s3()
    for bucket in (made.toggled, made.files[1]):
        s3.put_object(Bucket=bucket.name, Key=bucket.keys[0], Body=b"first")
    until(lambda: _upload(made, "first"), "the front takes an upload")
    for table in ("inventory", "hat.files", "upload_registry"):
        until(lambda table=table: ask(made.url, f"select 1 from {table} limit 1"), f"something is in {table}")


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
            until(lambda: sum(work.done.values()) >= made.form.withheld, "operations without a rule")
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
    if made.form is SHORT:  # each is a Spark of its own; for the others there are smaller tests
        registries = {"uploads": registries["uploads"]}
    expected = {name: find() for name, (_, find) in registries.items()}
    assert all(found[kind] for found in expected.values() for kind in ("missing", "extra"))
    assert all(expected[name]["different"] for name in registries if name != "uploads")

    def reconcile(name: str, *more: str) -> dict[str, Any]:
        done = tidings("reconcile", registries[name][0], "--with", name, "--json", *more, **made.environment)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    with ThreadPoolExecutor(len(registries)) as pool:
        repaired = dict(zip(registries, pool.map(lambda name: reconcile(name, "--repair"), registries), strict=True))
        for name, found in repaired.items():
            assert {kind: found[kind] for kind in CERTAIN} == {kind: expected[name][kind] for kind in CERTAIN}, (name, found)
            assert found["misplaced"] >= expected[name]["misplaced"], (name, found)
            assert found["repaired"] == sum(found[kind] for kind in KINDS), (name, found)
        if made.form is LONG:
            made.compare()
        assert made.in_uploads() == made.uploads()
        again = registries if made.form is LONG else ()  # what there is to find was compared already, without three more JVMs
        for name, found in zip(again, pool.map(reconcile, again), strict=True):
            assert not any(found[kind] for kind in KINDS), (name, found)
    return "; ".join(f"{name} " + ", ".join(f"{found[kind]} {kind}" for kind in KINDS) for name, found in repaired.items())


def findings(listed: Versions, known: Versions) -> Counter[str]:
    """What reconcile should say. Of versions that are misplaced, those alone that are wrongly the latest or not the latest."""
    found: Counter[str] = Counter()
    for each in listed.keys() | known:
        if each not in known or each not in listed:
            found["missing" if each not in known else "extra"] += 1
        elif known[each]._replace(latest=None) != listed[each]._replace(latest=None):
            found["different"] += 1
        else:
            found["misplaced"] += known[each].latest not in (None, listed[each].latest)
    return found


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


def _some(chance: random.Random, objects: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """On a busy machine there may be few."""
    return chance.sample(objects, min(most, len(objects)))


def _spoil(made: Circle, chance: random.Random) -> None:
    """What would be so if single events had been lost or had said something else."""
    toggled, files = made.toggled.name, made.files[1].name
    of_version = " where bucket = %s and key = %s and coalesce(version_id, 'null') = %s"
    with psycopg.connect(made.url, autocommit=True) as connection:
        cursor = connection.cursor()
        *lost, other, copied = _some(chance, _objects_in_order(made, toggled, made.in_inventory), 6)
        cursor.executemany(f"delete from inventory {of_version}".encode(), [(toggled, *each) for each in lost])
        cursor.execute(f"update inventory set etag = 'another' {of_version}".encode(), [toggled, *other])
        extra = (
            "insert into inventory select bucket, bucket_id, 'never there', version_id, sequencer, event_type, delete_marker,"
            " tombstone, size, etag, content_type, event_at from inventory"
        )
        cursor.execute(f"{extra} {of_version}".encode(), [toggled, *copied])

        *lost, other, copied = _some(chance, _objects_in_order(made, files, made.in_files), 5)
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
