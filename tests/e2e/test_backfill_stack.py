"""Backfill, then follow, with everything running: writers are busy, the stream is killed, another rule shares the lane."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg
import pytest

import small_registry
from arrivals import Arrival
from conftest import Running, Say, running_stack
from flight import ask
from traffic import Caller, Writers, changes, collecting, seeded, tidings
from waiting import until

BUCKET = "films"
SHORT, LONG = (120, 30), (300, 60)
"""Objects that nobody touches any more, and how many of them are told in a second."""


def run(stack: Running, *arguments: str, **environment: str) -> Any:
    url, address = stack.ready["database"], stack.ready["pubsub"]
    given = {
        "TIDINGS_DATABASE__URL": url,
        "TIDINGS_PUBSUB__EMULATOR_HOST": address,
        "TIDINGS_STORE__BLOBS": (stack.data / "blobs").as_uri(),
        "TIDINGS_BUCKET_EVENTING__PROJECTS": "*",
        **environment,
    }
    done = tidings(*arguments, "--json", **given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("quiet", "rate"), [SHORT, pytest.param(*LONG, marks=pytest.mark.chaos)])
def test_a_new_rule_is_told_of_every_object_once_and_of_every_later_change_once(
    tmp_path: Path, say: Say, quiet: int, rate: int
) -> None:
    seed = seeded()
    print(f"SEED={seed}")
    with running_stack(tmp_path, TIDINGS_DELIVERY__CATCH_UP_RATE=str(rate)) as stack, collecting(stack) as collector:
        url, arn = stack.ready["database"], collector.listen(BUCKET)
        stack.s3().create_bucket(Bucket=BUCKET)
        run(stack, "rules", "add", "--bucket", BUCKET, "--topic", arn, "--event", "s3:ObjectRemoved:*", "--id", "removed")
        caller = Caller(stack.ready)
        for number in range(quiet):
            assert caller.call("PUT", f"/{BUCKET}/quiet/{number:03}", b"%d" % number).status == 200
        caller.close()
        with Writers(stack.ready, [BUCKET], seed, threads=2, keys=40, pace=0.1).writing():
            until(lambda: len(changes(url, [BUCKET])) > quiet + 60, "writers are busy")
            rule = ("--bucket", BUCKET, "--topic", arn, "--event", "s3:ObjectCreated:*", "--id", "created")
            added = run(stack, "rules", "add", *rule, "--backfill", "--no-wait")
            assert not added["ended"]
            until(lambda: ask(url, "select sum(sent) from backfills")[0][0] > quiet // 4, "it is in the middle")
            moment = time.time()
            stack.kill("stream")
            shown = [lane for lane in run(stack, "lanes", "list") if lane["backfill"]]
            assert [lane["state"] for lane in shown] == ["backfill"], "nobody goes on with it yet"
            until(lambda: ask(url, "select told_at is not null from backfills")[0][0], "everything is told", 0.5)
        until(lambda: ask(url, "select ended_at is not null from backfills")[0][0], "it has joined its lane", 0.5)
        numbers = dict(ask(url, "select config_id, rule from bucket_eventing_configs"))
        wanted = {f"{row.id}.{rule}": row for row in changes(url, [BUCKET]) if row.rules for rule in row.rules.split(",")}
        until(lambda: not wanted.keys() - collector.ids(), "every live event has arrived")
        assert run(stack, "lanes", "list")[0]["state"] == "live"
        # A rule that is at work is cut over by the stream; this one wants nothing of what is there.
        done = run(stack, "rules", "backfill", BUCKET, "removed")
        assert (done["sent"], done["ended"]) == (0, True)

        arrivals = collector.of(BUCKET)
        first: dict[str, Arrival] = {}
        for arrival in arrivals:
            first.setdefault(arrival.id, arrival)
        told = [each for each in first.values() if each.attributes.get("backfill") == "true"]
        assert not {each.id for each in first.values()} - wanted.keys() - {each.id for each in told}, "no phantoms"
        assert all(each.id.endswith(f".{numbers['created']}") for each in told)
        by_key = defaultdict(list)
        for each in told:
            by_key[each.key].append(each)
        assert {key for key in by_key if key.startswith("quiet/")} == {f"quiet/{number:03}" for number in range(quiet)}
        assert all(len(of_key) == 1 for of_key in by_key.values()), "each object once"
        created = {(row.key, row.etag) for id_, row in wanted.items() if id_.endswith(f".{numbers['created']}")}
        there = set(ask(url, "select key, etag from heads"))
        assert there <= created | {(each.key, each.etag) for each in told}, "nothing is in neither part"
        assert not {(each.key, each.etag) for each in told} & created, "nothing is in both"
        newest: dict[tuple[str, str], str] = {}
        for each in first.values():
            place = each.id.rpartition(".")[2], each.key
            assert each.sequencer > newest.get(place, ""), "in order per key"
            newest[place] = each.sequencer
        again = len(arrivals) - len(first)
        assert again <= 3 * rate + sum(row.at.timestamp() > moment - 60 for row in wanted.values())
        say(f"seed {seed}: {len(told)} objects told, {len(wanted)} live events, {again} sent twice after a kill")
        _reconcile(stack, url, again=(quiet, rate) == LONG)


def _reconcile(stack: Running, url: str, again: bool) -> None:
    """The same bucket through its S3 endpoint, beside a registry that has missed a part; `again` through our own tables."""
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(small_registry.TABLE.encode())
        database.execute(
            "insert into small_registry (bucket, key, version_id, etag, size, sequencer)"
            " select 'films', key, 'null', etag, size, '00' from heads where key not like 'quiet/00%%'"
            " union all select 'films', 'never', 'null', '', 0, '00'",
            [],
        )
    keys = {"AWS_ACCESS_KEY_ID": stack.ready["access_key_id"], "AWS_SECRET_ACCESS_KEY": stack.ready["secret_access_key"]}
    environment = {**keys, "AWS_REGION": stack.ready["region"], "PYTHONPATH": _tests_too()}
    asked = ("reconcile", BUCKET, "--with", "small_registry:newest_only", "--endpoint", stack.ready["s3"])
    found = run(stack, *asked, "--repair", **environment)
    assert (found["missing"], found["extra"], found["different"], found["repaired"]) == (10, 1, 0, 11)
    held = ask(url, "select key, etag from small_registry where not gone order by 1")
    assert held == ask(url, "select key, etag from heads order by 1")
    if again:
        found = run(stack, "reconcile", BUCKET, "--with", "small_registry:newest_only", **environment)
        assert (found["missing"], found["extra"], found["different"]) == (0, 0, 0)


def _tests_too() -> str:
    import os

    return os.pathsep.join(filter(None, [str(Path(small_registry.__file__).parent), os.environ.get("PYTHONPATH")]))
