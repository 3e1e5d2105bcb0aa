from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, SecretStr, field_validator, model_validator

from tidings.events.formats import CHOOSABLE

_SECRET = re.compile(r"(?i)pass|secret|token|credential|pem|oauthbearer|(^|[._])key([._]|$)")
"""Names of options of librdkafka whose values are nobody's business."""
_OURS = {"bootstrap.servers", "metadata.broker.list", "enable.idempotence", "acks", "request.required.acks", "transactional.id"}


def _project(text: str) -> str:
    try:
        if text == "*" or str(uuid.UUID(text)) == text.lower():
            return text.lower()
    except ValueError:
        pass
    raise ValueError(f"{text[:100]!r} is neither a project's public id nor *; `tidings project list` shows them")


Bindings = dict[str, tuple[Annotated[str, AfterValidator(_project)], ...]]
"""Which projects, by their public ids, may send to places that begin with these."""


def _longest(bindings: Bindings, name: str) -> tuple[str, ...] | None:
    """The projects of the longest place that a name begins with; None if it begins with none."""
    fitting = [place for place in bindings if name.startswith(place)]
    return bindings[max(fitting, key=len)] if fitting else None


def _among(project: str, projects: tuple[str, ...]) -> bool:
    return "*" in projects or project in projects


class DeliverySettings(BaseModel, frozen=True, extra="forbid"):
    """The pipeline."""

    max_rows: int = Field(20_000, ge=1, description="changes in one round at most")
    budget_seconds: float = Field(
        1.0,
        gt=0,
        description="how long a round waits for destinations at most, for each 5,000 changes in it; a lane that needs longer"
        " goes on beside the stream. While answers are quick it waits three times as long as they take",
    )
    share_calls: int = Field(
        250,
        ge=1,
        description="calls to destinations that one project may cost a round where there are others; what is more goes on"
        " beside the stream. A hundred messages of different keys count as one call",
    )
    poll_seconds: float = Field(0.02, gt=0, description="how often an idle stream looks for new changes")
    retry_seconds: tuple[float, ...] = Field(
        (1, 2, 4, 8), min_length=1, description="waits between tries of a failing lane; the last one repeats"
    )
    alert_command: tuple[str, ...] = Field(
        (), description="a command that is run, with JSON on its stdin, when a lane's tries are spent: to call somebody"
    )
    catch_up_rate: float = Field(
        0, ge=0, description="messages a second that a lane which is behind may send at most; 0 for no limit"
    )
    isolation: Literal["lane", "stream"] = Field(
        "lane",
        description="who waits for a failing record: its lane (lane), or everybody (stream), as seed 000 has it to the letter",
    )
    dead_letter_days: float = Field(14, gt=0, description="how long dead letters are kept")
    archive: str = Field(
        "",
        description="a folder, or what Spark takes for one, for changes that a lane still needs when their retention is over;"
        " without one they stay in the database",
    )
    metrics_host: str = Field(
        "127.0.0.1",
        pattern=r"^[0-9a-f.:]+$",
        description="the address on which the stream shows its figures; they have no authentication of their own",
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="where the stream shows its figures; 0 for nowhere")
    publish_timeout_seconds: float = Field(10.0, gt=0, description="the longest wait for one answer of a destination")


class FormatSettings(BaseModel, frozen=True, extra="forbid"):
    """What messages say, where the change alone does not tell."""

    system_uuid: str = Field(
        "00000000-0000-0000-0000-000000000000",
        pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        description="the `system_uuid` of the format cos: which store it was, for those who hear from several",
    )
    system_name: str = Field("", description="the `system_name` of the format cos; empty for none")
    pubsub_formats: dict[str, str] = Field(
        {}, description="the format of messages to Pub/Sub for each project (public id, or `*` for the others); s3 if not said"
    )

    @field_validator("pubsub_formats")
    @classmethod
    def _check_formats(cls, formats: dict[str, str]) -> dict[str, str]:
        for project, name in formats.items():
            if name not in CHOOSABLE:
                raise ValueError(f"there is no format {name!r} (for {project}); there are: {', '.join(CHOOSABLE)}")
        return formats

    def pubsub_format(self, project: str) -> str:
        """The format of a project's messages to Pub/Sub."""
        return self.pubsub_formats.get(project) or self.pubsub_formats.get("*", "s3")


class PubSubSettings(BaseModel, frozen=True, extra="forbid"):
    """Google Pub/Sub. An emulator needs nothing but its host."""

    emulator_host: str | None = Field(None, description="host:port of a server without TLS and credentials")
    endpoint: str = Field(
        "pubsub.googleapis.com", pattern=r"^[^\s/]+$", description="the host of Pub/Sub, or host:port; always with TLS"
    )
    credentials_file: Path | None = Field(
        None, description="a Google credentials file; without one, Google's application default credentials"
    )
    iam_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+$",
        description="where to ask for impersonation, if not at https://iamcredentials.googleapis.com: a private endpoint",
    )
    ordering: bool = Field(False, description="give each message an ordering key: the same for all messages of an object")
    projects: Bindings = Field(
        {},
        description="who may send where: for each GOOGLE_PROJECT, or GOOGLE_PROJECT/TOPIC_PREFIX, or * for all others, public"
        " ids of projects, or *. The longest that fits a topic decides; where none fits, nobody may. Without any, a topic is"
        " for the project that first has a rule for it, and with emulator_host for everybody",
    )

    @field_validator("projects")
    @classmethod
    def _are_places(cls, bound: Bindings) -> Bindings:
        return {"*" if place == "*" else place if "/" in place else f"{place}/": projects for place, projects in bound.items()}

    def admits(self, project: str, google_project: str, topic: str) -> bool:
        """Whether a project, named by its public id, may send to a topic."""
        if not self.projects:
            return True
        allowed = _longest(self.projects, f"{google_project}/{topic}")
        return _among(project, self.projects.get("*", ()) if allowed is None else allowed)

    def __hash__(self) -> int:
        """Tokens are cached by these settings, and the bindings among them are a dict."""
        return hash((self.endpoint, self.credentials_file, self.iam_endpoint))

    @property
    def first_come(self) -> bool:
        """Whether nothing says whose a topic is, where it matters."""
        return not self.projects and not self.emulator_host


