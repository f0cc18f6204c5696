"""Which network addresses images, videos and audio may be fetched from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

from quire.options.media import ANY_PUBLIC_HOST

Address = IPv4Address | IPv6Address
# Never fetched from, whichever host has them: this host, broadcast, multicast, and link-local ones, under which clouds
# serve credentials; then the clouds' other addresses for that.
_FORBIDDEN = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8", "255.255.255.255/32", "224.0.0.0/4", "169.254.0.0/16", "::/128", "ff00::/8", "fe80::/10",
        "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128",
    )
)  # fmt: skip
# Not public, though `ipaddress` says otherwise in some versions of Python.
_RESERVED = tuple(ip_network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20"))
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_PUBLIC_PORTS = (80, 443)


def is_forbidden(address: Address) -> bool:
    """Whether nothing is ever fetched from the address."""
    inner = _embedded(address)
    return any(address in network for network in _FORBIDDEN) or (inner is not None and is_forbidden(inner))


def is_public(address: Address) -> bool:
    """Whether the address belongs to the public internet."""
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    if not address.is_global or is_forbidden(address) or any(address in network for network in _RESERVED):
        return False
    return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that packets for an IPv6 address of a transition mechanism end up at."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


@dataclass(frozen=True)
class AllowedHosts:
    """The hosts that the operator allows.

    Attributes:
        listed: names, in lower case.
        any_public: whether every host with public addresses is allowed too.
    """

    listed: frozenset[str]
    any_public: bool

    @classmethod
    def of(cls, domains: Sequence[str]) -> AllowedHosts:
        """Those of --allowed-media-domains."""
        names = frozenset(domain.lower() for domain in domains)
        return cls(names - {ANY_PUBLIC_HOST}, ANY_PUBLIC_HOST in names)

    def allow(self, host: str, port: int) -> bool:
        """Whether anything may be fetched from the host, if its addresses are allowed."""
        return host in self.listed or (self.any_public and port in _PUBLIC_PORTS)

    def allow_address(self, host: str, address: Address) -> bool:
        """Whether the host may have the address."""
        return not is_forbidden(address) if host in self.listed else self.any_public and is_public(address)
