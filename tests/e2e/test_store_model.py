"""The store over HTTP beside a model in memory: after every step listings, versions, contents and changes agree.

All listings of all buckets are compared after each step, and all changes. A version is read after the step that made it
or moved it to another place, the others in turn, and every 25 steps all of them. The short form has 500 steps, `make chaos`
goes 2,000.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from s3_server import Server, request, s3_server

from conftest import Say, fresh_database
from store_model import Asked, Model, Version, md5_hex
from tidings.events.names import MULTIPART
from tidings.local.postgres import Postgres

STEPS, MANY = int(os.environ.get("STORE_STEPS", "500")), 2_000
STEPS_IN_A_RUN = 50
READ_ALL_EVERY = 25
PAGES_EVERY = 5
CLOCKS_DIFFER = timedelta(seconds=1)
PART = 5 * 1024 * 1024

KEYS = st.sampled_from(["a", "b/d ü"])
BUCKET = st.integers(0, 1)
BODIES = st.sampled_from([b"", b"x", b"hello", b"y" * 4096, b"z" * 4097, bytes(range(256)) * 100])
METADATA = st.sampled_from([{}, {"colour": "red"}, {"a": "1", "b": "2"}])
TAGS = st.sampled_from([{}, {"kind": "new"}, {"a b": "1/2", "ü": "", "c": "3"}])
SIZES = st.sampled_from([(10,), (10,), (5000,), (PART, 7)])
TYPES = st.sampled_from(["", "text/plain", "image/png"])
TURNED = st.sampled_from([None, "Enabled", "Suspended"])

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "store_model"), tmp_path_factory.mktemp("s3")) as running:
        yield running


class Store(RuleBasedStateMachine):
    """Two buckets of its own for each run. Subclassed with a server and a client."""

    server: Server
    s3: Any
    compared = 0

    @initialize(second=st.sampled_from(["Enabled", "Suspended"]))
    def start(self, second: str) -> None:
        number = next(_numbers)
        self.buckets = [f"run-{number}-one", f"run-{number}-two"]
        caller = {"project": self.server.project, "principal": self.server.access_key_id, "source_ip": "127.0.0.1"}
        self.model = Model(caller)
        for bucket in self.buckets:
            self.s3.create_bucket(Bucket=bucket)
            self.model.states[bucket] = "unversioned"
        self.model.ids = dict(self.server.query("select name, id from bucket_metainfos where name = any(%s)", self.buckets))
        assert len({*self.model.ids.values()}) == 2
        self.set_versioning(1, second)  # so that some keys soon have many versions
        self.steps = self.told = 0

    def _ask(self, operation: str, **parameters: Any) -> Any:
        """A request that may make changes: they bear its id, and its time."""
        began = datetime.now(UTC)
        done = getattr(self.s3, operation)(**parameters)
        answer = done["ResponseMetadata"]
        assert answer["RequestId"] == answer["HTTPHeaders"]["x-amz-request-id"]
        self.model.asked = Asked(answer["RequestId"], began, datetime.now(UTC))
        return done

    @rule(at=BUCKET, status=st.sampled_from(["Enabled", "Enabled", "Suspended"]))
    def set_versioning(self, at: int, status: str) -> None:
        self.s3.put_bucket_versioning(Bucket=self.buckets[at], VersioningConfiguration={"Status": status})
        self.model.states[self.buckets[at]] = status.lower()
        assert self.s3.get_bucket_versioning(Bucket=self.buckets[at])["Status"] == status

    def _turn(self, at: int, status: str | None) -> None:
        """Just before another step, so that null versions come to lie behind others; not where there never were versions."""
        if status is not None and self.model.states[self.buckets[at]] not in ("unversioned", status.lower()):
            self.set_versioning(at, status)

    @rule(at=BUCKET, key=KEYS, body=BODIES, metadata=METADATA, tags=TAGS, kind=TYPES, turned=TURNED)
    def put(
        self, at: int, key: str, body: bytes, metadata: dict[str, str], tags: dict[str, str], kind: str, turned: str | None
    ) -> None:
        self._turn(at, turned)
        version = Version("", False, body, md5_hex(body), kind, metadata, tags)
        given = {"Body": body, "Metadata": metadata, **_typed(kind), **_tagging(tags)}
        done = self._ask("put_object", Bucket=self.buckets[at], Key=key, **given)
        self._put(self.buckets[at], key, version, done)

    def _put(self, bucket: str, key: str, version: Version, done: Any) -> None:
        assert done["ETag"].strip('"') == version.etag
        operation = "commit inline" if len(version.body) <= 4096 else "commit with segments"
        self.model.put(bucket, key, version, done.get("VersionId"), operation)

    def _put_if(self, bucket: str, key: str, body: bytes, code: str, **condition: str) -> None:
        given = {"Body": body, "ContentType": "text/plain", **condition}
        done = self._unless_refused(code, lambda: self._ask("put_object", Bucket=bucket, Key=key, **given))
        if done is not None:
            self._put(bucket, key, Version("", False, body, md5_hex(body), "text/plain"), done)

    @rule(at=BUCKET, key=KEYS, body=BODIES)
    def put_if_absent(self, at: int, key: str, body: bytes) -> None:
        code = "" if self.model.current(self.buckets[at], key) is None else "PreconditionFailed"
        self._put_if(self.buckets[at], key, body, code, IfNoneMatch="*")

    @rule(at=BUCKET, key=KEYS, body=BODIES, right=st.booleans())
    def put_if_match(self, at: int, key: str, body: bytes, right: bool) -> None:
        current = self.model.current(self.buckets[at], key)
        tag = current.etag if current is not None and right else "0" * 32
        code = "NoSuchKey" if current is None else "PreconditionFailed" if tag != current.etag else ""
        self._put_if(self.buckets[at], key, body, code, IfMatch=tag)

    @rule(at=BUCKET, key=KEYS, tags=TAGS, pick=st.sampled_from([None, 0, 1, 5]))
    def set_tags(self, at: int, key: str, tags: dict[str, str], pick: int | None) -> None:
        """Of the newest version, of an exact one, or of one that is not there. That makes no version and no change."""
        bucket, there = self.buckets[at], self.model.of(self.buckets[at], key)
        where, found, code = {"Bucket": bucket, "Key": key}, self.model.current(bucket, key), "NoSuchKey"
        if pick is not None:
            found = there[pick] if pick < len(there) and not there[pick].marker else None
            where["VersionId"] = "01990000-0000-7000-8000-000000000000" if found is None else found.id
            code = "NoSuchVersion"
        given = {"Tagging": {"TagSet": [{"Key": name, "Value": value} for name, value in tags.items()]}}
        done = self._unless_refused(
            code if found is None else "",
            lambda: self.s3.put_object_tagging(**where, **given) if tags else self.s3.delete_object_tagging(**where),
        )
        if found is not None:
            assert done.get("VersionId") == (None if self.model.states[bucket] == "unversioned" else found.id)
            found.tags, found.read = tags, False

    def _unless_refused(self, code: str, call: Callable[[], Any]) -> Any:
        if not code:
            return call()
        with pytest.raises(ClientError) as refused:
            call()
        assert refused.value.response["Error"]["Code"] == code
        return None

    @rule(at=BUCKET, key=KEYS, turned=TURNED)
    def delete(self, at: int, key: str, turned: str | None) -> None:
        self._turn(at, turned)
        bucket = self.buckets[at]
        done = self._ask("delete_object", Bucket=bucket, Key=key)
        assert bool(done.get("DeleteMarker")) == (self.model.states[bucket] != "unversioned")
        self.model.delete(bucket, key, done.get("VersionId"))

    @rule(at=BUCKET, key=KEYS, pick=st.sampled_from([0, 0, 0, 1, 2, 5]))
    def delete_version(self, at: int, key: str, pick: int) -> None:
        bucket = self.buckets[at]
        there = self.model.of(bucket, key)
        wanted = there[pick].id if pick < len(there) else ("null" if pick == 5 else "01990000-0000-7000-8000-000000000000")
        done = self._ask("delete_object", Bucket=bucket, Key=key, VersionId=wanted)
        removed = self.model.delete_version(bucket, key, wanted)
        assert done["VersionId"] == wanted
        assert bool(done.get("DeleteMarker")) == (removed is not None and removed.marker)

    @rule(at=BUCKET, keys=st.lists(KEYS, min_size=1, max_size=4, unique=True), exact=st.booleans(), quiet=st.booleans())
    def delete_many(self, at: int, keys: list[str], exact: bool, quiet: bool) -> None:
        bucket = self.buckets[at]
        wanted = [{"Key": key} for key in keys]
        for each in wanted:
            if exact and (there := self.model.of(bucket, each["Key"])):
                each["VersionId"] = there[-1].id
        done = self._ask("delete_objects", Bucket=bucket, Delete={"Objects": wanted, "Quiet": quiet})
        assert "Errors" not in done
        answers = {each["Key"]: each for each in done.get("Deleted", [])}
        assert set(answers) == (set() if quiet else set(keys))
        # The changes of one request are numbered by key; the model numbers them as it goes.
        for each in sorted(wanted, key=lambda each: each["Key"].encode()):
            if "VersionId" in each:
                self.model.delete_version(bucket, each["Key"], each["VersionId"])
            else:
                answered = answers.get(each["Key"], {}).get("DeleteMarkerVersionId")
                if quiet and self.model.states[bucket] != "unversioned":
                    answered = self._newest_id(bucket, each["Key"])
                self.model.delete(bucket, each["Key"], answered)

    def _newest_id(self, bucket: str, key: str) -> str:
        listed = self.s3.list_object_versions(Bucket=bucket, Prefix=key)
        return next(each["VersionId"] for each in listed["DeleteMarkers"] if each["Key"] == key and each["IsLatest"])

    @rule(at=BUCKET, key=KEYS, to=BUCKET, new=KEYS, replace=st.booleans(), retag=st.none() | TAGS, old=st.booleans())
    def copy(self, at: int, key: str, to: int, new: str, replace: bool, retag: dict[str, str] | None, old: bool) -> None:
        source = {"Bucket": self.buckets[at], "Key": key}
        there = self.model.of(self.buckets[at], key)
        found = self.model.current(self.buckets[at], key)
        name = f"{self.buckets[at]}/{_quoted(key)}"
        if old and there and self.model.states[self.buckets[at]] != "unversioned":
            found = there[-1]
            source["VersionId"] = found.id
            name += f"?versionId={found.id}"
        code = "NoSuchKey" if found is None else "InvalidRequest" if found.marker else ""
        if (at, key) == (to, new) and "VersionId" not in source and not replace and retag is None:
            code = "InvalidRequest"
        more: dict[str, Any] = {}
        if replace:
            more = {"MetadataDirective": "REPLACE", "Metadata": {"new": "yes"}, "ContentType": "image/gif"}
        if retag is not None:
            more |= {"TaggingDirective": "REPLACE", **_tagging(retag)}
        done = self._unless_refused(
            code, lambda: self._ask("copy_object", Bucket=self.buckets[to], Key=new, CopySource=source, **more)
        )
        if done is None or found is None:
            return
        assert done["CopyObjectResult"]["ETag"].strip('"') == md5_hex(found.body)
        metadata, kind = ({"new": "yes"}, "image/gif") if replace else (dict(found.metadata), found.content_type)
        tags = dict(found.tags) if retag is None else retag
        copied = Version("", False, found.body, md5_hex(found.body), kind, metadata, tags)
        answered = done.get("VersionId")
        self.model.put(self.buckets[to], new, copied, answered, "finish copy", "ObjectCreated:Copy", name)

    @rule(at=BUCKET, key=KEYS, to=BUCKET, new=KEYS)
    def move(self, at: int, key: str, to: int, new: str) -> None:
        here, there = (self.buckets[at], key), (self.buckets[to], new)
        code = "InvalidRequest" if here == there else "NoSuchKey" if self.model.current(*here) is None else ""
        done = self._unless_refused(
            code,
            lambda: self._ask("rename_object", Bucket=there[0], Key=there[1], RenameSource=f"/{here[0]}/{_quoted(key)}"),
        )
        if done is not None:
            answered = done["ResponseMetadata"]["HTTPHeaders"].get("x-amz-version-id")
            self.model.move(here, there, answered)
            for change in self.model.changes[-2:]:
                change["copy_source"] = f"{here[0]}/{_quoted(key)}"

    @rule(at=BUCKET, key=KEYS, sizes=SIZES, metadata=METADATA, tags=TAGS, abort=st.booleans())
    def multipart(
        self, at: int, key: str, sizes: tuple[int, ...], metadata: dict[str, str], tags: dict[str, str], abort: bool
    ) -> None:
        bucket = self.buckets[at]
        given = {"Metadata": metadata, "ContentType": "video/mp4", **_tagging(tags)}
        upload = self.s3.create_multipart_upload(Bucket=bucket, Key=key, **given)["UploadId"]
        where = {"Bucket": bucket, "Key": key, "UploadId": upload}
        bodies = [bytes([number + 65]) * size for number, size in enumerate(sizes)]
        parts = []
        for number, body in enumerate(bodies, 1):
            self.s3.upload_part(**where, PartNumber=number, Body=b"an earlier try")
            done = self.s3.upload_part(**where, PartNumber=number, Body=body)
            parts.append({"PartNumber": number, "ETag": done["ETag"]})
        listed = self.s3.list_parts(**where)["Parts"]
        assert [(each["PartNumber"], each["Size"]) for each in listed] == list(enumerate(sizes, 1))
        assert [each["UploadId"] for each in self.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])] == [upload]
        if abort:
            self.s3.abort_multipart_upload(**where)
        else:
            done = self._ask("complete_multipart_upload", **where, MultipartUpload={"Parts": parts})
            etag = md5_hex(b"".join(bytes.fromhex(md5_hex(body)) for body in bodies)) + f"-{len(bodies)}"
            assert done["ETag"].strip('"') == etag
            version = Version("", False, b"".join(bodies), etag, "video/mp4", metadata, tags)
            self.model.put(bucket, key, version, done.get("VersionId"), "commit with segments", event=MULTIPART)
        assert self.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        self.steps += 1
        type(self).compared += 1
        most = 2 if self.steps % PAGES_EVERY == 0 else 1000
        for bucket in self.buckets:
            self._listings_agree(bucket, most)
        self._changes_agree()
        self._contents_agree()

    def _listings_agree(self, bucket: str, most: int) -> None:
        """Both listings of objects, and that of versions: what is in them, and in which order."""
        listed = self._pages(bucket, {"versions": "", "max-keys": str(most)}, ("Version", "DeleteMarker"))
        mine = list(self.model.all(bucket))
        for each, (_, version) in zip(listed, mine, strict=False):
            version.modified = version.modified or each["LastModified"]
        assert [_listed(each) for each in listed] == [
            (
                "DeleteMarker" if version.marker else "Version",
                key,
                version.id,
                "true" if version is self.model.of(bucket, key)[0] else "false",
                None if version.marker else str(len(version.body)),
                None if version.marker else f'"{version.etag}"',
                version.modified,
            )
            for key, version in mine
        ]
        current = [_listed(each)[:2] + _listed(each)[4:] for each in listed if each["IsLatest"] == "true" and each["Size"]]
        for kind in ({"list-type": "2"}, {}):
            objects = self._pages(bucket, {**kind, "max-keys": str(most)}, ("Contents",))
            assert [("Version", *_listed(each)[1:2], *_listed(each)[4:]) for each in objects] == current

    def _pages(self, bucket: str, query: dict[str, str], wanted: tuple[str, ...]) -> list[dict[str, str | None]]:
        """The entries of all pages as they stand in the documents: boto3 would sort the versions from the markers."""
        found: list[dict[str, str | None]] = []
        more: dict[str, str] = {}
        while True:
            asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted({**query, **more}.items()))
            answer = request(self.server, "GET", f"/{bucket}", asked)
            assert answer.status == 200, answer.body
            root = ElementTree.fromstring(answer.body)
            space = root.tag.partition("}")[0] + "}"
            entries = [each for each in root if each.tag.removeprefix(space) in wanted]
            assert len(entries) <= int(query["max-keys"])
            for each in entries:
                entry: dict[str, str | None] = {child.tag.removeprefix(space): child.text for child in each}
                found.append({"Size": None, **entry, "kind": each.tag.removeprefix(space)})
            if root.findtext(f"{space}IsTruncated") == "false":
                return found
            assert len(found) < 1000, "the pages have no end"
            if "versions" in query:
                more = {name: root.findtext(f"{space}{tag}") or "" for name, tag in _VERSION_MARKERS.items()}
            elif "list-type" in query:
                more = {"continuation-token": root.findtext(f"{space}NextContinuationToken") or ""}
            else:
                more = {"marker": found[-1]["Key"] or ""}

    def _changes_agree(self) -> None:
        rows = self.server.query(f"select {', '.join(_COLUMNS)} from changes where bucket = any(%s) order by seq", self.buckets)
        stored = _by_key([dict(zip(_COLUMNS, row, strict=True)) for row in rows])
        wanted = _by_key(self.model.changes)
        assert stored.keys() == wanted.keys()
        for place, changes in stored.items():
            for change, mine in zip(changes, wanted[place], strict=False):
                change["metadata"] = None if change["metadata"] is None else _user_metadata(change["metadata"])
                change["tags"] = None if change["tags"] is None else json.loads(change["tags"])
                at, asked = change.pop("request_at"), mine["asked"]
                assert at is not None
                assert asked.began - CLOCKS_DIFFER <= at <= asked.ended + CLOCKS_DIFFER
                assert change == {**{name: value for name, value in mine.items() if name != "asked"}, "request_id": asked.id}
            assert len(changes) == len(wanted[place]), changes[len(wanted[place]) :] or wanted[place][len(changes) :]

    def _contents_agree(self) -> None:
        """Each key that the step touched, as readers get it, and each version that is new in its place; of the others, one."""
        everything = [(bucket, key, version) for bucket in self.buckets for key, version in self.model.all(bucket)]
        touched = {(bucket, key) for bucket, key, version in everything if not version.read}
        touched |= {(change["bucket"], change["key"]) for change in self.model.changes[self.told :]}
        self.told = len(self.model.changes)
        for bucket, key in sorted(touched):
            self._comes_back(bucket, key, self.model.current(bucket, key), "NoSuchKey")
        if everything:
            everything[self.steps % len(everything)][2].read = False
        for bucket, key, version in everything:
            if not version.read or self.steps % READ_ALL_EVERY == 0:
                self._comes_back(bucket, key, None if version.marker else version, "MethodNotAllowed", VersionId=version.id)
                version.read = True

    def _comes_back(self, bucket: str, key: str, version: Version | None, code: str, **exact: str) -> None:
        """`code` is what a reader is told where there is no version."""
        where = {"Bucket": bucket, "Key": key, **exact}
        got = self._unless_refused("" if version else code, lambda: self.s3.get_object(**where))
        tagging = self._unless_refused("" if version else code, lambda: self.s3.get_object_tagging(**where))
        if version is None:
            return
        shown = None if self.model.states[bucket] == "unversioned" else version.id
        assert got["Body"].read() == version.body
        assert (got["ETag"].strip('"'), got["ContentType"], got["Metadata"]) == (
            version.etag,
            version.content_type or "binary/octet-stream",
            version.metadata,
        )
        assert got["LastModified"].strftime("%Y-%m-%dT%H:%M:%S") == (version.modified or "")[:19]
        assert {each["Key"]: each["Value"] for each in tagging["TagSet"]} == version.tags
        assert (got.get("TagCount", 0), got.get("VersionId"), tagging.get("VersionId")) == (len(version.tags), shown, shown)


_VERSION_MARKERS = {"key-marker": "NextKeyMarker", "version-id-marker": "NextVersionIdMarker"}
_COLUMNS = (
    *("project", "bucket", "bucket_id", "key", "encoded", "event", "operation", "version_id", "versioning", "size", "etag"),
    *("old_size", "content_type", "metadata", "tags", "copy_source", "replaced"),
    *("principal", "source_ip", "request_id", "request_at"),
)


def _listed(entry: dict[str, str | None]) -> tuple[str | None, ...]:
    return tuple(entry.get(name) for name in ("kind", "Key", "VersionId", "IsLatest", "Size", "ETag", "LastModified"))


def _typed(kind: str) -> dict[str, str]:
    return {"ContentType": kind} if kind else {}


def _tagging(tags: dict[str, str]) -> dict[str, str]:
    return {"Tagging": urlencode(tags)} if tags else {}


def _by_key(changes: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for change in changes:
        found[change["bucket"], change["key"]].append(change)
    return found


def _user_metadata(text: str) -> dict[str, str]:
    return {name: value for name, value in json.loads(text).items() if name.startswith("x-amz-meta-")}


def _quoted(key: str) -> str:
    return key.replace(" ", "%20").replace("ü", "%C3%BC")


@pytest.mark.timeout(max(600, STEPS, MANY))
@pytest.mark.parametrize("steps", [STEPS, pytest.param(MANY, marks=pytest.mark.chaos)])
def test_the_store_is_what_the_model_says(server: Server, say: Say, steps: int) -> None:
    began = time.monotonic()

    class OverThisServer(Store):
        pass

    OverThisServer.server = server
    OverThisServer.s3 = server.client()
    while OverThisServer.compared < steps:  # hypothesis ends some runs early
        run_state_machine_as_test(
            OverThisServer,
            settings=settings(
                max_examples=math.ceil((steps - OverThisServer.compared) / STEPS_IN_A_RUN),
                stateful_step_count=STEPS_IN_A_RUN,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
    say(f"{OverThisServer.compared} steps in {time.monotonic() - began:.0f} s")
