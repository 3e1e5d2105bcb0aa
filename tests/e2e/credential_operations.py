"""Every operation of every front, and what it answers to a key that it takes.

Most calls name a bucket, topic, queue or reference that does not exist: the answer tells that to a key that counts, and
nothing changes. The operations come from the product's own tables; `unlisted` finds those that have no call here.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

from s3_server import REGION

from tidings.api import catalog_calls, catalog_subscriptions, metainfo_pb2, operations, sqs
from tidings.api.sns import Sns
from tidings.consumers.uploads import front
from tidings.topics.service import Topics
from tidings.topics.subscribing import Subscriptions

BUCKET, ELSEWHERE, QUEUE, NOWHERE = "matrix", "elsewhere", "matrix-queue", "nowhere"
CATALOG = "/-/catalog/api/v1/"
SUBSCRIPTIONS = "/-/catalog/subscriptions"
METHODS = metainfo_pb2.DESCRIPTOR.services_by_name["Metainfo"].methods
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
MULTIPART = {"content-type": "multipart/form-data; boundary=b"}

_FORM_FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--b--\r\n'

REFUSALS = frozenset(
    {
        *("400 AuthorizationHeaderMalformed", "400 AuthorizationQueryParametersError", "400 IncompleteSignature"),
        "400 InvalidRequest",  # another mechanism than Signature Version 4
        *("400", "403"),  # of HEAD
        *("401 UNKNOWN", "401 Unauthorized", "403 FORBIDDEN", "403 Forbidden"),
        *("403 AccessDenied", "403 AccessDeniedException", "403 AuthorizationError", "403 InvalidAccessKeyId"),
        *("403 InvalidClientTokenId", "403 SignatureDoesNotMatch", "403 UnrecognizedClientException"),
    }
)
"""Status and code with which a front refuses a credential."""

DONE = ("200", "204")
_FOREIGN = ("foreign",)


class Call(NamedTuple):
    """One call of a front.

    `opened` are its answers to a credential that counts; `others` those it counts for beside the project's own; `hidden` the
    answers to another project, for which the resource does not exist.
    """

    name: str
    service: str
    method: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    opened: tuple[str, ...] = DONE
    others: tuple[str, ...] = _FOREIGN
    hidden: tuple[str, ...] = ()

    def opens(self, answer: str) -> bool:
        """Whether the credential counted. Any answer that is in neither list is a failure of the test."""
        if answer in self.opened:
            return True
        assert answer in REFUSALS or answer in self.hidden, f"{self.name} answered {answer}"
        return False


_KEY = b'--b\r\ncontent-disposition: form-data; name="key"\r\n\r\nform\r\n'
UNSIGNED_FORM = Call(
    "PostObject", "s3", "POST", f"/{BUCKET}", MULTIPART, _KEY + _FORM_FILE, others=(), hidden=("400 InvalidArgument",)
)


def unlisted(calls: list[Call]) -> set[str]:
    """Operations that the product serves and nothing is offered to."""
    listed = {(call.service, call.name.partition(",")[0]) for call in calls}
    served = {
        *(("s3", operation.name) for operation in operations._OPERATIONS.values()),
        *(("sns", name) for name in Sns(cast(Topics, None), cast(Subscriptions, None))._actions),
        *(("sqs", name) for name in sqs.OPERATIONS),
        *(("catalog", name) for module in (catalog_calls, catalog_subscriptions) for name in _found(module)),
        *(("uploads", f"{method} {'NAME' if named else ''}".strip()) for method, named in _compared(front)),
    }
    return {f"{service} {name}" for service, name in served - listed}


def _found(module: ModuleType) -> Iterator[str]:
    """The names in `Found("name", …)`: the catalog's routes are a match statement."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Found":
            yield ast.literal_eval(node.args[0])