class KafkaCluster(BaseModel, frozen=True, extra="forbid"):
    """A Kafka cluster that tenants may name."""

    bootstrap: str = Field(pattern=r"^[^\s]+$", description="host:port of some of its brokers, separated by commas")
    projects: tuple[str, ...] = Field((), description="public ids of the projects that may send there, or * for all")
    topic_prefixes: tuple[str, ...] = Field(("",), min_length=1, description="a topic's name must begin with one of these")
    topics: Bindings = Field(
        {},
        description="in place of projects and topic_prefixes: for each prefix of topics' names public ids of projects, or *."
        " The longest that fits a topic decides, also where the same brokers have another name; where none fits, nobody may",
    )
    options: dict[str, str | SecretStr] = Field({}, description="further settings of librdkafka, by their names")

    @field_validator("projects", mode="before")
    @classmethod
    def _listed(cls, projects: Any) -> Any:
        """Text with commas is as good as a list."""
        return [each.strip() for each in projects.split(",") if each.strip()] if isinstance(projects, str) else projects

    @field_validator("projects")
    @classmethod
    def _are_projects(cls, projects: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_project(each) for each in projects)

    @model_validator(mode="after")
    def _says_it_once(self) -> KafkaCluster:
        if self.topics and (self.projects or self.topic_prefixes != ("",)):
            raise ValueError("topics says who may send where: leave out projects and topic_prefixes")
        return self

    @field_validator("options", mode="before")
    @classmethod
    def _named(cls, options: Any) -> Any:
        """TOML takes `sasl.mechanism = "PLAIN"` for tables in tables; numbers and booleans become text; secrets stay secret."""
        if not isinstance(options, dict):
            return options
        flat = dict(_flat(options))
        for name in flat.keys() & _OURS:
            raise ValueError(f"the option {name} is not for settings: what is promised of a delivery rests on it")
        return {name: SecretStr(value) if _SECRET.search(name) else value for name, value in flat.items()}

    def option(self, name: str) -> str | None:
        """An option's value in the clear."""
        value = self.options.get(name)
        return value.get_secret_value() if isinstance(value, SecretStr) else value

    def admits(self, project: str) -> bool:
        """Whether a project may send to the cluster at all."""
        return _among(project, self.projects) or any(_among(project, each) for each in self.topics.values())

    def binds(self, topic: str) -> bool:
        """Whether `topics`, where it is set, has a place for a topic."""
        return not self.topics or _longest(self.topics, topic) is not None

    def binds_to_others(self, project: str, topic: str) -> bool:
        """Whether `topics` says that a topic is for other projects than this one."""
        allowed = _longest(self.topics, topic)
        return allowed is not None and not _among(project, allowed)

    def first_come(self, project: str) -> bool:
        """Whether nothing says that a topic is this project's, and not another's."""
        return not self.topics and (self.projects != (project,) or "" in self.topic_prefixes)


class KafkaSettings(BaseModel, frozen=True, extra="forbid"):
    """Kafka: which clusters there are, and who may send what there. A cluster may stand here twice, under two names."""

    clusters: dict[str, KafkaCluster] = Field(
        {}, description="by name: bootstrap, projects, topic_prefixes, topics, options; as a variable, JSON"
    )

    def beside(self, name: str) -> list[str]:
        """The names of clusters that have a broker in common with this one, itself among them."""
        brokers = _brokers(self.clusters[name])
        return sorted(each for each, cluster in self.clusters.items() if brokers & _brokers(cluster))

    def in_the_clear(self) -> str:
        """The clusters as the variable TIDINGS_KAFKA__CLUSTERS has them, secrets included: for a process of ours elsewhere."""
        clusters = {
            name: {**cluster.model_dump(mode="json"), "options": {option: cluster.option(option) for option in cluster.options}}
            for name, cluster in self.clusters.items()
        }
        return json.dumps(clusters)


def _brokers(cluster: KafkaCluster) -> set[tuple[str, str]]:
    """Host and port of each broker, whichever way they are written."""
    found = (each.rpartition("://")[2].strip().lower().rpartition(":") for each in cluster.bootstrap.split(","))
    pairs = ((host, port) if port.isdecimal() and host else (f"{host}:{port}".lstrip(":"), "9092") for host, _, port in found)
    return {(host.rstrip("."), port) for host, port in pairs}


def _flat(options: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, SecretStr):
            yield prefix + name, value.get_secret_value()
        else:
            yield prefix + name, str(value).lower() if isinstance(value, bool) else str(value)


class SparkSettings(BaseModel, frozen=True, extra="forbid"):
    """Apache Spark."""

    master: str = Field("local[*]", description="local[*], spark://host:port, yarn or k8s://...")
    driver_memory: str = Field("1g", description="memory of the driver's JVM; with local[*] it does all the work")
    conf: dict[str, str] = Field({}, description="further Spark settings, by their full names")
