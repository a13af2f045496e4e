"""The uplink of a host: a token bucket on its eth0, the bytes it let through, and what controls congestion on it.

The bucket holds what the rate carries in a millisecond, and at least 80 KiB: one packet before segmentation has up to
64 KiB, and with a smaller bucket the kernel cuts it first, which costs processor time. A queue of 50 ms stands before
it. Measured by one TCP stream between two hosts: 991 Mbit/s of a 1 Gbit/s link, 100.4 of 100 Mbit/s, headers of all
packets counted.

The bytes are the bucket's own count, which includes the headers of each packet of 1500 bytes. The interface counts
them once per 64 KiB at most, and its count is 4.3% lower.

What TCP makes of a full queue is a setting of the machine, and steps depend on it (docs/slow-links.md): the algorithm
is therefore set here, on the route between the hosts, which a namespace may do where it may not change its default.
"""

from __future__ import annotations

import contextlib
import json
from ipaddress import ip_interface
from pathlib import Path

from thinwire.core.rates import bits_per_second
from thinwire.lab.net.tools import call

DEVICE = "eth0"
BURST = 80 << 10  # bytes, at least
BURST_S = 1e-3
QUEUE = "50ms"
DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def shape(rate: str, namespace: str | None = None, device: str = DEVICE, queue: str = QUEUE) -> None:
    """Give an uplink another rate; `namespace` is this process's own unless given. The count goes on."""
    burst = max(BURST, round(BURST_S * bits_per_second(rate) / 8))
    words = ("rate", rate, "burst", str(burst), "latency", queue)
    call("tc", *_where(namespace), "qdisc", "replace", "dev", device, "root", "tbf", *words)


def transmitted(namespace: str | None = None) -> int:
    """Bytes that left through a shaped uplink since it was made."""
    shown = json.loads(call("tc", *_where(namespace), "-s", "-j", "qdisc", "show", "dev", DEVICE, "root"))
    return int(shown[0]["bytes"])


def control(algorithm: str, address: str, namespace: str) -> None:
    """Let TCP's `algorithm` control all connections of a host, whose `address` has the length of its network."""
    own = ip_interface(address)
    words = ("dev", DEVICE, "proto", "kernel", "scope", "link", "src", str(own.ip), "congctl", algorithm)
    with contextlib.suppress(OSError):  # this kernel does not have it: `congestion` says what there is
        call("ip", "-n", namespace, "route", "replace", str(own.network), *words)


def congestion(namespace: str | None = None) -> str:
    """The algorithm that controls the connections of a host: that of its route, or the kernel's default."""
    shown = call("ip", *_where(namespace), "-d", "route", "show", "dev", DEVICE).split()
    if "congctl" in shown:
        return shown[shown.index("congctl") + 1]
    return DEFAULT.read_text().strip()


def _where(namespace: str | None) -> tuple[str, ...]:
    return () if namespace is None else ("-n", namespace)
