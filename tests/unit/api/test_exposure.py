"""What the operator is told where the API is reached from other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidings.api.exposure import of_front, warnings
from tidings.api.settings import ApiSettings
from tidings.outgoing.settings import OutgoingSettings

TLS = {"host": "0.0.0.0", "tls_certificate": Path("certificate.pem")}


def said(api: dict[str, Any], outgoing: dict[str, Any] | None = None) -> list[str]:
    return list(warnings(ApiSettings(**api), OutgoingSettings(**(outgoing or {}))))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_on_this_machine_alone_there_is_nothing_to_say(host: str) -> None:
    assert said({"host": host, "metrics": "open"}, {"allow": ("127.0.0.0/8",), "allow_http": True}) == []


def test_behind_a_proxy_on_this_machine_the_address_of_the_proxy_counts() -> None:
    behind = {"host": "127.0.0.1", "public_url": "https://events.example"}
    assert said(behind) == said({**behind, "public_url": "http://localhost:9000"}, {"allow_http": True}) == []
    [near, plain] = said(behind, {"allow": ("127.0.0.0/8",), "allow_http": True})
    assert "https://events.example" in near
    assert "TIDINGS_OUTGOING__ALLOW." in near
    assert "TIDINGS_OUTGOING__ALLOW_HTTP" in plain
    [sentence] = said({**behind, "public_url": "http://events.example"})
    assert "TIDINGS_API__PUBLIC_URL" in sentence
    assert ["TIDINGS_API__METRICS" in each for each in said({**behind, "metrics": "open"})] == [True]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "events.example"])
def test_plain_http_on_another_address_is_a_warning(host: str) -> None:
    [sentence] = said({"host": host})
    assert host in sentence
    assert "TIDINGS_API__TLS_CERTIFICATE" in sentence
    assert said({**TLS, "host": host}) == []


@pytest.mark.parametrize(
    "allowed", ["127.0.0.0/8", "127.0.0.1/32", "0.0.0.0/0", "::1/128", "localhost:8080", "127.0.0.1:80", "[::1]:80"]
)
def test_webhooks_to_this_machine_are_a_warning(allowed: str) -> None:
    [sentence] = said(TLS, {"allow": (allowed, "10.0.0.0/8")})
    assert "TIDINGS_OUTGOING__ALLOW" in sentence
    assert "10.0.0.0/8" not in sentence
    assert said(TLS, {"allow": ("10.0.0.0/8", "hooks.internal:8443")}) == []


def test_webhooks_without_tls_and_open_figures_are_warnings() -> None:
    assert ["TIDINGS_OUTGOING__ALLOW_HTTP" in each for each in said(TLS, {"allow_http": True})] == [True]
    assert ["TIDINGS_API__METRICS" in each for each in said({**TLS, "metrics": "open"})] == [True]


def test_no_page_of_another_site_may_call_unless_it_is_named() -> None:
    assert ApiSettings().cors_origins == ()


def test_a_front_with_a_port_of_its_own_is_warned_of_where_others_reach_it() -> None:
    assert list(of_front("uploads front", "127.0.0.1", "TIDINGS_UPLOADS__HOST")) == []
    [sentence] = of_front("uploads front", "0.0.0.0", "TIDINGS_UPLOADS__HOST")
    assert "TIDINGS_UPLOADS__HOST" in sentence
