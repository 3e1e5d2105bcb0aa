"""Why a catalog's event came, or did not: from a commit to its events, to subscriptions, to lanes; and the objects it names."""

from __future__ import annotations

import json
from typing import Any

from psycopg import Connection

from tidings.catalog import joined
from tidings.cel import variables
from tidings.cel.expression import Expression, ExpressionFailed
from tidings.delivery.explain import dicts, lanes_of
from tidings.errors import ExpressionMistake, OperatorError
from tidings.events.positions import Position

SCHEME = "catalog://"
_LEAST_HASH = 8

# No index leads there, as none leads to a key (see `explain.py`).
_EVENTS = """
select c.seq, c.id, c.at, c.event, c.key, c.rules, c.catalog, c.metadata,
       (select min(w.id) from windows w where pg_visible_in_snapshot(c.xid, w.snapshot)) as window
from changes c where c.project = %(repository)s and c.catalog is not null and strpos(c.catalog, %(hash)s) > 0
order by c.seq
"""
_SUBSCRIPTIONS = "select rule, name, types, filter from catalog_subscriptions where project = %(repository)s order by rule"


def explain_commit(connection: Connection, repository: str, place: str) -> dict[str, Any]:
    """`catalog://HASH`, or the beginning of one: the commit's events, and the objects that its tables name."""
    given = place.removeprefix(SCHEME).lower()
    if len(given) < _LEAST_HASH or not all(each in "0123456789abcdef" for each in given):
        raise OperatorError(f"{place!r} names no commit: write {SCHEME}HASH, with at least {_LEAST_HASH} digits of it.")
    found = dicts(
        connection,
        "select hash from catalog_commits where repository = %(repository)s and starts_with(hash, %(given)s) limit 2",
        {"repository": repository, "given": given},
    )
    if len(found) != 1:
        raise OperatorError(
            f"There is no commit {given} in this catalog." if not found else f"Several commits begin with {given}."
        )
    hash_ = found[0]["hash"]
    events = dicts(connection, _EVENTS, {"repository": repository, "hash": hash_})
    subscriptions = dicts(connection, _SUBSCRIPTIONS, {"repository": repository})
    return {
        "commit": hash_,
        "events": [_event(connection, each, subscriptions) for each in events if _is_of(json.loads(each["catalog"]), hash_)],
        "objects": joined.objects_of(connection, repository, hash_),
    }


def _is_of(said: dict[str, Any], hash_: str) -> bool:
    """Other events name a commit too: those of the next one, and of references that were put there."""
    return hash_ in (said.get("hash"), said.get("commitMeta", {}).get("hash")) or (
        "targetReference" in said and said.get("hashAfter") == hash_
    )


def _event(connection: Connection, event: dict[str, Any], subscriptions: list[dict[str, Any]]) -> dict[str, Any]:
    said = json.loads(event["catalog"])
    position = Position(event["window"], event["seq"]) if event["window"] is not None else None
    matched = (event["rules"] or "").split(",")
    told = []
    for each in subscriptions:
        why = _why_not(each, matched, said, json.loads(event["metadata"] or "[]"))
        lanes = [] if why else lanes_of(connection, each["rule"], event, position)
        told.append({"name": each["name"], "wanted": not why, "why": why, "lanes": lanes})
    return {
        "id": event["id"],
        "at": event["at"],
        "type": said["type"],
        "reference": event["key"],
        "content": ".".join(said.get("contentKey", {}).get("elements", [])) or None,
        "position": str(position) if position else None,
        "subscriptions": told,
    }


def _why_not(subscription: dict[str, Any], matched: list[str], said: dict[str, Any], roles: list[str]) -> str:
    if str(subscription["rule"]) not in matched:
        return "the subscription was made after the event"
    if subscription["types"] and said["type"] not in subscription["types"]:
        return f"it does not ask for {said['type']}, only for {', '.join(subscription['types'])}"
    if subscription["filter"]:
        try:
            expression = Expression(subscription["filter"])
            if not expression.evaluate(variables.of_json(said, roles, expression.variables)):
                return f"its filter says no: {subscription['filter']}"
        except ExpressionFailed as error:
            return f"its filter has no answer ({error}): {subscription['filter']}"
        except ExpressionMistake as mistake:
            return f"its filter is refused now, and wants nothing ({mistake.summary}): {subscription['filter']}"
    return ""
