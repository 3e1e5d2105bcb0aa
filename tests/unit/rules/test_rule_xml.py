from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import botocore.session
import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import CallerError
from tidings.events.arn import PubSubTopic
from tidings.events.profiles import AWS, STORJ, Profile
from tidings.rules.model import KeyFilter, Rule
from tidings.rules.xml import MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS, parse, render

GOLDEN = Path(__file__).parents[2] / "golden" / "notification"
WRITTEN = sorted(file for file in GOLDEN.glob("*.xml") if not file.name.endswith(".answer.xml"))
TOPIC = "<Topic>arn:gcp:pubsub::my-gcp-project:my-bucket-events</Topic>"
EVENT = "<Event>s3:ObjectCreated:*</Event>"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:q"


def document(inner: str = "") -> bytes:
    return f"<NotificationConfiguration>{inner}</NotificationConfiguration>".encode()


def topic(inner: str = "", *, arn: str = TOPIC, events: str = EVENT) -> str:
    return f"<TopicConfiguration>{arn}{events}{inner}</TopicConfiguration>"


def queue(arn: str) -> str:
    return f"<QueueConfiguration><Queue>{arn}</Queue>{EVENT}</QueueConfiguration>"


def filters(*rules: tuple[str, str]) -> str:
    inner = "".join(f"<FilterRule><Name>{name}</Name><Value>{value}</Value></FilterRule>" for name, value in rules)
    return f"<Filter><S3Key>{inner}</S3Key></Filter>"


def refused(body: bytes, profile: Profile = AWS) -> CallerError:
    with pytest.raises(CallerError) as caught:
        parse(body, profile)
    assert caught.value.status == 400
    return caught.value


# what is taken


@pytest.mark.parametrize("written", WRITTEN, ids=lambda file: file.stem)
def test_a_golden_document_is_answered_by_its_golden_answer_which_says_the_same(written: Path) -> None:
    answer = written.with_suffix(".answer.xml").read_bytes().removesuffix(b"\n")
    assert render(parse(written.read_bytes())) == answer
    assert parse(answer) == parse(written.read_bytes())


def test_the_example_of_the_seed_means_what_it_says() -> None:
    [rule] = parse((GOLDEN / "seed.xml").read_bytes())
    expected = PubSubTopic("my-gcp-project", "my-bucket-events")
    events = ("s3:ObjectCreated:*", "s3:ObjectRemoved:Delete")
    assert rule == Rule("MyNotificationConfig", expected, events, KeyFilter("logs/", ".txt"))


@pytest.mark.parametrize(
    "arn",
    [
        "arn:gcp:pubsub::my-project:my-topic",
        "arn:tidings:kafka::main:uploads.v1",
        "arn:aws:sns:us-east-1:50adea63-48b7-420e-b549-643fd90a5189:my-topic",
        "arn:aws:sns:eu-central-1:123456789012:my-topic",
        "arn:tidings:log:::mine",
        QUEUE,
    ],
)
def test_every_kind_of_destination_is_read_and_written_back(arn: str) -> None:
    [rule] = parse(document(queue(arn) if ":sqs:" in arn else topic(arn=f"<Topic>{arn}</Topic>")))
    assert rule.destination.arn == arn
    assert parse(render([rule])) == [rule]


def test_an_empty_configuration_has_no_rules() -> None:
    assert parse(b"<NotificationConfiguration/>") == parse(render([])) == []


def test_a_document_without_an_id_gets_the_same_one_every_time() -> None:
    [first], [again] = parse(document(topic())), parse(document(topic("<Id></Id>")))
    [other] = parse(document(topic(filters(("prefix", "logs/")))))
    assert first == again
    assert other.config_id != first.config_id


@pytest.mark.parametrize("name", ["prefix", "Prefix", "PREFIX", "pReFiX"])
def test_the_name_of_a_filter_rule_may_be_written_in_any_case(name: str) -> None:
    [rule] = parse(document(topic(filters((name, "Logs/")))))
    assert rule.filter == KeyFilter(prefix="Logs/")


def test_spaces_and_line_breaks_inside_a_filter_are_part_of_it() -> None:
    [rule] = parse(document(topic(filters(("prefix", " a\nb "), ("suffix", "\t")))))
    assert rule.filter == KeyFilter(" a\nb ", "\t")


