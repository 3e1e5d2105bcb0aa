"""The operator's settings: from the environment and a file, unknown ones refused, secrets masked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings import settings
from tidings.errors import OperatorError


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tidings.toml"
    file.write_text('[api]\nport = 1111\nregion = "eu-west-1"\n')
    monkeypatch.setenv("TIDINGS_CONFIG", str(file))
    monkeypatch.setenv("TIDINGS_API__PORT", "2222")
    loaded = settings.load()
    assert (loaded.api.port, loaded.api.region) == (2222, "eu-west-1")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TIDINGS_API__PROT", "9000", "prot"),
        ("TIDINGS_APPI__PORT", "9000", "no section appi"),
        ("TIDINGS_API__PORT", "many", "api.port"),
        ("TIDINGS_DELIVERY__BUDGET_SECONDS", "-1", "budget_seconds"),
        ("TIDINGS_CONFIG", "nowhere.toml", "not a file"),
        ("TIDINGS_FORMATS__SYSTEM_UUID", "one", "formats.system_uuid"),
        ("TIDINGS_FORMATS__PUBSUB_FORMATS", '{"*": "xml"}', r"no format 'xml'.*cos, r2, s3\."),
        ("TIDINGS_FORMATS__PUBSUB_FORMATS", '{"*": "nessie"}', "no format 'nessie'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(OperatorError, match=words):
        settings.load()


def test_a_project_has_its_own_format_for_pubsub_or_that_of_all_others_or_s3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project, other = "50adea63-48b7-420e-b549-643fd90a5189", "12e9f7fe-0e0a-48a8-b16b-870baac1441b"
    assert settings.load().formats.pubsub_format(project) == "s3"
    file = tmp_path / "tidings.toml"
    monkeypatch.setenv("TIDINGS_CONFIG", str(file))
    file.write_text(f'[formats.pubsub-formats]\n{project} = "r2"\n')
    formats = settings.load().formats
    assert (formats.pubsub_format(project), formats.pubsub_format(other)) == ("r2", "s3")
    file.write_text(f'[formats.pubsub-formats]\n{project} = "r2"\n"*" = "cos"\n')
    formats = settings.load().formats
    assert (formats.pubsub_format(project), formats.pubsub_format(other)) == ("r2", "cos")


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_DATABASE__URL", "postgresql://me:hush@host/db")
    loaded = settings.load()
    assert "hush" not in repr(loaded) + str(settings.masked(loaded))
    assert "hush" in loaded.database_url


def test_no_database_is_one_clear_sentence() -> None:
    with pytest.raises(OperatorError, match="TIDINGS_DATABASE__URL"):
        _ = settings.Settings().database_url


KAFKA = """
[kafka.clusters.main]
bootstrap = "kafka-1:9092,kafka-2:9092"
projects = ["12E9F7FE-0e0a-48a8-b16b-870baac1441b"]
topic_prefixes = ["orders-"]

[kafka.clusters.main.options]
security.protocol = "SASL_SSL"
"sasl.password" = "hush-kafka"
socket.keepalive.enable = true
"message.max.bytes" = 2000000
"""


def test_a_kafka_cluster_is_named_with_who_may_use_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tidings.toml"
    file.write_text(KAFKA)
    monkeypatch.setenv("TIDINGS_CONFIG", str(file))
    loaded = settings.load()
    main = loaded.kafka.clusters["main"]
    assert (main.bootstrap, main.topic_prefixes) == ("kafka-1:9092,kafka-2:9092", ("orders-",))
    assert main.admits("12e9f7fe-0e0a-48a8-b16b-870baac1441b")
    assert not main.admits("22e9f7fe-0e0a-48a8-b16b-870baac1441b")
    assert (main.option("security.protocol"), main.option("sasl.password")) == ("SASL_SSL", "hush-kafka")
    assert (main.option("socket.keepalive.enable"), main.option("message.max.bytes")) == ("true", "2000000")
    assert "hush-kafka" not in repr(loaded) + str(settings.masked(loaded))
    assert "SASL_SSL" in str(settings.masked(loaded)), "what is no secret is shown"


def test_the_clusters_travel_as_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"sasl.password": "hush-kafka", "linger.ms": "5"}
    given = settings.Settings(kafka={"clusters": {"main": {"bootstrap": "a:1", "projects": "*", "options": options}}})
    monkeypatch.setenv("TIDINGS_KAFKA__CLUSTERS", given.kafka.in_the_clear())
    assert settings.load().kafka == given.kafka


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ('{"main": {}}', "main.bootstrap"),
        ('{"main": {"bootstrap": "a:1", "projects": "everybody"}}', "'everybody' is neither"),
        ('{"main": {"bootstrap": "a:1", "options": {"acks": "0"}}}', "acks is not for settings"),
        ('{"main": {"bootstrap": "a:1", "options": {"enable": {"idempotence": false}}}}', "enable.idempotence"),
        ('{"main": {"bootstrap": "a:1", "topics": ["x"]}}', "topics"),
        ('{"main": {"bootstrap": "a:1", "topic_prefixes": []}}', "topic_prefixes"),
    ],
)
def test_a_wrong_cluster_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, cluster: str, words: str) -> None:
    monkeypatch.setenv("TIDINGS_KAFKA__CLUSTERS", cluster)
    with pytest.raises(OperatorError, match=words):
        settings.load()
