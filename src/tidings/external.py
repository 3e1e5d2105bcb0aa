"""Queues and topics outside of Tidings: AWS's own, or of whatever else speaks SQS and SNS, in accounts that the operator names.

boto3 is the client. It blocks, so it works in threads of its own, and it is imported when it is first used.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, Field, SecretStr, field_validator

from tidings.events.messages import SENT, Outcome, Verdict
from tidings.events.regions import host_of

THREADS = 10
"""Calls that one process has under way at most for one service of an account."""
_ACCOUNT = re.compile(r"[0-9]{12}")
_MAX_WORDS = 500


class Account(BaseModel, frozen=True, extra="forbid"):
    """How to reach an account, and who may send there."""

    endpoint: str | None = Field(
        None, pattern=r"^https?://[^\s/]+$", description="https://HOST of SQS and SNS there; AWS's own if not said"
    )
    region: str | None = Field(None, description="the region to sign for; that of the ARN if not said")
    access_key_id: str = Field(description="the key that messages are sent with")
    secret: SecretStr = Field(description="its secret")
    projects: str = Field("", description="projects that may send there: their public ids, separated by commas, or *")

    def allows(self, project: str) -> bool:
        return project in self._allowed or "*" in self._allowed

    @property
    def is_shared(self) -> bool:
        """Whether several projects may send to the same queues and topics there."""
        return "*" in self._allowed or len(self._allowed) > 1

    @property
    def _allowed(self) -> set[str]:
        return {name for each in self.projects.split(",") if (name := each.strip())}

    def url(self, service: str, region: str) -> str | None:
        """Where a service of the account is, `region` being that of an ARN; None if AWS has no such region.

        A tenant wrote that ARN: its region must not make up a host that gets messages with the operator's signature.
        """
        if self.endpoint is not None:
            return self.endpoint
        host = host_of(service, self.region or region)
        if host is None and self.region is not None:  # the operator knows a newer one
            host = f"{service}.{self.region}.amazonaws.com"
        return None if host is None else f"https://{host}"


class ExternalSettings(BaseModel, frozen=True, extra="forbid"):
    """SQS and SNS elsewhere."""

    accounts: dict[str, Account] = Field(
        {},
        description='by their twelve digits: {"123456789012": {"endpoint", "region", "access_key_id", "secret", "projects"}}',
    )

    @field_validator("accounts")
    @classmethod
    def _are_accounts(cls, accounts: dict[str, Account]) -> dict[str, Account]:
        for each in accounts:
            if not _ACCOUNT.fullmatch(each):
                raise ValueError(f"{each[:100]!r} is not an account of AWS: write its twelve digits")
        return accounts

    def refusal(self, account: str, region: str, project: str) -> str | None:
        """Why a project may not send to an account, in a region, if it may not."""
        known = self.accounts.get(account)
        if known is None or not known.allows(project):
            return f"the operator of this service does not let this project send to the account {account}"
        return _no_region(region) if known.url("sqs", region) is None else None

    def client(self, service: str, account: str, region: str, seconds: float) -> Client | str:
        """The client of this process for a service of an account, or why there can be none until somebody acts.

        `seconds` is the longest that a call may take, whatever its caller waits.
        """
        known = self.accounts.get(account)
        if known is None:
            return f"the operator of this service has not named the account {account}"
        url = known.url(service, region)
        return _no_region(region) if url is None else _client(service, known, url, region, seconds)


def _no_region(region: str) -> str:
    return f"{region!r} is not a region of AWS: check the ARN"


class Client:
    """One service of one account, for every lane of this process that leads there."""

    def __init__(self, service: str, account: Account, endpoint: str, region: str, seconds: float) -> None:
        self.endpoint = endpoint
        self._service = service
        self._account = account
        self._region = account.region or region
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"external-{service}")
        self._client: Any = None

    async def call(self, operation: str, timeout: float, **parameters: Any) -> dict[str, Any]:
        """One call without retries: those are the lane's business. Raises what boto3 raises, or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            answer: dict[str, Any] = await loop.run_in_executor(self._threads, lambda: self._call(operation, parameters))
        return answer

    def _call(self, operation: str, parameters: dict[str, Any]) -> Any:
        return getattr(self._connected(), operation)(**parameters)

    def _connected(self) -> Any:
        if self._client is None:
            import boto3
            from botocore.config import Config

            config = Config(
                retries={"total_max_attempts": 1},
                connect_timeout=min(5.0, self._seconds),
                read_timeout=self._seconds,
                max_pool_connections=THREADS,
            )
            self._client = boto3.session.Session().client(
                self._service,
                endpoint_url=self.endpoint,
                region_name=self._region,
                aws_access_key_id=self._account.access_key_id,
                aws_secret_access_key=self._account.secret.get_secret_value(),
                config=config,
            )
        return self._client


