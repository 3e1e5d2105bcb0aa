from __future__ import annotations

import ipaddress
import re

from pydantic import BaseModel, Field, field_validator

_HOST_AND_PORT = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]):[1-9][0-9]{0,4}")


class OutgoingSettings(BaseModel, frozen=True, extra="forbid"):
    """Calls to endpoints that tenants name: webhooks. Private addresses are never called, unless they are allowed here."""

    allow: tuple[str, ...] = Field(
        (), description="networks (10.1.0.0/16) and places (hooks.internal:8443) that may be called although they are private"
    )
    allow_http: bool = Field(False, description="whether http:// endpoints are called; otherwise only https://")
    own_process: int = Field(
        0, ge=0, description="a process of which no descendant's port is called; `tidings up` names itself, 0 is none"
    )
    max_response_bytes: int = Field(4096, ge=0, le=1 << 20, description="how much of an endpoint's answer is read")

    @field_validator("allow")
    @classmethod
    def _are_places(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for each in allow:
            if not _HOST_AND_PORT.fullmatch(each) and not _is_network(each):
                raise ValueError(f"{each[:100]!r} is neither a network (10.1.0.0/16) nor host:port in lower case")
        return allow


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
