from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator, model_validator

_DOMAIN = re.compile(r"(?=.{1,253}$)(?!.*\.[0-9]+$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:[0-9]{1,5})?|[a-z][a-z0-9+.-]*://\[[0-9a-f:]+\](:[0-9]{1,5})?")


class ApiSettings(BaseModel, frozen=True, extra="forbid"):
    """The HTTP front. Pages of other sites may not call it unless the operator names them."""

    host: str = Field("127.0.0.1", description="the address that the S3 API listens on")
    port: int = Field(9000, ge=0, le=65535, description="its port; 0 takes any free one")
    grpc_port: int = Field(
        0, ge=0, le=65535, description="the port of the gRPC API for notification configuration; 0 does not serve it"
    )
    region: str = Field("us-east-1", description="the region that requests are signed for")
    workers: int = Field(
        default_factory=lambda: min(os.cpu_count() or 1, 4),
        ge=1,
        le=64,
        description="processes that serve requests; one for each core, 4 at most, unless you say otherwise",
    )
    domains: tuple[str, ...] = Field(
        ("localhost", "s3.localhost"), description="names of the service, in front of which a bucket's name may stand"
    )
    cors_origins: tuple[str, ...] = Field(
        (), description="web sites whose pages may call the API from a browser, as https://HOST; * is all; none by default"
    )
    metrics: Literal["off", "loopback", "open"] = Field(
        "off", description="who may read /-/metrics, which asks for no key: nobody, this machine, or whoever reaches the port"
    )
    tls_certificate: Path | None = Field(None, description="a PEM file with the certificate and its chain; turns TLS on")
    tls_key: Path | None = Field(None, description="a PEM file with the certificate's private key, not encrypted")

    public_url: str = Field(
        "",
        pattern=r"^(https?://[a-z0-9.:\[\]-]+)?$",
        description="https://HOST[:PORT] under which others reach the API: messages name it; else made of host and port",
    )

    @model_validator(mode="after")
    def _two_ports(self) -> ApiSettings:
        """Both would get their share of the connections to it: see `serving.check_free`."""
        if self.grpc_port and self.grpc_port == self.port:
            raise ValueError(f"grpc_port is {self.grpc_port}, as is port: give gRPC another one")
        return self

    @property
    def url(self) -> str:
        """Under which others reach the API, without a slash at its end."""
        scheme = "https" if self.tls_certificate else "http"
        return self.public_url or f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @field_validator("domains")
    @classmethod
    def _are_domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        for domain in domains:
            if not _DOMAIN.fullmatch(domain):
                raise ValueError(f"{domain[:100]!r} is not a domain in lower case, without a port")
        return domains

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin[:100]!r} is not an origin: write https://HOST or https://HOST:PORT, or *")
        return origins
