"""Every form of every credential, and every door it can be offered to.

A pair is an access key id with a secret, to sign with. A text is what somebody sends as a bearer token, or as the token of a
link. Each has a name; `Offer.meant` says whether the door must open for it. A door opens if it answers what
`credential_operations` has for a credential that counts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import grpc
import psycopg
from credential_forms import PAYLOADS, Door, Pair, posted, presigned, signature, signed, streamed
from credential_operations import BUCKET, ELSEWHERE, METHODS, UNSIGNED_FORM, Call, signed_calls
from google.protobuf.message_factory import GetMessageClass
from s3_server import Server

import canary
from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.access.macaroons import Caveat, Macaroon
from tidings.access.projects import create_project
from tidings.api import metainfo_pb2

_OVER = 1_000_000_000  # a time that has passed


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

    @property
    def whole(self) -> dict[str, Access]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def pairs(self) -> list[Pair]:
        valid, foreign = self.valid, self.foreign
        return [
            *pairs_of(self.whole),
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
        return [
            *texts_of(self.whole),
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


def pairs_of(whole: dict[str, Access]) -> list[Pair]:
    return [Pair(name, access.access_key_id, access.secret) for name, access in whole.items()]


def texts_of(whole: dict[str, Access]) -> list[Text]:
    return [Text(name, access.api_key) for name, access in whole.items()]


@dataclass
class Ending:
    """A key and one that was made of it: both good until `end`."""

    database_url: str
    whole: dict[str, Access]

    @classmethod
    def create(cls, server: Server) -> Ending:
        with psycopg.connect(server.database_url, autocommit=True) as connection:
            key = api_keys.create(connection, server.project)
            child = api_keys.restrict(connection, key.api_key, Caveat(not_after=4_000_000_000))
        canary.plant(server.database_url)
        return cls(server.database_url, {"ending": key, "child of ending": child})

    def end(self) -> None:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            api_keys.revoke(connection, self.whole["ending"].api_key)


ALWAYS = ("valid", "child", "ending", "child of ending")
_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND)


@dataclass
class Place:
    """What the calls and the links are about."""

    server: Server
    topic: str
    token: str
    """Of the subscription to that topic that waits."""
    upload: str
    """The id of an upload to `BUCKET/parts` that never ends."""

    def calls(self) -> list[Call]:
        return signed_calls(self.server.endpoint, self.server.project)

    def bodies(self) -> list[Call]:
        part = f"/{BUCKET}/parts?partNumber=1&uploadId={self.upload}"
        return [
            Call("PutObject", "s3", "PUT", f"/{BUCKET}/key", body=b"x", others=(), hidden=("404 NoSuchBucket",)),
            Call("UploadPart", "s3", "PUT", part, body=b"x", others=(), hidden=("404 NoSuchUpload",)),
        ]


def with_signatures(place: Place, api: Door, pairs: list[Pair], whole: Pair) -> Iterator[Offer]:
    """`whole` is a pair that counts: it signs the headers before chunks that each other one signs."""
    for pair in pairs:
        for call in place.calls():
            meant, name = pair.name in (*ALWAYS, *call.others), f"{call.service} {call.name}"
            yield Offer(pair.name, f"{name}, header", meant, lambda p=pair, c=call: c.opens(signed(api, p, c)))
            in_query = meant and call.service == "s3"  # SNS and SQS take no signature in the query
            yield Offer(pair.name, f"{name}, presigned", in_query, lambda p=pair, c=call: c.opens(presigned(api, p, c)))
            if call.service == "sns":
                get = call._replace(method="GET", target=f"/?{call.body.decode()}", headers={}, body=b"")
                yield Offer(pair.name, f"{name} by GET, header", meant, lambda p=pair, c=get: c.opens(signed(api, p, c)))
        meant = pair.name in ALWAYS
        for call in place.bodies():
            for payload in PAYLOADS:

                def opens(head: Pair, chunks: Pair, call: Call = call, payload: str = payload) -> bool:
                    return call.opens(streamed(place.server, api, head, call, payload, chunks))

                yield Offer(pair.name, f"s3 {call.name}, {payload}", meant, lambda p=pair, o=opens: o(p, p))
                if "HMAC" in payload and pair.secret != whole.secret:
                    name = f"s3 {call.name}, chunks of {payload}"
                    yield Offer(pair.name, name, False, lambda p=pair, o=opens: o(whole, p))
        yield Offer(pair.name, "s3 PostObject, form", meant, lambda pair=pair: posted(api, pair))


def signatures_where_none_counts(calls: list[tuple[Door, Call]], pairs: list[Pair]) -> Iterator[Offer]:
    for pair in pairs:
        for door, call in calls:
            for service in ("s3", "sqs"):
                as_signed = call._replace(service=service)
                for how, sent in (("signed", signed), ("presigned", presigned)):
                    yield Offer(
                        *(pair.name, f"{call.service} {call.name}, {how} for {service}", False),
                        lambda d=door, p=pair, c=as_signed, s=sent: c.opens(s(d, p, c)),
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


def with_texts(calls: list[tuple[Door, Call]], texts: list[Text]) -> Iterator[Offer]:
    for text in texts:
        for door, call in calls:
            name = f"{call.service} {call.name}"
            for form, proof in _forms(text.value).items():
                meant = text.name in (*ALWAYS, *call.others) and form.lower() == "bearer"
                yield Offer(text.name, f"{name}, {form}", meant, lambda d=door, c=call, h=proof: c.opens(asked(d, c, h)))
            query = f"access_token={quote(text.value)}"
            yield Offer(text.name, f"{name}, query", False, lambda d=door, c=call, q=query: c.opens(asked(d, c, {}, q)))


def texts_where_none_counts(place: Place, api: Door, texts: list[Text]) -> Iterator[Offer]:
    for text in texts:
        for call in (*place.calls(), UNSIGNED_FORM):
            for form, proof in _forms(text.value).items():
                name = f"{call.service} {call.name}"
                yield Offer(text.name, f"{name}, {form}", False, lambda c=call, h=proof: c.opens(asked(api, c, h)))


def asked(door: Door, call: Call, headers: Mapping[str, str], query: str = "") -> str:
    target = f"{call.target}{'&' if '?' in call.target else '?'}{query}" if query else call.target
    return door.answer(call.method, target, {**call.headers, **headers}, call.body)


def over_grpc(channel: grpc.Channel, pairs: list[Pair], texts: list[Text]) -> Iterator[Offer]:
    def opens(method: str, request: Any, metadata: dict[str, str]) -> bool:
        invoke = channel.unary_unary(f"/tidings.metainfo.Metainfo/{method}")
        try:
            canary.seen(repr(invoke(request.SerializeToString(), timeout=60, metadata=list(metadata.items()))))
        except grpc.RpcError as error:
            canary.seen(str(error))
            if error.code() not in _REFUSALS:
                raise
            return False
        return True

    for pair in pairs:
        for method in METHODS:
            call = Call(method.name, "s3", "POST", f"/tidings.metainfo.Metainfo/{method.name}")
            bare = GetMessageClass(method.input_type)(name=BUCKET.encode())
            yield Offer(
                *(pair.name, f"gRPC {method.name}, signed", False),
                lambda m=method.name, r=bare, p=pair, c=call: opens(m, r, signature(p, c)),
            )
    for text in texts:
        for method in METHODS:
            meant, kind = text.name in ALWAYS, GetMessageClass(method.input_type)
            in_header = kind(header=metainfo_pb2.RequestHeader(api_key=text.value.encode()), name=BUCKET.encode())
            bare = kind(name=BUCKET.encode())
            name = f"gRPC {method.name}"
            yield Offer(text.name, f"{name}, header", meant, lambda m=method.name, r=in_header: opens(m, r, {}))
            for form, proof in _forms(text.value).items():
                in_metadata = meant and form.lower() == "bearer"
                yield Offer(text.name, f"{name}, {form}", in_metadata, lambda m=method.name, r=bare, s=proof: opens(m, r, s))


def at_links(place: Place, api: Door, texts: list[Text]) -> Iterator[Offer]:
    for name, value in [Text("token of the link", place.token), *texts]:
        confirm = urlencode({"Action": "ConfirmSubscription", "TopicArn": place.topic, "Token": value})
        leave = urlencode({"Action": "Unsubscribe", "SubscriptionArn": f"{place.topic}:{value}"})
        meant = value == place.token
        yield Offer(name, "link ConfirmSubscription", meant, lambda q=confirm: api.opens("GET", f"/?{q}", {}))
        yield Offer(name, "link Unsubscribe", False, lambda q=leave: api.opens("GET", f"/?{q}", {}))


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
