"""Shapes alone beside the same rounds with numbers, and rounds of all ranks at once beside the clock."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.engine.plan import plan_of
from thinwire.sim import Constant, Costs, Forecast, Load, LogNormal, Pass, Problem, Ready, binds, foresee, simulate
from thinwire.sim.models import MODELS, Weight

SECONDS = 0.1
SLOW = Constant({1: 1.7})
LINK = tw.Network("100mbit", "1ms")
SMALL = tw.Overlap(bucket_mb=0.03, chunk_mb=0.015, in_flight=3)  # several buckets, and several chunks in one
TOTALS = {
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}
EXACT = [
    "sgd",
    "qsgd",
    "powersgd",
    "terngrad",
    "sketched-sgd",
    "gtopk:indices=packed",
    "demo",
    "pipe-sgd",
    "adacomm:every=2",
    "diloco:every=2",
    "streaming-diloco:every=4,fragments=2,delay=1",
    "d-psgd",
    "deepsqueeze",
    "sgp",
]
"""Methods whose payloads have a size that is known, by the ways in which they differ: exchange, schedule, memory."""


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(40, 120), nn.ReLU(), nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 150))


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(1000 * rank + step))
    out: Tensor = model(x).square().mean()
    return out


def load_of(method: tw.Method) -> Load:
    """The times that a worker with numbers takes: gradients in the order of the plan, by their size."""
    shapes = [(name, tuple(p.shape)) for name, p in net().named_parameters()]
    load = Load(tuple(Ready(name, shape, 0.0) for name, shape in shapes), SECONDS)
    items = [item for parcel in plan_of(method, load.items, 500, ()).parcels for item in parcel.items]
    at, ready, total = SECONDS / 3, {}, sum(item.numel for item in items)
    for item in items:
        at += SECONDS * 2 / 3 * item.numel / total
        ready[item.name] = min(at, SECONDS)
    return Load(tuple(Ready(name, shape, ready[name]) for name, shape in shapes), SECONDS)


@pytest.mark.parametrize("name", EXACT)
def test_shapes_alone_end_when_numbers_do(name: str) -> None:
    """Every step of every worker to 1e-9, and every byte."""
    method = replace(tw.method(name), overlap=SMALL)
    n, steps = 5 if "gtopk" not in name else 4, 4
    seen = foresee(method, load_of(method), n, steps=steps, network=LINK, stragglers=SLOW, min_size=500)
    done = simulate(
        method, Problem(net, loss, seconds=SECONDS), n, steps=steps, network=LINK, stragglers=SLOW, min_size=500
    )
    for moment in done.moments:
        assert seen.ends[moment.step][moment.rank] == pytest.approx(moment.seconds, rel=0, abs=1e-9)
    assert len(done.moments) == n * steps
    assert seen.bytes_sent == done.bytes_sent > 0


def same(a: Forecast, b: Forecast) -> None:
    """Every end of a step to 1e-9; bytes, messages and words."""
    assert a.stopped == b.stopped
    assert len(a.ends) == len(b.ends)
    for some, others in zip(a.ends, b.ends, strict=True):
        assert some == pytest.approx(others, rel=0, abs=1e-9, nan_ok=True)
    assert (a.bytes_sent, a.messages) == (b.bytes_sent, b.messages)
    assert a.coded == pytest.approx(b.coded, rel=1e-12)


@pytest.mark.parametrize("name", ["sgd", "qsgd", "topk", "adacomm:every=1"])
@pytest.mark.parametrize(("scatter", "racks"), [(None, 1), (LogNormal(0.5), 1), (LogNormal(0.5), 3)])
def test_all_at_once_is_the_clock(name: str, scatter: LogNormal | None, racks: int) -> None:
    """Collectives of all ranks by arrays, beside every request as an event."""
    method = replace(tw.method(name), overlap=tw.Overlap(bucket_mb=4, chunk_mb=1.5, in_flight=3))
    run = partial(
        foresee,
        method,
        Load.of("resnet50", 0.3),
        7,
        steps=2,
        network=tw.Network("1gbit", "50us", slow={2: "500mbit"}, racks=racks, oversubscription=4.0),
        costs=Costs(Pass(1e-9, 2e-9, 1e-4)),
        stragglers=scatter,
    )
    same(run(by_message=False), run(by_message=True))


DIED = {7: 0.1, 0: 0.0, 4: 0.301}
RING, TORUS = "d-psgd", "d-psgd:topology=torus,early=false,every=3"


@pytest.mark.parametrize(
    ("name", "racks", "failures"),
    [
        *((name, racks, {}) for name in (RING, TORUS, "deepsqueeze", "sgp") for racks in (1, 3)),
        *((f"d-psgd:topology={graph}", 1, {}) for graph in ("exponential", "one-peer", "matching", "complete")),
        *((name, 1, DIED) for name in (RING, TORUS, "deepsqueeze", "d-psgd:topology=matching")),
        (RING, 3, DIED),
    ],
)
def test_neighbours_are_the_clock(name: str, racks: int, failures: dict[int, float]) -> None:
    """Messages by calls, beside every request as an event; in the 50th round ranks measure how far apart they are."""
    method = replace(tw.method(name), overlap=tw.Overlap(bucket_mb=0.3, chunk_mb=0.2, in_flight=3))
    weights = [Weight(f"layer{number}.weight", (300, 300), 1.0 + number) for number in range(3)]
    run = partial(
        foresee,
        method,
        Load.of(weights, 0.01),
        8,
        steps=52 if "every" not in name else 152,
        network=tw.Network("1gbit", "50us", slow={2: "500mbit"}, racks=racks, oversubscription=4.0),
        costs=Costs(Pass(1e-9, 2e-9, 1e-4)),
        stragglers=LogNormal(0.5),
        failures=failures,
        drop_dead=bool(failures),
    )
    quick = run(by_message=False)
    assert not quick.stopped
    same(quick, run(by_message=True))


@pytest.mark.parametrize("racks", [1, 2])
def test_equal_steps_are_counted_on_without_being_computed(racks: int) -> None:
    """Twelve steps of workers that never change, beside twelve on the clock."""
    network = tw.Network("1gbit", "1ms", racks=racks, oversubscription=4.0)
    run = partial(foresee, tw.methods.int8(), "resnet50", 4, steps=12, network=network)
    same(run(by_message=False), run(by_message=True))


@pytest.mark.parametrize("name", TOTALS)
def test_named_models_have_as_many_parameters_as_their_papers_nets(name: str) -> None:
    weights = MODELS[name]()
    assert sum(weight.numel for weight in weights) == TOTALS[name]
    assert len({weight.name for weight in weights}) == len(weights)


def test_4096_workers() -> None:
    """A ring's latencies alone: one bucket, no computing worth mentioning."""
    load = Load((Ready("w", (1024, 1024), 0.0),), 1e-6)
    done = foresee(tw.methods.sgd(), load, 4096, steps=2, network=tw.Network("10gbit", "1us"))
    ring = 2 * 4095 * (1e-6 + 4 * 2**20 / 4096 * 8 / 10e9)
    agreement = 2 * 4095 * (1e-6 + 18 / 4096 * 8 / 10e9)
    assert done.step == pytest.approx(ring + agreement, abs=1e-9)
    assert done.messages == 2 * 2 * 2 * 4095 * 4096


