"""The front of the catalog: Nessie's REST API, version 1, beside S3 on the same port.

Verify first, dispatch after: the key in `Authorization: Bearer` is known before anything of the body is read. Without that
header a request is for the project that the operator has opened to everybody, if there is one.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

from tidings import metrics
from tidings.access.keys import Principal
from tidings.access.permissions import SUBSCRIBE
from tidings.api import acts, catalog_calls, catalog_subscriptions, cors, errors, limits, tracing
from tidings.api.body import Body, Receive
from tidings.api.catalog_calls import Found
from tidings.api.parts import Parts
from tidings.api.response import Response, Send
from tidings.api.s3 import Scope
from tidings.catalog.errors import CatalogError, bad_request
from tidings.catalog.model import Caller
from tidings.errors import CallerError

PREFIX = "/-/catalog/"
_API = b"/-/catalog/api/v1/"
_SUBSCRIPTIONS = b"/-/catalog/subscriptions"
_MAX_BODY = 4 * 1024 * 1024
_JSON = {"content-type": "application/json"}


class CatalogFront:
    """An ASGI application over the parts that the process has opened."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = str(uuid.uuid4())
        limited = self._parts.settings.limits
        body = Body(receive, scope["headers"], limited, None if _has_key(scope) else limited.unproven_seconds)
        operation = "unknown"
        try:
            limits.enter(scope)
            if cors.is_preflight(scope["method"], scope["headers"]):
                response = cors.preflight(scope["headers"], self._parts.settings.api.cors_origins)
            else:
                found = self._found(scope["method"], scope["raw_path"])
                operation = found.name
                repository, caller, allowed = await self._verified(scope, found.action, request_id)
                limits.admit(scope, repository, proven=_has_key(scope))
                place = (repository, caller.source_ip, scope["path"].rpartition("/")[2], request_id)
                async with acts.act(self._parts.pool, "catalog", found.name, caller.name, *place):
                    if not allowed:
                        raise CatalogError("FORBIDDEN", f"The key does not allow {found.action}.")
                    content = await _whole(body, scope)
                    if _has_key(scope):  # it may have been revoked while the body came
                        await self._principal(scope)
                    call = catalog_calls.Call(repository, caller, _query(scope["query_string"]), content)
                    response = _answer(await found.serve(self._parts.catalog, call))
        except Exception as error:
            problem = errors.as_caller_error(error, scope["method"], f"catalog:{operation}", request_id)
            response = _refusal(problem, scope["method"])
            await body.drain(response.status)
        answer = {**response.headers, "x-request-id": request_id}
        if body.unread:  # see `S3.__call__`
            answer["connection"] = "close"
        response.headers = answer | cors.visible(scope["headers"], self._parts.settings.api.cors_origins, answer)
        body.close()
        operation = scope["tidings.operation"] = f"catalog:{operation}"
        metrics.answered(operation, response.status)
        await response.send(receive, send)

    def _found(self, method: str, raw_path: bytes) -> Found:
        if raw_path == _SUBSCRIPTIONS or raw_path.startswith(_SUBSCRIPTIONS + b"/"):
            below = _segments(raw_path.rstrip(b"/") + b"/", _SUBSCRIPTIONS + b"/")
            return catalog_subscriptions.find(self._parts, method, below[:-1])
        return catalog_calls.find(method, _segments(raw_path, _API))

    async def _verified(self, scope: Scope, action: str, request_id: str) -> tuple[str, Caller, bool]:
        """The repository that the request is for, who makes it, and whether they may."""
        anonymous = self._parts.settings.catalog.anonymous_project
        client = scope["client"][0] if scope.get("client") else ""
        if not _has_key(scope) and anonymous and action != SUBSCRIBE:
            return anonymous, Caller("", (), client, request_id, datetime.now(UTC), tracing.verified(scope)), True
        principal = await self._principal(scope)
        trace = tracing.verified(scope)
        caller = Caller(principal.access_key_id, principal.roles, client, request_id, datetime.now(UTC), trace)
        return principal.project, caller, principal.grant.allows_beside_buckets(action, time.time())

    async def _principal(self, scope: Scope) -> Principal:
        """Who holds the API key that the request has."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].decode("latin-1").strip().partition(" ") if len(given) == 1 else ("", "", "")
        principal = await self._parts.keys.find_by_api_key(key.strip()) if scheme.lower() == "bearer" else None
        if principal is None:
            sentence = "The API key is missing or not valid: send one as `Authorization: Bearer API_KEY`."
            raise CatalogError("UNAUTHORIZED", sentence).with_headers(www_authenticate="Bearer")
        return principal


def _has_key(scope: Scope) -> bool:
    return any(name == b"authorization" for name, _ in scope["headers"])


def _segments(raw_path: bytes, prefix: bytes) -> tuple[str, ...]:
    """The path below a prefix, each segment decoded by itself: a reference's name may have a slash in it."""
    if not raw_path.startswith(prefix):
        return ()
    try:
        found = tuple(unquote(each, errors="strict") for each in raw_path.removeprefix(prefix).decode("ascii").split("/"))
    except UnicodeError:
        raise bad_request("The path is not UTF-8 in percent-encoding.") from None
    if any("\0" in each for each in found):
        raise bad_request("The path has the character NUL in it.")
    return found


def _query(raw_query: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw_query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise bad_request("The query cannot be read: names and values are UTF-8 in percent-encoding.") from None
    if len({name for name, _ in pairs}) != len(pairs):
        raise bad_request("A parameter of the query comes twice.")
    if any("\0" in value for _, value in pairs):
        raise bad_request("A parameter of the query has the character NUL in it.")
    return {name: value for name, value in pairs if value}


async def _whole(body: Body, scope: Scope) -> bytes:
    content = bytearray()
    while not body.ended:
        content += await body.next()
        if not _has_key(scope):
            limits.hold(scope, len(content))
        if len(content) > _MAX_BODY:
            raise bad_request(f"The request is longer than {_MAX_BODY} bytes: make several commits.")
    return bytes(content)


def _answer(document: object) -> Response:
    if document is None:
        return Response(204)
    return Response(200, _JSON, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def _refusal(problem: CallerError, method: str) -> Response:
    status = HTTPStatus.TOO_MANY_REQUESTS if limits.is_refusal(problem) else problem.status
    code = problem.error_code if isinstance(problem, CatalogError) else "BAD_REQUEST" if status < 500 else "UNKNOWN"
    document = {
        "status": status,
        "reason": HTTPStatus(status).phrase,
        "message": problem.message,
        "errorCode": code,
        "serverStackTrace": None,
    }
    return Response(status, {**_JSON, **problem.headers}, b"" if method == "HEAD" else json.dumps(document).encode())
