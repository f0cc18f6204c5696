"""Which network interface the ranks of a process group speak over."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915
_VARIABLE = "GLOO_SOCKET_IFNAME"


def use_interface_of(address: str) -> None:
    """Has Gloo use the interface with this address of our own, unless the environment names one."""
    if _VARIABLE not in os.environ and (name := interface_of(address)):
        os.environ[_VARIABLE] = name


def interface_of(address: str) -> str:
    """The name of the interface that has an IPv4 address; empty where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
