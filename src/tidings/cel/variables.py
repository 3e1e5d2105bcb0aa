"""What an expression sees of an event: one flat set of names, whatever the event's type. What an event does not have is empty.

The same values come from the event itself and from the JSON that messages carry, except the caller's roles, which no message
says: they are handed over beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tidings.events.catalog import CatalogEvent

Value = str | list[str]

TEXTS = {
    "type": "the event's type: COMMIT, MERGE, CONTENT_STORED …",
    "repository": "the repository's id",
    "reference": "the reference's short name; of the target, where there are two",
    "fullReference": "its full name: /refs/heads/main",
    "referenceType": "BRANCH or TAG",
    "createdBy": "who called; empty if that is not known",
    "hashBefore": "the reference's hash before the event",
    "hashAfter": "the reference's hash after the event",
    "contentName": "the content's key, its elements joined by dots",
    "contentNamespace": "the same without the last element",
    "contentType": "ICEBERG_TABLE, NAMESPACE …",
    "contentId": "the content's id; empty in CONTENT_REMOVED",
    "message": "the commit's message",
    "author": "the commit's first author",
    "committer": "who committed",
    "sourceReference": "the short name of the reference that was merged or transplanted from",
}
LISTS = {
    "roles": "the caller's roles",
    "contentKey": "the content's key: a list of its elements",
}
NAMES = (*TEXTS, *LISTS)


def of_event(event: CatalogEvent, names: Iterable[str] = NAMES) -> dict[str, Value]:
    """The variables of an event, or only the ones that are asked for."""
    return {name: _OF_EVENT[name](event) for name in names}


def of_json(said: Mapping[str, Any], roles: Sequence[str] = (), names: Iterable[str] = NAMES) -> dict[str, Value]:
    """The same, of what `CatalogEvent.to_json` gave."""
    return {name: list(roles) if name == "roles" else _OF_JSON[name](said) for name in names}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return (
        [each for each in value if isinstance(each, str)] if isinstance(value, Sequence) and not isinstance(value, str) else []
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(values: list[str]) -> str:
    return values[0] if values else ""


def _name(reference: Any) -> str:
    return _text(getattr(reference, "name", ""))


def _of_meta(event: CatalogEvent) -> Mapping[str, Any]:
    return _mapping(getattr(event, "commit_meta", None))


def _key(event: CatalogEvent) -> list[str]:
    return _texts(getattr(event, "content_key", ()))


_OF_EVENT: dict[str, Callable[[CatalogEvent], Value]] = {
    "type": lambda event: event.type,
    "repository": lambda event: event.repository,
    "reference": lambda event: event.about.name,
    "fullReference": lambda event: event.about.full_name,
    "referenceType": lambda event: event.about.type,
    "createdBy": lambda event: event.created_by,
    "hashBefore": lambda event: _text(getattr(event, "hash_before", "")),
    "hashAfter": lambda event: _text(getattr(event, "hash_after", "")),
    "contentName": lambda event: ".".join(_key(event)),
    "contentNamespace": lambda event: ".".join(_key(event)[:-1]),
    "contentType": lambda event: _text(getattr(event, "content_type", "")),
    "contentId": lambda event: _text(_mapping(getattr(event, "content", None)).get("id")),
    "message": lambda event: _text(_of_meta(event).get("message")),
    "author": lambda event: _first(_texts(_of_meta(event).get("authors"))),
    "committer": lambda event: _text(_of_meta(event).get("committer")),
    "sourceReference": lambda event: _name(getattr(event, "source_reference", None)),
    "roles": lambda event: list(event.roles),
    "contentKey": _key,
}


def _about(said: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(said.get("targetReference") or said.get("reference"))


def _elements(said: Mapping[str, Any]) -> list[str]:
    return _texts(_mapping(said.get("contentKey")).get("elements"))


def _meta(said: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(said.get("commitMeta"))


_OF_JSON: dict[str, Callable[[Mapping[str, Any]], Value]] = {
    "type": lambda said: _text(said.get("type")),
    "repository": lambda said: _text(said.get("repositoryId")),
    "reference": lambda said: _text(_about(said).get("name")),
    "fullReference": lambda said: _text(_about(said).get("fullName")),
    "referenceType": lambda said: _text(_about(said).get("type")),
    "createdBy": lambda said: _text(said.get("eventInitiator")),
    "hashBefore": lambda said: _text(said.get("hashBefore")),
    "hashAfter": lambda said: _text(said.get("hashAfter")),
    "contentName": lambda said: ".".join(_elements(said)),
    "contentNamespace": lambda said: ".".join(_elements(said)[:-1]),
    "contentType": lambda said: _text(said.get("contentType")),
    "contentId": lambda said: _text(_mapping(said.get("content")).get("id")),
    "message": lambda said: _text(_meta(said).get("message")),
    "author": lambda said: _first(_texts(_meta(said).get("authors"))),
    "committer": lambda said: _text(_meta(said).get("committer")),
    "sourceReference": lambda said: _text(_mapping(said.get("sourceReference")).get("name")),
    "contentKey": _elements,
}