PLAIN = st.characters(codec="utf-8", exclude_characters="\ufffe\uffff", exclude_categories=["Cc"])
# A carriage return and what XML escapes are the cases that go wrong.
TEXT = st.text(PLAIN | st.sampled_from("\t\r\n\x7f\x85<>&\"'+%"), max_size=20)
IDS = st.text(PLAIN | st.sampled_from("<>&\"' "), min_size=1, max_size=20)
TOPICS = st.builds(
    PubSubTopic,
    st.text("abc019-", max_size=10).map("my-{}-project".format),
    st.text("abcXYZ019._~+%-", max_size=20).map("topic{}".format),
)
EVENTS = st.lists(st.sampled_from(sorted(AWS.subscribable)), min_size=1, max_size=8).map(tuple)
RULES = st.builds(Rule, IDS, TOPICS, EVENTS, st.builds(KeyFilter, TEXT, TEXT))


@given(RULES)
def test_whatever_is_rendered_is_read_back_as_it_was(rule: Rule) -> None:
    assert parse(render([rule])) == [rule]


def test_botocore_writes_what_we_read_and_reads_what_we_write() -> None:
    operations = botocore.session.get_session().get_service_model("s3")
    configuration = {
        "Id": "mine",
        "TopicArn": "arn:gcp:pubsub::my-gcp-project:my-bucket-events",
        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:Delete"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "a&b/"}, {"Name": "suffix", "Value": ".txt"}]}},
    }
    put = operations.operation_model("PutBucketNotificationConfiguration")
    asked = {"Bucket": "b", "NotificationConfiguration": {"TopicConfigurations": [configuration]}}
    rules = parse(create_serializer("rest-xml").serialize_to_request(asked, put)["body"])
    assert rules[0].filter == KeyFilter("a&b/", ".txt")
    get = operations.operation_model("GetBucketNotificationConfiguration")
    answer = {"status_code": 200, "headers": {}, "body": render(rules)}
    assert create_parser("rest-xml").parse(answer, get.output_shape)["TopicConfigurations"] == [configuration]


# what is refused

