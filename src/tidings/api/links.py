"""What SNS serves without a signature: the links in its messages, and the certificate that they are verified by.

A link proves itself: by the token of a confirmation, or by a subscription's name, which only its receiver knows.
"""

from __future__ import annotations

import uuid
from urllib.parse import parse_qs

from tidings import metrics
from tidings.api import errors, limits, query, sns
from tidings.api.acts import named
from tidings.api.body import Receive
from tidings.api.response import Response, Send
from tidings.api.s3 import Scope
from tidings.audit import Act, acting
from tidings.errors import CallerError
from tidings.topics.subscribing import Subscriptions

_ACTIONS = ("ConfirmSubscription", "Unsubscribe")
_CERTIFICATE = "/SimpleNotificationService-"


class Links:
    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def serves(self, scope: Scope) -> bool:
        if scope["method"] not in ("GET", "HEAD"):
            return False
        if scope["path"].startswith(_CERTIFICATE):  # capitals: it is nobody's bucket
            return True
        if scope["path"] != "/" or b"Action=" not in scope["query_string"]:
            return False
        named = parse_qs(scope["query_string"].decode("latin-1")).get("Action", [])
        return named[:1] in ([action] for action in _ACTIONS) and all(name != b"authorization" for name, _ in scope["headers"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = str(uuid.uuid4())
        operation = "Certificate" if scope["path"] != "/" else "Link"
        try:
            limits.enter(scope)
            if scope["method"] == "HEAD":  # whoever looks at a link has not followed it
                response = Response(200, {"content-type": "text/xml"})
            elif operation == "Certificate":
                response = await self._certificate(scope["path"])
            else:
                response = await self._link(scope, request_id)
        except Exception as error:
            problem = errors.as_caller_error(error, scope["method"], f"sns:{operation}", request_id)
            response = query.refusal(sns.NAMESPACE, problem, request_id)
        response.headers = {**response.headers, "x-amzn-requestid": request_id}
        metrics.answered(f"sns:{operation}", response.status)
        await response.send(receive, send)

    async def _link(self, scope: Scope, request_id: str) -> Response:
        fields = query.read(scope["query_string"])
        action, target = sns.need(fields, "Action"), named(fields)
        project, address = target.split(":")[4:5], scope["client"][0] if scope.get("client") else ""
        # Written down if it changes something: what a stranger tries is not.
        with acting(Act(f"sns:{action}", "link", address, project[0] if project else None, target, request_id)):
            if action == "ConfirmSubscription":
                return query.answer(sns.NAMESPACE, action, await sns.confirm(self._subscriptions, fields), request_id)
            await self._subscriptions.unsubscribe(None, sns.need(fields, "SubscriptionArn"))
            return query.answer(sns.NAMESPACE, action, None, request_id)

    async def _certificate(self, path: str) -> Response:
        certificate = await self._subscriptions.confirming.certificate(path)
        if certificate is None:
            raise CallerError("NotFound", "There is no such certificate.")
        return Response(200, {"content-type": "application/x-pem-file", "cache-control": "max-age=86400"}, certificate)
