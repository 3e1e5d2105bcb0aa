"""Every command and every operation of the API is an act, or is named here as one that changes no configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import typer

from tidings import audit
from tidings.api import acts, operations, sqs
from tidings.api.sns import Sns
from tidings.cli import app
from tidings.cli.acts import ACTS
from tidings.topics.service import Topics
from tidings.topics.subscribing import Subscriptions

# They look, run a process whose requests are acts themselves, or make a file.
_COMMANDS = """
access inspect, access list, audit list, catalog subscriptions, dead-letters list, dead-letters show, explain, inventory export,
inventory list, inventory positions, inventory rejects, inventory rollup, inventory show, lanes list, project list, queues list,
rules list, rules plan, settings, subscriptions list, topic read, consume files, consume uploads, files validate, serve, up,
uploads serve, demo, uploads init, topic create, secrets new-master-key
"""
_S3 = frozenset(
    {
        *(
            "CopyObject",
            "PutObject",
            "RenameObject",
            "DeleteObject",
            "DeleteObjects",
            "PutObjectTagging",
            "DeleteObjectTagging",
        ),
        *("CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload", "AbortMultipartUpload"),
    }
)
_SQS = frozenset(
    {
        *("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch"),
        *("ChangeMessageVisibility", "ChangeMessageVisibilityBatch"),
    }
)
_LOOKS = ("Get", "List", "Head")


def _commands(of: typer.Typer, group: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    for each in of.registered_commands:
        assert each.callback is not None
        yield f"{group}{each.name or each.callback.__name__}", each.callback
    for inner in of.registered_groups:
        assert inner.typer_instance is not None
        yield from _commands(inner.typer_instance, f"{group}{inner.name} ")


def test_every_command_is_an_act_or_changes_nothing() -> None:
    others = {name for name, command in _commands(app) if command not in ACTS}
    assert others == {name.strip() for name in _COMMANDS.replace("\n", " ").split(",")}


def test_every_operation_is_an_act_or_changes_no_configuration() -> None:
    served = {operation.name for operation in operations._OPERATIONS.values()}
    assert {name for name in served - acts.S3 if not name.startswith(_LOOKS)} == _S3
    assert {name for name in sqs.OPERATIONS.keys() - acts.SQS if not name.startswith(_LOOKS)} == _SQS
    sns = Sns(cast(Topics, None), cast(Subscriptions, None))._actions.keys()
    assert {name for name in sns - acts.SNS if not name.startswith(_LOOKS)} == set()
    assert served >= acts.S3
    assert sqs.OPERATIONS.keys() >= acts.SQS


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit._name(2**31 - 7) == f"uid {2**31 - 7}"
    monkeypatch.setenv("LOGNAME", "forged")
    assert "forged" not in audit.act_of_command("sweep").actor
