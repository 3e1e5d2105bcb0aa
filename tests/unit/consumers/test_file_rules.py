"""The rules of the file registry that need nobody: paths, atlas names, allowlists, DOIs, versions of sequencers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from files_registry import KEY, SHA256, TEST_EVENT, event, record
from tidings.consumers.files import h5ad, notification
from tidings.consumers.files.authorising import allowed
from tidings.consumers.files.notification import Event, Other, read, read_trusted, stripe
from tidings.consumers.files.paths import classify, parse_atlas
from tidings.consumers.files.refusals import Invalid, Unauthorised
from tidings.consumers.files.settings import FilesSettings
from tidings.errors import OperatorError


@pytest.mark.parametrize(
    ("name", "short_name", "version", "short_version"),
    [
        ("gut-v1", "gut", "1.0", "1"),
        ("retina-v1-1", "retina", "1.1", "1.1"),
        ("gut-v10", "gut", "10.0", "10"),
        ("gut-v1-0", "gut", "1.0", "1"),
        ("gut-v1-10", "gut", "1.10", "1.10"),
        ("eye-v2-front-v3", "eye-v2-front", "3.0", "3"),
    ],
)
def test_an_atlas_name_says_its_version(name: str, short_name: str, version: str, short_version: str) -> None:
    assert parse_atlas(f"net/{name}") == ("net", short_name, version, short_version)


@pytest.mark.parametrize("name", ["gut", "gut-1", "gut-v", "gut-v1-", "-v1", "gut-v1.0", "gut-V1", "gut-v1-1-1", "gut-v\u0661"])
def test_a_name_without_a_version_is_no_atlas(name: str) -> None:
    with pytest.raises(Invalid, match="SHORTNAME-vX"):
        parse_atlas(f"net/{name}")


def test_the_folder_decides_what_a_file_is() -> None:
    assert classify("gut/gut-v1/manifests/integrated-objects.h5ad").file_type == "ingest_manifest"


def test_keys_are_decoded_and_sequencers_padded() -> None:
    found = read(event(record("gut/gut-v1/manifests/a b+c%.json", 0xAB)))
    assert isinstance(found, Event)
    assert found.records[0].key == "gut/gut-v1/manifests/a b+c%.json"
    assert found.records[0].sequencer == "AB".zfill(32)


@pytest.mark.parametrize("metadata", [{"source-sha256": SHA256.upper()}, {"X-Amz-Meta-Source-Sha256": SHA256}])
@pytest.mark.parametrize("name", ["userMetadata", "metadata"])
def test_the_sha256_is_found_in_the_metadata_of_an_event(name: str, metadata: dict[str, str]) -> None:
    one = record(sha256=None)
    one["s3"]["object"][name] = metadata
    found = read(event(one))
    assert isinstance(found, Event)
    assert found.records[0].sha256 == SHA256


READERS = pytest.mark.parametrize("reader", [read, read_trusted])


@READERS
def test_text_is_somebody_else_s_and_broken_json_is_refused(reader: Callable[[str], object]) -> None:
    assert read("hello") == Other("hello")
    for text in (
        '{"Records": [}',
        '{"a": NaN}',
        '{"a": ' * 100_000,
        '{"a": ' * 100_000 + "1" + "}" * 100_000,
    ):
        with pytest.raises(Invalid, match="The message is not JSON as we take it"):
            reader(text)


@READERS
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3.object.sequencer", "s3.object.sequencer is missing"),
        ("s3.object.size", "s3.object.size is missing"),
        ("s3.object.eTag", "s3.object.eTag is missing"),
        ("s3.object.key", "s3.object: Object missing required field `key`"),
        ("s3", "Object missing required field `s3`"),
    ],
)
def test_what_is_missing_is_named(reader: Callable[[str], object], path: str, words: str) -> None:
    one = record()
    *above, name = path.split(".")
    del reduce(getitem, above, one)[name]
    with pytest.raises(Invalid) as refused:
        reader(event(record(), one))
    assert str(refused.value) == f"Records[1]: {words}"


@READERS
@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("ObjectRemoved:Delete", {"size": None, "eTag": None, "metadata": []}),
        ("ObjectRemoved:Delete", {"size": "0", "userMetadata": 7}),
        ("ObjectTagging:Put", {"sequencer": None, "versionId": 5, "size": True}),
    ],
)
def test_a_field_that_an_event_does_not_need_may_be_anything(
    reader: Callable[[str], object], name: str, odd: dict[str, Any]
) -> None:
    one = record(event=name)
    one["s3"]["object"] |= odd
    found = reader(event(one))
    assert isinstance(found, Event)
    assert [each.kind for each in found.records] == (["removed"] if name.startswith("ObjectRemoved") else [])


@READERS
@pytest.mark.parametrize(
    "odd", [{"size": True}, {"size": 1.0}, {"size": 1 << 63}, {"eTag": None}, {"userMetadata": []}, {"versionId": 5}]
)
def test_a_field_that_an_event_needs_has_its_form(reader: Callable[[str], object], odd: dict[str, Any]) -> None:
    one = record()
    one["s3"]["object"] |= odd
    with pytest.raises(Invalid, match=rf"Records\[0\]: s3.object.{next(iter(odd))} is not valid"):
        reader(event(one))


def test_what_an_operator_vouches_for_may_be_inside_a_message_of_sns() -> None:
    for text in (event(record(), record(version="v1")), TEST_EVENT, '{"some": "thing"}'):
        assert read_trusted(json.dumps({"Type": "Notification", "Message": text})) == read_trusted(text) == read(text)
    assert isinstance(read(TEST_EVENT), notification.TestEvent)
    with pytest.raises(Invalid, match="has no Message"):
        read_trusted('{"Type": "Notification"}')


def test_every_key_has_one_of_the_stripes() -> None:
    found = {stripe("bucket", f"{KEY}{number}") for number in range(10_000)}
    assert found == set(range(256))


def test_the_seed_s_variable_stands_in_place_of_the_settings() -> None:
    settings = FilesSettings(sns_topics=("a",), s3_buckets=("b",))
    assert allowed(settings, {}).topics == {"a"}
    both = allowed(settings, {"AWS_RESOURCE_CONFIG": json.dumps({"sns_topics": ["c"], "s3_buckets": ["d"]})})
    assert (both.topics, both.buckets) == ({"c"}, {"d"})
    with pytest.raises(Unauthorised, match="b, e"):
        both.check_buckets(frozenset("deb"))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"topics": []}', '{"sns_topics": "all"}', '{"sns_topics": [1]}'])
def test_a_wrong_allowlist_stops_the_start(text: str) -> None:
    with pytest.raises(OperatorError, match="AWS_RESOURCE_CONFIG"):
        allowed(FilesSettings(), {"AWS_RESOURCE_CONFIG": text})


@pytest.mark.parametrize(
    ("text", "doi"),
    [
        ("10.1101/2020.01.01", "10.1101/2020.01.01"),
        ("https://doi.org/10.1038/S41586-020-1", "10.1038/s41586-020-1"),
        ("doi:10.1/x", None),
        ("Publication: https://doi.org/10.1126/science.abl4290 Dataset Version: https://x", "10.1126/science.abl4290"),
        ("(10.1126/science.abl4290).", "10.1126/science.abl4290"),
        ("", None),
    ],
)
def test_a_doi_is_found_bare(text: str, doi: str | None) -> None:
    assert h5ad.normalised(text) == doi


def written(path: Path, entries: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        uns = file.create_group("uns")
        for name, value in entries.items():
            uns[name] = value
    return path


@pytest.mark.parametrize(
    ("entries", "doi"),
    [
        ({"doi": "10.1234/a"}, "10.1234/a"),
        ({"publication_doi": np.array([b"https://doi.org/10.1234/B"])}, "10.1234/b"),
        ({"citation": "Publication: https://doi.org/10.1234/c Dataset"}, "10.1234/c"),
        ({"doi": "unpublished", "study_doi": "10.1234/d"}, "10.1234/d"),
        ({"doi": 7}, None),
        ({"doi": np.zeros((1000, 1000))}, None),
        ({"title": "10.1234/e"}, None),
        ({}, None),
    ],
)
def test_the_doi_of_an_h5ad_file_is_an_entry_of_uns(tmp_path: Path, entries: dict[str, Any], doi: str | None) -> None:
    assert h5ad.doi(written(tmp_path / "x.h5ad", entries)) == doi


def test_a_file_is_not_followed_out_of_itself(tmp_path: Path) -> None:
    secret = written(tmp_path / "secret.h5ad", {"doi": "10.1234/secret"})
    linking = tmp_path / "linking.h5ad"
    with h5py.File(linking, "w") as file:
        file.create_group("uns")["doi"] = h5py.ExternalLink(str(secret), "/uns/doi")
    assert h5ad.doi(linking) is None
    with h5py.File(tmp_path / "outside.h5ad", "w") as file:
        file["uns"] = h5py.ExternalLink(str(secret), "/uns")
    assert h5ad.doi(tmp_path / "outside.h5ad") is None
