"""Queues as a destination: what each failure means, cell by cell, and who may send where."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sqs_elsewhere import Elsewhere, sqs_elsewhere
from tidings import destinations, external
from tidings.access.projects import create_project
from tidings.destinations import queue
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.settings import Settings

ACCOUNT = "123456789012"
ELSEWHERE = f"arn:aws:sqs:us-east-1:{ACCOUNT}:q"
LIMIT = 262_144


def message(body: str = "m", **attributes: str) -> Message:
    return Message("id", body.encode(), {"id": "id", **attributes})


def sent(arn: str, settings: Settings, *messages: Message, timeout: float = 10.0) -> list[Outcome]:
    async def run() -> list[Outcome]:
        destination = destinations.connect(arn, settings)
        try:
            return await destination.send(messages, timeout)
        finally:
            await destination.close()

    return asyncio.run(run())


@pytest.fixture
def project(database: psycopg.Connection[Any]) -> str:
    project = create_project(database, "p")
    database.execute("insert into queues (project, name) values (%s, 'q')", [project])
    return project


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database={"url": database_url})


@pytest.fixture
def peer() -> Iterator[Elsewhere]:
    with sqs_elsewhere() as running:
        yield running


@pytest.fixture
def outside(peer: Elsewhere) -> Settings:
    account = {"endpoint": peer.endpoint, "access_key_id": "key", "secret": "secret", "projects": "*"}
    return Settings(external={"accounts": {ACCOUNT: account}}, delivery={"publish_timeout_seconds": 3})


def test_an_event_is_in_our_queue_with_its_attributes_when_it_is_sent(
    database: psycopg.Connection[Any], project: str, settings: Settings
) -> None:
    given = [message('{"n": 1}', sequencer="00A1", empty=""), message("größe")]
    assert sent(f"arn:aws:sqs:us-east-1:{project}:q", settings, *given) == [SENT, SENT]
    rows = database.execute("select body, attributes, sender from queue_messages order by id").fetchall()
    assert rows == [
        (
            '{"n": 1}',
            {name: {"DataType": "String", "StringValue": value} for name, value in (("id", "id"), ("sequencer", "00A1"))},
            "tidings",
        ),
        ("größe", {"id": {"DataType": "String", "StringValue": "id"}}, "tidings"),
    ]


def test_attributes_beyond_ten_have_no_room(database: psycopg.Connection[Any], project: str, settings: Settings) -> None:
    many = message("m", **{f"a{n:02}": "v" for n in range(15)})
    assert sent(f"arn:aws:sqs:us-east-1:{project}:q", settings, many) == [SENT]
    row = database.execute("select attributes from queue_messages").fetchone()
    assert row is not None
    assert set(row[0]) == {"id", *(f"a{n:02}" for n in range(9))}


def test_a_queue_that_is_not_there_waits_and_is_used_when_it_is(
    database: psycopg.Connection[Any], project: str, settings: Settings
) -> None:
    arn = f"arn:aws:sqs:us-east-1:{project}:later"
    (outcome,) = sent(arn, settings, message())
    assert (outcome.verdict, "QueueDoesNotExist" in outcome.reason) == (Verdict.WAIT, True)
    database.execute("insert into queues (project, name) values (%s, 'later')", [project])
    assert sent(arn, settings, message()) == [SENT]
    (elsewhere,) = sent(arn.replace("us-east-1", "mars"), settings, message())
    assert elsewhere.verdict is Verdict.WAIT


def test_only_what_can_never_be_kept_is_rejected_and_its_neighbours_are_kept(
    database: psycopg.Connection[Any], project: str, settings: Settings
) -> None:
    arn = f"arn:aws:sqs:us-east-1:{project}:q"
    fitting = "x" * (LIMIT - len("id" + "String" + "id"))
    outcomes = sent(
        arn, settings, message(fitting), message(fitting + "x"), message("a\x07"), Message("i", b"\xff"), message("b")
    )
    assert [each.verdict for each in outcomes] == [Verdict.SENT, *[Verdict.REJECTED] * 3, Verdict.SENT]
    assert f"{LIMIT + 1} bytes" in outcomes[1].reason
    assert str(LIMIT) in outcomes[1].reason
    assert "InvalidMessageContents" in outcomes[2].reason
    assert database.execute("select length(body) from queue_messages order by id").fetchall() == [(len(fitting),), (1,)]
    database.execute("update queues set max_bytes = 1024")
    (small,) = sent(arn, settings, message("x" * 1100))
    assert (small.verdict, "the queue takes 1024" in small.reason) == (Verdict.REJECTED, True)


def test_a_database_that_is_away_is_tried_again() -> None:
    nowhere = Settings(database={"url": "postgresql://nobody@127.0.0.1:1/nothing"})
    (outcome,) = sent(f"arn:aws:sqs:us-east-1:{uuid.uuid4()}:q", nowhere, message())
    assert (outcome.verdict, outcome.reason.startswith("the database: ")) == (Verdict.RETRY, True)


def test_a_batch_to_our_queue_is_kept_whole_or_not_at_all(
    database: psycopg.Connection[Any], project: str, settings: Settings
) -> None:
    database.execute("alter table queue_messages add check (body <> 'bad')")
    outcomes = sent(f"arn:aws:sqs:us-east-1:{project}:q", settings, message("good"), message("bad"))
    assert [each.verdict for each in outcomes] == [Verdict.RETRY] * 2
    assert database.execute("select count(*) from queue_messages").fetchone() == (0,)


WHOLE_CALL = [
    (400, "AWS.SimpleQueueService.NonExistentQueue", Verdict.WAIT),
    (400, "QueueDoesNotExist", Verdict.WAIT),
    (403, "AccessDenied", Verdict.WAIT),
    (400, "AccessDeniedException", Verdict.WAIT),
    (403, "InvalidClientTokenId", Verdict.WAIT),
    (403, "SignatureDoesNotMatch", Verdict.WAIT),
    (400, "KmsAccessDenied", Verdict.WAIT),
    (403, "SomethingNew", Verdict.WAIT),
    (404, "SomethingNew", Verdict.WAIT),
    (400, "InvalidMessageContents", Verdict.WAIT),
    (400, "InvalidParameterValue", Verdict.WAIT),
    (400, "ThrottlingException", Verdict.RETRY),
    (400, "KmsThrottled", Verdict.RETRY),
    (403, "RequestThrottled", Verdict.RETRY),
    (403, "OverLimit", Verdict.RETRY),
    (400, "SomethingNew", Verdict.RETRY),
    (500, "InternalFailure", Verdict.RETRY),
    (503, "ServiceUnavailable", Verdict.RETRY),
    (503, "AccessDenied", Verdict.RETRY),
]


@pytest.mark.parametrize(("status", "code", "verdict"), WHOLE_CALL)
def test_what_a_refused_call_elsewhere_means(
    peer: Elsewhere, outside: Settings, status: int, code: str, verdict: Verdict
) -> None:
    peer.refusal = (status, code, {})
    outcomes = sent(ELSEWHERE, outside, message(), message())
    assert [each.verdict for each in outcomes] == [verdict] * 2
    assert all(code in each.reason for each in outcomes)


def test_a_peer_elsewhere_that_says_when_to_come_back_is_heard(peer: Elsewhere, outside: Settings) -> None:
    peer.refusal = (503, "ServiceUnavailable", {"retry-after": "17"})
    (outcome,) = sent(ELSEWHERE, outside, message())
    assert (outcome.verdict, outcome.after) == (Verdict.RETRY, 17.0)


def test_each_entry_elsewhere_has_its_own_outcome(peer: Elsewhere, outside: Settings) -> None:
    peer.failed = {
        "bad": ("InvalidMessageContents", True),
        "throttled": ("RequestThrottled", True),
        "broken": ("InternalError", False),
        "forbidden": ("AccessDenied", True),
    }
    bodies = ("good", "bad", "throttled", "broken", "forbidden", "x" * (LIMIT + 1), "fine")
    outcomes = sent(ELSEWHERE, outside, *map(message, bodies))
    assert [each.verdict.value for each in outcomes] == ["sent", "rejected", "retry", "retry", "wait", "rejected", "sent"]
    assert [each["MessageBody"] for each in peer.received] == ["good", "fine"]
    assert peer.received[0]["MessageAttributes"] == {"id": {"DataType": "String", "StringValue": "id"}}
    (request,) = peer.requests
    assert (request["target"], request["QueueUrl"]) == ("AmazonSQS.SendMessageBatch", f"{peer.endpoint}/{ACCOUNT}/q")


@pytest.mark.parametrize("which", ["Successful", "Failed"])
@pytest.mark.parametrize(
    "odd", [None, {}, {"Id": "first"}, {"Id": "7"}, {"Id": "-1"}, {"Id": {}}, {"Code": 5, "Id": 0}, "text", 1]
)
def test_an_answer_that_is_malformed_confirms_nothing_and_is_tried_again(
    peer: Elsewhere, outside: Settings, which: str, odd: Any
) -> None:
    peer.document = {which: [odd]}
    outcomes = sent(ELSEWHERE, outside, message("a"), message("x" * (LIMIT + 1)), message("b"))
    assert [each.verdict for each in outcomes] == [Verdict.RETRY, Verdict.REJECTED, Verdict.RETRY]
    peer.document = {"Successful": [{"Id": "1", "MessageId": "m", "MD5OfMessageBody": "0"}]}
    outcomes = sent(ELSEWHERE, outside, message("a"), message("x" * (LIMIT + 1)))
    assert [each.verdict for each in outcomes] == [Verdict.RETRY, Verdict.REJECTED], "what was not sent cannot have arrived"


def test_a_failed_entry_without_a_code_is_tried_again_and_its_neighbour_is_sent(peer: Elsewhere, outside: Settings) -> None:
    peer.document = {"Successful": [{"Id": "1", "MessageId": "m"}], "Failed": [{"Id": "0", "SenderFault": True}]}
    assert [each.verdict for each in sent(ELSEWHERE, outside, message("a"), message("b"))] == [Verdict.RETRY, Verdict.SENT]


def test_a_peer_elsewhere_that_is_silent_or_away_is_tried_again(peer: Elsewhere, outside: Settings) -> None:
    assert sent(ELSEWHERE, outside, message()) == [SENT]
    peer.silent.set()
    (silent,) = sent(ELSEWHERE, outside, message(), timeout=0.5)
    assert (silent.verdict, silent.reason) == (Verdict.RETRY, "no answer within 0.5 s")
    away = {"endpoint": "http://127.0.0.1:1", "access_key_id": "key", "secret": "secret"}
    (gone,) = sent(ELSEWHERE, Settings(external={"accounts": {ACCOUNT: away}}), message())
    assert (gone.verdict, "Endpoint" in gone.reason) == (Verdict.RETRY, True)
    assert "secret" not in gone.reason


def test_an_account_that_the_operator_has_not_named_waits() -> None:
    (outcome,) = sent(ELSEWHERE, Settings(), message())
    assert (outcome.verdict, ACCOUNT in outcome.reason) == (Verdict.WAIT, True)


def test_a_project_may_send_to_its_own_queues_to_granted_ones_and_to_accounts_that_it_was_allowed(
    database: psycopg.Connection[Any], database_url: str, project: str
) -> None:
    other = create_project(database, "other")
    account = {"access_key_id": "key", "secret": "secret", "projects": other}
    settings = Settings(external={"accounts": {ACCOUNT: account}})

    def refusal(who: str, arn: str) -> str | None:
        async def run() -> str | None:
            async with await psycopg.AsyncConnection.connect(database_url) as connection:
                return await queue.refusal(connection, who, arn, settings)

        return asyncio.run(run())

    arn = f"arn:aws:sqs:us-east-1:{project}:q"
    assert refusal(project, arn) is None
    assert refusal(other, arn) == refusal(other, arn + "-none")
    assert "has not granted" in (refusal(other, arn) or "")
    database.execute("insert into queue_grants select id, 'l', %s, 'ReceiveMessage' from queues", [other])
    assert refusal(other, arn) is not None
    database.execute("insert into queue_grants select id, 'l', %s, 'SendMessage' from queues", [other])
    assert refusal(other, arn) is None
    assert refusal(other, ELSEWHERE) is None
    assert ACCOUNT in (refusal(project, ELSEWHERE) or "")
    assert refusal(other, ELSEWHERE.replace(ACCOUNT, "210987654321")) is not None
    assert "not a region of AWS" in (refusal(other, ELSEWHERE.replace("us-east-1", "s3-us-west-2")) or "")


@pytest.mark.parametrize("service", ["sqs", "sns"])
@pytest.mark.parametrize("region", ["s3-us-west-2", "mars", "us-east-1-", "cn-north-2"])
def test_no_region_of_an_arn_makes_up_a_host_of_its_own(service: str, region: str) -> None:
    account = {"access_key_id": "key", "secret": "secret", "projects": "*"}
    settings = Settings(external={"accounts": {ACCOUNT: account}})
    (outcome,) = sent(f"arn:aws:{service}:{region}:{ACCOUNT}:q", settings, message())
    assert outcome.verdict is Verdict.WAIT
    assert f"{region!r} is not a region of AWS" in outcome.reason


def test_the_operator_s_endpoint_and_region_stand_above_the_region_of_an_arn() -> None:
    known = external.Account(access_key_id="key", secret="s")
    assert known.url("sqs", "eu-west-1") == "https://sqs.eu-west-1.amazonaws.com"
    assert known.url("sns", "cn-north-1") == "https://sns.cn-north-1.amazonaws.com.cn"
    newer = external.Account(access_key_id="key", secret="s", region="mars-1")
    assert newer.url("sqs", "s3-us-west-2") == "https://sqs.mars-1.amazonaws.com"
    own = external.Account(access_key_id="key", secret="s", endpoint="https://queues.example")
    assert own.url("sqs", "s3-us-west-2") == "https://queues.example"


def test_accounts_are_twelve_digits_and_their_secrets_are_not_shown() -> None:
    with pytest.raises(ValueError, match="twelve digits"):
        Settings(external={"accounts": {"aws": {"access_key_id": "key", "secret": "hidden"}}})
    known = external.Account(access_key_id="key", secret="hidden", projects="a, b")
    assert "hidden" not in repr(known)
    assert [known.allows(each) for each in ("a", "b", "c", "")] == [True, True, False, False]
