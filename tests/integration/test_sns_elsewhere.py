"""Topics of accounts elsewhere, through boto3: what is sent, and what each answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sns_elsewhere import Elsewhere, attributes_of, sns_elsewhere
from tidings import destinations
from tidings.destinations import sns
from tidings.events.messages import SENT, Message, Outcome, Verdict
from tidings.settings import Settings

TOPIC = "arn:aws:sns:eu-west-1:123456789012:theirs"
PROJECT = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def peer() -> Iterator[Elsewhere]:
    with sns_elsewhere() as running:
        yield running


def settings(peer: Elsewhere | None, projects: str = PROJECT) -> Settings:
    known: Any = {"endpoint": peer.endpoint, "access_key_id": "k", "secret": "hush", "projects": projects} if peer else None
    return Settings(external={"accounts": {"123456789012": known} if known else {}})


def send(peer: Elsewhere | None, *bodies: bytes, timeout: float = 10.0, **attributes: str) -> list[Outcome]:
    messages = [Message(f"m{i}", body, {"id": f"m{i}", **attributes}) for i, body in enumerate(bodies)]
    return asyncio.run(destinations.connect(TOPIC, settings(peer)).send(messages, timeout))


def test_messages_go_in_one_call_with_their_attributes(peer: Elsewhere) -> None:
    assert send(peer, *(f"n{i}".encode() for i in range(10)), sequencer="0A", empty="") == [SENT] * 10
    assert [entry["Message"] for entry in peer.received] == [f"n{i}" for i in range(10)]
    entry = peer.received[0]
    assert entry["TopicArn"] == TOPIC
    assert entry["Subject"] == "Amazon S3 Notification"
    assert attributes_of(entry) == {"id": "m0", "sequencer": "0A"}


def test_each_message_has_its_own_outcome(peer: Elsewhere) -> None:
    peer.failed = {"bad": ("InvalidParameter", True), "ill": ("InternalError", False), "no": ("AuthorizationError", True)}
    outcomes = send(peer, b"good", b"bad", b"ill", b"no", b"\xff", b"x" * 262_144)
    expected = [Verdict.SENT, Verdict.REJECTED, Verdict.RETRY, Verdict.WAIT, Verdict.REJECTED, Verdict.REJECTED]
    assert [outcome.verdict for outcome in outcomes] == expected
    assert "262148" in outcomes[-1].reason


TABLE = {
    (404, "NotFound"): Verdict.WAIT,
    (403, "AuthorizationError"): Verdict.WAIT,
    (403, "InvalidClientTokenId"): Verdict.WAIT,
    (403, "SignatureDoesNotMatch"): Verdict.WAIT,
    (400, "InvalidParameter"): Verdict.WAIT,
    (400, "Throttling"): Verdict.RETRY,
    (429, "Throttled"): Verdict.RETRY,
    (500, "InternalFailure"): Verdict.RETRY,
    (503, "ServiceUnavailable"): Verdict.RETRY,
}


def test_the_table_of_answers_cell_by_cell(peer: Elsewhere) -> None:
    found = {}
    for refusal in TABLE:
        peer.refusal = refusal
        (outcome,) = send(peer, b"x")
        assert refusal[1] in outcome.reason
        found[refusal] = outcome.verdict
    assert found == TABLE


@pytest.mark.parametrize("which", ["Successful", "Failed"])
@pytest.mark.parametrize("odd", ["", "<Id/>", "<Id>first</Id>", "<Id>7</Id>", "<Id>-1</Id>", "<Id>0"])
def test_an_answer_that_is_malformed_confirms_nothing_and_is_tried_again(peer: Elsewhere, which: str, odd: str) -> None:
    peer.result = f"<{which}><member>{odd}</member></{which}>"
    assert [each.verdict for each in send(peer, b"x", b"\xff")] == [Verdict.RETRY, Verdict.REJECTED]


def test_silence_and_nobody_there_are_tried_again(peer: Elsewhere) -> None:
    peer.silent.set()
    (outcome,) = send(peer, b"x", timeout=0.5)
    assert outcome.verdict is Verdict.RETRY
    peer.silent.clear()


def test_an_account_that_the_operator_has_not_named_waits() -> None:
    (outcome,) = send(None, b"x")
    assert outcome.verdict is Verdict.WAIT
    assert "has not named the account 123456789012" in outcome.reason


def test_only_projects_that_the_operator_lets_may_name_it_in_a_rule(peer: Elsewhere, database_url: str) -> None:
    async def refusal(project: str) -> str | None:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            return await sns.refusal(connection, project, TOPIC, settings(peer))

    assert asyncio.run(refusal(PROJECT)) is None
    assert "does not let this project" in str(asyncio.run(refusal("99999999-2222-3333-4444-555555555555")))
