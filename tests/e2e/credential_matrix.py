"""Every form of every credential, and every door it can be offered to.

A pair is an access key id with a secret, to sign with. A text is what somebody sends as a bearer token, or as the token of a
link. Each has a name; `Offer.meant` says whether the door must open for it.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import grpc
import psycopg
from botocore.auth import S3SigV4Auth, S3SigV4PostAuth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from s3_server import REGION, Server

import canary
from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.access.macaroons import Caveat, Macaroon
from tidings.access.projects import create_project
from tidings.api import metainfo_pb2

BUCKET, ELSEWHERE, QUEUE = "matrix", "elsewhere", "matrix-queue"
CATALOG = "/-/catalog/api/v1/"
_FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
_OVER = 1_000_000_000  # a time that has passed


class Pair(NamedTuple):
    name: str
    access_key_id: str
    secret: str


class Text(NamedTuple):
    name: str
    value: str


class Offer(NamedTuple):
    """One credential at one door, in one form."""

    credential: str
    door: str
    meant: bool
    knock: Callable[[], bool]

    def __str__(self) -> str:
        return f"{self.credential} at {self.door}"


@dataclass
class Keys:
    """Everything that was handed out. `foreign` is of another project, `narrow` is for another bucket alone."""

    valid: Access
    foreign: Access
    revoked: Access
    expired: Access
    narrow: Access
    child: Access
    child_of_revoked: Access

    @classmethod
    def create(cls, server: Server) -> Keys:
        with psycopg.connect(server.database_url, autocommit=True) as connection:

            def made(project: str = server.project, **limit: Any) -> Access:
                return api_keys.create(connection, project, limit=Caveat(**limit))

            valid, revoked = made(), made()
            child = api_keys.restrict(connection, valid.api_key, Caveat(not_after=4_000_000_000))
            orphan = api_keys.restrict(connection, revoked.api_key, Caveat(not_after=4_000_000_000))
            api_keys.revoke(connection, revoked.api_key)
            foreign = made(create_project(connection, "foreign"))
            found = cls(valid, foreign, revoked, made(not_after=_OVER), made(buckets=frozenset({ELSEWHERE})), child, orphan)
        canary.plant(server.database_url)
        return found

    def pairs(self) -> list[Pair]:
        valid, foreign = self.valid, self.foreign
        whole = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return [
            *(Pair(name, access.access_key_id, access.secret) for name, access in whole.items()),
            Pair("id with a foreign secret", valid.access_key_id, foreign.secret),
            Pair("foreign id with the secret", foreign.access_key_id, valid.secret),
            Pair("id with the secret of a revoked key", valid.access_key_id, self.revoked.secret),
            Pair("revoked id with a valid secret", self.revoked.access_key_id, valid.secret),
            Pair("id without a secret", valid.access_key_id, ""),
            Pair("id as its own secret", valid.access_key_id, valid.access_key_id),
            Pair("id with the API key", valid.access_key_id, valid.api_key),
            Pair("id in small letters", valid.access_key_id.lower(), valid.secret),
            Pair("id with half of the secret", valid.access_key_id, valid.secret[:20]),
            Pair("unknown id with a valid secret", "AKIA" + "A" * 16, valid.secret),
            Pair("unknown id without a secret", "AKIA" + "A" * 16, ""),
            Pair("API key without a secret", valid.api_key, ""),
            Pair("API key as its own secret", valid.api_key, valid.api_key),
            Pair("API key with the secret", valid.api_key, valid.secret),
            Pair("foreign API key without a secret", foreign.api_key, ""),
        ]

    def texts(self) -> list[Text]:
        valid = self.valid
        last = valid.api_key[-1]
        head = Macaroon.parse(valid.api_key).head
        forged = Macaroon(head, (), Macaroon.new(bytes(32)).tail)
        whole = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return [
            *(Text(name, access.api_key) for name, access in whole.items()),
            Text("access key id", valid.access_key_id),
            Text("secret", valid.secret),
            Text("id and secret", f"{valid.access_key_id}:{valid.secret}"),
            Text("API key with another last character", valid.api_key[:-1] + ("A" if last != "A" else "B")),
            Text("half of an API key", valid.api_key[: len(valid.api_key) // 2]),
            Text("API key twice", valid.api_key * 2),
            Text("known head with a forged tail", str(forged)),
            Text("known head with a caveat that never ends", str(Macaroon(head, (b"[" * 10_000,), bytes(32)))),
            Text("key of another installation", str(Macaroon.new(bytes(32)))),
            Text("nothing", ""),
        ]


@dataclass
class Door:
    """An HTTP server, asked on one connection."""

    url: str
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    def opens(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> bool:
        """Whether the request was served. A refusal is a 4xx: nothing here may be a fault of the server."""
        for fresh in (False, True):
            if self._connection is None or fresh:
                self.close()
                self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
            try:
                self._connection.request(method, target, body or None, headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (ConnectionError, http.client.HTTPException):
                if fresh:
                    raise
                continue
            canary.answered(dict(answer.getheaders()), content)
            assert answer.status < 500, (answer.status, content[:300])
            return answer.status < 300
        raise AssertionError

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class Call(NamedTuple):
    """A call of a service that wants a signature, and for whom else it is served."""

    name: str
    service: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    others: tuple[str, ...] = ()


_EMPTY = b'<NotificationConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
_JSON = {"content-type": "application/x-amz-json-1.0"}
CALLS = [
    Call("ListBuckets", "s3", "GET", "/", {}, b"", ("foreign", "narrow")),
    Call("HeadBucket", "s3", "HEAD", f"/{BUCKET}", {}, b""),
    Call("ListObjects", "s3", "GET", f"/{BUCKET}?list-type=2", {}, b""),
    Call("GetObject", "s3", "GET", f"/{BUCKET}/key", {}, b""),
    Call("PutObject", "s3", "PUT", f"/{BUCKET}/key", {}, b"x"),
    Call("DeleteObject", "s3", "DELETE", f"/{BUCKET}/gone", {}, b""),
    Call("GetNotification", "s3", "GET", f"/{BUCKET}?notification=", {}, b""),
    Call("PutNotification", "s3", "PUT", f"/{BUCKET}?notification=", {}, _EMPTY),
    Call("ListTopics", "sns", "POST", "/", _FORM, b"Action=ListTopics&Version=2010-03-31", ("foreign",)),
    Call("ListSubscriptions", "sns", "POST", "/", _FORM, b"Action=ListSubscriptions&Version=2010-03-31", ("foreign",)),
    Call("ListQueues", "sqs", "POST", "/", {**_JSON, "x-amz-target": "AmazonSQS.ListQueues"}, b"{}", ("foreign",)),
    Call(
        *("GetQueueUrl", "sqs", "POST", "/"),
        {**_JSON, "x-amz-target": "AmazonSQS.GetQueueUrl"},
        json.dumps({"QueueName": QUEUE}).encode(),
    ),
]
ALWAYS = ("valid", "child")
_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND)


def signed(door: Door, pair: Pair, call: Call) -> bool:
    request = AWSRequest(call.method, f"{door.url}{call.target}", headers=dict(call.headers), data=call.body)
    signer = S3SigV4Auth if call.service == "s3" else SigV4Auth
    signer(Credentials(pair.access_key_id, pair.secret), call.service, REGION).add_auth(request)
    return door.opens(call.method, call.target, dict(request.headers), call.body)


def presigned(door: Door, pair: Pair, call: Call) -> bool:
    request = AWSRequest(call.method, f"{door.url}{call.target}", headers=dict(call.headers))  # S3 signs no body here
    signer = S3SigV4QueryAuth if call.service == "s3" else SigV4QueryAuth
    signer(Credentials(pair.access_key_id, pair.secret), call.service, REGION, 600).add_auth(request)
    return door.opens(call.method, request.url.removeprefix(door.url), dict(request.headers), call.body)


def posted(door: Door, pair: Pair) -> bool:
    """A browser's form with a signed policy."""
    until = (datetime.now(UTC) + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    request = AWSRequest("POST", f"{door.url}/{BUCKET}")
    policy = {"expiration": until, "conditions": [{"bucket": BUCKET}, {"key": "form"}]}
    request.context = {"s3-presign-post-fields": {"key": "form"}, "s3-presign-post-policy": policy}
    S3SigV4PostAuth(Credentials(pair.access_key_id, pair.secret), "s3", REGION).add_auth(request)
    fields = request.context["s3-presign-post-fields"]
    parts = [f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    body = "".join([*parts, '--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n']).encode()
    headers = {"content-type": "multipart/form-data; boundary=b"}
    return door.opens("POST", f"/{BUCKET}", headers, body)


def with_signatures(api: Door, pairs: list[Pair]) -> Iterator[Offer]:
    for pair in pairs:
        for call in CALLS:
            meant = pair.name in (*ALWAYS, *call.others)
            yield Offer(pair.name, f"{call.name}, header", meant, lambda p=pair, c=call: signed(api, p, c))
            in_query = meant and call.service == "s3"  # SNS and SQS take no signature in the query
            yield Offer(pair.name, f"{call.name}, presigned", in_query, lambda p=pair, c=call: presigned(api, p, c))
        yield Offer(pair.name, "PostObject, form", pair.name in ALWAYS, lambda pair=pair: posted(api, pair))


def signatures_where_none_counts(doors: dict[str, tuple[Door, str]], pairs: list[Pair]) -> Iterator[Offer]:
    for pair in pairs:
        for name, (door, path) in doors.items():
            for service in ("s3", "sqs"):
                call = Call(name, service, "GET", path, {}, b"")
                yield Offer(pair.name, f"{name}, signed for {service}", False, lambda d=door, p=pair, c=call: signed(d, p, c))
                yield Offer(
                    pair.name, f"{name}, presigned for {service}", False, lambda d=door, p=pair, c=call: presigned(d, p, c)
                )


def _forms(text: str) -> dict[str, dict[str, str]]:
    encoded = base64.b64encode(text.encode()).decode()
    return {
        "Bearer": {"authorization": f"Bearer {text}"},
        "bearer": {"authorization": f"bearer  {text}"},
        "Basic": {"authorization": f"Basic {encoded}"},
        "bare": {"authorization": text},
        "X-Api-Key": {"x-api-key": text},
    }


def with_texts(catalog: Door, uploads: Door, texts: list[Text]) -> Iterator[Offer]:
    upload = (
        b'--b\r\ncontent-disposition: form-data; name="name"\r\n\r\nn\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--b--\r\n'
    )
    multipart = {"content-type": "multipart/form-data; boundary=b"}
    calls: list[tuple[str, Door, str, str, dict[str, str], bytes]] = [
        ("catalog, references", catalog, "GET", f"{CATALOG}trees", {}, b""),
        ("catalog, configuration", catalog, "GET", f"{CATALOG}config", {}, b""),
        ("catalog, subscriptions", catalog, "GET", "/-/catalog/subscriptions", {}, b""),
        ("uploads, list", uploads, "GET", "/api/uploads", {}, b""),
        ("uploads, post", uploads, "POST", "/api/uploads", multipart, upload),
    ]
    for text in texts:
        for name, door, method, path, headers, body in calls:
            for form, proof in _forms(text.value).items():
                meant = text.name in (*ALWAYS, "foreign") and form.lower() == "bearer"
                sent = {**headers, **proof}
                yield Offer(
                    text.name, f"{name}, {form}", meant, lambda d=door, m=method, p=path, h=sent, b=body: d.opens(m, p, h, b)
                )
            target = f"{path}?access_token={quote(text.value)}"
            yield Offer(
                text.name, f"{name}, query", False, lambda d=door, m=method, t=target, h=headers, b=body: d.opens(m, t, h, b)
            )


def texts_where_none_counts(api: Door, texts: list[Text]) -> Iterator[Offer]:
    for text in texts:
        for call in CALLS:
            for form, proof in _forms(text.value).items():
                headers = {**call.headers, **proof}
                yield Offer(
                    *(text.name, f"{call.name}, {form}", False),
                    lambda c=call, h=headers: api.opens(c.method, c.target, h, c.body),
                )


def over_grpc(channel: grpc.Channel, texts: list[Text]) -> Iterator[Offer]:
    get, put = metainfo_pb2.GetBucketNotificationConfigurationRequest, metainfo_pb2.PutBucketNotificationConfigurationRequest

    def call(method: str, request: Any, metadata: list[tuple[str, str]]) -> bool:
        invoke = channel.unary_unary(f"/tidings.metainfo.Metainfo/{method}")
        try:
            canary.seen(repr(invoke(request.SerializeToString(), timeout=60, metadata=metadata)))
        except grpc.RpcError as error:
            canary.seen(str(error))
            if error.code() not in _REFUSALS:
                raise
            return False
        return True

    for text in texts:
        for method, kind in (("GetBucketNotificationConfiguration", get), ("PutBucketNotificationConfiguration", put)):
            meant = text.name in ALWAYS
            in_header = kind(header=metainfo_pb2.RequestHeader(api_key=text.value.encode()), name=BUCKET.encode())
            bare = kind(name=BUCKET.encode())
            yield Offer(text.name, f"gRPC {method}, header", meant, lambda m=method, r=in_header: call(m, r, []))
            for form, proof in _forms(text.value).items():
                opens = meant and form.lower() == "bearer"
                sent = list(proof.items())
                yield Offer(text.name, f"gRPC {method}, {form}", opens, lambda m=method, r=bare, s=sent: call(m, r, s))


def at_links(api: Door, topic: str, token: str, texts: list[Text]) -> Iterator[Offer]:
    for name, value in [Text("token of the link", token), *texts]:
        query = urlencode({"Action": "ConfirmSubscription", "TopicArn": topic, "Token": value})
        yield Offer(name, "link", value == token, lambda q=query: api.opens("GET", f"/?{q}", {}))


def at_webhook(webhook: Door, genuine: dict[str, Any], others: dict[str, dict[str, Any]], texts: list[Text]) -> Iterator[Offer]:
    def post(message: dict[str, Any], **headers: str) -> bool:
        return webhook.opens("POST", "/api/sns", {"content-type": "text/plain", **headers}, json.dumps(message).encode())

    yield Offer("signature of the topic", "files webhook", True, lambda: post(genuine))
    for name, message in others.items():
        yield Offer(name, "files webhook", False, lambda m=message: post(m))
    unsigned = next(iter(others.values()))
    for text in texts:
        for form, proof in _forms(text.value).items():
            yield Offer(text.name, f"files webhook, {form}", False, lambda p=proof: post(unsigned, **p))
