"""What callers can do with topics. The caller is known by then; each step asks whether they may.

A topic belongs to a project. Who is of another project learns nothing of it, not even that it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from tidings import audit
from tidings.access import permissions
from tidings.access.keys import Principal
from tidings.db.pool import Pool, run
from tidings.errors import CallerError
from tidings.events.arn import SnsTopic
from tidings.settings import Settings
from tidings.topics import model, statements
from tidings.topics.model import Topic, invalid
from tidings.topics.permitting import denied, not_served, require

PAGE = 100


@dataclass(frozen=True, slots=True)
class Counts:
    confirmed: int
    pending: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Permission:
    label: str
    projects: Sequence[str]
    actions: Sequence[str]


class Topics:
    """The service under the SNS front."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool

    async def create_topic(self, caller: Principal, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        require(caller, permissions.MANAGE_TOPICS)
        arn = SnsTopic(self._settings.api.region, caller.project, model.topic_name(name)).arn
        wanted = Topic(arn, caller.project, *_topic_attributes(attributes), dict(tags))
        if len(tags) > model.MAX_TAGS:
            raise _too_many_tags()
        made = await audit.run(
            self._pool,
            statements.CREATE_TOPIC,
            {
                "arn": arn,
                "project": caller.project,
                "display_name": wanted.display_name,
                "signature_version": wanted.signature_version,
                "tags": Jsonb(wanted.tags),
                "most": self._settings.topics.max_topics,
            },
        )
        if made.rowcount == 1:
            return arn
        found = await self._find_topic(arn)
        if found is None:
            most = self._settings.topics.max_topics
            raise CallerError("TopicLimitExceeded", f"The project has {most} topics, which is the most it can have.")
        if tags and dict(found.tags) != dict(tags):
            raise invalid("Tags: Topic already exists with different tags")
        if attributes and _shown(found, attributes) != dict(attributes):
            raise invalid("Attributes: Topic already exists with different attributes")
        return arn

    async def delete_topic(self, caller: Principal, arn: str) -> None:
        """And its subscriptions. One that is not there is deleted already."""
        require(caller, permissions.MANAGE_TOPICS)
        if model.topic_arn(arn).account != caller.project:
            raise denied("DeleteTopic", arn)
        await audit.run(self._pool, statements.DELETE_TOPIC, [arn])

    async def list_topics(self, caller: Principal, after: str) -> list[str]:
        require(caller, permissions.MANAGE_TOPICS, permissions.SUBSCRIBE)
        rows = await run(self._pool, statements.LIST_TOPICS, [caller.project, after, PAGE + 1])
        return [row[0] for row in await rows.fetchall()]

    async def topic(self, caller: Principal, arn: str) -> tuple[Topic, Counts, list[Permission]]:
        require(caller, permissions.MANAGE_TOPICS, permissions.SUBSCRIBE)
        topic = await self.own(caller, arn, "GetTopicAttributes")
        counts = await (await run(self._pool, statements.COUNTS, [arn])).fetchone() or (0, 0, 0)
        rows = await run(self._pool, statements.GRANTS, [arn])
        return topic, Counts(*counts), [Permission(*row) for row in await rows.fetchall()]

    async def set_topic_attribute(self, caller: Principal, arn: str, name: str, value: str) -> None:
        require(caller, permissions.MANAGE_TOPICS)
        await self.own(caller, arn, "SetTopicAttributes")
        if name == "DisplayName":
            await audit.run(self._pool, statements.SET_DISPLAY_NAME, [model.display_name(value), arn])
        elif name == "SignatureVersion":
            await audit.run(self._pool, statements.SET_SIGNATURE_VERSION, [model.signature_version(value), arn])
        else:
            raise not_served(name)

    async def tag(self, caller: Principal, arn: str, tags: Mapping[str, str]) -> None:
        require(caller, permissions.MANAGE_TOPICS)
        await self.own(caller, arn, "TagResource", missing="ResourceNotFound")
        values = {"arn": arn, "tags": Jsonb(dict(tags)), "most": model.MAX_TAGS}
        if not (await audit.run(self._pool, statements.TAG, values)).rowcount:
            raise _too_many_tags()

    async def untag(self, caller: Principal, arn: str, keys: Sequence[str]) -> None:
        require(caller, permissions.MANAGE_TOPICS)
        await self.own(caller, arn, "UntagResource", missing="ResourceNotFound")
        await audit.run(self._pool, statements.UNTAG, [list(keys), arn])

    async def tags(self, caller: Principal, arn: str) -> Mapping[str, str]:
        require(caller, permissions.MANAGE_TOPICS, permissions.SUBSCRIBE)
        return (await self.own(caller, arn, "ListTagsForResource", missing="ResourceNotFound")).tags

    async def grant(self, caller: Principal, arn: str, label: str, projects: Sequence[str], actions: Sequence[str]) -> None:
        require(caller, permissions.MANAGE_TOPICS)
        await self.own(caller, arn, "AddPermission")
        if not projects or not actions:
            raise invalid("AWSAccountId and ActionName: send at least one of each")
        for action in actions:
            if action not in model.GRANTS:
                raise invalid(f"ActionName: {action[:100]!r} cannot be granted: there is {', '.join(model.GRANTS)}")
        values = {
            "topic": arn,
            "label": model.label(label),
            "projects": sorted({model.project_id(project) for project in projects}),
            "actions": sorted(set(actions)),
        }
        if not (await audit.run(self._pool, statements.GRANT, values)).rowcount:
            raise invalid(f"Label: there is a statement {label!r} already: remove it first")

    async def revoke(self, caller: Principal, arn: str, label: str) -> None:
        require(caller, permissions.MANAGE_TOPICS)
        await self.own(caller, arn, "RemovePermission")
        if not (await audit.run(self._pool, statements.REVOKE, [arn, model.label(label)])).rowcount:
            raise CallerError("NotFound", f"There is no statement {label!r}.")

    async def _find_topic(self, arn: str) -> Topic | None:
        row = await (await run(self._pool, statements.READ_TOPIC, [arn])).fetchone()
        return Topic(*row) if row else None

    async def own(self, caller: Principal, arn: str, operation: str, missing: str = "NotFound") -> Topic:
        if model.topic_arn(arn).account != caller.project:
            raise denied(operation, arn)
        topic = await self._find_topic(arn)
        if topic is None:
            raise CallerError(missing, "Topic does not exist")
        return topic


def _topic_attributes(attributes: Mapping[str, str]) -> tuple[str, int]:
    for name in attributes:
        if name not in ("DisplayName", "SignatureVersion"):
            raise not_served(name)
    name = model.display_name(attributes.get("DisplayName", ""))
    return name, model.signature_version(attributes.get("SignatureVersion", "1"))


def _shown(topic: Topic, attributes: Mapping[str, str]) -> dict[str, str]:
    all_of_them = {"DisplayName": topic.display_name, "SignatureVersion": str(topic.signature_version)}
    return {name: all_of_them[name] for name in attributes}


def _too_many_tags() -> CallerError:
    return CallerError("TagLimitExceeded", f"A topic has at most {model.MAX_TAGS} tags.")
