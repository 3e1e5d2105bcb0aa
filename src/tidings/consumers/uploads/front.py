"""The front: `POST /api/uploads` puts a file, `GET` lists what the registry knows, `DELETE /api/uploads/NAME` removes.

Verify first: the key in `Authorization: Bearer` is known before anything of the body is read. The organisation is its project.
A file goes to disk as it arrives and from there to the store in one put, when it has come whole: who breaks off stores nothing.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import IO, Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote

from tidings.access.keys import KeyCache
from tidings.access.permissions import DELETE, LIST, WRITE
from tidings.api import cors, errors, limits
from tidings.api.body import Body, Receive
from tidings.api.form import MAX_FIELDS, Form, is_form
from tidings.api.response import Response, Send
from tidings.consumers.uploads import places, registry
from tidings.consumers.uploads.errors import UploadError
from tidings.consumers.uploads.labels import Upload, key_of, metadata, named
from tidings.db.pool import Pool, borrowed, transaction
from tidings.errors import CallerError
from tidings.secrets import keyring
from tidings.settings import Settings
from tidings.threads import Threads

log = logging.getLogger(__name__)

T = TypeVar("T")

PATH = "/api/uploads"
MAX_LISTED = 1000
_DEFAULT_TYPE = "application/octet-stream"
_TYPE = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")
_PIECE = 1024 * 1024
_STORE_SECONDS = 60.0
_TRIES = 3
_FORM = 2 * MAX_FIELDS + 4096
"""Bytes of a form beside its file, at most."""
_STORE_THREADS, _REMOVAL_THREADS, _DISK_THREADS = 32, 16, 8
"""Each kind of work has its own: a put into a store that is slow delays no disk, and no removal, which holds a lock."""


class Front:
    """An ASGI application over what the process has opened."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._keys = KeyCache(pool, keyring=keyring.under(settings.secrets))
        self._bucket = settings.uploads.bucket
        self._putting = places.s3(settings, _STORE_SECONDS, _TRIES)
        # Whoever removes holds a lock that consumers wait for: one try.
        self._removing = places.s3(settings, places.LOCKED_SECONDS)
        self._puts = Threads("put", _STORE_THREADS)
        self._removals = Threads("remove", _REMOVAL_THREADS)
        self._disk = Threads("spool", _DISK_THREADS)
        self._spooled: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        request_id = str(uuid.uuid4())
        body = Body(receive, scope["headers"], self._settings.limits)
        origins = self._settings.api.cors_origins
        try:
            limits.enter(scope)
            if cors.is_preflight(scope["method"], scope["headers"]):
                response = cors.preflight(scope["headers"], origins)
            else:
                response = await self._served(scope, body)
        except Exception as error:
            problem = errors.as_caller_error(error, scope["method"], PATH, request_id)
            document = {"success": False, "error": {"code": problem.code, "message": problem.message}}
            response = _answer(document, problem.status, problem.headers)
            await body.drain(response.status)
        answer = {**response.headers, "x-request-id": request_id}
        if body.unread:  # see `S3.__call__`
            answer["connection"] = "close"
        response.headers = answer | cors.visible(scope["headers"], origins, answer)
        body.close()
        await response.send(receive, send)

    async def _served(self, scope: Any, body: Body) -> Response:
        method, name = scope["method"], _below(scope["raw_path"])
        if name is None:
            raise UploadError("NotFound", f"There is nothing here: uploads are at {PATH}.")
        if (method, bool(name)) == ("POST", False):
            return await self._post(await self._organisation(scope, WRITE), scope, body)
        if (method, bool(name)) == ("GET", False):
            return await self._list(await self._organisation(scope, LIST), scope["query_string"])
        if (method, bool(name)) == ("DELETE", True):
            return await self._delete(await self._organisation(scope, DELETE), name)
        allowed = "DELETE" if name else "GET, POST"
        raise UploadError("MethodNotAllowed", f"{method} is not for this path: use {allowed}.").with_headers(allow=allowed)

    async def _organisation(self, scope: Any, action: str) -> str:
        organisation = await self._allowed(scope, action)
        limits.admit(scope, organisation)
        return organisation

    async def _allowed(self, scope: Any, action: str) -> str:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].decode("latin-1").strip().partition(" ") if len(given) == 1 else ("", "", "")
        principal = await self._keys.find_by_api_key(key.strip()) if scheme.lower() == "bearer" else None
        if principal is None:
            sentence = "The API key is missing or not valid: send one as `Authorization: Bearer API_KEY`."
            raise UploadError("Unauthorized", sentence).with_headers(www_authenticate="Bearer")
        if not principal.grant.allows_beside_buckets(action, time.time()):
            raise UploadError("Forbidden", f"The key does not allow {action} for uploads.")
        return principal.project

    async def _post(self, organisation: str, scope: Any, body: Body) -> Response:
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type"]
        if len(given) != 1 or not is_form(given[0]):
            raise UploadError("BadRequest", "Send a form, multipart/form-data, with the fields name and file.")
        most = self._settings.uploads.max_bytes
        announced = [int(value) for name, value in scope["headers"] if name == b"content-length"]
        if announced and announced[0] > most + _FORM:
            raise _too_large(most)
        form = Form(body, given[0])
        await form.read()
        if "name" not in form.fields:
            raise UploadError("BadRequest", "The form has no field name in front of the file: send name first, then file.")
        upload, content_type = named(organisation, form.fields["name"]), form.content_type or _DEFAULT_TYPE
        if not _TYPE.fullmatch(content_type):
            raise UploadError("BadRequest", f"{content_type[:100]!r} cannot be the content type of a file.")
        room = max(self._settings.uploads.spooled_bytes_per_project, most)
        with tempfile.TemporaryFile() as file, _Spooled(self._spooled, organisation, room) as spooled:
            spooled.grow(min(announced[0], most) if announced else 0)
            size = await self._spool(form, file, spooled)
            if not size and not form.filename:
                raise UploadError("BadRequest", "No file was chosen: the field file has neither a name nor content.")
            await self._allowed(scope, WRITE)  # the key may have been revoked while the file came
            await self._put(upload, content_type, file, size)
        return _answer({"success": True, "name": upload.name, "size": size})

    async def _spool(self, form: Form, file: IO[bytes], spooled: _Spooled) -> int:
        """Write the file of a form to disk as it arrives; returns its size."""
        most, size, buffer = self._settings.uploads.max_bytes, 0, bytearray()
        while not form.ended:
            piece = await form.next()
            size += len(piece)
            if size > most:
                raise _too_large(most)
            spooled.grow(size)
            buffer += piece
            if len(buffer) >= _PIECE:
                await self._disk.run(file.write, bytes(buffer))
                buffer.clear()
        await self._disk.run(file.write, bytes(buffer))
        return size

    async def _put(self, upload: Upload, content_type: str, file: IO[bytes], size: int) -> None:
        file.seek(0)
        await self._asked(
            self._puts,
            lambda: self._putting.put_object(
                Bucket=self._bucket,
                Key=key_of(upload),
                Body=file,
                ContentLength=size,
                ContentType=content_type,
                Metadata=metadata(upload),
            ),
        )

    async def _list(self, organisation: str, raw_query: bytes) -> Response:
        query = dict(parse_qsl(raw_query.decode("latin-1"), keep_blank_values=True))
        after, limit = query.get("after", ""), query.get("limit", str(MAX_LISTED))
        if unknown := query.keys() - {"after", "limit"}:
            raise UploadError("BadRequest", f"There is no parameter {min(unknown)[:100]!r}: there are after and limit.")
        if not re.fullmatch(r"[0-9]{1,4}", limit) or not 1 <= int(limit) <= MAX_LISTED or "\0" in after:
            raise UploadError("BadRequest", f"limit is a number from 1 to {MAX_LISTED}, after a name.")
        async with borrowed(self._pool) as connection:
            found = await registry.listed(connection, organisation, after, int(limit) + 1)
        shown = found[: int(limit)]
        uploads = [{"name": name, "createdAt": int(at.timestamp() * 1000)} for name, at in shown]
        return _answer({"uploads": uploads, "next": shown[-1][0] if len(found) > len(shown) else None})

    async def _delete(self, organisation: str, name: str) -> Response:
        """The object first: if we die in between, the list still has it, and whoever asked has no answer and asks again."""
        upload = named(organisation, name)
        async with transaction(self._pool) as connection:
            await registry.hold_one(connection, self._bucket, upload)
            await self._asked(self._removals, lambda: self._removing.delete_object(Bucket=self._bucket, Key=key_of(upload)))
            await registry.forget(connection, upload)
        return _answer({"success": True, "name": name})

    async def _asked(self, threads: Threads, call: Callable[[], T]) -> T:
        """What the store answers. boto3 blocks, so it works in threads."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return await threads.run(call)
        except ClientError as error:
            log.error("uploads: the store refused: %s", error)
            hint = "" if places.status_of(error) >= 500 else " The operator has to look at this: the log says why."
            raise UploadError("Unavailable", f"The store did not take it ({places.code_of(error)}).{hint}") from None
        except BotoCoreError as error:
            log.warning("uploads: the store did not answer: %s", error)
            raise UploadError("Unavailable", "The store did not answer: please try again.") from None


class _Spooled:
    """What one upload takes of the bytes that its project may have on disk."""

    def __init__(self, spooled: Counter[str], project: str, most: int) -> None:
        self._spooled = spooled
        self._project = project
        self._most = most
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def grow(self, size: int) -> None:
        """Take so many bytes in all. Raises SlowDown where the project's other uploads leave no room."""
        more = size - self._size
        if more <= 0:
            return
        if self._spooled[self._project] + more > self._most:
            raise limits.slow_down(f"{self._spooled[self._project]} bytes of this project's uploads are under way.")
        self._spooled[self._project] += more
        self._size = size

    def __exit__(self, *_: object) -> None:
        self._spooled[self._project] -= self._size
        if not self._spooled[self._project]:
            del self._spooled[self._project]


def _below(raw_path: bytes) -> str | None:
    """The name in a path: empty for the path of all uploads, None if it is not one of ours."""
    path = raw_path.decode("latin-1")
    if path in (PATH, PATH + "/"):
        return ""
    if not path.startswith(PATH + "/"):
        return None
    try:
        return unquote(path.removeprefix(PATH + "/"), errors="strict")
    except UnicodeDecodeError:
        raise UploadError("BadRequest", "The path is not UTF-8 in percent-encoding.") from None


def _too_large(most: int) -> CallerError:
    return UploadError("TooLarge", f"The file is larger than {most} bytes, which is the most that is taken here.")


def _answer(document: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(status, {"content-type": "application/json", **(headers or {})}, body)