DOCTYPE = b'<!DOCTYPE NotificationConfiguration SYSTEM "http://example.com/n.dtd">' + document()
BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>' + document("&c;")
NO_VALUE, NO_NAME = (
    topic(f"<Filter><S3Key><FilterRule>{only}</FilterRule></S3Key></Filter>")
    for only in ("<Name>prefix</Name>", "<Value>x</Value>")
)
MALFORMED = {
    "nothing": (b"", "no element found"),
    "text": (b"hello", "syntax error"),
    "unclosed": (b"<NotificationConfiguration>", "no element found"),
    "twice": (document() + document(), "junk after document element"),
    "doctype": (DOCTYPE, "DOCTYPE"),
    "entity bomb": (BOMB, "DOCTYPE"),
    "unknown entity": (document("&nbsp;"), "undefined entity"),
    "wrong root": (b"<BucketLoggingStatus/>", "<BucketLoggingStatus>"),
    "foreign namespace": (b'<NotificationConfiguration xmlns="urn:other"/>', "{urn:other}NotificationConfiguration"),
    "unknown element": (document("<TopicConfig/>"), "<TopicConfig>"),
    "unknown inner element": (document(topic("<Endpoint>x</Endpoint>")), "<Endpoint>"),
    "element in text": (document(topic("<Id>a<b/></Id>")), "<b>"),
    "element of another place": (document(TOPIC), "<Topic>"),
    "stray text": (document("hello"), "'hello'"),
    "stray text behind": (document(topic(filters()) + "hello"), "'hello'"),
    "attribute": (document(topic()).replace(b"<Topic>", b'<Topic kind="sns">'), "attribute kind"),
    "no topic": (document(topic(arn="")), "<TopicConfiguration> has no <Topic>"),
    "no event": (document(topic(events="")), "<TopicConfiguration> has no <Event>"),
    "two topics": (document(topic(TOPIC)), "2 <Topic>"),
    "two ids": (document(topic("<Id>a</Id><Id>b</Id>")), "2 <Id>"),
    "two filters": (document(topic(filters() + filters())), "2 <Filter>"),
    "no value": (document(NO_VALUE), "no <Value>"),
    "no name": (document(NO_NAME), "no <Name>"),
    "not UTF-8": ("<NotificationConfiguration>é</NotificationConfiguration>".encode("latin-1"), "UTF-8"),
    "UTF-16": (document().decode().encode("utf-16"), "UTF-8"),
    "UTF-16 without a mark": (document().decode().encode("utf-16-le"), "UTF-8"),
    "another encoding": (b'<?xml version="1.0" encoding="ISO-8859-1"?>' + document(), "ISO-8859-1"),
    "too deep": (b"<a>" * 20_000, f"{MAX_DEPTH} levels"),
    "too many elements": (document(topic(EVENT * MAX_ELEMENTS)), f"more than {MAX_ELEMENTS} elements"),
    "too long": (document(" " * MAX_BYTES), f"Keep to {MAX_BYTES}"),
    "control character": (document(topic(filters(("prefix", "\x01")))), "invalid token"),
    "written control character": (document(topic(filters(("prefix", "&#1;")))), "invalid character number"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_document_is_refused_with_the_place_of_its_mistake(name: str) -> None:
    body, expected = MALFORMED[name]
    error = refused(body)
    assert error.code == "MalformedXML"
    assert expected in error.message


TOPIC_OR_QUEUE = "cannot be served: send to a topic or to a queue"
INVALID = {
    "unknown event": (topic(events="<Event>s3:Restore:*</Event>"), "The event 's3:Restore:*' is not supported"),
    "empty event": (topic(events="<Event/>"), "The event '' is not supported"),
    "an SNS topic": (topic(arn="<Topic>arn:aws:sns:us-east-1:123:t</Topic>"), "The ARN could not be parsed"),
    "an ARN with a line break": (topic(arn=TOPIC.replace("</", "\n</")), "The ARN could not be parsed"),
    "an empty ARN": (topic(arn="<Topic/>"), "The ARN could not be parsed"),
    "two prefixes": (topic(filters(("prefix", "a"), ("Prefix", "b"))), "2 prefix rules. Only one prefix can be set"),
    "two suffixes": (topic(filters(("suffix", ""), ("suffix", ""))), "2 suffix rules. Only one suffix can be set"),
    "a long prefix": (topic(filters(("prefix", "p" * 1025))), "The prefix filter has 1025 characters"),
    "a long suffix": (topic(filters(("suffix", "é" * 1025))), "The suffix filter has 1025 characters"),
    "another filter": (topic(filters(("regex", ".*"))), "must be either prefix or suffix, not 'regex'"),
    "a long id": (topic(f"<Id>{'i' * 256}</Id>"), "The Id has 256 characters"),
    "an id of two lines": (topic("<Id>a\nb</Id>"), "control character"),
    "a queue of nobody": (queue("arn:aws:sqs:::q"), "The ARN could not be parsed: 'arn:aws:sqs:::q'. Write arn:aws:sqs:REGION"),
    "a topic as a queue": (queue("arn:tidings:kafka::main:t"), "does not belong into a QueueConfiguration"),
    "a queue as a topic": (topic(arn=f"<Topic>{QUEUE}</Topic>"), "does not belong into a TopicConfiguration"),
    "a function": ("<CloudFunctionConfiguration/>", TOPIC_OR_QUEUE),
    "EventBridge": ("<EventBridgeConfiguration/>", TOPIC_OR_QUEUE),
    "two that overlap": (
        topic("<Id>a</Id>") + topic("<Id>b</Id>"),
        "overlapping suffixes in two rules if the prefixes are overlapping for the same event type: 'a' and 'b' do.",
    ),
    "two of one name": (
        topic("<Id>a</Id>") + topic("<Id>a</Id>", events="<Event>s3:ObjectRemoved:*</Event>"),
        "Same ID used for multiple configurations. IDs must be unique: 'a' is there 2 times.",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_value_that_is_not_allowed_is_refused_by_name(name: str) -> None:
    inner, expected = INVALID[name]
    error = refused(document(inner))
    assert error.code == "InvalidArgument"
    assert error.elements["ArgumentName"]
    assert expected in error.message


def test_everything_that_is_wrong_with_a_document_is_named_in_one_answer() -> None:
    wrong = topic(
        "<Id>a\nb</Id>" + filters(("prefix", "p" * 1025), ("regex", "x")),
        arn="<Topic>nowhere</Topic>",
        events="<Event>s3:Nothing</Event><Event>s3:Either</Event>",
    )
    error = refused(document(wrong + "<EventBridgeConfiguration/>"))
    assert error.code == "InvalidArgument"
    assert error.message.startswith("7 problems: (1) ")
    for words in ("EventBridgeConfiguration", "'nowhere'", "regex", "1025", "control", "'s3:Nothing'", "'s3:Either'"):
        assert words in error.message
    worse = refused(document(wrong + "<Surprise/>"))
    assert worse.code == "MalformedXML"
    assert "<Surprise>" in worse.message
    assert "'nowhere'" in worse.message


def test_a_problem_is_named_with_the_configuration_that_has_it() -> None:
    parts = [topic(f"<Id>{n}</Id>" + filters(("prefix", f"{n}/"))) for n in range(3)]
    parts[1] = topic(arn="<Topic>nowhere</Topic>", events="<Event>s3:Nothing</Event>")
    error = refused(document("".join(parts) + topic("<Id>last</Id>" + filters(("prefix", "2/more")))))
    assert error.message.startswith("3 problems: ")
    for words in ("TopicConfiguration 2: The ARN", "TopicConfiguration 2: The event 's3:Nothing'", "'2' and 'last' do"):
        assert words in error.message


def many(count: int) -> bytes:
    return document("".join(topic(f"<Id>{n}</Id>" + filters(("prefix", f"{n:03}/"), ("suffix", ".x"))) for n in range(count)))


def test_a_bucket_has_100_configurations_at_most_and_one_in_the_seed() -> None:
    assert [rule.config_id for rule in parse(many(100))] == [str(n) for n in range(100)]
    assert "There are 101 configurations. A bucket has 100 at most." in refused(many(101)).message
    assert len(parse(many(1), STORJ)) == 1
    assert "There are 2 configurations. A bucket has 1 at most." in refused(many(2), STORJ).message


def test_a_document_of_rules_that_all_overlap_costs_no_more_than_its_answer() -> None:
    """A thousand rules are half a million pairs: one document must not hold up everybody for seconds."""
    events = EVENT * 1900
    thousand = document("".join(topic(f"<Id>{number}</Id>") for number in range(999)))
    hundred = document("".join(topic(f"<Id>{number}</Id>") for number in range(100)))
    two = document(topic("<Id>a</Id>", events=events) + topic("<Id>b</Id>", events=events))

    def cost() -> float:
        """What this thread computed; the least of three, as the collector may walk the heap of all tests in one of them."""
        began = time.thread_time()
        assert "There are 999 configurations" in refused(thousand).message
        assert refused(hundred).message.startswith("10 problems: ")
        assert "ambiguously defined" in refused(two).message
        return time.thread_time() - began

    assert min(cost() for _ in range(3)) < 1


@pytest.mark.parametrize("name", ["s3:ObjectCreated:Post", "s3:ObjectCreated:CompleteMultipartUpload"])
def test_the_seed_has_four_events_and_two_wildcards(name: str) -> None:
    written = document(topic(events=f"<Event>{name}</Event>"))
    assert parse(written)[0].events == (name,)
    error = refused(written, STORJ)
    allowed = ["Created:*", "Created:Copy", "Created:Put", "Removed:*", "Removed:Delete", "Removed:DeleteMarkerCreated"]
    assert error.message.endswith(f"Use any of {', '.join('s3:Object' + each for each in allowed)}.")


def test_an_answer_stays_readable_when_hundreds_of_things_are_wrong() -> None:
    error = refused(document("<Surprise/>" * 500))
    assert error.message.startswith("500 problems: ")
    assert error.message.endswith(
        "(10) <Surprise> is not known inside <NotificationConfiguration>. Leave it out. and 490 more."
    )


def test_the_limits_are_where_they_are_said_to_be() -> None:
    assert parse(document(" " * (MAX_BYTES - len(document())))) == []
    assert len(parse(document(topic(EVENT * (MAX_ELEMENTS - 4))))[0].events) == MAX_ELEMENTS - 3
    # at the last level allowed it is merely unknown
    inner = MAX_DEPTH - 1
    assert "nested" not in refused(document("<b>" * inner + "</b>" * inner)).message
    assert "nested too deep" in refused(document("<b>" * (inner + 1) + "</b>" * (inner + 1))).message


SOUND = (GOLDEN / "seed.xml").read_bytes()


@given(st.integers(0, len(SOUND)), st.integers(0, 40), st.binary(max_size=20) | st.text("<>/&;!?[]x \x00").map(str.encode))
def test_a_damaged_document_is_either_read_or_refused_and_nothing_else(start: int, length: int, put: bytes) -> None:
    with suppress(CallerError):
        parse(SOUND[:start] + put + SOUND[start + length :])
