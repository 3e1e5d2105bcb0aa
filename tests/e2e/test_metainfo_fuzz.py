"""Two thousand requests that nobody would send: each is told why it is refused, and only good ones change anything."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from metainfo_server import OTHER_TOPIC, TOPIC, Front, metainfo_server

from conftest import Say
from tidings.api import metainfo_pb2 as pb
from tidings.api.grpc_calls import MAX_PER_PROJECT
from traffic import seeded

REQUESTS, AT_ONCE = 2000, MAX_PER_PROJECT
EVENTS = (
    "s3:ObjectCreated:*",
    "s3:ObjectCreated:Put",
    "s3:ObjectCreated:Copy",
    "s3:ObjectRemoved:*",
    "s3:ObjectRemoved:Delete",
    "s3:ObjectRemoved:DeleteMarkerCreated",
)
NASTY = ("\0", "\n", "\ufffe", "\u202e", "😀", "'; drop table projects; --", "%s", "{}", "../..", "x" * 300, "ü" * 1100)
CHARACTERS = [chr(number) for number in (*range(0xD800), *range(0xE000, 0x10FFFF, 997))]
STATUSES = {"OK", "INVALID_ARGUMENT", "UNAUTHENTICATED", "NOT_FOUND", "FAILED_PRECONDITION"}
"""The last for a topic that is not there."""


class Made:
    """Requests of all kinds from one seed."""

    def __init__(self, chance: random.Random, api_key: bytes, buckets: list[str]) -> None:
        self._chance = chance
        self._api_key = api_key
        self._buckets = buckets

    def request(self) -> tuple[str, bytes]:
        kind, method = self._chance.random(), self._chance.choice(["Put", "Put", "Put", "Get"])
        data = self._any(method) if kind < 0.5 else self._good(method)
        if kind < 0.05:
            data = self._chance.randbytes(self._chance.randrange(200))
        elif kind > 0.6:
            data = self._mutated(data)
        return f"{method}BucketNotificationConfiguration", data

    def _good(self, method: str) -> bytes:
        return self._message(
            method,
            self._chance.choice(self._buckets).encode(),
            pb.NotificationConfiguration(
                id=self._chance.choice(["", "Id", "other id"]),
                topic_name=self._chance.choice([TOPIC, OTHER_TOPIC]),
                events=self._chance.sample(EVENTS, self._chance.randint(1, 3)),
                filter=pb.FilterRule(prefix=self._chance.choice(["", "a/"]), suffix=self._chance.choice(["", ".jpg"])),
            ),
        )

    def _any(self, method: str) -> bytes:
        names = [self._chance.choice(self._buckets).encode()] * 4 + [b"no-such-bucket", b"", self._chance.randbytes(5), b"A\0"]
        configuration = pb.NotificationConfiguration(
            id=self._text(),
            topic_name=self._chance.choice([TOPIC, TOPIC, self._text(), f"{TOPIC}{self._text()}", "projects//topics/"]),
            events=[self._chance.choice([*EVENTS, self._text()]) for _ in range(self._chance.randrange(4))],
            filter=pb.FilterRule(prefix=self._text(), suffix=self._text()),
        )
        return self._message(method, self._chance.choice(names), self._chance.choice([configuration] * 8 + [None]))

    def _text(self) -> str:
        anything = "".join(self._chance.choice(CHARACTERS) for _ in range(3))
        return self._chance.choice(["", "", "plain", self._chance.choice(NASTY), anything])

    def _message(self, method: str, name: bytes, configuration: Any) -> bytes:
        api_key = self._api_key if self._chance.random() < 0.95 else self._chance.randbytes(40)
        header = pb.RequestHeader(api_key=api_key)
        if method == "Get":
            return bytes(pb.GetBucketNotificationConfigurationRequest(header=header, name=name).SerializeToString())
        request = pb.PutBucketNotificationConfigurationRequest(header=header, name=name, configuration=configuration)
        return bytes(request.SerializeToString())

    def _mutated(self, data: bytes) -> bytes:
        """Beyond the key in most, which is at the start: what comes after is of more interest."""
        changed = bytearray(data)
        start = len(self._api_key) + 6 if self._chance.random() < 0.8 else 0
        for _ in range(self._chance.randint(1, 3)):
            place = self._chance.randrange(min(start, len(changed)), len(changed) + 1)
            match self._chance.randrange(5):
                case 0 if place < len(changed):
                    changed[place] ^= 1 << self._chance.randrange(8)
                case 1:
                    changed[place:place] = self._chance.randbytes(self._chance.randint(1, 4))
                case 2:
                    del changed[place : place + self._chance.randint(1, 4)]
                case 3:
                    changed += changed[place:]
                case _:
                    del changed[place:]
        return bytes(changed)


def judged(method: str, data: bytes, api_key: bytes, buckets: list[str]) -> tuple[bool, Any]:
    """Whether this is a good request, by the words of seed 000, and what it is then."""
    message = getattr(pb, f"{method}Request")
    try:
        request = message.FromString(data)
    except DecodeError:
        return False, None
    known = request.header.api_key == api_key and request.name in [bucket.encode() for bucket in buckets]
    if not known or method.startswith("Get"):
        return known, request
    configuration = request.configuration
    texts = [configuration.filter.prefix, configuration.filter.suffix]
    plain = pb.NotificationConfiguration(
        id=configuration.id,
        topic_name=configuration.topic_name,
        events=configuration.events,
        filter=pb.FilterRule(prefix=texts[0], suffix=texts[1]) if configuration.HasField("filter") else None,
    )
    if len(configuration.SerializeToString()) > len(plain.SerializeToString()):
        return False, request  # it has fields that are not known
    if not any([configuration.id, configuration.topic_name, configuration.events, *texts]):
        return True, request
    good = (
        configuration.topic_name in (TOPIC, OTHER_TOPIC)
        and len(configuration.events) > 0
        and set(configuration.events) <= ALLOWED
        and len(configuration.id) <= 255
        and not re.search(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]", configuration.id)
        and all(len(text) <= 1024 and not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", text) for text in texts)
    )
    return good, request


ALLOWED = {*EVENTS, "s3:ObjectCreated:Post", "s3:ObjectCreated:CompleteMultipartUpload"}


def test_two_thousand_odd_requests_are_answered_and_only_good_ones_change_anything(
    database_url: str, tmp_path: Path, say: Say
) -> None:
    seed = seeded()
    with metainfo_server(database_url, tmp_path) as front:
        buckets, api_key = [front.bucket() for _ in range(3)], front.key().api_key.encode()
        made = Made(random.Random(seed), api_key, buckets)
        answers: Counter[str] = Counter()
        changed = 0
        for _ in range(REQUESTS // AT_ONCE):
            before = state(front)
            requests = [made.request() for _ in range(AT_ONCE)]
            codes = sent(front, requests)
            answers.update(codes)
            wanted: dict[str, list[Any]] = {bucket: [] for bucket in buckets}
            for (method, data), code in zip(requests, codes, strict=True):
                assert code in STATUSES, (seed, method, data, code)
                good, request = judged(method, data, api_key, buckets)
                assert (code == "OK") == good, (seed, method, data, code)
                if good and method.startswith("Put"):
                    wanted[request.name.decode()].append(request.configuration)
                    changed += 1
            after = state(front)
            for bucket in buckets:
                version, rows = after[bucket]
                assert version == before[bucket][0] + len(wanted[bucket]), (seed, bucket)
                as_it_was = not wanted[bucket] and rows == before[bucket][1]
                assert as_it_was or is_one_of(rows, wanted[bucket]), (seed, bucket, rows)
        assert front.server.process.poll() is None
        assert "Traceback" not in front.server.log
        assert min(answers["OK"], answers["INVALID_ARGUMENT"], answers["UNAUTHENTICATED"], answers["NOT_FOUND"]) > 20, answers
        assert changed > 100
        say(f"seed {seed}: {dict(answers)}, {changed} changes")


def sent(front: Front, requests: list[tuple[str, bytes]]) -> list[str]:
    with grpc.insecure_channel(front.target) as channel:
        calls = [
            channel.unary_unary(f"/tidings.metainfo.Metainfo/{method}").future(data, timeout=60) for method, data in requests
        ]
        return [call.code().name for call in calls]


def state(front: Front) -> dict[str, tuple[int, list[tuple[Any, ...]]]]:
    """For each bucket, how often its configuration was changed, and what it is."""
    rules = (
        "select config_id, topic_name, events, coalesce(filter_prefix, ''), coalesce(filter_suffix, '')"
        " from bucket_eventing_configs where bucket_name = %s"
    )
    versions = front.server.query("select name, config from bucket_metainfos")
    return {bucket: (version, front.server.query(rules, bucket)) for bucket, version in versions}


def is_one_of(rows: list[tuple[Any, ...]], wanted: list[Any]) -> bool:
    """They were put side by side: any may have been the last."""
    if not rows:
        return any(not each.topic_name for each in wanted)
    ((config_id, *rest),) = rows
    return any(
        rest == [each.topic_name, list(each.events), each.filter.prefix, each.filter.suffix] and each.id in ("", config_id)
        for each in wanted
    )
