"""Every format once more, as plain Python: what the columns must come to.

Written from the seed's tables and the reference page, not from the columns.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID, uuid5

from change_rows import RULE
from tidings.events.keys import form_encoded
from tidings.formats import Context

Change = dict[str, Any]

_NAMESPACE = UUID("f9faf101-3f10-54eb-b890-543f4ff976bd")


def time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def message_id(change: Change) -> str:
    return f"{change['id']}.{RULE}"


def known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def record(change: Change, context: Context, config_id: str) -> dict[str, Any]:
    profile = context.profile
    about = {"size": change["size"], "eTag": change["etag"], "versionId": change["version_id"]}
    return {
        "eventVersion": "2.1",
        "eventSource": profile.event_source,
        "awsRegion": context.region,
        "eventTime": time(change["at"]),
        "eventName": change["event"],
        "userIdentity": {"principalId": change["principal"]},
        "requestParameters": {"sourceIPAddress": change["source_ip"]},
        "responseElements": {"x-amz-request-id": change["request_id"], "x-amz-id-2": change["id"]},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": config_id,
            "bucket": {
                "name": change["bucket"],
                "ownerIdentity": {"principalId": change["project"]},
                "arn": profile.bucket_arn + change["bucket"],
            },
            "object": {"key": form_encoded(change["key"]), **known(about), "sequencer": f"{change['seq']:016X}"},
        },
    }


def s3(change: Change, context: Context, config_id: str) -> dict[str, Any]:
    return {"Records": [record(change, context, config_id)]}


def event_type(change: Change) -> str:
    """Seed 001, the first table and the one of a DELETE without a version."""
    if change["event"] == "ObjectRemoved:Delete":
        return "Object:Delete"
    if change["event"] == "ObjectRemoved:DeleteMarkerCreated":
        return "Object:CreateDeleteMarker" + (":NullVersionDeleted" if change["replaced"] else "")
    return "Object:Write"


def cos(change: Change, context: Context, _config_id: str) -> dict[str, Any]:
    """Seed 001, the table of the fields, column by column."""
    kind = event_type(change)
    about: dict[str, Any] = {}
    if kind == "Object:Write":
        about = {"object_length": change["size"], "object_etag": change["etag"]}
    elif kind == "Object:CreateDeleteMarker":
        about = {"object_length": 0}
    else:
        about = {"object_length": change["old_size"] or 0}
    if kind != "Object:CreateDeleteMarker":
        headers = json.loads(change["metadata"] or "{}")
        own = [{"header": name, "value": value} for name, value in headers.items() if name.startswith("x-amz-meta-")]
        about |= {"content_type": change["content_type"] or None, "meta_headers": own or None}
    payload = {
        "format": "2.0",
        "request_id": change["request_id"],
        "request_time": time(change["request_at"] or change["at"]),
        "event_type": kind,
        "bucket_name": change["bucket"],
        "bucket_uuid": change["bucket_id"],
        "system_uuid": context.system_uuid,
        "system_name": context.system_name or None,
        "object_version": change["version_id"],
        "object_name": change["key"],
        **about,
    }
    return known(payload)


def cos_key(change: Change) -> dict[str, str]:
    notification_id = str(uuid5(_NAMESPACE, message_id(change)))
    return {"format": "2.0", "request_id": change["request_id"], "notification_id": notification_id}


_ACTIONS = {
    "ObjectCreated:Put": "PutObject",
    "ObjectCreated:Post": "PutObject",
    "ObjectCreated:Copy": "CopyObject",
    "ObjectCreated:CompleteMultipartUpload": "CompleteMultipartUpload",
    "ObjectRemoved:Delete": "DeleteObject",
    "ObjectRemoved:DeleteMarkerCreated": "DeleteObject",
}


def r2(change: Change, _context: Context, _config_id: str) -> dict[str, Any]:
    action = _ACTIONS[change["event"]]
    about = {} if action == "DeleteObject" else {"size": change["size"], "eTag": change["etag"]}
    body = {
        "account": change["project"],
        "action": action,
        "bucket": change["bucket"],
        "object": {"key": change["key"], **about},
        "eventTime": time(change["at"]),
    }
    if action == "CopyObject":
        bucket, _, key = change["copy_source"].partition("?")[0].partition("/")
        body["copySource"] = {"bucket": bucket, "object": unquote(key)}
    return body


def event_attributes(change: Change, context: Context) -> dict[str, str]:
    return {
        "specversion": "1.0",
        "id": message_id(change),
        "source": f"{context.profile.event_source}.{context.region}.{change['bucket']}",
        "type": f"com.amazonaws.s3.{change['event']}",
        "subject": form_encoded(change["key"]),
        "time": time(change["at"]),
        "sequence": f"{change['seq']:016X}",
    }


def cloudevents(change: Change, context: Context, config_id: str) -> dict[str, Any]:
    data = record(change, context, config_id)
    if context.binary:
        return data
    return {**event_attributes(change, context), "datacontenttype": "application/json", "data": data}


_IN_HEADERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What the HTTP binding (3.1.3.2) lets stand in a header."""


def cloudevents_attributes(change: Change, context: Context) -> dict[str, str]:
    if not context.binary:
        return {"content-type": "application/cloudevents+json"}
    headers = {f"ce-{name}": quote(value, safe=_IN_HEADERS) for name, value in event_attributes(change, context).items()}
    return {**headers, "content-type": "application/json"}
