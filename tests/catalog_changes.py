"""What the catalog has put into the change stream, as tests look at it."""

from __future__ import annotations

import json
from typing import Any

import psycopg

COLUMNS = "seq, id, project, bucket, bucket_id, key, event, etag, principal, source_ip, request_id, config, rules, operation"


class Told:
    """The events of a database's catalogs, each call's by itself."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._seen = 0

    def rows(self) -> list[dict[str, Any]]:
        """The catalog's rows since the last question, in order."""
        query = f"select {COLUMNS}, metadata, catalog from changes where seq > %s and catalog is not null order by seq"
        names = [*COLUMNS.split(", "), "metadata", "catalog"]
        rows = self._connection.execute(query.encode(), [self._seen]).fetchall()
        found = [dict(zip(names, row, strict=True)) for row in rows]
        self._seen = found[-1]["seq"] if found else self._seen
        return [{**each, "catalog": json.loads(each["catalog"])} for each in found]

    def events(self) -> list[dict[str, Any]]:
        rows = self.rows()
        for row in rows:
            event = row["catalog"]
            about = event.get("targetReference") or event["reference"]
            assert row["id"] == event["id"]
            assert row["event"] == f"nessie:{event['type']}"
            assert (row["project"], row["bucket"], row["bucket_id"]) == (event["repositoryId"], event["repositoryId"], "")
            assert row["key"] == about["fullName"]
            assert row["etag"] == (None if event["type"] == "REFERENCE_DELETED" else about["hash"])
            assert row["principal"] == event["eventInitiator"]
        return [row["catalog"] for row in rows]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events()]


def table(name: str = "one", **more: Any) -> dict[str, Any]:
    """An Iceberg table as clients send it."""
    place = f"s3://lake/{name}/metadata.json"
    numbers = {"snapshotId": 1, "schemaId": 2, "specId": 3, "sortOrderId": 4}
    return {"type": "ICEBERG_TABLE", "metadataLocation": place, **numbers, **more}
