"""Network: N hosts, each with an address, a bridge between them, and a rate on every uplink."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import final

from thinwire.core.rates import bits_per_second, seconds
from thinwire.lab.net import reaper
from thinwire.lab.net.shaping import DEVICE, congestion, control, shape, transmitted
from thinwire.lab.net.tools import call, check

MOST = 250  # hosts in one /24
INBOUND = "1s"  # of packets may wait at a downlink: several senders at once are slowed down, and not made to resend
CONGESTION = "cubic"  # Linux's default, which a machine may have changed
DELAYED = "100000"  # packets that wait for their delay, before more are dropped


@final
class Network:
    """A context manager: the hosts exist inside the `with` block, numbered from 0.

    Every host sends at `rate` at most, and with `down` it receives no faster, either. With `latency` every packet
    arrives that much later; it needs a kernel with the netem queue, and is refused where there is none. Connections
    are controlled by TCP's `congestion` algorithm, cubic unless given, whatever the machine itself uses; where the
    kernel does not have it, they are controlled as the machine's own, and `controlled` says how.
    """

    def __init__(
        self, hosts: int, rate: str, latency: str | None = None, *, down: bool = False, congestion: str = CONGESTION
    ) -> None:
        if not 2 <= hosts <= MOST:
            raise ValueError(f"hosts={hosts}: a network has 2 to {MOST} hosts; write --hosts 4")
        if down and latency is not None:
            raise ValueError("a downlink has a rate or a delay; leave down=True or latency out")
        bits_per_second(rate)
        if latency is not None:
            seconds(latency)
        self.hosts, self.rate, self.latency, self.down, self.congestion = hosts, rate, latency, down, congestion
        self.lab = f"thinwire-{os.getpid()}-{reaper.started(os.getpid())}-{secrets.token_hex(3)}"
        self._guardian: subprocess.Popen[bytes] | None = None

    def namespace(self, host: int) -> str:
        """The name of a host's namespace, as `ip netns` shows it."""
        if not 0 <= host < self.hosts:
            raise ValueError(f"host {host} is not among {self.hosts}; they are numbered from 0")
        return f"{self.lab}-{host}"

    def address(self, host: int) -> str:
        """The address of a host, on its own eth0."""
        return f"10.77.0.{1 + host}"

    def set_rate(self, rate: str) -> None:
        """Give every uplink another rate; connections stay, and counts go on."""
        bits_per_second(rate)
        for host in range(self.hosts):
            shape(rate, self.namespace(host))
            if self.down:
                shape(rate, f"{self.lab}-bridge", f"port{host}", INBOUND)
        self.rate = rate

    def part(self, hosts: Iterable[int]) -> None:
        """Let these hosts reach each other alone, and the rest of them each other; no connection is told."""
        bridge, other = f"{self.lab}-bridge", "other"
        call("ip", "-n", bridge, "link", "add", other, "type", "bridge")
        call("ip", "-n", bridge, "link", "set", other, "up")
        for host in hosts:
            call("ip", "-n", bridge, "link", "set", f"port{host}", "master", other)

    def heal(self) -> None:
        """Undo `part`."""
        bridge = f"{self.lab}-bridge"
        for host in range(self.hosts):
            call("ip", "-n", bridge, "link", "set", f"port{host}", "master", "bridge")
        call("ip", "-n", bridge, "link", "delete", "other")

    @property
    def controlled(self) -> str:
        """The algorithm that controls the hosts' connections."""
        return congestion(self.namespace(0))

    def tx_bytes(self, host: int) -> int:
        """Bytes that a host has put on its wire, including headers."""
        return transmitted(self.namespace(host))

    def __enter__(self) -> Network:
        check()
        reaper.sweep()
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, self.lab],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal from the terminal to everybody does not stop it
        )
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything; a second call does nothing."""
        guardian, self._guardian = self._guardian, None
        if guardian is None:
            return
        reaper.remove(self.lab)
        guardian.communicate()  # by now it has nothing to do

    def _build(self) -> None:
        bridge = f"{self.lab}-bridge"
        call("ip", "netns", "add", bridge)
        call("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", bridge, "link", "set", "bridge", "up")
        for host in range(self.hosts):
            own, port = self.namespace(host), f"port{host}"
            call("ip", "netns", "add", own)
            call("ip", "-n", bridge, "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", own)
            call("ip", "-n", bridge, "link", "set", port, "master", "bridge", "up")
            call("ip", "-n", own, "address", "add", f"{self.address(host)}/24", "dev", DEVICE)
            call("ip", "-n", own, "link", "set", DEVICE, "up")
            call("ip", "-n", own, "link", "set", "lo", "up")
            control(self.congestion, f"{self.address(host)}/24", own)
            shape(self.rate, own)
            if self.down:
                shape(self.rate, bridge, port, INBOUND)
            if self.latency is not None:
                self._delay(bridge, port, self.latency)

    def _delay(self, bridge: str, port: str, latency: str) -> None:
        """Delay packets on the way from the bridge to a host, where nothing is shaped."""
        words = ("root", "netem", "delay", latency, "limit", DELAYED)
        try:
            call("tc", "-n", bridge, "qdisc", "add", "dev", port, *words)
        except OSError as error:
            raise ValueError(
                f"this kernel has no netem queue, which delays packets ({error}); leave --latency out"
            ) from error
