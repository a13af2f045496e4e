"""Network: what it costs to send, and Interfaces: when the hosts of one run are free to.

Every host has one interface that sends and one that receives, each first come, first served. A message of m bytes
from host i to host j leaves when i's interface is free, and takes it m / rate_i. Its first byte is at j a latency
later; j's interface takes m / rate_j, when it is free, and is done no earlier than the last byte is there:

    idle network, equal rates:    latency + m / rate

What has left waits between the hosts without bound, so that a busy receiver never holds up a sender. Ranks of one
host talk to each other for free.

Hosts may stand in racks. What goes from rack to rack passes the uplink of the one and the downlink of the other,
which the hosts of a rack share, first come, first served: their rate is that of all hosts of the rack together,
divided by `oversubscription`. A ring visits the hosts rack by rack: one of its messages passes each uplink at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from thinwire.core.given import is_number, is_whole
from thinwire.core.rates import bits_per_second, seconds

LATENCY = "1ms"


@final
@dataclass(frozen=True)
class Network:
    """Hosts of one `rate` and `latency`, except those that are `slow`.

    Rates are words such as "100mbit" or numbers of bits per second, and None is infinitely fast; latencies are words
    such as "50us" or numbers of seconds, one way. Without one it is 1 ms, or 0 if the network is infinitely fast.

    >>> Network("100mbit", slow={3: "10mbit"}).bytes_per_second(3)
    1250000.0
    """

    rate: str | float | None = "1gbit"
    latency: str | float | None = None
    slow: Mapping[int, str | float] = field(default_factory=dict)  # rates of single hosts
    ranks_per_host: int = 1
    racks: int = 1  # hosts are dealt to them in order, evenly
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("racks", self.racks), ("ranks_per_host", self.ranks_per_host)):
            if not is_whole(value, 1):
                raise ValueError(f"Network({name}={value!r}): write 1 or more, a whole number")
        if not is_number(self.oversubscription) or self.oversubscription == 0:
            raise ValueError(
                f"Network(oversubscription={self.oversubscription!r}): write 4.0 for uplinks of a quarter of the "
                "rate that the hosts of a rack have together"
            )
        if not is_number(self.delay):
            raise ValueError(
                f'Network(latency={self.latency!r}): write latency="1ms", or seconds that are not negative'
            )
        if not isinstance(self.slow, Mapping) or not all(map(is_whole, self.slow)):
            raise ValueError(f'Network(slow={self.slow!r}): write slow={{3: "10mbit"}} for host 3')
        for rate in (self.rate, *self.slow.values()):
            if isinstance(rate, str):
                bits_per_second(rate)  # refuses other words
            elif not (rate is None or rate == math.inf or (is_number(rate) and rate > 0)):
                raise ValueError(f'Network(rate={rate!r}): write rate="1gbit", or bits > 0')

    @property
    def delay(self) -> float:
        """The latency in seconds."""
        latency = self.latency
        if latency is None:
            latency = 0.0 if self.rate in (None, math.inf) else LATENCY
        return seconds(latency) if isinstance(latency, str) else latency

    def bytes_per_second(self, host: int) -> float:
        """The rate of a host's interfaces."""
        rate = self.slow.get(host, self.rate)
        if rate is None:
            return math.inf
        return (bits_per_second(rate) if isinstance(rate, str) else rate) / 8


INSTANT = Network(rate=None)
"""A network on which nothing takes time."""


class Departure(NamedTuple):
    """When a message reaches its receiver's interface at the earliest, and when it has left its sender's."""

    reaches: float
    left: float


