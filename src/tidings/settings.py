"""The operator's settings: from the environment (`TIDINGS_API__PORT=9000`) and from a TOML file, the environment winning.

Tenants' rules are not settings: they live in the database and are set through the S3 API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_core import to_json
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from tidings.api.limits import LimitSettings
from tidings.api.settings import ApiSettings
from tidings.catalog.settings import CatalogSettings
from tidings.changestream.settings import ChangestreamSettings
from tidings.consumers.files.settings import FilesSettings
from tidings.consumers.inventory.settings import InventorySettings
from tidings.consumers.uploads.settings import UploadsSettings
from tidings.db.settings import DatabaseSettings
from tidings.delivery.settings import DeliverySettings, FormatSettings, KafkaSettings, PubSubSettings, SparkSettings
from tidings.errors import OperatorError
from tidings.external import ExternalSettings
from tidings.log import LogSettings
from tidings.outgoing.settings import OutgoingSettings
from tidings.queues.settings import QueuesSettings
from tidings.rules.settings import BucketEventingSettings
from tidings.secrets.settings import SecretsSettings
from tidings.store.settings import StoreSettings
from tidings.subscribers.settings import SubscribersSettings
from tidings.telemetry import TelemetrySettings
from tidings.topics.settings import TopicsSettings

FILE_VARIABLE = "TIDINGS_CONFIG"
WORKERS_VARIABLE = "TIDINGS_SETTINGS_SECRET"
"""What the stream gives to Spark's workers: all of its own settings, which stand for whatever else is set where they run."""
_PREFIX = "TIDINGS_"


class _TomlFile(TomlConfigSettingsSource):
    """`bucket-eventing` and `bucket_eventing` are the same section; so it is with the names of all settings."""

    def __call__(self) -> dict[str, Any]:
        return {_underscored(section): _named(values) for section, values in super().__call__().items()}


def _named(values: Any) -> Any:
    return {_underscored(name): value for name, value in values.items()} if isinstance(values, dict) else values


def _underscored(name: str) -> str:
    return name.replace("-", "_")


class Settings(BaseSettings):
    """Everything an operator can set. `tidings settings` prints it."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    database: DatabaseSettings = Field(DatabaseSettings())
    secrets: SecretsSettings = Field(SecretsSettings())
    api: ApiSettings = Field(ApiSettings())
    limits: LimitSettings = Field(LimitSettings())
    store: StoreSettings = Field(StoreSettings())
    bucket_eventing: BucketEventingSettings = Field(BucketEventingSettings())
    changestream: ChangestreamSettings = Field(ChangestreamSettings())
    delivery: DeliverySettings = Field(DeliverySettings())
    formats: FormatSettings = Field(FormatSettings())
    pubsub: PubSubSettings = Field(PubSubSettings())
    kafka: KafkaSettings = Field(KafkaSettings())
    external: ExternalSettings = Field(ExternalSettings())
    topics: TopicsSettings = Field(TopicsSettings())
    outgoing: OutgoingSettings = Field(OutgoingSettings())
    queues: QueuesSettings = Field(QueuesSettings())
    catalog: CatalogSettings = Field(CatalogSettings())
    subscribers: SubscribersSettings = Field(SubscribersSettings())
    uploads: UploadsSettings = Field(UploadsSettings())
    inventory: InventorySettings = Field(InventorySettings())
    files: FilesSettings = Field(FilesSettings())
    spark: SparkSettings = Field(SparkSettings())
    log: LogSettings = Field(LogSettings())
    telemetry: TelemetrySettings = Field(TelemetrySettings())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        if WORKERS_VARIABLE in os.environ:
            return (init_settings,)
        file = os.environ.get(FILE_VARIABLE)
        toml = (_TomlFile(settings_cls, Path(file)),) if file else ()
        return init_settings, env_settings, *toml

    @property
    def database_url(self) -> str:
        """The URL in the clear, for the one who connects."""
        url = self.database.url.get_secret_value()
        if not url:
            raise OperatorError("No database: set TIDINGS_DATABASE__URL, or start everything with `tidings up`.")
        return url


def load() -> Settings:
    """The effective settings, or one sentence for each that is wrong."""
    if given := os.environ.get(WORKERS_VARIABLE):
        return _given(given)
    file = os.environ.get(FILE_VARIABLE)
    if file and not Path(file).is_file():
        raise OperatorError(f"{FILE_VARIABLE} names {file}, which is not a file.")
    _refuse_unknown_variables()
    try:
        return Settings()
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise OperatorError(f"Settings are wrong: {problems}. `tidings settings` shows what there is.") from None


def _refuse_unknown_variables() -> None:
    """pydantic ignores a variable that fits no field; a typing mistake must not pass unseen."""
    known = {_PREFIX + name.upper() for name in Settings.model_fields}
    for variable in os.environ:
        section = variable.partition("__")[0].upper()
        if "__" in variable and section.startswith(_PREFIX) and section not in known:
            raise OperatorError(f"{variable} is not a setting: there is no section {section.removeprefix(_PREFIX).lower()}.")


def masked(settings: Settings) -> dict[str, Any]:
    """The settings as plain values, secrets masked."""
    values: dict[str, Any] = _plain(settings.model_dump(), str)
    return values


def for_workers(settings: Settings) -> str:
    """The settings for WORKERS_VARIABLE, secrets in the clear: never for a log, a page or a command line."""
    return to_json(_plain(settings.model_dump(), SecretStr.get_secret_value)).decode()


@lru_cache(maxsize=1)
def _given(text: str) -> Settings:
    """A worker asks in every task."""
    return Settings(**json.loads(text))


def _plain(value: Any, secret: Callable[[SecretStr], str]) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner, secret) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(inner, secret) for inner in value)
    return secret(value) if isinstance(value, SecretStr) else value
