"""The eta that is chosen where none is given: what it is derived from, that it is stable, and near the best."""

from __future__ import annotations

import math

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from battery import INSTANCES
from lockstep import Quadratics
from swarms import apart, drift, normal, together

from thinwire import Channel, Context, Key, Layout
from thinwire.comm import Comm, run
from thinwire.compressors import (
    AtomoEntries,
    AtomoFourier,
    AtomoSpectral,
    BlockTopK,
    Centred,
    CentredK,
    DeadZone,
    DgcTopK,
    Identity,
    IntBlock,
    OneBit,
    Qsgd,
    Quantile8,
    QuantisedTopK,
    RandomK,
    SampledTopK,
    Sbc,
    ScaledSign,
    Shrunk,
    SparseLoco,
    SparsePrecision,
    Strom,
    TopK,
    Wangni,
)
from thinwire.core.compressor import Compressor
from thinwire.core.errors import PayloadError
from thinwire.exchange import Mix
from thinwire.exchange.eta import APART, HELD, LONG, USUAL, lag_eta, left_out, pace, stable_eta
from thinwire.exchange.loop import edge, held, scatter
from thinwire.memory import Difference, ErrorFeedback, Memory
from thinwire.methods import choco_sgd, deepsqueeze
from thinwire.methods._parts import contraction
from thinwire.topology import Complete, Exponential, Matching, Ring, Star, Topology, Torus, gap

CONTRACTIONS: list[Compressor] = [
    ScaledSign(),
    OneBit(),
    TopK(ratio=0.1),
    TopK(ratio=0.01),
    contraction("qsgd:bits=2"),
    contraction("qsgd:bits=4"),
    contraction("qsgd:bits=8"),
    IntBlock(bits=4, block=32),
]
GRAPHS: list[tuple[Topology, int]] = [(Ring(), 8), (Torus(), 16), (Complete(), 8), (Exponential(), 8)]
PAIRED = [
    pytest.param(
        c, *GRAPHS[(number + half) % 4], marks=[pytest.mark.long] * (half > 0), id=f"{c.id}, {(number + half) % 4}"
    )
    for number, c in enumerate(CONTRACTIONS)
    for half in (0, 2)
]
"""Every contraction on a graph, every graph with two contractions; with `--long` twice as many."""


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.8])
def test_an_element_sent_with_probability_p_scatters_by_two_over_p_less_two(p: float) -> None:
    """It waits t rounds with probability p (1 - p)^(t-1) and then brings t x: E m^2 = p E t^2 = (2 - p) / p."""
    c = RandomK(ratio=p, scaled=False)
    assert scatter(c) == pytest.approx(2 * (1 - p) / p, rel=0.1)
    assert 0.7 < edge(c) / (2 / (1 + scatter(c))) < 1.3


@pytest.mark.parametrize(
    "c", [TopK(ratio=0.2), TopK(ratio=0.1), *(contraction(f"qsgd:bits={b}") for b in (2, 3))], ids=str
)
def test_the_edge_of_sparsifiers_and_quantisers_is_that_of_independent_noise(c: Compressor) -> None:
    assert 0.7 < edge(c) / (2 / (1 + scatter(c))) < 1.3


def test_signs_stand_more_than_what_they_scatter_around_a_constant() -> None:
    assert edge(ScaledSign()) > 2 * 2 / (1 + scatter(ScaledSign()))


@pytest.mark.parametrize(
    ("topology", "n", "away"),
    [(Ring(), 8, 2 / 3), (Torus(), 16, 0.8), (Complete(), 8, 7 / 8), (Star(), 8, 7 / 8)],
    ids=str,
)
@pytest.mark.parametrize("c", [TopK(ratio=0.1), contraction("qsgd:bits=2"), ScaledSign()], ids=lambda c: c.id)
def test_the_stable_eta_is_the_edge_over_what_a_rank_gives_away(
    c: Compressor, topology: Topology, n: int, away: float
) -> None:
    assert stable_eta(c, topology, n) == pytest.approx(min(1, edge(c) / away))


