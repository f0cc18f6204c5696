"""Chooses the network interface that the ranks of a process group use."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915
_VARIABLE = "GLOO_SOCKET_IFNAME"


def use_interface_of(address: str) -> None:
    """Makes Gloo use the interface that has this local address, unless the environment names one."""
    if _VARIABLE not in os.environ and (name := interface_of(address)):
        os.environ[_VARIABLE] = name


def interface_of(address: str) -> str:
    """The name of the interface that has an IPv4 address; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
