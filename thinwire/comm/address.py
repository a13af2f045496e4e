"""Address: where other ranks can reach this one, found as gloo finds it; connections to a machine that is gone."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

GET_ADDRESS = 0x8915  # SIOCGIFADDR
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def own_address() -> tuple[socket.AddressFamily, str]:
    """The address of the interface that the environment names, or what the name of this host resolves to.

    OSError where there is none. A name server may take seconds.
    """
    for variable in VARIABLES:
        interface = os.environ.get(variable, "").split(",")[0].strip("= ")
        with suppress(OSError):  # NCCL's may be the beginning of a name or a list of others, and neither need be IPv4
            if interface:
                return socket.AF_INET, _of_interface(interface)
    family, _, _, _, place = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)[0]
    return family, str(place[0])


def _of_interface(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)[20:24])


def break_off(hosts: Container[str]) -> int:
    """End the TCP connections of this process to these addresses, and return how many there were.

    Whoever waits for such a connection is told that it has ended. gloo cannot be asked to stop waiting, and the
    kernel tries for a quarter of an hour to reach a machine that has lost its network.
    """
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it is no connection, or was closed meanwhile
            if not os.readlink(Path("/proc/self/fd", name)).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as line:
                if line.type != socket.SOCK_STREAM or line.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if line.getpeername()[0].removeprefix("::ffff:") in hosts:
                    line.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count
