"""Runs in the environment of pynessie: calls its client as told, a line of JSON for each call, and says what came of it."""

import json
import sys

from pynessie.client import NessieClient
from pynessie.conf import build_config
from pynessie.error import NessieException
from pynessie.model import (
    ContentKey,
    ContentSchema,
    Delete,
    DiffResponseSchema,
    EntriesSchema,
    LogEntrySchema,
    MergeResponseSchema,
    Put,
    ReferenceSchema,
    ReferencesResponseSchema,
    Unchanged,
)

DUMPED = {
    "get_reference": ReferenceSchema,
    "create_branch": ReferenceSchema,
    "create_tag": ReferenceSchema,
    "commit": ReferenceSchema,
    "list_references": ReferencesResponseSchema,
    "list_keys": EntriesSchema,
    "get_content": ContentSchema,
    "merge": MergeResponseSchema,
    "cherry_pick": MergeResponseSchema,
    "get_diff": DiffResponseSchema,
}


def argument(value):
    """Operations and keys travel as lists: ["put", [elements], {content}], ["delete", [elements]], ["key", [elements]]."""
    if not isinstance(value, list):
        return value
    kind, elements = value[0], ContentKey(value[1])
    if kind == "put":
        return Put(elements, ContentSchema().load(value[2]))
    return {"delete": Delete, "unchanged": Unchanged}[kind](elements) if kind != "key" else elements


def main(endpoint, key):
    client = NessieClient(build_config({"endpoint": endpoint, "verify": True, "auth.type": "bearer", "auth.token": key}))
    for line in sys.stdin:
        name, arguments, named = json.loads(line)
        try:
            found = getattr(client, name)(*map(argument, arguments), **named)
            if name == "get_log":
                found = [LogEntrySchema().dump(each) for each in found]
            elif name in DUMPED:
                found = DUMPED[name]().dump(found)
            answer = {"returned": found}
        except NessieException as error:
            answer = {"raised": [type(error).__name__, error.error_code, str(error.server_message)]}
        print(json.dumps(answer), flush=True)


main(*sys.argv[1:])
