"""A small REST resource for subscriptions to a catalog: `/-/catalog/subscriptions` and `/-/catalog/subscriptions/NAME`."""

from __future__ import annotations

import asyncio
from typing import Any

from tidings.access.permissions import SUBSCRIBE
from tidings.api.catalog_calls import Call, Found
from tidings.api.parts import Parts
from tidings.catalog.errors import CatalogError
from tidings.catalog.service import Catalog
from tidings.cel.translatable import evaluation
from tidings.rules import catalog_subscriptions as subscriptions
from tidings.rules.catalog_subscriptions import Subscription

_MEMBERS = frozenset({"destination", "types", "filter", "format"})


def find(parts: Parts, method: str, segments: tuple[str, ...]) -> Found:
    """The call that a request below `/-/catalog/subscriptions` is."""

    async def list_all(_catalog: Catalog, call: Call) -> Any:
        async with parts.pool.connection() as connection:
            found = await subscriptions.all_of(connection, call.repository)
        return {"subscriptions": await asyncio.to_thread(lambda: [_shown(each) for each in found])}

    async def show(_catalog: Catalog, call: Call) -> Any:
        async with parts.pool.connection() as connection:
            found = await subscriptions.all_of(connection, call.repository)
        for each in found:
            if each["name"] == segments[0]:
                return _shown(each)
        raise subscriptions.none_called(segments[0])

    async def put(_catalog: Catalog, call: Call) -> Any:
        document = call.document()
        document.only(_MEMBERS)
        wanted = Subscription(
            segments[0],
            document.text("destination"),
            tuple(dict.fromkeys(document.texts("types"))),
            document.optional_text("filter"),
            document.optional_text("format", "nessie"),
        )
        await subscriptions.put(parts.pool, parts.settings, call.repository, wanted, call.caller.request_id)
        return _shown(wanted.to_json())

    async def delete(_catalog: Catalog, call: Call) -> Any:
        await subscriptions.delete(parts.pool, call.repository, segments[0])

    match (method, len(segments)):
        case ("GET", 0):
            return Found("subscriptions", SUBSCRIBE, list_all)
        case ("GET", 1):
            return Found("subscription", SUBSCRIBE, show)
        case ("PUT", 1):
            return Found("subscribe", SUBSCRIBE, put)
        case ("DELETE", 1):
            return Found("unsubscribe", SUBSCRIBE, delete)
    raise CatalogError("NOT_FOUND", f"There is no {method[:20]} for subscriptions: there are GET, PUT and DELETE.")


def _shown(one: dict[str, Any]) -> dict[str, Any]:
    """With how its filter is evaluated: by Spark itself, by CEL over batches, or by nobody; and why not by Spark."""
    if not one["filter"]:
        return one
    how = evaluation(one["filter"])
    return one | {"evaluated": how.by} | ({} if how.because is None else {"because": how.because})