@final
class Interfaces:
    """The interfaces of the hosts of `size` ranks: until when each has something to do."""

    def __init__(self, network: Network, size: int) -> None:
        hosts = -(-size // network.ranks_per_host)
        if stray := [host for host in network.slow if not 0 <= host < hosts]:
            raise ValueError(f"Network(slow={dict(network.slow)!r}): there is no host {stray[0]} among {hosts}")
        self.latency = network.delay
        self.host = [rank // network.ranks_per_host for rank in range(size)]
        self._pace = [1 / network.bytes_per_second(host) for host in range(hosts)]  # seconds per byte
        self._sends = [0.0] * hosts  # until when the sending interface is busy
        self._receives = [0.0] * hosts
        if network.racks > hosts:
            raise ValueError(f"Network(racks={network.racks}): there are {hosts} hosts; write racks={hosts} or less")
        self.rack = [host * network.racks // hosts for host in range(hosts)]  # of each host
        self.racks = network.racks
        rates = [0.0] * network.racks
        for host, rack in enumerate(self.rack):
            rates[rack] += network.bytes_per_second(host)
        self._share = [network.oversubscription / rate for rate in rates]  # seconds per byte of a rack's links
        self._ups, self._downs = [0.0] * network.racks, [0.0] * network.racks  # until when they are busy
        self.instant = self.latency == 0 and not any(self._pace)  # then nobody need ask anything below

    def depart(self, source: int, to: int, nbytes: int, now: float) -> Departure:
        """A message between ranks of different hosts gets in line at its sender."""
        starts, left = self.burst(source, nbytes, now)
        arrived, own = left, self.rack[self.host[source]]
        if own != self.rack[self.host[to]]:
            self._ups[own] = max(starts, self._ups[own]) + nbytes * self._share[own]
            arrived = max(left, self._ups[own])
        return Departure(self.latency + max(starts, arrived - nbytes * self._pace[self.host[to]]), left)

    def land(self, to: int, nbytes: int, now: float, source: int | None = None) -> float:
        """A message has reached its receiver's interface and gets in line there; returns when it has arrived.

        From a source in another rack it passes the downlink of the receiver's.
        """
        j, through = self.host[to], 0.0
        here = self.rack[j]
        if source is not None and self.rack[self.host[source]] != here:
            through = self._downs[here] = max(now, self._downs[here]) + nbytes * self._share[here]
        done = self._receives[j] = max(max(now, self._receives[j]) + nbytes * self._pace[j], through)
        return done

    def ring(self, ranks: Sequence[int], nbytes: int, now: float) -> float:
        """When a ring, which visits the ranks host by host, has summed `nbytes`. All begin and end together."""
        n, hosts = len(ranks), {self.host[rank] for rank in ranks}
        if len(hosts) == 1:
            return now
        starts = max(now, *(max(self._sends[h], self._receives[h]) for h in hosts))
        pace, racks = max(self._pace[h] for h in hosts), {self.rack[h] for h in hosts} if self.racks > 1 else {0}
        if len(racks) > 1:
            starts = max(starts, *(max(self._ups[r], self._downs[r]) for r in racks))
            pace = max(pace, *(self._share[r] for r in racks))
            for r in racks:
                self._ups[r] = self._downs[r] = starts + 2 * (n - 1) * nbytes / n * self._share[r]
        done = starts + 2 * (n - 1) * (self.latency + nbytes / n * pace)
        for h in hosts:
            self._sends[h] = self._receives[h] = done
        return done

    def burst(self, source: int, nbytes: int, now: float, across: int = 0) -> tuple[float, float]:
        """A rank sends messages to several peers, `nbytes` in all, one after the other: (begins, has sent them).

        `across` of them go to other racks, and have left when the uplink has carried them.
        """
        i = self.host[source]
        starts = max(now, self._sends[i])
        left = self._sends[i] = starts + nbytes * self._pace[i]
        if across:
            r = self.rack[i]
            self._ups[r] = max(starts, self._ups[r]) + across * self._share[r]
            left = max(left, self._ups[r])
        return starts, left

    def settle(
        self,
        ranks: Sequence[int],
        bursts: Sequence[tuple[float, float]],
        nbytes: Sequence[int],
        across: Sequence[int] = (),
    ) -> list[float]:
        """When each rank has sent its burst and received its `nbytes` out of those of the others.

        `across` says, by rack, how many bytes come from other racks.

        Bursts are not followed message by message: a rank takes what comes as fast as it can from the first burst on,
        and is done no earlier than a latency after the last burst of another host has left. Where all ranks are on
        one host there is nothing to wait for, and the time is 0.
        """
        hosts = [self.host[rank] for rank in ranks]
        first = _best_elsewhere(hosts, [-starts for starts, _ in bursts])
        last = _best_elsewhere(hosts, [left for _, left in bursts])
        done = []
        for h, begins, ends, own, size in zip(hosts, first, last, bursts, nbytes, strict=True):
            if ends == -math.inf:  # nobody is on another host
                done.append(0.0)
                continue
            self._receives[h] = max(self.latency - begins, self._receives[h]) + size * self._pace[h]
            done.append(max(own[1], ends + self.latency, self._receives[h]))
        for r, size in enumerate(across):
            mine = [at for at, h in enumerate(hosts) if self.rack[h] == r]
            if size and mine:
                self._downs[r] = max(self.latency - max(first[at] for at in mine), self._downs[r])
                self._downs[r] += size * self._share[r]
                for at in mine:
                    done[at] = max(done[at], self._downs[r])
        return done


def _best_elsewhere(hosts: Sequence[int], values: Sequence[float]) -> list[float]:
    """For each rank, the largest value of a rank on another host; -inf where there is none."""
    best: dict[int, float] = {}
    for host, value in zip(hosts, values, strict=True):
        best[host] = max(value, best.get(host, -math.inf))
    top = max(best, key=best.__getitem__)
    second = max((value for host, value in best.items() if host != top), default=-math.inf)
    return [second if host == top else best[top] for host in hosts]
