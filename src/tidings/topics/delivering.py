"""A message on its way to a subscriber: in SNS's envelope or raw, over HTTP or into a queue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from tidings.destinations import Destination
from tidings.events.messages import PROJECT, Message, Outcome, Verdict
from tidings.outgoing.connecting import Caller
from tidings.topics import envelope, webhooks
from tidings.topics.envelope import NOTIFICATION
from tidings.topics.knowing import Known
from tidings.topics.model import Subscription
from tidings.topics.posting import post
from tidings.topics.signing import Signer

MAX_BYTES = 256 * 1024
"""Of the body and its attributes together, as at SNS (docs.aws.amazon.com/general/latest/gr/sns.html)."""

_TEXT = "text/plain; charset=UTF-8"
_HEADER = re.compile(r"[a-z0-9][a-z0-9-]*")
_OURS = ("x-amz-sns-", "webhook-")
_TRANSPORT = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "user-agent"}
)
# What a header can hold as it is. CloudEvents also encodes the space, the quote and the percent sign.
_PLAIN = "".join(map(chr, range(0x20, 0x7F)))
_CLOUDEVENTS = "".join(character for character in _PLAIN if character not in ' "%')

Connect = Callable[[str, str], Destination]


class Delivering:
    """To one subscription. `connect` gives a project's client of a queue."""

    def __init__(self, known: Known, caller: Caller, api_url: str, connect: Connect) -> None:
        self._known = known
        self._caller = caller
        self._api_url = api_url
        self._connect = connect

    async def send(self, to: Subscription, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        signer = None if to.raw else await self._known.signer()
        if to.protocol == "sqs":
            return await self._enqueue(to, signer, messages, timeout)
        return await asyncio.gather(*(self._post(to, signer, message, timeout) for message in messages))

    async def _post(self, to: Subscription, signer: Signer | None, message: Message, timeout: float) -> Outcome:
        if (refusal := too_large(message)) is not None:
            return refusal
        id_ = envelope.message_id(message.id)
        headers = {
            "content-type": _TEXT,
            "x-amz-sns-message-type": NOTIFICATION,
            "x-amz-sns-message-id": id_,
            "x-amz-sns-topic-arn": to.topic,
            "x-amz-sns-subscription-arn": to.arn,
            **_project(message),
        }
        body = message.body
        if signer is None:
            headers |= attribute_headers(message.attributes)
            headers |= {"x-amz-sns-rawdelivery": "true", **webhooks.headers(id_, body, to.secrets)}
        else:
            wrapped = self._wrapped(to, signer, message)
            if isinstance(wrapped, Outcome):
                return wrapped
            body = wrapped
        return await post(self._caller, to.endpoint, body, headers, timeout)

    async def _enqueue(
        self, to: Subscription, signer: Signer | None, messages: Sequence[Message], timeout: float
    ) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(messages)
        fit: list[tuple[int, Message]] = []
        for i, message in enumerate(messages):
            outcomes[i] = too_large(message)
            if outcomes[i] is None and signer is not None:
                wrapped = self._wrapped(to, signer, message)
                if isinstance(wrapped, Outcome):
                    outcomes[i] = wrapped
                else:
                    fit.append((i, Message(message.id, wrapped, _project(message), message.key, message.group)))
            elif outcomes[i] is None:
                fit.append((i, message))
        queue = self._connect(to.project, to.endpoint)
        chunks = [fit[start : start + queue.max_batch] for start in range(0, len(fit), queue.max_batch)]
        answers = await asyncio.gather(*(queue.send([message for _, message in chunk], timeout) for chunk in chunks))
        for chunk, answer in zip(chunks, answers, strict=True):
            for (i, _), outcome in zip(chunk, answer, strict=True):
                outcomes[i] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _wrapped(self, to: Subscription, signer: Signer, message: Message) -> bytes | Outcome:
        try:
            text = message.body.decode()
        except UnicodeDecodeError:
            return Outcome(Verdict.REJECTED, "the message is not UTF-8, and SNS's envelope holds text: use raw delivery")
        url = envelope.unsubscribe_url(self._api_url, to.arn)
        return envelope.notification(signer, to.signature_version, to.topic, message.id, text, message.attributes, url)


def _project(message: Message) -> dict[str, str]:
    """Whose message it is: said beside the envelope too, where a receiver finds it without a look inside."""
    return {PROJECT: message.attributes[PROJECT]} if PROJECT in message.attributes else {}


def too_large(message: Message) -> Outcome | None:
    size = len(message.body) + sum(len(name.encode()) + len(value.encode()) for name, value in message.attributes.items())
    if size <= MAX_BYTES:
        return None
    return Outcome(Verdict.REJECTED, f"the message has {size} bytes with its attributes, and SNS takes at most {MAX_BYTES}")


def attribute_headers(attributes: Mapping[str, str]) -> dict[str, str]:
    """A message's attributes as headers, but for names that mean something to the transport.

    CloudEvents has its own rule for what must be percent-encoded; elsewhere it is what a header cannot hold.
    """
    headers = {}
    for name, value in attributes.items():
        lower = name.lower()
        if _HEADER.fullmatch(lower) and lower not in _TRANSPORT and not lower.startswith(_OURS):
            headers[lower] = quote(value, safe=_CLOUDEVENTS if lower.startswith("ce-") else _PLAIN)
    return headers
