"""CloudEvents 1.0: the S3 record as the data of an event, as one JSON text or, where the transport has headers, in binary mode.

Type, source and subject are those of the CloudEvents adapter for S3. The id is the message's: request ids, which the adapter
takes, are not unique, as a request that deletes many objects has one.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from tidings.formats import Context, Json, Plain, Said, Value, encoded_key, message_id, moment, sequencer, to_json
from tidings.formats.s3 import record

_DATA = "application/json"


def message(context: Context) -> Said:
    described: dict[str, Value] = {
        "specversion": "1.0",
        "id": Plain(message_id()),
        "source": Plain(F.concat(F.lit(f"{context.profile.event_source}.{context.region}."), F.col("bucket"))),
        "type": Plain(F.concat(F.lit("com.amazonaws.s3."), F.col("event"))),
        "subject": encoded_key(),
        "time": moment(F.col("at")),
        "sequence": Plain(sequencer()),
    }
    data = to_json(record(context))
    if context.binary:
        # In a header `%` is the mark of an escape (HTTP binding, 3.1.3.2), and the encoded key has no other character that
        # must be escaped.
        subject = Plain(F.coalesce(F.replace(F.col("encoded"), F.lit("%"), F.lit("%25")), F.col("key")))
        headers = {f"ce-{name}": value for name, value in (described | {"subject": subject}).items()}
        return Said(data, attributes=to_json({**headers, "content-type": _DATA}))
    body = to_json({**described, "datacontenttype": _DATA, "data": Json(data)})
    return Said(body, attributes=to_json({"content-type": "application/cloudevents+json"}))
