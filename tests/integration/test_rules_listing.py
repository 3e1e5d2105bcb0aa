"""The operator's list of rules: whose, where, what, and the state of the lane; never a private id."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import psycopg
import pytest

from tidings.access.projects import create_project
from tidings.errors import OperatorError
from tidings.events.arn import PubSubTopic
from tidings.rules import table
from tidings.rules.listing import Listed, find_bucket, listed
from tidings.rules.model import KeyFilter, Rule

PUT = ["s3:ObjectCreated:Put"]


def rule(id_: str, topic: str, prefix: str = "", suffix: str = "") -> Rule:
    return Rule(id_, PubSubTopic("tidings-test", topic), tuple(PUT), KeyFilter(prefix, suffix))


@pytest.fixture
def tenants(database: psycopg.Connection, database_url: str) -> dict[str, str]:
    """Two projects with a bucket of the same name each, and one with a bucket that has no rule. Returns the public ids."""
    projects = {name: create_project(database, name) for name in ("one", "two", "quiet")}

    async def put(project: str, bucket: str, *rules: Rule) -> None:
        database.execute(
            "insert into bucket_metainfos (project_id, name) select id, %s from projects where public_id = %s",
            [bucket, project],
        )
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await table.replace(connection, project, bucket, rules)

    asyncio.run(put(projects["two"], "photos", rule("all", "second")))
    asyncio.run(put(projects["one"], "photos", rule("images", "first", "žluť/", ".jpg")))
    asyncio.run(put(projects["one"], "logs", rule("lines", "first")))
    asyncio.run(put(projects["quiet"], "empty"))
    database.execute("update lanes set state = 'behind', win = 0, seq = 0 where destination like '%second'")
    return projects


def test_every_rule_is_listed_with_its_place_and_its_lane(database: psycopg.Connection, tenants: dict[str, str]) -> None:
    lanes = dict(database.execute("select destination, id from lanes").fetchall())
    first, second = "arn:gcp:pubsub::tidings-test:first", "arn:gcp:pubsub::tidings-test:second"
    assert listed(database) == [
        Listed("one", "logs", "lines", first, PUT, "", "", lanes[first], "live"),
        Listed("one", "photos", "images", first, PUT, "žluť/", ".jpg", lanes[first], "live"),
        Listed("two", "photos", "all", second, PUT, "", "", lanes[second], "behind"),
    ]
    shown = str([asdict(each) for each in listed(database)])
    for (private,) in database.execute("select id::text from projects").fetchall():
        assert private not in shown
    assert tenants


def test_the_list_can_be_of_a_project_or_a_bucket(database: psycopg.Connection, tenants: dict[str, str]) -> None:
    def ids(project: str | None = None, bucket: str | None = None) -> list[str]:
        return [each.id for each in listed(database, project, bucket)]

    assert ids("one") == ids(tenants["one"]) == ["lines", "images"]
    assert ids(bucket="photos") == ["images", "all"]
    assert ids("two", "photos") == ["all"]
    assert ids("quiet") == ids("quiet", "empty") == []


def test_what_is_not_there_is_said_by_its_name(database: psycopg.Connection, tenants: dict[str, str]) -> None:
    for project, bucket, words in (
        ("three", None, "no project 'three'"),
        ("three", "photos", "no project 'three'"),
        (None, "nowhere", "no bucket 'nowhere'"),
        ("quiet", "photos", "no bucket 'photos' in project 'quiet'"),
    ):
        with pytest.raises(OperatorError, match=words):
            listed(database, project, bucket)
    with pytest.raises(OperatorError, match="no bucket 'photos' in project 'quiet'"):
        find_bucket(database, "quiet", "photos")
    found = find_bucket(database, tenants["two"], "photos")
    assert found.project == "two"
    [row] = database.execute("select b.id from bucket_metainfos b join projects p on p.id = project_id where p.name = 'two'")
    assert found.id == row[0]
