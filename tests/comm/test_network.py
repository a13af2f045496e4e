"""Networks: what a message costs, and what is refused."""

from __future__ import annotations

import math

import pytest

from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import INSTANT, Interfaces, Network


def test_words_and_numbers() -> None:
    assert Network("100mbit", "50us").bytes_per_second(0) == Network(1e8).bytes_per_second(3) == 12.5e6
    assert Network("1gbit", "50us").delay == pytest.approx(5e-5)
    assert Network().delay == pytest.approx(1e-3)
    assert Network(latency=0.25).delay == Network(None, latency=0.25).delay == 0.25
    assert Network(None).delay == Network(math.inf).delay == 0.0
    network = Network("1gbit", "2ms", slow={2: "10mbit"}, ranks_per_host=4)
    assert network.bytes_per_second(2) == 1.25e6
    assert eval(repr(network)) == network


@pytest.mark.parametrize(("network", "instant"), [(INSTANT, True), (Network(None, "1ms"), False), (Network(), False)])
def test_a_network_without_costs_is_known(network: Network, instant: bool) -> None:
    assert Interfaces(network, 4).instant == instant


def test_a_message_costs_the_slower_of_its_two_hosts() -> None:
    """Host 0 has 8 bytes per second, host 1 has 2; the latency is 1 s. A message has 8 bytes."""
    for source, to in ((0, 1), (1, 0)):
        wires = Interfaces(Network(64.0, 1.0, slow={1: 16.0}), 2)
        reaches, left = wires.depart(source, to, 8, now=0.0)
        assert left == (1.0 if source == 0 else 4.0)
        assert reaches == (1.0 if source == 0 else 4.0)  # a fast receiver has nothing to do before the last second
        assert wires.land(to, 8, reaches) == 5.0


def test_a_ring_holds_its_interfaces() -> None:
    wires = Interfaces(Network(64.0, 1.0), 3)
    wires.depart(0, 1, 80, now=0.0)  # until 10
    done = wires.ring((0, 1), 8, now=2.0)
    assert done == 10.0 + 2 * (1.0 + 0.5)
    assert wires.depart(1, 2, 8, now=0.0).left == done + 1
    assert wires.depart(2, 0, 8, now=0.0).left == 1.0


def test_bursts_settle_when_the_last_of_another_host_has_come() -> None:
    """Rank 2 begins late and sends little; everybody waits for it, and rank 0 for its own interface as well."""
    wires = Interfaces(Network(8.0, 1.0), 3)
    bursts = [wires.burst(0, 40, 0.0), wires.burst(1, 2, 0.0), wires.burst(2, 2, 5.0)]
    assert bursts == [(0.0, 40.0), (0.0, 2.0), (5.0, 7.0)]
    assert wires.settle((0, 1, 2), bursts, [2, 21, 21]) == [40.0, 41.0, 41.0]


def test_a_burst_to_ranks_of_the_same_host_waits_for_nothing() -> None:
    wires = Interfaces(Network(8.0, 1.0, ranks_per_host=2), 4)
    wires.depart(0, 2, 80, now=0.0)
    bursts = [wires.burst(0, 0, 1.0), wires.burst(1, 0, 1.0)]
    assert wires.settle((0, 1), bursts, [0, 0]) == [0.0, 0.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: Network("fast"),
        lambda: Network(0.0),
        lambda: Network(latency="soon"),
        lambda: Network(latency=-1.0),
        lambda: Network(slow={0: -5.0}),
        lambda: Network(ranks_per_host=0),
        lambda: VirtualClock(4, Network(slow={2: 1e6}, ranks_per_host=2)),
    ],
)
def test_refusals(call: type) -> None:
    with pytest.raises(ValueError, match=r"write|there is no host 2 among 2"):
        call()
