"""The SNS front: what boto3's `sns` client and `aws sns` send, and what they expect back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from tidings.access.keys import Principal
from tidings.api import query
from tidings.api.acts import named
from tidings.api.aws import Call
from tidings.api.parts import Parts
from tidings.api.response import Response
from tidings.api.xml import Node
from tidings.errors import CallerError
from tidings.topics import model
from tidings.topics.model import Subscription, Topic, invalid
from tidings.topics.service import PAGE, Permission, Topics
from tidings.topics.subscribing import Subscriptions

NAMESPACE = "http://sns.amazonaws.com/doc/2010-03-31/"
VERSION = "2010-03-31"

Fields = Mapping[str, str]
Result = list[Node] | None
Serve = Callable[[Principal, Fields], Awaitable[Result]]


class Sns:
    def __init__(self, topics: Topics, subscriptions: Subscriptions) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._actions: dict[str, Serve] = {
            "CreateTopic": self._create_topic,
            "DeleteTopic": self._delete_topic,
            "ListTopics": self._list_topics,
            "GetTopicAttributes": self._get_topic_attributes,
            "SetTopicAttributes": self._set_topic_attributes,
            "TagResource": self._tag,
            "UntagResource": self._untag,
            "ListTagsForResource": self._list_tags,
            "AddPermission": self._add_permission,
            "RemovePermission": self._remove_permission,
            "Subscribe": self._subscribe,
            "ConfirmSubscription": self._confirm,
            "Unsubscribe": self._unsubscribe,
            "ListSubscriptions": self._list_subscriptions,
            "ListSubscriptionsByTopic": self._list_by_topic,
            "GetSubscriptionAttributes": self._get_subscription_attributes,
            "SetSubscriptionAttributes": self._set_subscription_attributes,
        }

    async def serve(self, parts: Parts, call: Call) -> Response:
        if call.path != "/" or call.method not in ("GET", "POST"):
            raise CallerError("InvalidAction", f"{call.method[:20]} {call.path[:100]} is not served: POST a form to /.")
        fields = query.read(call.body if call.method == "POST" else call.query.encode("latin-1"))
        action = fields.get("Action", "")
        serve = self._actions.get(action)
        if serve is None or fields.get("Version", VERSION) != VERSION:
            raise CallerError("InvalidAction", f"The action {action[:100]!r} is not served, or not in version {VERSION}.")
        call.operation = action
        async with call.act(parts, "sns", named(fields)):
            return query.answer(NAMESPACE, action, await serve(call.principal, fields), call.id)

    def refused(self, problem: CallerError, request_id: str) -> Response:
        return query.refusal(NAMESPACE, problem, request_id)

    async def _create_topic(self, caller: Principal, fields: Fields) -> Result:
        tags = model.tags(query.pairs(fields, "Tags.member", "Key", "Value"))
        arn = await self._topics.create_topic(caller, need(fields, "Name"), _attributes(fields), tags)
        return [("TopicArn", arn)]

    async def _delete_topic(self, caller: Principal, fields: Fields) -> Result:
        await self._topics.delete_topic(caller, need(fields, "TopicArn"))
        return None

    async def _list_topics(self, caller: Principal, fields: Fields) -> Result:
        arns = await self._topics.list_topics(caller, _after(fields))
        shown: list[Node] = [("member", [("TopicArn", arn)]) for arn in arns[:PAGE]]
        return [("Topics", shown), *_next(arns)]

    async def _get_topic_attributes(self, caller: Principal, fields: Fields) -> Result:
        topic, counts, permissions = await self._topics.topic(caller, need(fields, "TopicArn"))
        return _entries(
            {
                "TopicArn": topic.arn,
                "Owner": topic.project,
                "DisplayName": topic.display_name,
                "SignatureVersion": str(topic.signature_version),
                "SubscriptionsConfirmed": str(counts.confirmed),
                "SubscriptionsPending": str(counts.pending),
                "SubscriptionsDeleted": str(counts.deleted),
                "Policy": _policy(topic, permissions),
            }
        )

    async def _set_topic_attributes(self, caller: Principal, fields: Fields) -> Result:
        name, value = need(fields, "AttributeName"), fields.get("AttributeValue", "")
        await self._topics.set_topic_attribute(caller, need(fields, "TopicArn"), name, value)
        return None

    async def _tag(self, caller: Principal, fields: Fields) -> Result:
        tags = model.tags(query.pairs(fields, "Tags.member", "Key", "Value"))
        await self._topics.tag(caller, need(fields, "ResourceArn"), tags)
        return []

    async def _untag(self, caller: Principal, fields: Fields) -> Result:
        await self._topics.untag(caller, need(fields, "ResourceArn"), query.members(fields, "TagKeys"))
        return []

    async def _list_tags(self, caller: Principal, fields: Fields) -> Result:
        tags = await self._topics.tags(caller, need(fields, "ResourceArn"))
        return [("Tags", [("member", [("Key", key), ("Value", value)]) for key, value in sorted(tags.items())])]

    async def _add_permission(self, caller: Principal, fields: Fields) -> Result:
        projects, actions = query.members(fields, "AWSAccountId"), query.members(fields, "ActionName")
        await self._topics.grant(caller, need(fields, "TopicArn"), need(fields, "Label"), projects, actions)
        return None

    async def _remove_permission(self, caller: Principal, fields: Fields) -> Result:
        await self._topics.revoke(caller, need(fields, "TopicArn"), need(fields, "Label"))
        return None

    async def _subscribe(self, caller: Principal, fields: Fields) -> Result:
        protocol, endpoint = need(fields, "Protocol"), need(fields, "Endpoint")
        shown = model.boolean("ReturnSubscriptionArn", fields.get("ReturnSubscriptionArn", "false"))
        made = await self._subscriptions.subscribe(caller, need(fields, "TopicArn"), protocol, endpoint, _attributes(fields))
        return [("SubscriptionArn", made.arn if made.confirmed or shown else "pending confirmation")]

    async def _confirm(self, _: Principal, fields: Fields) -> Result:
        return await confirm(self._subscriptions, fields)

    async def _unsubscribe(self, caller: Principal, fields: Fields) -> Result:
        await self._subscriptions.unsubscribe(caller, need(fields, "SubscriptionArn"))
        return None

    async def _list_subscriptions(self, caller: Principal, fields: Fields) -> Result:
        return _listed(await self._subscriptions.list_subscriptions(caller, _after(fields)))

    async def _list_by_topic(self, caller: Principal, fields: Fields) -> Result:
        return _listed(await self._subscriptions.list_by_topic(caller, need(fields, "TopicArn"), _after(fields)))

    async def _get_subscription_attributes(self, caller: Principal, fields: Fields) -> Result:
        found = await self._subscriptions.subscription(caller, need(fields, "SubscriptionArn"))
        return _entries(
            {
                "SubscriptionArn": found.arn,
                "TopicArn": found.topic,
                "Owner": found.project,
                "Protocol": found.protocol,
                "Endpoint": found.endpoint,
                "PendingConfirmation": _said(not found.confirmed),
                "ConfirmationWasAuthenticated": _said(found.authenticated),
                "RawMessageDelivery": _said(found.raw),
                "WebhookSecretCount": str(len(found.secrets)),  # never the secrets: who set them has them
            }
        )

    async def _set_subscription_attributes(self, caller: Principal, fields: Fields) -> Result:
        name, value = need(fields, "AttributeName"), fields.get("AttributeValue", "")
        await self._subscriptions.set_subscription_attribute(caller, need(fields, "SubscriptionArn"), name, value)
        return None


async def confirm(subscriptions: Subscriptions, fields: Fields) -> list[Node]:
    """By whoever has the token, signed or not."""
    authenticated = model.boolean("AuthenticateOnUnsubscribe", fields.get("AuthenticateOnUnsubscribe", "false"))
    return [("SubscriptionArn", await subscriptions.confirm(need(fields, "TopicArn"), need(fields, "Token"), authenticated))]


def need(fields: Fields, name: str) -> str:
    value = fields.get(name, "")
    if not value:
        raise invalid(f"{name}: it is missing")
    return value


def _attributes(fields: Fields) -> dict[str, str]:
    found = query.pairs(fields, "Attributes.entry", "key", "value")
    if len(dict(found)) != len(found):
        raise invalid("Attributes: a name comes twice")
    return dict(found)


def _after(fields: Fields) -> str:
    """The last ARN of the page before: what a token of ours says."""
    token = fields.get("NextToken", "")
    try:
        after = base64.b64decode(token, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        after = "\0"
    if "\0" in after or len(after) > 1000:
        raise invalid("NextToken: it is not one that came with a page")
    return after


def _next(arns: Sequence[str]) -> Iterable[Node]:
    return [("NextToken", base64.urlsafe_b64encode(arns[PAGE - 1].encode()).decode())] if len(arns) > PAGE else []


def _listed(found: Sequence[Subscription]) -> list[Node]:
    shown: list[Node] = [
        (
            "member",
            [
                ("SubscriptionArn", each.arn if each.confirmed else "PendingConfirmation"),
                ("Owner", each.project),
                ("Protocol", each.protocol),
                ("Endpoint", each.endpoint),
                ("TopicArn", each.topic),
            ],
        )
        for each in found[:PAGE]
    ]
    return [("Subscriptions", shown), *_next([each.arn for each in found])]


def _entries(attributes: Mapping[str, str]) -> list[Node]:
    return [("Attributes", [("entry", [("key", name), ("value", value)]) for name, value in attributes.items()])]


def _policy(topic: Topic, permissions: Sequence[Permission]) -> str:
    statements = [
        {
            "Sid": each.label,
            "Effect": "Allow",
            "Principal": {"AWS": list(each.projects)},
            "Action": [f"SNS:{action}" for action in each.actions],
            "Resource": topic.arn,
        }
        for each in permissions
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _said(value: bool) -> str:
    return "true" if value else "false"
