"""The three consumers beside a stack (`tidings up --consumers`): the processes that a user would start, with settings that fit.

They are for the stack's own project. What the operator's settings name is taken as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tidings import settings
from tidings.errors import OperatorError
from tidings.events.arn import KafkaTopic, SnsTopic
from tidings.local.parts import Part, answers
from tidings.local.processes import free_port

FILES_TOPIC, FILES_BUCKET = "files", "atlas-files"
INVENTORY_TOPIC = "inventory"
KNOWS_BROKERS = "inventory"
"""The role of the one that reads from Kafka."""
_NEEDED = ("kafka", "sns", "queue")


class Consumers:
    """Where they are, and what they are told."""

    def __init__(self) -> None:
        self._ports = {role: free_port() for role in ("files", "uploads")}
        allowed = settings.load().bucket_eventing.destinations
        if missing := [kind for kind in _NEEDED if kind not in allowed]:
            raise OperatorError(
                f"The consumers hear of changes through {', '.join(_NEEDED)}: TIDINGS_BUCKET_EVENTING__DESTINATIONS lacks "
                f"{', '.join(missing)}."
            )

    @property
    def urls(self) -> dict[str, str]:
        """Where notifications of files are taken, and where files are uploaded."""
        return {"files": f"{self._at('files')}/api/sns", "uploads": f"{self._at('uploads')}/api/uploads"}

    @property
    def files(self) -> str:
        """The webhook's place, which messages of SNS are sent to."""
        return f"127.0.0.1:{self._ports['files']}"

    def _at(self, role: str) -> str:
        return f"http://127.0.0.1:{self._ports[role]}"

    def environment(self, s3: str, credentials: Mapping[str, str]) -> dict[str, str]:
        """Their settings, for a store at this address and with this key."""
        given = settings.load()
        files, topics = given.files, given.inventory.topics
        signer = given.api.model_copy(update={"port": urlsplit(s3).port}).url
        key, secret = credentials["access_key_id"], credentials["secret_access_key"]
        return {
            "TIDINGS_FILES__PORT": str(self._ports["files"]),
            "TIDINGS_FILES__SNS_TOPICS": json.dumps([*files.sns_topics, files_topic(credentials["project"]).arn]),
            "TIDINGS_FILES__S3_BUCKETS": json.dumps([*files.s3_buckets, FILES_BUCKET]),
            "TIDINGS_FILES__TRUSTED": json.dumps([*files.trusted, signer]),
            "TIDINGS_FILES__S3_ENDPOINT": s3,
            "TIDINGS_FILES__S3_REGION": given.api.region,
            "TIDINGS_FILES__S3_ACCESS_KEY_ID": key,
            "TIDINGS_FILES__S3_SECRET": secret,
            "TIDINGS_UPLOADS__PORT": str(self._ports["uploads"]),
            "TIDINGS_UPLOADS__ENDPOINT": s3,
            "TIDINGS_UPLOADS__ACCESS_KEY_ID": key,
            "TIDINGS_UPLOADS__SECRET": secret,
            "TIDINGS_INVENTORY__TOPICS": json.dumps([*topics, INVENTORY_TOPIC]),
        }

    def parts(self, environment: dict[str, str], log: Callable[[str], Path]) -> list[Part]:
        """Those with Spark are not waited for, nor do they hurry: what is sent to them is kept until they are there."""

        def part(role: str, ready: Callable[[], bool], *command: str, steps_back: bool = False) -> Part:
            return Part(role, [sys.executable, "-m", "tidings", *command], ready, log(role), environment, steps_back)

        def front(role: str) -> Callable[[], bool]:
            return lambda: answers(f"{self._at(role)}/-/ready")

        return [
            part("files", front("files"), "consume", "files"),
            part("uploads-front", front("uploads"), "uploads", "serve"),
            part("uploads", lambda: True, "consume", "uploads", steps_back=True),
            part(KNOWS_BROKERS, lambda: True, "consume", "inventory", steps_back=True),
        ]


def files_topic(project: str) -> SnsTopic:
    return SnsTopic(settings.load().api.region, project, FILES_TOPIC)


def inventory_topic() -> KafkaTopic:
    return KafkaTopic(settings.load().inventory.cluster, INVENTORY_TOPIC)