@lru_cache(maxsize=256)
def _client(service: str, account: Account, endpoint: str, region: str, seconds: float) -> Client:
    return Client(service, account, endpoint, region, seconds)


_REJECTED = frozenset({"InvalidMessageContents", "MessageTooLong", "InvalidParameterValue", "InvalidParameter"})
_THROTTLED = ("Throttl", "RequestThrottled", "OverLimit", "TooManyRequests", "SlowDown", "RequestLimitExceeded")
_WAITING = (
    *(
        "NonExistentQueue",
        "QueueDoesNotExist",
        "NotFound",
        "AccessDenied",
        "AuthorizationError",
        "NotAuthorized",
        "OptInRequired",
    ),
    *(
        "InvalidClientTokenId",
        "UnrecognizedClient",
        "SignatureDoesNotMatch",
        "InvalidSecurity",
        "ExpiredToken",
        "InvalidAddress",
    ),
    *("KmsAccessDenied", "KmsDisabled", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired", "KmsInvalidKeyUsage"),
)


def outcome_of(code: str, message: str, status: int, after: float | None = None) -> Outcome:
    """What an error's code means for the message. A code that is not known is judged by its HTTP status."""
    words = f"{code}: {message}"[:_MAX_WORDS]
    name = code.rpartition(".")[2]
    if name in _REJECTED:
        return Outcome(Verdict.REJECTED, words)
    if any(part in name for part in _THROTTLED) or status >= 500:
        return Outcome(Verdict.RETRY, words, after)
    if any(part in name for part in _WAITING) or status in (401, 403, 404):
        return Outcome(Verdict.WAIT, words)
    return Outcome(Verdict.RETRY, words, after)


def outcome(error: Exception, timeout: float) -> Outcome:
    """What became of all messages of a call that raised.

    That rejects none of them: a parameter that is refused may be the call's own, as a topic of another region is.
    """
    from botocore.exceptions import ClientError

    if isinstance(error, TimeoutError):
        return Outcome(Verdict.RETRY, f"no answer within {timeout:g} s")
    if not isinstance(error, ClientError):
        return Outcome(Verdict.RETRY, f"{type(error).__name__}: {error}"[:_MAX_WORDS])
    said, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    seconds = about.get("HTTPHeaders", {}).get("retry-after", "")
    after = float(seconds) if re.fullmatch(r"[0-9]{1,5}", seconds) else None
    found = outcome_of(said.get("Code", ""), said.get("Message", ""), about.get("HTTPStatusCode", 0), after)
    return Outcome(Verdict.WAIT, found.reason) if found.verdict is Verdict.REJECTED else found


def outcomes(answer: dict[str, Any], places: Collection[int]) -> dict[int, Outcome]:
    """What became of each message of a call that was answered, by the number that is its Id.

    Peers answer strangely: what an answer does not clearly speak of has not been confirmed.
    """
    found = dict.fromkeys(places, Outcome(Verdict.RETRY, "the answer did not say what became of the message"))
    for place, _ in _entries(answer, "Successful", places):
        found[place] = SENT
    for place, each in _entries(answer, "Failed", places):
        status = 400 if each.get("SenderFault") else 500
        found[place] = outcome_of(str(each.get("Code", "")), str(each.get("Message", "")), status)
    return found


def _entries(answer: dict[str, Any], which: str, places: Collection[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    known = {str(place): place for place in places}
    for each in answer.get(which) or ():
        said = each.get("Id") if isinstance(each, dict) else None
        if isinstance(said, str) and said in known:
            yield known[said], each