def _compared(module: ModuleType) -> Iterator[tuple[str, bool]]:
    """The pairs in `(method, bool(name)) == ("POST", False)`: the uploads' routes are three conditions."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Tuple) and isinstance(node.comparators[0], ast.Tuple):
            yield ast.literal_eval(node.comparators[0])


def signed_calls(endpoint: str, project: str) -> list[Call]:
    """Of the services that want a signature. Topics and queues are those of `project`."""
    return [*_of_existing(), *_of_s3(), *_of_sns(project), *_of_sqs(endpoint, project)]


def _xml(root: str, inner: str = "") -> bytes:
    return f'<{root} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{root}>'.encode()


_S3: dict[str, tuple[str, bytes]] = {
    "PutBucketVersioning": ("versioning=", _xml("VersioningConfiguration", "<Status>Enabled</Status>")),
    "PutBucketNotificationConfiguration": ("notification=", _xml("NotificationConfiguration")),
    "ListObjectsV2": ("list-type=2", b""),
    "DeleteObjects": ("delete=", _xml("Delete", "<Object><Key>key</Key></Object>")),
    "PutObject": ("", b"x"),
    "PutObjectTagging": ("tagging=", _xml("Tagging", "<TagSet/>")),
    "UploadPart": ("partNumber=1&uploadId=x", b"x"),
    "UploadPartCopy": ("partNumber=1&uploadId=x", b""),
    "CompleteMultipartUpload": (
        "uploadId=x",
        _xml("CompleteMultipartUpload", "<Part><PartNumber>1</PartNumber><ETag>x</ETag></Part>"),
    ),
}
"""Query and body of those that need more than the parameter that marks them."""
_S3_HEADERS = {
    "CopyObject": {"x-amz-copy-source": f"/{NOWHERE}/other"},
    "UploadPartCopy": {"x-amz-copy-source": f"/{NOWHERE}/other"},
    "RenameObject": {"x-amz-rename-source": "other"},
}
_S3_ANSWERS = {
    "ListBuckets": DONE,
    "CreateBucket": ("200", "409 BucketAlreadyOwnedByYou"),
    "CompleteMultipartUpload": ("400 InvalidPart",),
}


def _of_s3() -> Iterator[Call]:
    paths = {"service": "/", "bucket": f"/{NOWHERE}", "object": f"/{NOWHERE}/key"}
    for (method, level, marker), operation in operations._OPERATIONS.items():
        name = operation.name
        parameter = "" if marker.startswith("x-amz-") else marker.partition(" ")[0]
        query, body = _S3.get(name, (f"{parameter}=x" if parameter == "uploadId" else parameter and f"{parameter}=", b""))
        path = "/made" if name == "CreateBucket" else paths[level]
        missing = "404" if method == "HEAD" else "404 NoSuchUpload" if "uploadId" in query else "404 NoSuchBucket"
        yield Call(
            *(name, "s3", method, f"{path}?{query}" if query else path, _S3_HEADERS.get(name, {}), body),
            _S3_ANSWERS.get(name, (missing,)),
            ("foreign", "narrow") if name == "ListBuckets" else _FOREIGN,
        )


def _of_existing() -> Iterator[Call]:
    """Some operations again, on what exists: no other project sees it."""
    notification = _xml("NotificationConfiguration")
    for name, method, target, body in (
        ("HeadBucket", "HEAD", f"/{BUCKET}", b""),
        ("ListObjectsV2", "GET", f"/{BUCKET}?list-type=2", b""),
        ("GetObject", "GET", f"/{BUCKET}/key", b""),
        ("PutObject", "PUT", f"/{BUCKET}/key", b"x"),
        ("DeleteObject", "DELETE", f"/{BUCKET}/gone", b""),
        ("GetBucketNotificationConfiguration", "GET", f"/{BUCKET}?notification=", b""),
        ("PutBucketNotificationConfiguration", "PUT", f"/{BUCKET}?notification=", notification),
    ):
        yield Call(f"{name}, existing", "s3", method, target, {}, body, DONE, (), ("404", "404 NoSuchBucket"))
    yield _sqs("GetQueueUrl, existing", {"QueueName": QUEUE}, DONE, (), ("400 QueueDoesNotExist",))


def _of_sns(project: str) -> Iterator[Call]:
    arn = f"arn:aws:sns:{REGION}:{project}:{NOWHERE}"
    topic, resource, label = {"TopicArn": arn}, {"ResourceArn": arn}, {"TopicArn": arn, "Label": "l"}
    subscription = {"SubscriptionArn": f"{arn}:11111111-2222-3333-4444-555555555555"}
    missing, untagged = ("404 NotFound",), ("404 ResourceNotFound",)
    found: dict[str, tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]] = {
        "CreateTopic": ({"Name": "made"}, DONE, _FOREIGN),
        "DeleteTopic": (topic, DONE, ()),
        "ListTopics": ({}, DONE, _FOREIGN),
        "GetTopicAttributes": (topic, missing, ()),
        "SetTopicAttributes": ({**topic, "AttributeName": "DisplayName", "AttributeValue": "x"}, missing, ()),
        "TagResource": ({**resource, "Tags.member.1.Key": "k", "Tags.member.1.Value": "v"}, untagged, ()),
        "UntagResource": ({**resource, "TagKeys.member.1": "k"}, untagged, ()),
        "ListTagsForResource": (resource, untagged, ()),
        "AddPermission": ({**label, "AWSAccountId.member.1": project, "ActionName.member.1": "Subscribe"}, missing, ()),
        "RemovePermission": (label, missing, ()),
        "Subscribe": ({**topic, "Protocol": "https", "Endpoint": "https://example.org/"}, missing, ()),
        # The token alone is the proof. A signature says who sends it, so also a key that may do nothing gets as far as that.
        "ConfirmSubscription": ({**topic, "Token": "x"}, ("400 InvalidParameter",), ("foreign", "narrow", "expired")),
        # A subscription may be another project's than its topic, so one that does not exist is missing for everybody.
        "Unsubscribe": (subscription, missing, _FOREIGN),
        "GetSubscriptionAttributes": (subscription, missing, _FOREIGN),
        "SetSubscriptionAttributes": (
            {**subscription, "AttributeName": "RawMessageDelivery", "AttributeValue": "true"},
            *(missing, _FOREIGN),
        ),
        "ListSubscriptions": ({}, DONE, _FOREIGN),
        "ListSubscriptionsByTopic": (topic, missing, ()),
    }
    for name, (fields, opened, others) in found.items():
        body = urlencode({"Action": name, "Version": "2010-03-31", **fields}).encode()
        yield Call(name, "sns", "POST", "/", FORM, body, opened, others)


def _of_sqs(endpoint: str, project: str) -> Iterator[Call]:
    url, arn = f"{endpoint}/{project}/{NOWHERE}", f"arn:aws:sqs:{REGION}:{project}:{NOWHERE}"
    entry = {"Id": "a"}
    more: dict[str, dict[str, Any]] = {
        "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
        "TagQueue": {"Tags": {"k": "v"}},
        "UntagQueue": {"TagKeys": ["k"]},
        "AddPermission": {"Label": "l", "AWSAccountIds": [project], "Actions": ["SendMessage"]},
        "RemovePermission": {"Label": "l"},
        "SendMessage": {"MessageBody": "x"},
        "SendMessageBatch": {"Entries": [{**entry, "MessageBody": "x"}]},
        "DeleteMessage": {"ReceiptHandle": "x"},
        "DeleteMessageBatch": {"Entries": [{**entry, "ReceiptHandle": "x"}]},
        "ChangeMessageVisibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
        "ChangeMessageVisibilityBatch": {"Entries": [{**entry, "ReceiptHandle": "x", "VisibilityTimeout": 1}]},
    }
    task = ("404 ResourceNotFoundException",)
    yield _sqs("CreateQueue", {"QueueName": "made"}, DONE, _FOREIGN)
    yield _sqs("ListQueues", {}, DONE, _FOREIGN)
    yield _sqs("GetQueueUrl", {"QueueName": NOWHERE, "QueueOwnerAWSAccountId": project})
    yield _sqs("StartMessageMoveTask", {"SourceArn": arn}, task)
    yield _sqs("ListMessageMoveTasks", {"SourceArn": arn}, task)
    yield _sqs("CancelMessageMoveTask", {"TaskHandle": "11111111-2222-3333-4444-555555555555"}, task, _FOREIGN)
    for name, operation in sqs.OPERATIONS.items():
        if "QueueUrl" in operation.parameters:
            yield _sqs(name, {"QueueUrl": url, **more.get(name, {})})


def _sqs(
    name: str,
    asked: dict[str, Any],
    opened: tuple[str, ...] = ("400 QueueDoesNotExist",),
    others: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
) -> Call:
    headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"{sqs.TARGET}{name.partition(',')[0]}"}
    return Call(name, "sqs", "POST", "/", headers, json.dumps(asked).encode(), opened, others, hidden)


def catalog_calls_of_all() -> list[Call]:
    """Each is named as the product itself finds it by method and path."""
    hash = "1" * 64
    at, reference = f"?expectedHash={hash}", {"type": "BRANCH", "name": NOWHERE, "hash": hash}
    change = {"commitMeta": {"message": "x"}, "operations": [{"type": "DELETE", "key": {"elements": ["a"]}}]}
    missing = ("404 REFERENCE_NOT_FOUND",)
    below: list[tuple[str, str, Any, tuple[str, ...]]] = [
        ("GET", "config", None, DONE),
        ("GET", "trees", None, DONE),
        ("GET", "trees/tree", None, DONE),
        ("POST", f"trees/tree?sourceRefName={NOWHERE}", reference, missing),
        ("GET", f"trees/tree/{NOWHERE}", None, missing),
        ("GET", f"trees/tree/{NOWHERE}/entries", None, missing),
        ("GET", f"trees/tree/{NOWHERE}/log", None, missing),
        *(("PUT", f"trees/{kind}/{NOWHERE}{at}", reference, missing) for kind in ("branch", "tag")),
        *(("DELETE", f"trees/{kind}/{NOWHERE}{at}", None, missing) for kind in ("branch", "tag")),
        ("POST", f"trees/branch/{NOWHERE}/commit{at}", change, missing),
        ("POST", f"trees/branch/{NOWHERE}/merge{at}", {"fromRefName": NOWHERE, "fromHash": hash}, missing),
        (
            *("POST", f"trees/branch/{NOWHERE}/transplant{at}"),
            *({"fromRefName": NOWHERE, "hashesToTransplant": [hash]}, missing),
        ),
        ("GET", f"contents/key?ref={NOWHERE}", None, missing),
        ("POST", f"contents?ref={NOWHERE}", {"requestedKeys": [{"elements": ["a"]}]}, missing),
        ("GET", f"diffs/{NOWHERE}...main", None, missing),
    ]
    subscribed: list[tuple[str, str, Any, tuple[str, ...]]] = [
        ("GET", "", None, DONE),
        ("GET", f"/{NOWHERE}", None, ("404 UNKNOWN",)),
        ("PUT", f"/{NOWHERE}", {"destination": NOWHERE, "types": []}, ("400 BAD_REQUEST",)),
        ("DELETE", f"/{NOWHERE}", None, ("404 UNKNOWN",)),
    ]
    found = []
    for method, target, document, opened in below:
        name = catalog_calls.find(method, tuple(urlsplit(target).path.split("/"))).name
        found.append(_catalog(name, method, CATALOG + target, document, opened))
    for method, target, document, opened in subscribed:
        name = catalog_subscriptions.find(cast(Any, None), method, tuple(target.split("/")[1:])).name
        found.append(_catalog(name, method, SUBSCRIPTIONS + target, document, opened))
    return found


def _catalog(name: str, method: str, target: str, document: Any, opened: tuple[str, ...]) -> Call:
    body = b"" if document is None else json.dumps(document).encode()
    return Call(name, "catalog", method, target, {"content-type": "application/json"}, body, opened)


def upload_calls() -> list[Call]:
    form = b'--b\r\ncontent-disposition: form-data; name="name"\r\n\r\nn\r\n' + _FORM_FILE
    return [
        Call("GET", "uploads", "GET", front.PATH),
        Call("POST", "uploads", "POST", front.PATH, MULTIPART, form),
        # No upload can have this name: the store, which may be slow, is not asked.
        Call("DELETE NAME", "uploads", "DELETE", f"{front.PATH}/no%2F%2Fwhere", opened=("400 BadRequest",)),
    ]
