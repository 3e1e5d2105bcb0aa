"""Which addresses belong to the public internet. An explicit table: `ipaddress.is_global` says yes to `64:ff9b::7f00:1`,
`2002:7f00:1::`, `::127.0.0.1`, `224.0.0.1` and `fec0::1`.

The rows are those of IANA's registries of special-purpose addresses, and the addresses at which clouds give out credentials.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL: dict[str, str] = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "a provider's own network",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's metadata",
    "169.254.0.0/16": "link-local, where clouds keep metadata",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "AMT relays",
    "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "a private network",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, or broadcast",
    "2001::/23": "protocol assignments, Teredo among them",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
}
_TABLE: list[tuple[Network, str]] = [(ip_network(network), what) for network, what in _SPECIAL.items()]
_PUBLIC_6 = IPv6Network("2000::/3")
"""All that was ever given out. Loopback, `::a.b.c.d`, local, site-local and multicast addresses lie outside."""
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = 0x00005EFE
_ISATAP_MASK = 0xFCFFFFFF
"""The two bits that may differ say whether the embedded address is unique, and whether it is a group."""


def meanings(address: Address) -> tuple[Address, ...]:
    """Where packets to an address may go: to each of these. An IPv6 address may stand for an IPv4 address.

    Whether one that looks like ISATAP is that, only the network knows: it is both itself and what it embeds.
    """
    if isinstance(address, IPv6Address):
        lower = IPv4Address(int(address) & 0xFFFFFFFF)
        if address in _MAPPED or address in _NAT64:
            return (lower,)
        if int(address) >> 32 & _ISATAP_MASK == _ISATAP:
            return (address, lower)
    return (address,)


def parsed(text: str) -> Address:
    """An address in the one way it is written; a ValueError for every other. Zones are for links, which we never call."""
    address = ip_address(text)
    if "%" in text:
        raise ValueError(f"{text[:100]!r} has a zone")
    return address


def special(address: Address, allowed: Collection[Network] = ()) -> str | None:
    """What an address is, if one of its meanings is neither of the public internet nor in a network that is allowed."""
    strange = (_special(meant) for meant in meanings(address) if not within(meant, allowed))
    return next((what for what in strange if what is not None), None)


def _special(meant: Address) -> str | None:
    if isinstance(meant, IPv6Address) and meant not in _PUBLIC_6:
        return "not a public IPv6 address"
    return next((what for network, what in _TABLE if meant.version == network.version and meant in network), None)


def within(meant: Address, networks: Collection[Network]) -> bool:
    """Whether one of the meanings of an address lies in one of these networks."""
    return any(meant.version == network.version and meant in network for network in networks)