def test_the_pace_of_deepsqueeze() -> None:
    """|I - W|_F^2 / n of a ring is 4/9 + 2/9."""
    c = TopK(ratio=0.1)
    how, noise = pace(c, Ring(), 8), math.sqrt(scatter(c) * 2 / 3)
    assert how.at(0) == how.at(LONG) == pytest.approx(APART / noise)
    assert how.at(1.5 * LONG) == pytest.approx(1.5 * APART / noise)
    assert how.at(1) == pytest.approx(stable_eta(c, Ring(), 8))
    assert how.at(0, scatter(c) / 2) == how.at(0)  # less than a Gaussian: that counts
    assert how.at(0, 4 * scatter(c)) == pytest.approx(how.at(0) / 2)
    much = 100.0  # held back, and more than a Gaussian
    assert how.at(0, held=much) == pytest.approx(HELD * how.tolerance / (much * math.sqrt(2 / 3)))
    assert how.at(3 * LONG, held=much) == pytest.approx(3 * how.at(0, held=much))


def test_signs_may_hold_back_more() -> None:
    """What they hold back is much the same on all ranks; their loop stands more than independent noise."""
    assert pace(ScaledSign(), Ring(), 8).tolerance > 2
    assert pace(TopK(ratio=0.1), Ring(), 8).tolerance < 1.3


def test_differences_stand_more_where_much_is_lost() -> None:
    few = TopK(ratio=0.01)
    assert lag_eta(few, Ring(), 8) > 2 * stable_eta(few, Ring(), 8)
    for c in CONTRACTIONS:
        assert lag_eta(c, Ring(), 8) >= stable_eta(c, Ring(), 8)


def test_what_is_held_back_is_what_was_not_sent() -> None:
    """Of an element that is sent with probability p, (1 - p) / p times its value on average, in the long run."""
    assert held(Identity()) < 1e-4
    assert held(RandomK(ratio=0.5, scaled=False)) == pytest.approx(math.sqrt(3), rel=0.1)  # E k^2 of (1/2)^(k+1)


def test_where_nothing_is_left_out_it_is_one() -> None:
    for make in (choco_sgd, deepsqueeze):
        assert make("identity").exchange.step(8) == 1  # type: ignore[attr-defined]
        assert make("topk:ratio=0.1").exchange.step(1) == 1  # type: ignore[attr-defined]  # nobody to overshoot
    assert pace(Identity(), Ring(), 8).at(0) == 1


@pytest.mark.parametrize("ratio", [0.0, 0.01, 1.0])
def test_it_grows_with_delta(ratio: float) -> None:
    etas = [pace(TopK(ratio=r), Ring(), 8).at(ratio) for r in (0.01, 0.05, 0.1, 0.3, 0.6, 0.9)]
    assert etas == sorted(etas)
    assert etas[0] < 0.2 * etas[-1]
    bits = [pace(contraction(f"qsgd:bits={b}"), Ring(), 8).at(ratio) for b in (2, 3, 4, 5, 8)]
    assert bits == sorted(bits)
    assert bits[0] < bits[-1]


@pytest.mark.filterwarnings("ignore:.*lets errors grow")
def test_compressors_that_lose_more_than_they_send_are_refused() -> None:
    one = Qsgd(levels=1, norm="l2", block=64)
    with pytest.raises(ValueError, match=r"no eta is stable; write Shrunk\(Qsgd\(bits=None, levels=1, norm='l2'"):
        stable_eta(one, Ring(), 8)
    with pytest.raises(ValueError, match=r"loses more of a model than it sends \(5\.\d+ of"):
        Mix(Channel(one, Difference())).step(8)
    assert 0 < Mix(Channel(Shrunk(one), Difference())).step(8) < 0.5
    assert Mix(Channel(one, Difference()), eta=0.5).step(8) == 0.5  # who insists gets it


def test_methods_divide_what_loses_much_and_choose_eta() -> None:
    for make in (choco_sgd, deepsqueeze):
        mix = make(compressor="qsgd:bits=2").exchange
        assert isinstance(mix, Mix)
        assert mix.channel.compressor == Shrunk(Qsgd(bits=2))
        mild = make(compressor="qsgd:bits=4").exchange
        assert mild.channels[0].compressor == Qsgd(bits=4)
    assert choco_sgd("qsgd:bits=2").exchange.step(8) == lag_eta(Shrunk(Qsgd(bits=2)), Ring(), 8)  # type: ignore[attr-defined]
    assert deepsqueeze("qsgd:bits=2").exchange.step(8) == pace(Shrunk(Qsgd(bits=2)), Ring(), 8).at(USUAL)  # type: ignore[attr-defined]


