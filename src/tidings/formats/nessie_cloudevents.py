"""Nessie's events as CloudEvents 1.0: what a subscription to a catalog gets that asks for the format `cloudevents`."""

from __future__ import annotations

from pyspark.sql import functions as F

from tidings.formats import Context, Json, Plain, Said, Text, Value, message_id, moment, nessie, sequencer, to_json

DETAILS = nessie.DETAILS

_DATA = "application/json"


def message(context: Context) -> Said:
    described: dict[str, Value] = {
        "specversion": "1.0",
        "id": Plain(message_id()),
        "source": Text(F.concat(F.lit("/catalogs/"), F.col("bucket"))),
        "type": Plain(F.concat(F.lit("org.projectnessie."), nessie.event_type())),
        "subject": Text(F.col("key")),
        "time": moment(F.col("at")),
        "sequence": Plain(sequencer()),
    }
    if context.binary:
        headers = {f"ce-{name}": value for name, value in described.items()}
        return Said(F.col("catalog"), nessie.key(), to_json({**headers, "content-type": _DATA}))
    body = to_json({**described, "datacontenttype": _DATA, "data": Json(F.col("catalog"))})
    return Said(body, nessie.key(), to_json({"content-type": "application/cloudevents+json"}))
