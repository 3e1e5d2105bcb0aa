"""Kafka: which error means what, and who may send where."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError

from tidings.destinations import kafka
from tidings.events.messages import Message, Verdict
from tidings.settings import Settings

MESSAGE = Message("1", b"x" * 100, {"id": "1"}, b"key")
PROJECT = "12e9f7fe-0e0a-48a8-b16b-870baac1441b"
OTHER = "22e9f7fe-0e0a-48a8-b16b-870baac1441b"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("UNKNOWN_TOPIC_OR_PART", Verdict.WAIT),
        ("_UNKNOWN_TOPIC", Verdict.WAIT),
        ("_UNKNOWN_PARTITION", Verdict.WAIT),
        ("TOPIC_EXCEPTION", Verdict.WAIT),
        ("TOPIC_AUTHORIZATION_FAILED", Verdict.WAIT),
        ("CLUSTER_AUTHORIZATION_FAILED", Verdict.WAIT),
        ("SASL_AUTHENTICATION_FAILED", Verdict.WAIT),
        ("UNSUPPORTED_SASL_MECHANISM", Verdict.WAIT),
        ("_AUTHENTICATION", Verdict.WAIT),
        ("POLICY_VIOLATION", Verdict.WAIT),
        ("MSG_SIZE_TOO_LARGE", Verdict.REJECTED),
        ("INVALID_MSG_SIZE", Verdict.REJECTED),
        ("RECORD_LIST_TOO_LARGE", Verdict.REJECTED),
        ("INVALID_MSG", Verdict.REJECTED),
        ("INVALID_RECORD", Verdict.REJECTED),
        ("INVALID_TIMESTAMP", Verdict.REJECTED),
        ("_INVALID_DIFFERENT_RECORD", Verdict.RETRY),
        ("_MSG_TIMED_OUT", Verdict.RETRY),
        ("_TIMED_OUT", Verdict.RETRY),
        ("REQUEST_TIMED_OUT", Verdict.RETRY),
        ("_TRANSPORT", Verdict.RETRY),
        ("_ALL_BROKERS_DOWN", Verdict.RETRY),
        ("_RESOLVE", Verdict.RETRY),
        ("_SSL", Verdict.RETRY),
        ("_QUEUE_FULL", Verdict.RETRY),
        ("_PURGE_QUEUE", Verdict.RETRY),
        ("_PURGE_INFLIGHT", Verdict.RETRY),
        ("_FATAL", Verdict.RETRY),
        ("NOT_LEADER_FOR_PARTITION", Verdict.RETRY),
        ("LEADER_NOT_AVAILABLE", Verdict.RETRY),
        ("NOT_ENOUGH_REPLICAS", Verdict.RETRY),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Verdict.RETRY),
        ("BROKER_NOT_AVAILABLE", Verdict.RETRY),
        ("NETWORK_EXCEPTION", Verdict.RETRY),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", Verdict.RETRY),
        ("UNKNOWN_PRODUCER_ID", Verdict.RETRY),
        ("INVALID_PRODUCER_EPOCH", Verdict.RETRY),
        ("KAFKA_STORAGE_ERROR", Verdict.RETRY),
        ("THROTTLING_QUOTA_EXCEEDED", Verdict.RETRY),
        ("UNKNOWN", Verdict.RETRY),
    ],
)
def test_an_error_says_who_must_act(name: str, verdict: Verdict) -> None:
    outcome = kafka.outcome_of(KafkaError(getattr(KafkaError, name), "their words"), MESSAGE, 1000)
    assert outcome.verdict is verdict
    assert "their words" in outcome.reason


def test_a_message_that_is_too_large_is_refused_with_its_size_and_the_limit() -> None:
    outcome = kafka.outcome_of(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), MESSAGE, 50)
    assert "106 bytes with its key and headers; the limit is 50" in outcome.reason


@pytest.mark.parametrize(
    ("project", "arn", "words"),
    [
        (PROJECT, "arn:tidings:kafka::main:orders-1", None),
        (OTHER, "arn:tidings:kafka::open:anything", None),
        (PROJECT, "arn:tidings:kafka::other:orders-1", "no Kafka cluster 'other'"),
        (OTHER, "arn:tidings:kafka::main:orders-1", "project may not send to the Kafka cluster 'main'"),
        (PROJECT, "arn:tidings:kafka::main:invoices", "must begin with orders-, events-"),
    ],
)
def test_a_project_may_send_where_the_operator_says(project: str, arn: str, words: str | None) -> None:
    main = {"bootstrap": "a:9092", "projects": [PROJECT.upper()], "topic_prefixes": ["orders-", "events-"]}
    settings = Settings(kafka={"clusters": {"main": main, "open": {"bootstrap": "b:9092", "projects": "*"}}})
    refused = asyncio.run(kafka.refusal(None, project, arn, settings))
    assert refused is None if words is None else words in (refused or "")
