"""What an operator should know where the API is reached from other machines: said once, at the start."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from tidings.api.settings import ApiSettings
from tidings.outgoing.settings import OutgoingSettings

_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def warnings(api: ApiSettings, outgoing: OutgoingSettings) -> Iterator[str]:
    """One sentence for each setting that is meant for one machine alone."""
    listens, reached = not is_loopback(api.host), not is_loopback(urlsplit(api.public_url).hostname or "localhost")
    if not listens and not reached:
        return
    place = f"The API listens on {api.host}" if listens else f"The API is reached at {api.public_url}"
    if reached and urlsplit(api.public_url).scheme == "http":
        yield f"Others reach the API at {api.public_url}, without TLS: set TIDINGS_API__PUBLIC_URL to the https:// of a proxy."
    if listens and api.tls_certificate is None:
        yield (
            f"{place} without TLS: objects and presigned URLs can be read on their way. Set TIDINGS_API__TLS_CERTIFICATE, or"
            " TIDINGS_API__HOST to 127.0.0.1 and put a proxy with TLS in front of it."
        )
    if near := [each for each in outgoing.allow if _reaches_loopback(each)]:
        yield (
            f"{place}, and webhooks may call this machine itself ({', '.join(near)}): tenants reach what listens here. Take it"
            " out of TIDINGS_OUTGOING__ALLOW."
        )
    if outgoing.allow_http:
        yield f"{place}, and webhooks may be called without TLS: set TIDINGS_OUTGOING__ALLOW_HTTP to false."
    if api.metrics == "open":
        yield f"{place}, and /-/metrics asks for no key there: set TIDINGS_API__METRICS to loopback or off."


def of_front(name: str, host: str, setting: str) -> Iterator[str]:
    """The same for a front with a port of its own, which has no TLS."""
    if not is_loopback(host):
        yield (
            f"The {name} listens on {host} without TLS: what is sent there can be read on its way. Set {setting} to 127.0.0.1"
            " and put a proxy with TLS in front of it."
        )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reaches_loopback(allowed: str) -> bool:
    try:
        network = ip_network(allowed)
    except ValueError:
        return is_loopback(allowed.rpartition(":")[0].strip("[]"))
    return any(network.version == each.version and network.overlaps(each) for each in _LOOPBACK)
