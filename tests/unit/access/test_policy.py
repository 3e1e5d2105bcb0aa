"""POST policies: genuine forms pass, every changed one is refused, and nothing counts that the policy does not cover."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signed_requests import KEY, OTHER_KEY, Boto3, Posted, form_refusal, policy_of, posted, serve_form
from tidings.access import policy
from tidings.errors import CallerError


@pytest.fixture(scope="module")
def client() -> Boto3:
    return Boto3("https://store.example", signature_version="s3v4")


@pytest.fixture(scope="module")
def genuine(client: Boto3) -> list[Posted]:
    fields = {"Content-Type": "text/plain", "x-amz-meta-a": "B c", "success_action_status": "201", "Cache-Control": "no-cache"}
    return [
        posted(client),
        posted(client, fields=fields),
        posted(client, "up/${filename}", fields={"acl": "private"}),
        posted(client, conditions=[["content-length-range", 1, 10]]),
        posted(client, fields={"Content-Type": "image/png"}, conditions=[["starts-with", "$Content-Type", "image/"]]),
    ]


def test_forms_that_boto3_signs_pass(genuine: list[Posted]) -> None:
    accepted = [serve_form(form) for form in genuine]
    assert [data for _, data in accepted] == [b"hello"] * 5
    assert [post.request.key for post, _ in accepted] == [
        "folder/key",
        "folder/key",
        "up/photo.png",
        "folder/key",
        "folder/key",
    ]
    headers = accepted[1][0].request.headers
    assert headers == {"content-type": "text/plain", "x-amz-meta-a": "B c", "cache-control": "no-cache"}
    assert {post.request.principal.access_key_id for post, _ in accepted} == {KEY}


def test_a_form_is_good_until_its_policy_expires_and_for_seven_days_at_most(genuine: list[Posted]) -> None:
    form = genuine[0]
    for seconds in (-900, 3600):
        serve_form(replace(form, now=form.now + timedelta(seconds=seconds)))
    assert "expired" in form_refusal(replace(form, now=form.now + timedelta(seconds=3602))).message
    document = json.loads(b64decode(form["policy"])) | {"expiration": "2999-01-01T00:00:00Z"}
    lasting = policy_of(document, form)
    serve_form(replace(lasting, now=form.now + timedelta(days=7)))
    error = form_refusal(replace(lasting, now=form.now + timedelta(days=7, seconds=1)))
    assert (error.code, "expired" in error.message) == ("AccessDenied", True)


Mutant = tuple[str, Posted, str]


def _field_mutants(form: Posted) -> Iterator[Mutant]:
    for name, value in form.parts:
        if name.startswith("file"):
            continue
        signs = name in policy.FIELDS
        gone = "AccessDenied" if name != "key" else "UserKeyMustBeSpecified"
        yield f"drop {name}", form.without(name), gone
        twice = replace(form, parts=((name.upper(), value), *form.parts))
        yield f"double {name}", twice, "InvalidArgument"
        late = replace(form, parts=(*form.without(name).parts, (name, value)))
        yield f"{name} behind the file", late, gone
        for what, other in (("empty", b""), ("longer", value + b"0"), ("shorter", value[:-1]), ("spaced", b" " + value)):
            starts = name == "key" and form["key"].endswith(b"${filename}") and what in ("longer", "shorter")
            prefixed = name == "Content-Type" and b"starts-with" in b64decode(form["policy"]) and what != "spaced" and other
            if other != value and not starts and not prefixed:
                yield f"{what} {name}", form.changed(**{name: other}), "any"
        if value.swapcase() != value:
            yield f"case of {name}", form.changed(**{name: value.swapcase()}), "any"
        yield f"not UTF-8 in {name}", form.changed(**{name: value + b"\xff"}), "MalformedPOSTRequest"
        if not signs:
            yield f"another {name}", form.changed(**{name: b"other"}), "AccessDenied"
    for extra in (
        "x-amz-meta-new",
        "x-amz-copy-source",
        "success_action_redirect",
        "Expires",
        "tagging",
        "submit",
        "x-amz-acl",
    ):
        yield f"add {extra}", form.changed(**{extra: b"1"}), "AccessDenied"
    yield "add bucket", form.changed(bucket=b"other"), "InvalidArgument"
    for extra in ("AWSAccessKeyId", "signature"):
        yield f"add {extra}", form.changed(**{extra: b"1"}), "InvalidRequest"


def _signature_mutants(form: Posted) -> Iterator[Mutant]:
    signature, credential = form["x-amz-signature"], form["x-amz-credential"]
    for at in range(0, 64, 3):
        flipped = signature[:at] + (b"0" if signature[at : at + 1] != b"0" else b"1") + signature[at + 1 :]
        yield f"signature digit {at}", form.changed(x_amz_signature=flipped), "SignatureDoesNotMatch"
    for text in (b"", signature[:-1], signature + b"0", b"g" * 64, b"\xc3\xbc" * 32):
        yield f"signature {text!r}", form.changed(x_amz_signature=text), "InvalidArgument"
    key, date, region, service, terminator = credential.split(b"/")
    malformed = "InvalidArgument"
    scopes = [
        ("unknown key", [b"NOBODY", date, region, service, terminator], "InvalidAccessKeyId"),
        ("another tenant", [OTHER_KEY.encode(), date, region, service, terminator], "SignatureDoesNotMatch"),
        ("no key", [b"", date, region, service, terminator], malformed),
        *((f"date {wrong!r}", [key, wrong, region, service, terminator], malformed) for wrong in (b"", b"20000101")),
        *((f"region {wrong!r}", [key, date, wrong, service, terminator], malformed) for wrong in (b"", b"us-east-1")),
        *((f"service {wrong!r}", [key, date, region, wrong, terminator], malformed) for wrong in (b"", b"sqs")),
        *((f"end {wrong!r}", [key, date, region, service, wrong], malformed) for wrong in (b"", b"AWS4_REQUEST")),
    ]
    for what, scope, code in scopes:
        yield what, form.changed(x_amz_credential=b"/".join(scope)), code
    for wrong in (b"", b"AWS4-HMAC-SHA512", b"aws4-hmac-sha256"):
        yield f"algorithm {wrong!r}", form.changed(x_amz_algorithm=wrong), "InvalidArgument"
    for wrong in (b"", b"today", b"20130524T000000", b"20131324T000000Z"):
        yield f"date {wrong!r}", form.changed(x_amz_date=wrong), "InvalidArgument"
    moved = (form.now + timedelta(seconds=1)).strftime("%Y%m%dT%H%M%SZ").encode()
    yield "date moved", form.changed(x_amz_date=moved), "any"
    for seconds in (-901, 3602, 86_400 * 8):
        yield f"{seconds} s", replace(form, now=form.now + timedelta(seconds=seconds)), "AccessDenied"


def _policy_mutants(form: Posted) -> Iterator[Mutant]:
    encoded = form["policy"]
    document = json.loads(b64decode(encoded))
    for at in range(len(document["conditions"])):
        fewer = {**document, "conditions": document["conditions"][:at] + document["conditions"][at + 1 :]}
        yield f"without condition {at}", form.changed(policy=b64encode(json.dumps(fewer).encode())), "SignatureDoesNotMatch"
    later = {**document, "expiration": "2999-01-01T00:00:00Z"}
    yield "longer", form.changed(policy=b64encode(json.dumps(later).encode())), "SignatureDoesNotMatch"
    for what, other in (
        ("line end", encoded + b"\n"),
        ("padding", encoded + b"="),
        ("space", encoded + b" "),
        ("garbage", b"!!!!"),
        ("none", b""),
    ):
        yield f"policy with {what}", form.changed(policy=other), "SignatureDoesNotMatch"
    for at in range(0, len(encoded), 40):
        yield f"policy at {at}", form.changed(policy=encoded[:at] + b"A" + encoded[at:]), "SignatureDoesNotMatch"


def _other_mutants(form: Posted) -> Iterator[Mutant]:
    yield "another bucket", replace(form, path=b"/bucket2"), "AccessDenied"
    yield "a key in the path", replace(form, path=b"/bucket/key"), "MethodNotAllowed"
    yield "no bucket", replace(form, path=b"/"), "MethodNotAllowed"
    for name in (b"x-amz-acl", b"x-amz-copy-source", b"x-amz-meta-a", b"x-amz-content-sha256", b"x-amz-security-token"):
        yield f"header {name!r}", replace(form, headers=((name, b"1"),)), "AccessDenied"
    yield "header authorization", replace(form, headers=((b"authorization", b"AWS4-HMAC-SHA256 x"),)), "InvalidArgument"


def test_no_changed_form_is_accepted(genuine: list[Posted]) -> None:
    tried, wrong = 0, []
    for form in genuine:
        for mutants in (_field_mutants, _signature_mutants, _policy_mutants, _other_mutants):
            for what, mutant, code in mutants(form):
                tried += 1
                try:
                    serve_form(mutant)
                    wrong.append((what, "passed"))
                except CallerError as error:
                    if code not in ("any", error.code):
                        wrong.append((what, f"{error} where {code} was due"))
    assert not wrong, wrong
    assert tried >= 600


def conditions(form: Posted, *more: Any, without: str = "") -> Posted:
    """The form under its own policy with these conditions in it, signed by its owner."""
    document = json.loads(b64decode(form["policy"]))
    kept = [each for each in document["conditions"] if without not in each] if without else document["conditions"]
    return policy_of({**document, "conditions": [*kept, *more]}, form)


def test_the_bucket_must_be_covered_too(genuine: list[Posted]) -> None:
    error = form_refusal(conditions(genuine[0], without="bucket"))
    assert (error.code, "Extra input fields: bucket" in error.message) == ("AccessDenied", True)
    serve_form(conditions(genuine[0].changed(bucket=b"bucket")))


def test_a_field_that_is_to_be_ignored_needs_no_condition_and_says_nothing(genuine: list[Posted]) -> None:
    accepted, _ = serve_form(genuine[0].changed(x_ignore_this=b"1"))
    assert accepted.request.headers == {}


def test_names_of_fields_have_no_case_and_values_have(genuine: list[Posted]) -> None:
    serve_form(conditions(genuine[0].changed(X_AMZ_META_A=b"v"), ["eq", "$x-amz-Meta-a", "v"]))
    assert form_refusal(conditions(genuine[0].changed(X_AMZ_META_A=b"V"), ["eq", "$x-amz-meta-a", "v"])).code == "AccessDenied"


def test_a_condition_on_a_field_that_is_missing_fails_unless_it_asks_for_nothing(genuine: list[Posted]) -> None:
    assert form_refusal(conditions(genuine[0], {"x-amz-meta-a": "v"})).code == "AccessDenied"
    serve_form(conditions(genuine[0], ["starts-with", "$x-amz-meta-a", ""]))


def test_all_content_types_of_a_list_must_fit(genuine: list[Posted]) -> None:
    form = genuine[4]
    serve_form(form.changed(**{"Content-Type": b"image/png, image/gif"}))
    assert form_refusal(form.changed(**{"Content-Type": b"image/png,text/html"})).code == "AccessDenied"


@pytest.mark.parametrize(
    ("lowest", "highest", "size", "code"),
    [(5, 5, 5, ""), (0, 4, 5, "EntityTooLarge"), (6, 10, 5, "EntityTooSmall"), (0, 0, 0, ""), (0, 0, 1, "EntityTooLarge")],
)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_the_file_is_held_to_the_sizes_of_the_policy(
    genuine: list[Posted], lowest: int, highest: int, size: int, code: str, piece: int
) -> None:
    form = conditions(genuine[0], ["content-length-range", lowest, str(highest)]).changed(**{"file;photo.png": bytes(size)})
    if code:
        assert form_refusal(form, size=piece).code == code
    else:
        assert serve_form(form, piece)[1] == bytes(size)


def test_of_several_ranges_the_narrowest_counts(genuine: list[Posted]) -> None:
    ranges = (["content-length-range", 0, 4], ["content-length-range", 0, 100])
    for order in (ranges, ranges[::-1]):
        assert form_refusal(conditions(genuine[0], *order)).code == "EntityTooLarge"


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 12_000,
        b'{"expiration": "2999-01-01T00:00:00Z"}',
        b'{"conditions": []}',
        b'{"expiration": "2999-01-01T00:00:00Z", "conditions": [], "more": 1}',
        b'{"expiration": "2999-01-01T00:00:00Z", "conditions": {}}',
        b'{"expiration": "2999-01-01T00:00:00Z", "expiration": "2999-01-01T00:00:00Z", "conditions": []}',
        b'{"expiration": "tomorrow", "conditions": []}',
        b'{"expiration": "2999-13-01T00:00:00Z", "conditions": []}',
        b'{"expiration": "2999-01-01T00:00:00", "conditions": []}',
        b'{"expiration": 1, "conditions": []}',
        b'{"Expiration": "2999-01-01T00:00:00Z", "Conditions": []}',
    ],
)
def test_a_policy_that_is_none_is_refused_even_if_it_is_signed(document: bytes, genuine: list[Posted]) -> None:
    assert form_refusal(policy_of(document, genuine[0])).code == "InvalidPolicyDocument"


@pytest.mark.parametrize(
    "condition",
    [
        {},
        [],
        "key",
        1,
        None,
        ["eq", "$key"],
        ["eq", "key", "value"],
        ["eq", "$key", 1],
        ["eq", 1, "value"],
        ["EQ", "$key", "value"],
        ["like", "$key", "value"],
        ["starts-with", "$key", "a", "b"],
        {"key": ["a"]},
        {"key": None},
        ["content-length-range", 0],
        ["content-length-range", -1, 5],
        ["content-length-range", 0, 1.5],
        ["content-length-range", False, True],
        ["content-length-range", "a", "b"],
        ["content-length-range", 0, float("nan")],
        [["eq", "$key", "value"]],
    ],
)
def test_a_condition_that_is_none_is_refused(condition: Any, genuine: list[Posted]) -> None:
    assert form_refusal(conditions(genuine[0], condition)).code == "InvalidPolicyDocument"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["eq", "$key", "content-length-range"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_a_policy_or_a_refusal(value: Any) -> None:
    for document in (value, {"expiration": "2999-01-01T00:00:00Z", "conditions": value}):
        encoded = b64encode(json.dumps(document).encode()).decode()
        with suppress(CallerError):
            assert policy.read(encoded).expiration > datetime.now(UTC)


def test_a_mismatch_shows_what_was_signed(genuine: list[Posted]) -> None:
    error = form_refusal(genuine[0].changed(x_amz_signature=b"0" * 64))
    assert set(error.elements) == {"AWSAccessKeyId", "SignatureProvided", "StringToSign"}
    assert error.elements["StringToSign"].encode() == genuine[0]["policy"]


def test_what_a_form_asks_for_and_is_not_served_is_refused_by_name(genuine: list[Posted]) -> None:
    for name, value in [
        ("acl", "public-read"),
        ("x-amz-acl", "public-read"),
        ("x-amz-storage-class", "GLACIER"),
        ("x-amz-security-token", "token"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-copy-source", "/other/key"),
        ("redirect", "https://example.org"),
    ]:
        error = form_refusal(conditions(genuine[0].changed(**{name: value.encode()}), {name: value}))
        assert (error.code, name in error.message) == ("NotImplemented", True)
