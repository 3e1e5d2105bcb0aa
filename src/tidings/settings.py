"""The operator's settings: from the environment (`TIDINGS_API__PORT=9000`) and from a TOML file, the environment winning.

Tenants' rules are not settings: they live in the database and are set through the S3 API.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from tidings.api.settings import ApiSettings
from tidings.changestream.settings import ChangestreamSettings
from tidings.db.settings import DatabaseSettings
from tidings.delivery.settings import DeliverySettings, PubSubSettings, SparkSettings
from tidings.errors import OperatorError
from tidings.external import ExternalSettings
from tidings.log import LogSettings
from tidings.outgoing.settings import OutgoingSettings
from tidings.queues.settings import QueuesSettings
from tidings.rules.settings import BucketEventingSettings
from tidings.store.settings import StoreSettings
from tidings.topics.settings import TopicsSettings

FILE_VARIABLE = "TIDINGS_CONFIG"
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
    api: ApiSettings = Field(ApiSettings())
    store: StoreSettings = Field(StoreSettings())
    bucket_eventing: BucketEventingSettings = Field(BucketEventingSettings())
    changestream: ChangestreamSettings = Field(ChangestreamSettings())
    delivery: DeliverySettings = Field(DeliverySettings())
    pubsub: PubSubSettings = Field(PubSubSettings())
    external: ExternalSettings = Field(ExternalSettings())
    topics: TopicsSettings = Field(TopicsSettings())
    outgoing: OutgoingSettings = Field(OutgoingSettings())
    queues: QueuesSettings = Field(QueuesSettings())
    spark: SparkSettings = Field(SparkSettings())
    log: LogSettings = Field(LogSettings())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
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

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, SecretStr):
            return str(value)
        return value

    values: dict[str, Any] = plain(settings.model_dump())
    return values