def test_it_follows_the_smaller_step_of_both_ends() -> None:
    """Ranks 0 and 1 step by a twentieth of their length, the others do not: only their edge has the eta of that."""
    c, x = TopK(ratio=0.1), normal(500)
    updates = torch.zeros(4, 500, dtype=torch.float64)
    updates[:2] = x / 19  # a twentieth of the length after it
    free = together(Mix(Channel(c, ErrorFeedback())), 4, x)
    free.step(updates)
    how, w = pace(c, Ring(), 4), Ring().matrix(4)
    eta, other = how.at(0.05), how.at(0.0)
    assert other < eta < how.at(1)
    m = [c.decode(c.encode((x + u).float(), free.layout, Key()), free.layout).double() for u in updates]
    for i in range(4):
        pull = sum(w[i, j] * (eta if max(i, j) < 2 else other) * (m[j] - m[i]) for j in range(4) if j != i)
        torch.testing.assert_close(free.models[i], x + updates[i] + pull, rtol=1e-6, atol=1e-9)


def test_it_follows_what_messages_scatter() -> None:
    """With one large weight a quantiser of 2 bits scatters far more than of a Gaussian; ranks stay as near."""
    x = normal(512)
    x[0] = 20
    swarm, far = together(Mix(Channel(contraction("qsgd:bits=2"), ErrorFeedback())), 4, x), []
    for _ in range(30):
        swarm.step(torch.zeros(4, 512))
        far.append(swarm.distance / float(x.norm()))
    assert sum(far[15:]) / 15 < 1.5 * APART


@pytest.mark.parametrize("topology", [Ring(), Torus(), Matching(), Star()], ids=lambda t: t.id)
def test_the_mean_is_kept_while_eta_follows(topology: Topology) -> None:
    """Ranks that step by different lengths choose the same eta at both ends of an edge."""
    swarm = apart(Mix(Channel(ScaledSign(), ErrorFeedback()), topology), normal(8, 40))
    for step in range(5):
        updates = normal(8, 40, seed=step) * torch.logspace(-4, 1, 8).double()[:, None]
        due = swarm.mean + updates.mean(0)
        swarm.step(updates)
        assert float((swarm.mean - due).abs().max()) < 1e-12


def test_where_both_ends_cannot_know_it_does_not_follow() -> None:
    """And nothing but the payload is sent."""
    c = TopK(ratio=0.1)
    free = Mix(Channel(c, ErrorFeedback()))
    for mix in (
        Mix(Channel(c, ErrorFeedback()), Exponential()),
        Mix(Channel(c, ErrorFeedback()), early=True),
        Mix(Channel(c, ErrorFeedback()), eta=0.1),
        Mix(Channel(c, Difference())),
        Mix(),
    ):
        swarm = apart(mix, normal(8, 500))
        assert not mix.follows
        assert drift(swarm, 3) < 1e-12
        assert free.follows
        sent = mix.channel.nbytes(swarm.layout)
        assert swarm.bytes <= swarm.messages * sent


@pytest.mark.parametrize("eta", [-0.1, 1.5, math.nan, math.inf])
def test_a_damaged_eta_is_refused(eta: float) -> None:
    mix, layout = Mix(Channel(TopK(ratio=0.1), ErrorFeedback())), Layout.flat(100)

    async def program(comm: Comm) -> None:
        if comm.rank == 1:
            payload = mix.channel.send(
                torch.ones(100), {"residual": torch.zeros(100)}, Context(comm, layout, Key(rank=1))
            )
            assert payload is not None
            tail = torch.tensor([eta]).view(torch.uint8)
            await comm.swap(torch.cat((payload.data, tail)), (0,), sources=(0,), equal=mix.channel.predictable)
        else:
            await mix(torch.ones(100), mix.init(layout, comm), Context(comm, layout, Key()))

    with pytest.raises(PayloadError, match="rank 1 says that its eta is"):
        run(program, 2)


def contracts(c: Compressor, memory: Memory, topology: Topology, n: int, steps: int) -> tuple[list[float], float]:
    """By how much each step of gossip brings ranks together, and by how much all would uncompressed, same eta."""
    mix = Mix(Channel(c, memory), topology)
    models = normal(n, 512)
    swarm = apart(mix, models - models.mean(0))
    before, still, seen = swarm.distance, torch.zeros(n, 512), []
    for _ in range(steps):
        swarm.step(still)
        seen.append(swarm.distance / before)
    return seen, (1 - mix.step(n, 0.0) * gap(topology, n)) ** steps


