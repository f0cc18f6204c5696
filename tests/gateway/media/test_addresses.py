"""Which addresses images may be fetched from."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from gateway.media.addresses import AllowedHosts, is_forbidden, is_public

PUBLIC = (
    "8.8.8.8", "93.184.216.34", "192.0.1.1", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "::ffff:8.8.8.8",
    "64:ff9b::808:808", "2002:808:808::1",
)  # fmt: skip
PRIVATE = (
    "127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "198.18.0.1",
    "192.0.0.8", "192.0.2.1", "240.0.0.1", "::1", "fd00::1", "fec0::1", "2001:db8::1", "2001::1", "3fff::1", "100::1",
    "::7f00:1", "64:ff9b:1::a00:1", "4000::1", "5f00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a00:1", "2002:7f00:1::", "2002:a00:1::",
)  # fmt: skip
FORBIDDEN = (
    "0.0.0.0", "0.1.2.3", "255.255.255.255", "169.254.169.254", "169.254.0.1", "224.0.0.1", "239.255.255.250",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "::", "fe80::1", "fe80::1%eth0", "febf::1", "ff02::1",
    "ff0e::1", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::", "::ffff:224.0.0.1",
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))
    assert not is_forbidden(ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_for_listed_hosts(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not is_forbidden(ip_address(address))
    hosts = AllowedHosts.of(("*", "Listed.example"))
    assert hosts.allow_address("listed.example", ip_address(address))
    assert not hosts.allow_address("other.example", ip_address(address))


@pytest.mark.parametrize("address", FORBIDDEN)
def test_forbidden_addresses_are_for_no_host(address: str) -> None:
    assert is_forbidden(ip_address(address))
    assert not is_public(ip_address(address))
    hosts = AllowedHosts.of(("*", "listed.example"))
    assert not hosts.allow_address("listed.example", ip_address(address))
    assert not hosts.allow_address("other.example", ip_address(address))


def test_hosts_and_ports() -> None:
    listed, public = AllowedHosts.of(("Listed.example",)), AllowedHosts.of(("*", "listed.example"))
    for hosts in (listed, public):
        assert hosts.allow("listed.example", 9000)
        assert not hosts.allow("other.example", 9000)
    for port in (80, 443):
        assert not listed.allow("other.example", port)
        assert public.allow("other.example", port)
    assert not listed.allow_address("other.example", ip_address("8.8.8.8"))
    assert not listed.allow("sub.listed.example", 443)
    assert not listed.allow("*", 443)
