from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator


class SecretsSettings(BaseModel, frozen=True, extra="forbid"):
    """The master key. The secrets in the database cannot be read without it. Name it in one of three ways."""

    master_key_file: Path | None = Field(None, description="a file with the master key: 32 bytes in base64")
    master_key: SecretStr = Field(SecretStr(""), description="the master key itself: 32 bytes in base64")
    master_key_command: str = Field(
        "", description="a command that prints the master key in base64, such as one that asks a KMS; it is run without a shell"
    )

    @field_validator("master_key_file", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @property
    def is_given(self) -> bool:
        return bool(self.master_key_file or self.master_key.get_secret_value() or self.master_key_command)

    @model_validator(mode="after")
    def _one_at_most(self) -> SecretsSettings:
        given = [self.master_key_file, self.master_key.get_secret_value(), self.master_key_command]
        if sum(map(bool, given)) > 1:
            raise ValueError("set one of master_key_file, master_key and master_key_command, not several")
        return self
