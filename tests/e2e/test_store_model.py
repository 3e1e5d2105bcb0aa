"""The store over HTTP beside a model in memory: after every step listings, versions, contents and changes agree."""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from s3_server import Server, s3_server

from conftest import fresh_database
from store_model import Model, Version, md5_hex
from tidings.local.postgres import Postgres

STEPS = int(os.environ.get("STORE_STEPS", "400"))
STEPS_IN_A_RUN = 50
PART = 5 * 1024 * 1024

KEYS = st.sampled_from(["a", "b/d ü"])
BUCKET = st.integers(0, 1)
BODIES = st.sampled_from([b"", b"x", b"hello", b"y" * 4096, b"z" * 4097, bytes(range(256)) * 100])
METADATA = st.sampled_from([{}, {"colour": "red"}, {"a": "1", "b": "2"}])
TYPES = st.sampled_from(["text/plain", "image/png"])

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(fresh_database(postgres, "store_model"), tmp_path_factory.mktemp("s3")) as running:
        yield running


class Store(RuleBasedStateMachine):
    """Two buckets of its own for each run. Subclassed with a server and a client."""

    server: Server
    s3: Any

    @initialize()
    def start(self) -> None:
        number = next(_numbers)
        self.buckets = [f"run-{number}-one", f"run-{number}-two"]
        self.model = Model()
        for bucket in self.buckets:
            self.s3.create_bucket(Bucket=bucket)
            self.model.states[bucket] = "unversioned"
        self.set_versioning(1, "Enabled")  # so that some keys soon have many versions
        self.steps = 0

    @rule(at=BUCKET, status=st.sampled_from(["Enabled", "Enabled", "Suspended"]))
    def set_versioning(self, at: int, status: str) -> None:
        self.s3.put_bucket_versioning(Bucket=self.buckets[at], VersioningConfiguration={"Status": status})
        self.model.states[self.buckets[at]] = status.lower()
        assert self.s3.get_bucket_versioning(Bucket=self.buckets[at])["Status"] == status

    @rule(at=BUCKET, key=KEYS, body=BODIES, metadata=METADATA, kind=TYPES)
    def put(self, at: int, key: str, body: bytes, metadata: dict[str, str], kind: str) -> None:
        bucket = self.buckets[at]
        done = self.s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata=metadata, ContentType=kind)
        self._put(bucket, key, body, metadata, kind, done.get("VersionId"))

    def _put(self, bucket: str, key: str, body: bytes, metadata: dict[str, str], kind: str, answered: str | None) -> None:
        version = Version("", False, body, md5_hex(body), kind, metadata)
        self.model.put(bucket, key, version, answered, "commit inline" if len(body) <= 4096 else "commit with segments")

    @rule(at=BUCKET, key=KEYS, body=BODIES)
    def put_if_absent(self, at: int, key: str, body: bytes) -> None:
        bucket = self.buckets[at]
        done = self._unless_refused(
            self.model.current(bucket, key) is not None and "PreconditionFailed",
            lambda: self.s3.put_object(Bucket=bucket, Key=key, Body=body, ContentType="text/plain", IfNoneMatch="*"),
        )
        if done is not None:
            self._put(bucket, key, body, {}, "text/plain", done.get("VersionId"))

    @rule(at=BUCKET, key=KEYS, body=BODIES, right=st.booleans())
    def put_if_match(self, at: int, key: str, body: bytes, right: bool) -> None:
        bucket = self.buckets[at]
        current = self.model.current(bucket, key)
        tag = current.etag if current is not None and right else "0" * 32
        code = "NoSuchKey" if current is None else "PreconditionFailed" if tag != current.etag else ""
        done = self._unless_refused(
            code, lambda: self.s3.put_object(Bucket=bucket, Key=key, Body=body, ContentType="text/plain", IfMatch=tag)
        )
        if done is not None:
            self._put(bucket, key, body, {}, "text/plain", done.get("VersionId"))

    def _unless_refused(self, code: str | bool, call: Callable[[], Any]) -> Any:
        if not code:
            return call()
        with pytest.raises(ClientError) as refused:
            call()
        assert refused.value.response["Error"]["Code"] == code
        return None

    @rule(at=BUCKET, key=KEYS)
    def delete(self, at: int, key: str) -> None:
        bucket = self.buckets[at]
        done = self.s3.delete_object(Bucket=bucket, Key=key)
        assert bool(done.get("DeleteMarker")) == (self.model.states[bucket] != "unversioned")
        self.model.delete(bucket, key, done.get("VersionId"))

    @rule(at=BUCKET, key=KEYS, pick=st.sampled_from([0, 0, 0, 1, 2, 5]))
    def delete_version(self, at: int, key: str, pick: int) -> None:
        bucket = self.buckets[at]
        there = self.model.of(bucket, key)
        wanted = there[pick].id if pick < len(there) else ("null" if pick == 5 else "01990000-0000-7000-8000-000000000000")
        done = self.s3.delete_object(Bucket=bucket, Key=key, VersionId=wanted)
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
        done = self.s3.delete_objects(Bucket=bucket, Delete={"Objects": wanted, "Quiet": quiet})
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

    @rule(at=BUCKET, key=KEYS, to=BUCKET, new=KEYS, replace=st.booleans(), old=st.booleans())
    def copy(self, at: int, key: str, to: int, new: str, replace: bool, old: bool) -> None:
        source = {"Bucket": self.buckets[at], "Key": key}
        there = self.model.of(self.buckets[at], key)
        found = self.model.current(self.buckets[at], key)
        name = f"{self.buckets[at]}/{_quoted(key)}"
        if old and there and self.model.states[self.buckets[at]] != "unversioned":
            found = there[-1]
            source["VersionId"] = found.id
            name += f"?versionId={found.id}"
        code = "NoSuchKey" if found is None else "InvalidRequest" if found.marker else ""
        if (at, key) == (to, new) and "VersionId" not in source and not replace:
            code = "InvalidRequest"
        more = {"MetadataDirective": "REPLACE", "Metadata": {"new": "yes"}, "ContentType": "image/gif"} if replace else {}
        done = self._unless_refused(
            code, lambda: self.s3.copy_object(Bucket=self.buckets[to], Key=new, CopySource=source, **more)
        )
        if done is None or found is None:
            return
        assert done["CopyObjectResult"]["ETag"].strip('"') == md5_hex(found.body)
        metadata, kind = ({"new": "yes"}, "image/gif") if replace else (dict(found.metadata), found.content_type)
        copied = Version("", False, found.body, md5_hex(found.body), kind, metadata)
        answered = done.get("VersionId")
        self.model.put(self.buckets[to], new, copied, answered, "finish copy", "ObjectCreated:Copy", name)

    @rule(at=BUCKET, key=KEYS, to=BUCKET, new=KEYS)
    def move(self, at: int, key: str, to: int, new: str) -> None:
        here, there = (self.buckets[at], key), (self.buckets[to], new)
        code = "InvalidRequest" if here == there else "NoSuchKey" if self.model.current(*here) is None else ""
        done = self._unless_refused(
            code,
            lambda: self.s3.rename_object(Bucket=there[0], Key=there[1], RenameSource=f"/{here[0]}/{_quoted(key)}"),
        )
        if done is not None:
            answered = done["ResponseMetadata"]["HTTPHeaders"].get("x-amz-version-id")
            self.model.move(here, there, answered)
            for change in self.model.changes[-2:]:
                change["copy_source"] = f"{here[0]}/{_quoted(key)}"

    @rule(
        at=BUCKET, key=KEYS, sizes=st.sampled_from([(10,), (10,), (5000,), (PART, 7)]), metadata=METADATA, abort=st.booleans()
    )
    def multipart(self, at: int, key: str, sizes: tuple[int, ...], metadata: dict[str, str], abort: bool) -> None:
        bucket = self.buckets[at]
        upload = self.s3.create_multipart_upload(Bucket=bucket, Key=key, Metadata=metadata, ContentType="video/mp4")["UploadId"]
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
            done = self.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
            etag = md5_hex(b"".join(bytes.fromhex(md5_hex(body)) for body in bodies)) + f"-{len(bodies)}"
            assert done["ETag"].strip('"') == etag
            version = Version("", False, b"".join(bodies), etag, "video/mp4", metadata)
            self.model.put(bucket, key, version, done.get("VersionId"), "commit with segments")
        assert self.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        self.steps += 1
        touched = {change["bucket"] for change in self.model.changes[-2:]}
        for bucket in touched if self.steps % 10 else self.buckets:
            self._listings_agree(bucket)
        self._changes_agree()

    def teardown(self) -> None:
        for bucket in getattr(self, "buckets", ()):
            self._listings_agree(bucket)

    def _listings_agree(self, bucket: str) -> None:
        mine = {key: found for (where, key), found in sorted(self.model.versions.items()) if where == bucket}
        current = {key: found[0] for key, found in mine.items() if not found[0].marker}
        listed = self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        assert {each["Key"]: (each["Size"], each["ETag"].strip('"')) for each in listed} == {
            key: (len(version.body), version.etag) for key, version in current.items()
        }
        answer = self.s3.list_object_versions(Bucket=bucket)
        found: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        for each in answer.get("Versions", []):
            found[each["Key"]].append((each["VersionId"], each["IsLatest"]))
        markers = {(each["Key"], each["VersionId"]): each["IsLatest"] for each in answer.get("DeleteMarkers", [])}
        for key, versions in mine.items():
            assert found[key] == [(each.id, each is versions[0]) for each in versions if not each.marker]
            assert {id_: latest for (name, id_), latest in markers.items() if name == key} == {
                each.id: each is versions[0] for each in versions if each.marker
            }
        assert {*found, *(key for key, _ in markers)} == set(mine)

    def _changes_agree(self) -> None:
        """The changes since the last step, in order for each key; of the newest one, the object as a reader gets it."""
        columns = (
            "bucket, key, event, operation, version_id, versioning, size, etag, old_size, content_type, metadata,"
            " copy_source, replaced"
        )
        rows = self.server.query(f"select {columns} from changes where bucket = any(%s) order by seq", self.buckets)
        stored = [dict(zip(columns.split(", "), row, strict=True)) for row in rows]
        for change in stored:
            change["metadata"] = None if change["metadata"] is None else _user_metadata(change["metadata"])
        assert _by_key(stored) == _by_key(self.model.changes)
        for bucket, key in {(change["bucket"], change["key"]) for change in self.model.changes[-2:]}:
            for version in self.model.of(bucket, key)[: None if self.steps % 10 == 0 else 2]:
                if not version.marker:
                    self._comes_back(bucket, key, version)

    def _comes_back(self, bucket: str, key: str, version: Version) -> None:
        got = self.s3.get_object(Bucket=bucket, Key=key, VersionId=version.id)
        assert got["Body"].read() == version.body
        assert (got["ETag"].strip('"'), got["ContentType"], got["Metadata"]) == (
            version.etag,
            version.content_type,
            version.metadata,
        )


def _by_key(changes: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for change in changes:
        found[change["bucket"], change["key"]].append(change)
    return found


def _user_metadata(text: str) -> dict[str, str]:
    return {name: value for name, value in json.loads(text).items() if name.startswith("x-amz-meta-")}


def _quoted(key: str) -> str:
    return key.replace(" ", "%20").replace("ü", "%C3%BC")


@pytest.mark.timeout(max(600, STEPS))
def test_the_store_is_what_the_model_says(server: Server) -> None:
    class OverThisServer(Store):
        pass

    OverThisServer.server = server
    OverThisServer.s3 = server.client()
    run_state_machine_as_test(
        OverThisServer,
        settings=settings(
            max_examples=max(1, STEPS // STEPS_IN_A_RUN),
            stateful_step_count=STEPS_IN_A_RUN,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
