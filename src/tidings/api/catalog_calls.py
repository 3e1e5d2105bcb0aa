"""The calls of Nessie's REST API, version 1: what each takes from a request, asks of the catalog, and answers with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg import AsyncConnection

from tidings.access.permissions import READ_CATALOG, WRITE_CATALOG
from tidings.api import catalog_json as shapes
from tidings.api.json_document import Document
from tidings.catalog import contents, filters, log, points, references
from tidings.catalog.diff import diff
from tidings.catalog.errors import CatalogError, bad_request, no_content
from tidings.catalog.hashes import BEGINNING
from tidings.catalog.merge import Wish
from tidings.catalog.model import DETACHED, NAMESPACE, Caller, Key, check_hash
from tidings.catalog.points import Point, resolve
from tidings.catalog.service import Catalog
from tidings.events.catalog import ReferenceType

_MOST = 10_000
"""References or entries in one answer, if the caller does not say: pynessie does not ask for the next page."""
_MOST_LOG = 250
_MOST_KEYS = 1000
_BATCH = 500
_COMMIT = {"commit": frozenset({"author", "committer", "message", "hash", "commitTime", "authorTime"})}
_ENTRY = {"entry": frozenset({"namespace", "contentType", "key", "name"})}
_REF = {"ref": frozenset({"name", "type", "hash"})}


@dataclass(frozen=True, slots=True)
class Call:
    repository: str
    caller: Caller
    query: Mapping[str, str]
    body: bytes

    def number(self, name: str, otherwise: int, most: int) -> int:
        text = self.query.get(name)
        if text is None:
            return otherwise
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise bad_request(f"{name} must be a number, not {text[:50]!r}.")
        return min(int(text) or otherwise, most)

    @property
    def everything(self) -> bool:
        wanted = self.query.get("fetch", "MINIMAL")
        if wanted not in ("ALL", "MINIMAL"):
            raise bad_request(f"fetch must be ALL or MINIMAL, not {wanted[:50]!r}.")
        return wanted == "ALL"

    def filter(self, known: Mapping[str, frozenset[str]]) -> filters.Filter | None:
        text = self.query.get("filter")
        return None if text is None else filters.parse(text, known)

    def document(self) -> Document:
        return Document.parse(self.body, lambda _, sentence: bad_request(sentence))


Serve = Callable[[Catalog, Call], Awaitable[Any]]


class Found(NamedTuple):
    """`name` is for the metrics, one of a fixed set; `action` is what a key must allow."""

    name: str
    action: str
    serve: Serve


def _type(text: str) -> ReferenceType:
    return "BRANCH" if text == "branch" else "TAG"


def find(method: str, segments: tuple[str, ...]) -> Found:
    """The call that a request is."""
    match (method, *segments):
        case ("GET", "config"):
            return Found("config", READ_CATALOG, _config)
        case ("GET", "trees"):
            return Found("references", READ_CATALOG, _references)
        case ("GET", "trees", "tree"):
            return Found("reference", READ_CATALOG, lambda catalog, call: _reference(catalog, call, None))
        case ("POST", "trees", "tree"):
            return Found("create", WRITE_CATALOG, _create)
        case ("GET", "trees", "tree", name):
            return Found("reference", READ_CATALOG, lambda catalog, call: _reference(catalog, call, name))
        case ("GET", "trees", "tree", name, "entries"):
            return Found("entries", READ_CATALOG, lambda catalog, call: _entries(catalog, call, name))
        case ("GET", "trees", "tree", name, "log"):
            return Found("log", READ_CATALOG, lambda catalog, call: _log(catalog, call, name))
        case ("PUT", "trees", "branch" | "tag" as kind, name):
            return Found("assign", WRITE_CATALOG, lambda catalog, call: _assign(catalog, call, _type(kind), name))
        case ("DELETE", "trees", "branch" | "tag" as kind, name):
            return Found("delete", WRITE_CATALOG, lambda catalog, call: _delete(catalog, call, _type(kind), name))
        case ("POST", "trees", "branch", name, "commit"):
            return Found("commit", WRITE_CATALOG, lambda catalog, call: _commit(catalog, call, name))
        case ("POST", "trees", "branch", name, "merge"):
            return Found("merge", WRITE_CATALOG, lambda catalog, call: _merge(catalog, call, name))
        case ("POST", "trees", "branch", name, "transplant"):
            return Found("transplant", WRITE_CATALOG, lambda catalog, call: _transplant(catalog, call, name))
        case ("GET", "contents", key):
            return Found("content", READ_CATALOG, lambda catalog, call: _content(catalog, call, key))
        case ("POST", "contents"):
            return Found("contents", READ_CATALOG, _contents)
        case ("GET", "diffs", both):
            return Found("diff", READ_CATALOG, lambda catalog, call: _diff(catalog, call, both))
    raise CatalogError("NOT_FOUND", f"There is no {method[:20]} /{'/'.join(segments)[:200]} in version 1 of this API.")


async def _config(catalog: Catalog, call: Call) -> Any:
    branch = await catalog.default_branch(call.repository, call.caller)
    return {"defaultBranch": branch, "maxSupportedApiVersion": 1, "noAncestorHash": BEGINNING}


async def _references(catalog: Catalog, call: Call) -> Any:
    most, after, wanted = call.number("maxRecords", _MOST, _MOST), call.query.get("pageToken", ""), call.filter(_REF)
    default = await catalog.default_branch(call.repository, call.caller)
    found: list[references.Shown] = []
    async with catalog.reading(call.repository, call.caller) as connection:
        base = (await points.find(connection, call.repository, default)).head if call.everything else None
        while len(found) <= most:
            batch = await references.listed(connection, call.repository, after, _BATCH)
            for shown in batch:
                ref = shown.ref
                if wanted is None or wanted({"ref": {"name": ref.name, "type": ref.type, "hash": ref.head.hash}}):
                    found.append(shown)
            if len(batch) < _BATCH:
                break
            after = batch[-1].ref.name
        forks = {each.ref.name: await _ancestor(connection, each.ref.head, base) for each in found[:most]} if base else {}
    page = found[:most]
    shown_page = [shapes.reference(each, base, forks.get(each.ref.name)) for each in page]
    return shapes.page("references", shown_page, page[-1].ref.name if len(found) > most else None)


async def _reference(catalog: Catalog, call: Call, name: str | None) -> Any:
    default = await catalog.default_branch(call.repository, call.caller)
    async with catalog.reading(call.repository, call.caller) as connection:
        ref = await points.find(connection, call.repository, name or default)
        if not call.everything or not ref.head.number:
            return shapes.plain(ref.type, ref.name, ref.head.hash)
        base = (await points.find(connection, call.repository, default)).head
        entry = await anext(log.entries(connection, ref.head))
        return shapes.reference(references.Shown(ref, entry.meta), base, await _ancestor(connection, ref.head, base))


async def _ancestor(connection: AsyncConnection[Any], head: Point, base: Point) -> log.Entry | None:
    """Where a reference and the default branch part."""
    line, number = head.fork(base)
    found = await log.between(connection, [(line, number - 1, number)]) if number else []
    return found[0] if found else None


async def _create(catalog: Catalog, call: Call) -> Any:
    kind, name, hash = shapes.reference_wanted(call.document())
    source = call.query.get("sourceRefName")
    at = await catalog.create(call.repository, call.caller, name, kind, source, hash)
    return shapes.plain(kind, name, at.hash)


async def _assign(catalog: Catalog, call: Call, kind: ReferenceType, name: str) -> None:
    document = call.document()
    to, hash = document.text("name"), document.optional_text("hash") or None
    await catalog.assign(call.repository, call.caller, kind, name, call.query.get("expectedHash"), to, hash)


async def _delete(catalog: Catalog, call: Call, kind: ReferenceType, name: str) -> None:
    await catalog.delete(call.repository, call.caller, kind, name, call.query.get("expectedHash"))


async def _commit(catalog: Catalog, call: Call, name: str) -> Any:
    document = call.document()
    operations, meta = shapes.operations(document), shapes.meta(document)
    hash = await catalog.commit(call.repository, call.caller, name, call.query.get("expectedHash"), operations, meta)
    return shapes.plain("BRANCH", name, hash)


async def _merge(catalog: Catalog, call: Call, name: str) -> Any:
    wish = shapes.wish(call.document(), individually=False)
    expected = call.query.get("expectedHash")
    return shapes.merged(await catalog.merge(call.repository, call.caller, name, expected, wish), expected)


async def _transplant(catalog: Catalog, call: Call, name: str) -> Any:
    document = call.document()
    hashes = document.texts("hashesToTransplant")
    wish: Wish = shapes.wish(document, individually=True, message=call.query.get("message"))
    expected = call.query.get("expectedHash")
    return shapes.merged(await catalog.transplant(call.repository, call.caller, name, expected, hashes, wish), expected)


async def _log(catalog: Catalog, call: Call, name: str) -> Any:
    most, wanted, everything = call.number("maxRecords", _MOST_LOG, _MOST_LOG), call.filter(_COMMIT), call.everything
    near = call.query.get("pageToken") or call.query.get("endHash") or call.query.get("hashOnRef")
    far = call.query.get("startHash")
    found: list[log.Entry] = []
    async with catalog.reading(call.repository, call.caller) as connection:
        start = await resolve(connection, call.repository, name, near)
        after = (await resolve(connection, call.repository, name, far)).number if far else 0
        async for entry in log.entries(connection, start, after):
            if wanted is None or wanted({"commit": shapes.filtered(entry)}):
                found.append(entry)
                if len(found) > most:
                    break
    token = found[most].hash if len(found) > most else None
    return shapes.page("logEntries", [shapes.log_entry(each, everything) for each in found[:most]], token)


async def _entries(catalog: Catalog, call: Call, name: str) -> Any:
    most, wanted = call.number("maxRecords", _MOST, _MOST), call.filter(_ENTRY)
    depth = call.number("namespaceDepth", 0, 1000)
    after = shapes.token(call.query.get("pageToken"))
    found: dict[Key, str] = {}
    async with catalog.reading(call.repository, call.caller) as connection:
        at = await resolve(connection, call.repository, name, call.query.get("hashOnRef"))
        while len(found) <= most:
            batch = await contents.listed(connection, at, after, _BATCH)
            for key, content in batch:
                if wanted is not None and not wanted({"entry": shapes.entry_filtered(key, content.type)}):
                    continue
                if depth and len(key) < depth:
                    continue
                shown = Key(key[:depth]) if depth else key
                if shown not in found or len(key) == depth:
                    found[shown] = content.type if len(shown) == len(key) else NAMESPACE
            if len(batch) < _BATCH:
                break
            after = batch[-1][0].text
    page = list(found.items())[:most]
    shown_page = [{"type": kind, "name": key.to_json()} for key, kind in page]
    # What is below the last namespace that is shown is part of it.
    last = page[-1][0].text + ("\x01\U0010ffff" if depth else "") if len(found) > most else None
    return shapes.page("entries", shown_page, shapes.as_token(last))


async def _content(catalog: Catalog, call: Call, text: str) -> Any:
    key = Key.from_path(text)
    ref, hash = call.query.get("ref"), call.query.get("hashOnRef")
    ref = ref or await catalog.default_branch(call.repository, call.caller)
    async with catalog.reading(call.repository, call.caller) as connection:
        at = await resolve(connection, call.repository, ref, hash)
        found = contents.content_of(await contents.contents(connection, at, [key.text]), key.text)
    if found is None:
        raise no_content(key, ref)
    return found.values


async def _contents(catalog: Catalog, call: Call) -> Any:
    keys = [Key.of(each.texts("elements")) for each in call.document().objects("requestedKeys")]
    if len(keys) > _MOST_KEYS:
        raise bad_request(f"requestedKeys has {len(keys)} keys: ask for {_MOST_KEYS} at most.")
    ref = call.query.get("ref") or await catalog.default_branch(call.repository, call.caller)
    async with catalog.reading(call.repository, call.caller) as connection:
        at = await resolve(connection, call.repository, ref, call.query.get("hashOnRef"))
        state = await contents.contents(connection, at, [key.text for key in keys])
    found = [(key, contents.content_of(state, key.text)) for key in keys]
    return {"contents": [{"key": key.to_json(), "content": content.values} for key, content in found if content is not None]}


async def _diff(catalog: Catalog, call: Call, both: str) -> Any:
    one, dots, other = both.partition("...")
    if not dots:
        raise bad_request(f"{both[:200]!r} does not say what to compare: write FROM...TO, each a name, or NAME*HASH.")
    async with catalog.reading(call.repository, call.caller) as connection:
        ours, theirs = [await resolve(connection, call.repository, *_split(each)) for each in (one, other)]
        found = await diff(connection, ours, theirs)
    return shapes.page("diffs", [shapes.difference(each) for each in found], None)


def _split(text: str) -> tuple[str, str | None]:
    """NAME*HASH, NAME@HASH, or one of the two."""
    for mark in "*@":
        name, found, hash = text.partition(mark)
        if found:
            return name or DETACHED, check_hash(hash)
    return text, None
