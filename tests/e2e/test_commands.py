"""The command line: what it prints, what it says where something is wrong, and how a stack starts, mends itself and stops."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
import pytest

from conftest import Running, fresh_database, running_stack
from tidings.cli import rules
from tidings.local.postgres import Postgres
from tidings.settings import Settings
from traffic import Caller, collecting, send_events, tidings
from waiting import until


@pytest.fixture(scope="module")
def url(stack: Running) -> str:
    return str(stack.ready["database"])


def says_one_sentence(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("tidings: ")
    for word in words:
        assert word in done.stderr


def test_help_names_every_command() -> None:
    done = tidings("--help")
    assert done.returncode == 0
    for name in ("up", "serve", "stream", "migrate", "project", "access", "rules", "topic", "lanes", "settings", "demo"):
        assert re.search(rf"^[│ ]*{name} ", done.stdout, re.MULTILINE), name


def test_a_project_and_its_key_open_buckets_of_their_own(stack: Running, url: str) -> None:
    made = tidings("project", "create", "second-project", "--json", TIDINGS_DATABASE__URL=url)
    project = json.loads(made.stdout)["project"]
    by_id, by_name = (
        json.loads(tidings("access", "create", "--project", name, "--json", TIDINGS_DATABASE__URL=url).stdout)
        for name in (project, "second-project")
    )
    theirs, mine = Caller({**stack.ready, **by_id}), Caller(stack.ready)
    assert theirs.call("PUT", "/of-the-second-project").status == 200
    assert Caller({**stack.ready, **by_name}).call("HEAD", "/of-the-second-project").status == 200
    assert mine.call("HEAD", "/of-the-second-project").status == 404
    says_one_sentence(tidings("project", "create", "second-project", TIDINGS_DATABASE__URL=url), "already", "'second-project'")
    with psycopg.connect(url) as connection:
        row = connection.execute("select id::text from projects where public_id = %s", [project]).fetchone()
    assert row is not None
    assert row[0] not in made.stdout, "the private id stays private"


def test_a_key_is_made_narrowed_looked_into_listed_and_revoked(postgres: Postgres) -> None:
    url = fresh_database(postgres, "access_commands")

    def access(*arguments: str) -> subprocess.CompletedProcess[str]:
        return tidings("access", *arguments, TIDINGS_DATABASE__URL=url)

    tidings("project", "create", "tenant", TIDINGS_DATABASE__URL=url)
    made = json.loads(access("create", "--project", "tenant", "--action", "read", "--action", "list", "--json").stdout)
    limits = ("--bucket", "photos", "--prefix", "photos/2026/", "--not-after", "2030-01-01")
    narrow = json.loads(access("restrict", made["api_key"], *limits, "--json").stdout)
    seen = json.loads(access("inspect", narrow["access_key_id"], "--json").stdout)
    assert (seen["actions"], seen["revoked"]) == (["read", "list"], False)
    assert [json.loads(limit) for limit in seen["limits"]] == [
        {"buckets": ["photos"], "not_after": 1893456000, "prefixes": [["photos", "2026/"]]}
    ]
    assert "photos" in access("inspect", narrow["api_key"]).stdout
    assert access("revoke", made["access_key_id"]).returncode == 0
    listed = access("list", "--project", "tenant")
    assert listed.stdout.count("REVOKED") == 2
    assert made["secret_access_key"] not in listed.stdout
    says_one_sentence(access("restrict", made["api_key"], "--bucket", "x"), "revoked")
    says_one_sentence(access("restrict", made["api_key"]), "--bucket")
    says_one_sentence(access("inspect", made["api_key"][:-4] + "AAAA"), "API key")
    says_one_sentence(access("inspect", "AKIAIOSFODNN7EXAMPLE"), "AKIAIOSFODNN7EXAMPLE")
    says_one_sentence(access("create", "--project", "tenant", "--action", "sudo"), "'sudo'", "read")


def test_lanes_shows_each_destination(stack: Running, url: str) -> None:
    with collecting(stack) as collector:
        send_events(stack, collector, "shown-by-lanes")
        put = Caller(stack.ready).call("PUT", "/shown-by-lanes/key", b"x")
        collector.event(put.request_id)
    destination = "arn:gcp:pubsub::tidings-test:shown-by-lanes"

    def state() -> list[tuple[str, int, str | None]]:
        listed = json.loads(tidings("lanes", "list", "--json", TIDINGS_DATABASE__URL=url).stdout)
        return [(each["state"], each["attempts"], each["error"]) for each in listed if each["destination"] == destination]

    until(lambda: state() == [("live", 0, None)], "the lane runs with the stream")
    table = tidings("lanes", "list", TIDINGS_DATABASE__URL=url)
    assert re.search(rf"{destination} +live", table.stdout)


def test_rules_are_listed_with_their_place_and_their_lane(stack: Running, url: str) -> None:
    with collecting(stack) as collector:
        send_events(stack, collector, "listed-by-rules")

    def listed() -> Any:
        done = tidings("rules", "list", "--bucket", "listed-by-rules", "--json", TIDINGS_DATABASE__URL=url)
        return [rule for rule in json.loads(done.stdout) if rule["state"] == "live"]

    [rule] = until(listed, "its lane runs with the stream")
    destination = "arn:gcp:pubsub::tidings-test:listed-by-rules"
    assert (rule["project"], rule["bucket"], rule["destination"]) == ("default", "listed-by-rules", destination)
    assert (rule["events"], rule["state"]) == (["s3:ObjectCreated:*", "s3:ObjectRemoved:*"], "live")
    table = tidings("rules", "list", "--project", "default", TIDINGS_DATABASE__URL=url)
    assert re.search(rf"default +listed-by-rules +{rule['id']} +{destination} .* live", table.stdout)
    with psycopg.connect(url) as connection:
        for (private,) in connection.execute("select id::text from projects").fetchall():
            assert private not in table.stdout + json.dumps(rule)


def test_a_rule_is_tried_on_past_changes_before_anybody_sets_it(
    stack: Running, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    caller = Caller(stack.ready)
    with collecting(stack) as collector:
        send_events(stack, collector, "planned-for")
    for key in ("logs/a.txt", "logs/b c.txt", "photos/a.jpg"):
        assert caller.call("PUT", f"/planned-for/{quote(key)}", b"x").status == 200
    assert caller.call("DELETE", "/planned-for/logs/a.txt").status == 204
    rule = ("--bucket", "planned-for", "--event", "s3:ObjectCreated:*", "--prefix", "logs/")
    done = tidings("rules", "plan", *rule, "--days", "1", "--json", TIDINGS_DATABASE__URL=url)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["changes"], found["matched"]) == (4, 2)
    assert found["by_event"] == [
        {"event": "ObjectCreated:Put", "changes": 3, "matched": 2},
        {"event": "ObjectRemoved:Delete", "changes": 1, "matched": 0},
    ]
    assert sum(day["matched"] for day in found["by_day"]) == 2
    assert [example["key"] for example in found["examples"]] == ["logs/b c.txt", "logs/a.txt"]
    [overlap] = found["overlaps"]
    assert (overlap["destination"], overlap["shared"]) == ("arn:gcp:pubsub::tidings-test:planned-for", ["s3:ObjectCreated:*"])
    [summary] = done.stderr.splitlines()  # nothing else: no bar where nobody looks, no word of the JVM
    assert summary.startswith("2 of 4 changes would have matched")
    rules._print(found)  # what a person sees of the same answer
    shown = capsys.readouterr().out
    same = "planned-for to arn:gcp:pubsub::tidings-test:planned-for: s3:ObjectCreated:*"
    for words in (f"{same}\n", ": 2 of 4 would have matched\n", "Put logs/b c.txt\n"):
        assert words in shown
    assert re.search(r"^ *ObjectCreated:Put +3 +2 *$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "--project", "nobody"], ["no project", "'nobody'"]),
        (["list", "--bucket", "nowhere"], ["no bucket", "'nowhere'"]),
        (["plan", "--bucket", "b", "--project", "nobody", "--event", "s3:ObjectCreated:*"], ["no project", "'nobody'"]),
        (["plan", "--bucket", "nowhere", "--event", "s3:ObjectCreated:*"], ["no bucket", "'nowhere'", "'default'"]),
        (["plan", "--bucket", "b", "--event", "s3:ObjectMoved:*"], ["'s3:ObjectMoved:*'", "s3:ObjectRemoved:*"]),
        (["plan", "--bucket", "b"], ["No event is named", "s3:ObjectCreated:*"]),
        (["plan", "--bucket", "b", "--event", "s3:ObjectCreated:*", "--days", "0"], ["--days 0", "168 hours", "1 to 7"]),
        (["plan", "--bucket", "b", "--event", "s3:ObjectCreated:*", "--days", "8"], ["--days 8", "168 hours", "1 to 7"]),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_in_one_sentence(url: str, arguments: list[str], words: list[str]) -> None:
    says_one_sentence(tidings("rules", *arguments, TIDINGS_DATABASE__URL=url), *words)


def test_settings_prints_every_setting_and_no_secret(url: str) -> None:
    password = url.split(":")[2].partition("@")[0]
    table, as_json = (tidings("settings", *how, TIDINGS_DATABASE__URL=url) for how in ([], ["--json"]))
    values = json.loads(as_json.stdout)
    assert values.keys() == Settings.model_fields.keys()
    assert values["api"]["region"] == "us-east-1"
    assert "TIDINGS_DELIVERY__MAX_ROWS" in table.stdout
    for done in (table, as_json):
        assert done.returncode == 0
        assert password not in done.stdout + done.stderr


def test_a_value_is_printed_as_it_is() -> None:
    """Brackets are markup and `:key:` is a picture to the library that prints."""
    for how in ([], ["--json"]):
        assert "[b]:key:[/b]" in tidings("settings", *how, TIDINGS_API__REGION="[b]:key:[/b]").stdout


def test_migrate_has_nothing_to_do(url: str) -> None:
    done = tidings("migrate", TIDINGS_DATABASE__URL=url)
    assert (done.returncode, done.stdout) == (0, "nothing to do: the database is up to date\n")


NOBODY = "postgresql://tidings:secret-word@127.0.0.1:1/tidings"
RULE = ("--bucket", "b", "--event", "s3:ObjectCreated:*")


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["lanes", "list"], {"TIDINGS_DATABASE__URL": ""}, ["No database", "TIDINGS_DATABASE__URL"]),
        (["serve"], {"TIDINGS_DATABASE__URL": ""}, ["No database", "TIDINGS_DATABASE__URL"]),
        (["lanes", "list"], {"TIDINGS_DATABASE__URL": NOBODY}, ["does not answer", "TIDINGS_DATABASE__URL"]),
        (["rules", "list"], {"TIDINGS_DATABASE__URL": ""}, ["No database", "TIDINGS_DATABASE__URL"]),
        (["rules", "plan", *RULE], {"TIDINGS_DATABASE__URL": NOBODY}, ["does not answer", "TIDINGS_DATABASE__URL"]),
        (["migrate"], {"TIDINGS_DATABASE__URL": NOBODY}, ["does not answer", "TIDINGS_DATABASE__URL"]),
        (["settings"], {"TIDINGS_NOWHERE__X": "1"}, ["TIDINGS_NOWHERE__X", "is not a setting"]),
        (["settings"], {"TIDINGS_API__NOTHING": "1"}, ["api.nothing", "tidings settings"]),
        (["settings"], {"TIDINGS_API__PORT": "many"}, ["api.port", "tidings settings"]),
        (["settings"], {"TIDINGS_CONFIG": "/not/there"}, ["/not/there", "not a file"]),
        (["topic", "create", "my-events"], {"PUBSUB_EMULATOR_HOST": "127.0.0.1:1"}, ["my-events", "projects/"]),
        (["topic", "create", "projects/my-project/topics/my-events"], {}, ["PUBSUB_EMULATOR_HOST"]),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(arguments: list[str], environment: dict[str, str], words: list[str]) -> None:
    done = tidings(*arguments, clear=["PUBSUB_EMULATOR_HOST"], **environment)
    says_one_sentence(done, *words)
    assert "secret-word" not in done.stderr


def test_an_unknown_project_is_answered_with_one_sentence(url: str) -> None:
    done = tidings("access", "create", "--project", "nobody", TIDINGS_DATABASE__URL=url)
    says_one_sentence(done, "no project", "'nobody'")


def test_a_database_that_was_not_migrated_is_answered_with_one_sentence(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create database bare")
    bare = url.removesuffix("/tidings") + "/bare"
    says_one_sentence(tidings("lanes", "list", TIDINGS_DATABASE__URL=bare), "tidings migrate")
    stream = tidings("stream", TIDINGS_DATABASE__URL=bare)
    assert (stream.returncode, "run `tidings migrate`" in stream.stderr.splitlines()[-1]) == (2, True), stream.stderr
    assert "migrations applied" in tidings("migrate", TIDINGS_DATABASE__URL=bare).stdout
    assert "no lanes" in tidings("lanes", "list", TIDINGS_DATABASE__URL=bare).stdout


@pytest.mark.parametrize("command", ["up", "demo", "stream"])
def test_without_java_one_sentence_says_what_to_install(command: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = tidings(command, clear=["JAVA_HOME"], PATH=str(tmp_path / "bin"), TIDINGS_DATABASE__URL=NOBODY)
    says_one_sentence(done, "Java 17", "openjdk-17-jre-headless")
    wrong = tidings(command, JAVA_HOME=str(tmp_path), TIDINGS_DATABASE__URL=NOBODY)
    says_one_sentence(wrong, "Java 17", "JAVA_HOME", str(tmp_path))


def test_a_folder_in_use_is_left_alone(stack: Running) -> None:
    before = stack.ready["pids"]
    says_one_sentence(tidings("up", "--data", str(stack.data), "--port", "0"), str(stack.data), "in use", "--data")
    assert stack.ready["pids"] == before
    assert psutil.pid_exists(before["postgres"])


def test_the_ready_file_has_all_that_a_script_needs(stack: Running) -> None:
    ready = stack.ready
    assert {
        "s3",
        "grpc",
        "pubsub",
        "metrics",
        "database",
        "project",
        "access_key_id",
        "secret_access_key",
        "region",
        "pids",
    } == ready.keys()
    assert {"up", "api", "stream", "postgres", "pubsub"} == ready["pids"].keys()
    assert all(psutil.pid_exists(pid) for pid in ready["pids"].values())
    assert ready["pids"]["up"] == stack.process.pid


@pytest.mark.timeout(900)
def test_a_stack_mends_itself_stops_without_a_trace_and_starts_again_with_all_it_had(tmp_path: Path) -> None:
    own = {"TIDINGS_SECRETS__MASTER_KEY": ""}  # so that it makes its master key by itself
    with running_stack(tmp_path, **own) as stack:
        made = stack.data / "master.key"
        assert stack.ready["master_key_file"] == str(made)
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
        with collecting(stack) as collector:
            send_events(stack, collector, "kept")
            assert Caller(stack.ready).call("PUT", "/kept/key", b"kept").status == 200
        configuration = Caller(stack.ready).call("GET", "/kept?notification=").body
        key = stack.ready["access_key_id"]
        for role in ("api", "postgres", "pubsub"):
            pid = stack.kill(role)
            until(lambda role=role, pid=pid: stack.pid(role) != pid, f"{role} has a new process")
            until(lambda: _answer(stack) == 200, f"the API answers after {role} was killed", every=0.2)
        # A connection from before that is still in a pool costs the request that meets it a 503, after which clients try again.
        until(lambda: Caller(stack.ready).call("GET", "/kept/key").body == b"kept", "what was written is there", every=0.2)
        family = psutil.Process(stack.process.pid).children(recursive=True)
        assert len(family) > 4
        ready_file = tmp_path / "ready.json"
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(120) == 0
        _, alive = psutil.wait_procs(family, timeout=5)
        assert alive == []
        assert not ready_file.exists()
    with running_stack(tmp_path, **own) as stack, collecting(stack) as collector:
        assert stack.ready["access_key_id"] == key
        settings = {**own, "TIDINGS_SECRETS__MASTER_KEY_FILE": str(made), "TIDINGS_DATABASE__URL": stack.ready["database"]}
        assert tidings("secrets", "rotate", **settings).returncode == 0, "a command beside it needs to be told of it"
        assert Caller(stack.ready).call("GET", "/kept/key").body == b"kept"
        assert Caller(stack.ready).call("GET", "/kept?notification=").body == configuration
        collector.listen("kept")
        again = Caller(stack.ready).call("PUT", "/kept/key", b"again")
        assert collector.event(again.request_id).key == "key"


def _answer(stack: Running) -> int:
    try:
        return Caller(stack.ready).call("GET", "/kept/key").status
    except ConnectionError:
        return 0


def test_rules_are_added_and_removed_one_at_a_time(stack: Running, url: str) -> None:
    bucket, topic = "one-at-a-time", "projects/tidings-test/topics/one-at-a-time"
    arn = "arn:gcp:pubsub::tidings-test:one-at-a-time"
    stack.s3().create_bucket(Bucket=bucket)
    settings = {
        "TIDINGS_DATABASE__URL": url,
        "TIDINGS_PUBSUB__EMULATOR_HOST": stack.ready["pubsub"],
        "TIDINGS_STORE__BLOBS": (stack.data / "blobs").as_uri(),
    }

    def rules_command(*arguments: str, projects: str = "*") -> subprocess.CompletedProcess[str]:
        return tidings("rules", *arguments, "--bucket", bucket, **settings, TIDINGS_BUCKET_EVENTING__PROJECTS=projects)

    def ids() -> list[str]:
        listed: list[dict[str, str]] = json.loads(rules_command("list", "--json").stdout)
        return [rule["id"] for rule in listed]

    logs = ("add", "--topic", arn, "--event", "s3:ObjectCreated:*", "--prefix", "logs/")
    says_one_sentence(rules_command(*logs), "Unable to validate", "NOT_FOUND")
    assert tidings("topic", "create", topic, PUBSUB_EMULATOR_HOST=stack.ready["pubsub"]).returncode == 0
    made = json.loads(rules_command(*logs, "--json").stdout)
    assert made["rules"] == 1
    assert rules_command("add", "--topic", arn, "--event", "s3:ObjectRemoved:*", "--id", "gone").returncode == 0
    assert ids() == [made["id"], "gone"]
    says_one_sentence(rules_command(*logs), "already", made["id"])
    says_one_sentence(rules_command(*logs, "--id", "again"), "ambiguously defined", "'again'")
    says_one_sentence(rules_command("add", "--topic", arn, "--event", "s3:Nothing"), "'s3:Nothing'", "s3:ObjectCreated:*")
    says_one_sentence(rules_command("add", "--topic", "nowhere", "--event", "s3:ObjectCreated:*"), "'nowhere'")
    says_one_sentence(rules_command("remove", "--id", "absent"), "no rule 'absent'", "'gone'")
    says_one_sentence(rules_command("remove", "--id", "gone", projects=""), "not enabled")
    assert ids() == [made["id"], "gone"]
    assert rules_command("remove", "--id", made["id"]).returncode == 0
    assert ids() == ["gone"]


def test_projects_are_listed_with_whether_they_have_eventing(postgres: Postgres) -> None:
    url = fresh_database(postgres, "project_commands")
    first = tidings("project", "create", "first", "--json", TIDINGS_DATABASE__URL=url)
    assert "TIDINGS_BUCKET_EVENTING__PROJECTS" in first.stderr
    tidings("project", "create", "second", "--path-encryption", TIDINGS_DATABASE__URL=url)
    tidings("project", "create", "third", TIDINGS_DATABASE__URL=url)
    enabled = json.loads(first.stdout)["project"]
    listed = tidings("project", "list", "--json", TIDINGS_DATABASE__URL=url, TIDINGS_BUCKET_EVENTING__PROJECTS=enabled)
    found = {row["name"]: (row["eventing"], row["path_encryption"]) for row in json.loads(listed.stdout)}
    assert found == {"first": (True, False), "second": (False, True), "third": (False, False)}