def test_the_processor_makes_one_pass_at_a_time() -> None:
    """Two buckets that are ready at once are encoded one after the other, or both at once where it can."""
    load = Load((Ready("a", (1 << 20,), 0.0), Ready("b", (1 << 20,), 0.0)), 0.0)
    method = replace(tw.methods.signsgd(), overlap=tw.Overlap(bucket_mb=4, chunk_mb=4))
    for at_once, passes in ((1, 2 * (1 + 1)), (2, 1 + 1)):
        costs = Costs(Pass(encode=1e-6, decode=1e-6), at_once=at_once)
        done = foresee(method, load, 1, steps=1, network=tw.Network(None), costs=costs)
        assert done.step == pytest.approx(passes * (1 << 20) * 1e-6)


def test_what_binds() -> None:
    load = Load.of("resnet50", 0.3)
    for network, costs, expected in (
        (tw.Network("100mbit", "10us"), Costs(), "link"),
        (tw.Network("100gbit", "100ms"), Costs(), "latency"),
        (tw.Network("100gbit", "1us"), Costs(Pass(1e-7, 1e-7)), "processor"),
        (tw.Network("100gbit", "1us"), Costs(), "computing"),
    ):
        saved = binds(tw.methods.qsgd(), load, 4, network=network, costs=costs, steps=3)
        assert max(saved, key=saved.__getitem__) == expected


def test_bits_of_open_sizes_may_be_given() -> None:
    """Half the bits, about half the bytes; what they rest on is said."""
    encoder = tw.methods.ecq_sgd().exchange.channels[0].encoder.id
    measured = foresee(tw.methods.ecq_sgd(), "resnet50", 4, steps=1)
    given = foresee(tw.methods.ecq_sgd(), "resnet50", 4, steps=1, costs=Costs(bits={encoder: 0.4}))
    assert given.bits == {encoder: 0.4}
    assert measured.bits[encoder] > 0.5
    assert given.bytes_sent < measured.bytes_sent