@pytest.mark.parametrize(("c", "topology", "n"), PAIRED)
def test_gossip_contracts(c: Compressor, topology: Topology, n: int) -> None:
    """Without gradients, from models around zero: at an eighth of the uncompressed rate or better, down to 0.5.

    DeepSqueeze is tested on all graphs, CHOCO-SGD where W is symmetric, as it must be.
    """
    memories: list[Memory] = [ErrorFeedback()] if topology.directed else [ErrorFeedback(), Difference()]
    for memory in memories:
        seen, plain = contracts(c, memory, topology, n, 12)
        assert seen[-1] < max(0.5, plain**0.12), (memory, seen, plain)


@pytest.mark.parametrize("c", [ScaledSign(), OneBit(), TopK(ratio=0.1)], ids=lambda c: c.id)
def test_gossip_goes_on_contracting(c: Compressor) -> None:
    """Measured after 12 and 40 steps: 0.16 and 0.007 with signs, 0.32 and 0.037 with top 10%."""
    seen, _ = contracts(c, Difference(), Ring(), 8, 40)
    assert seen[39] < 0.2 * seen[11]


def chosen() -> list[Compressor]:
    """One of each class in the battery that keeps the scale of what it is given, as a contraction."""
    firsts = {type(c): c for c in reversed(INSTANCES) if c.keeps_scale}
    firsts[Strom] = Strom(tau=1.0)  # an absolute size: that of what is sent here
    made = [contraction(c) for c in firsts.values()]
    return [c for c in made if left_out(c) < 1]


WAYS = ((ErrorFeedback(), Complete(), 3), (Difference(), Ring(), 4))
SLOW = (
    *(AtomoEntries, AtomoFourier, AtomoSpectral, BlockTopK, Centred, CentredK, DeadZone, DgcTopK, Quantile8),
    *(QuantisedTopK, SampledTopK, Sbc, SparseLoco, SparsePrecision, Wangni),
)
"""They take up to seconds, and are much like TopK, DctTopK, LowRank, RandomK and the quantisers."""


def case(c: Compressor, number: int) -> ParameterSet:
    slow = isinstance(c.compressor if isinstance(c, Shrunk) else c, SLOW)
    return pytest.param(c, number, marks=[pytest.mark.long] * slow, id=c.id)


@pytest.mark.parametrize(("c", "number"), [case(c, number) for number, c in enumerate(chosen())])
def test_nothing_diverges(c: Compressor, number: int, long: bool) -> None:
    """Ranks that take short steps of their own, from models far from zero: they stay within reach of each other.

    Compressors take turns with the two memories; with --long each meets both.
    """
    for memory, topology, n in WAYS if long else WAYS[number % 2 :][:1]:
        swarm, far = together(Mix(Channel(c, memory), topology), n, normal(256)), []
        for step in range(18):
            swarm.step(0.01 * normal(n, 256, seed=step))
            far.append(swarm.distance)
        assert sum(far[11:]) < max(1.5 * sum(far[4:11]), 7 * 256**0.5), (memory, far[::5])


QUADRATICS = Quadratics(n=9, d=64)


def error(mix: Mix, lr: float = 0.1, steps: int = 25) -> float:
    """How far the mean model is from the optimum of heterogeneous quadratics, at the end of a short run."""
    swarm = together(mix, 9, torch.zeros(64))
    for _ in range(steps):
        grads = torch.einsum("nij,nj->ni", QUADRATICS.a, swarm.models.double() - QUADRATICS.c)
        swarm.step((-lr * grads).float())
    return float((swarm.mean - QUADRATICS.optimum).norm())


@pytest.mark.parametrize(
    ("c", "memory"),
    [("topk:ratio=0.2", ErrorFeedback()), ("qsgd:bits=3", ErrorFeedback()), ("scaled-sign", Difference())],
    ids=str,
)
def test_it_ends_near_the_best_of_a_grid(c: str, memory: Memory) -> None:
    """Within 1.5 times, on quadratics that differ from rank to rank, torus of 9; `bench eta` has the whole grid."""
    channel = Channel(contraction(c), memory)
    own, *grid = (error(Mix(channel, Torus(), eta)) for eta in (None, 0.5, 0.8))
    assert own < 1.5 * min(grid), (own, grid)