def test_what_shapes_do_not_say_is_refused() -> None:
    for name in ("ssp", "ad-psgd", "edge-admm", "oktopk"):
        with pytest.raises(ValueError, match="--task digits"):
            foresee(tw.method(name), "resnet50", 4)
    with pytest.raises(ValueError, match="unknown model 'resnet51'; did you mean 'resnet50'"):
        foresee(tw.methods.sgd(), "resnet51", 4)


def test_a_death_ends_training_unless_neighbours_drop_it() -> None:
    run = partial(foresee, load=Load.of("resnet50", 0.3), workers=6, steps=4, failures={2: 0.7})
    fast = tw.Network("100gbit", "10us")
    stopped = run(tw.methods.qsgd(), network=fast)
    assert len(stopped.ends) == 2
    assert stopped.stopped.startswith("rank 2 died at 0.7 s; rank 0 waits in all_reduce")
    assert "rank 2 died" in run(tw.methods.deepsqueeze(), network=fast).stopped
    went_on = run(tw.methods.deepsqueeze(), network=fast, drop_dead=True)
    assert (went_on.stopped, len(went_on.ends)) == ("", 4)
    assert went_on.ends[-1][2] != went_on.ends[-1][2]  # NaN
    with pytest.raises(ValueError, match="drop_dead is for methods that gossip"):
        run(tw.methods.qsgd(), network=fast, drop_dead=True)


@pytest.mark.parametrize("name", ["sgd", "qsgd", "topk", "adacomm:every=1", "diloco:every=2"])
@pytest.mark.parametrize("failures", [{2: 0.7}, {4: 1.0, 0: 1.3}, {1: 0.0}, {3: 1e9}])
def test_a_death_among_all_at_once_is_that_on_the_clock(name: str, failures: dict[int, float]) -> None:
    """Early or late, in the midst of computing or of a round: the same steps, bytes and words."""
    run = partial(
        foresee,
        replace(tw.method(name), overlap=tw.Overlap(bucket_mb=8, chunk_mb=8, in_flight=3)),
        Load.of("resnet50", 0.3),
        6,
        steps=4,
        network=tw.Network("10gbit", "50us", racks=2),
        costs=Costs(Pass(1e-9, 2e-9)),
        stragglers=LogNormal(0.5),
        failures=failures,
    )
    same(run(by_message=False), run(by_message=True))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"workers": 2.5}, r"foresee\(workers=2\.5\) is no whole number; write workers=8"),
        ({"steps": "3"}, r"foresee\(steps='3'\) is no whole number; write steps=10"),
        ({"load": None}, "NoneType is neither a name nor a list of weights; write"),
        ({"network": "1gbit"}, r'write network=tw\.Network\("1gbit", "1ms"\)'),
        ({"costs": Pass(1e-9)}, r"write costs=Costs\(Pass\("),
        ({"stragglers": {1: 2.0}}, r"write stragglers=tw\.sim\.Constant\(\{3: 2\.0\}\)"),
        ({"failures": [1]}, r"write failures=\{3: 2\.0\}"),
        ({"failures": {1: "2s"}}, r"write failures=\{3: 2\.0\}"),
    ],
)
def test_arguments_of_other_types_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    usual: dict[str, Any] = {"load": "resnet50", "workers": 2, **arguments}
    with pytest.raises(TypeError, match=sentence):
        foresee(tw.methods.sgd(), **usual)


def test_a_list_of_weights_is_a_load() -> None:
    weights = [Weight("fc.weight", (100, 100), 1.0)]
    found = foresee(tw.methods.sgd(), weights, 2, steps=2)
    assert found.ends == foresee(tw.methods.sgd(), Load.of(weights), 2, steps=2).ends


def test_nobody_is_left() -> None:
    found = foresee(tw.methods.sgd(), "resnet50", 2, failures={0: 0.1, 1: 0.1})
    assert (found.ends, found.stopped) == ((), "all ranks have died")


def test_problems_that_are_none_are_refused() -> None:
    net = nn.Linear(4, 1)

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        mean: Tensor = model(torch.ones(2, 4)).mean()
        return mean

    with pytest.raises(TypeError, match=r"write a function that makes one, Problem\(lambda: copy\.deepcopy\(model\)"):
        Problem(net, loss)
    with pytest.raises(ValueError, match=r"such as seconds=0\.1"):
        Problem(lambda: net, loss, seconds=-1)
    done = simulate(
        tw.methods.sgd(), Problem(lambda: nn.Linear(4, 1), loss), 2, steps=1, until=lambda rank, step: True
    )
    assert str(done) == "2 workers, no steps, 0.000 s"
