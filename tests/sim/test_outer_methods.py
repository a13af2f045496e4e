"""Methods of the outer loop on the clock: what each one computes, beside the same sums done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import pytest
import torch
from nets import MUON, Point
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import thinwire as tw
from thinwire import methods
from thinwire.compressors import SparseLoco
from thinwire.sim import Network, Problem, Simulation, simulate

D, N, LR = 6, 3, 0.1
TARGETS = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
FAST = Network("10gbit", 0.0)
Make = Callable[[Iterable[nn.Parameter]], Optimizer]


def grad(x: Tensor, rank: int, step: int) -> Tensor:
    return x - TARGETS[rank] - 0.1 * step


def sgd(momentum: float = 0.0, nesterov: bool = False) -> Make:
    return lambda parameters: SGD(parameters, lr=LR, momentum=momentum, nesterov=nesterov)


def trained(method: tw.Method, steps: int = 12, optimizer: Make | None = None) -> tuple[Tensor, Simulation]:
    """The models of all ranks before every step, (steps, N, D), and how it ended."""
    seen = torch.zeros(steps, N, D)

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        assert isinstance(model, Point)
        seen[step, rank] = model.x.detach()
        return (model.x - TARGETS[rank] - 0.1 * step).square().sum() / 2

    problem = Problem(partial(Point, D), loss, optimizer or sgd())
    return seen, simulate(method, problem, N, steps=steps, network=FAST, min_size=0)


def by_hand(
    steps: int, every: int, merged: Callable[[Tensor], Tensor], local: Callable[[Tensor, int], Tensor] | None = None
) -> Tensor:
    """The same, with a function of all models after every round."""
    x, seen = torch.zeros(N, D), torch.zeros(steps, N, D)
    for step in range(steps):
        seen[step] = x
        x = local(x, step) if local else x - LR * torch.stack([grad(x[r], r, step) for r in range(N)])
        if (step + 1) % every == 0:
            x = merged(x)
    return seen


def near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


def alone(steps: int = 12) -> Tensor:
    """Ranks that never talk."""
    return by_hand(steps, 1, lambda x: x)


def test_diloco_after_every_step_is_nesterovs_sgd_on_the_mean_gradient() -> None:
    x = nn.Parameter(torch.zeros(D))
    nesterov, path = SGD([x], lr=LR, momentum=0.9, nesterov=True), []
    for step in range(12):
        path.append(x.detach().clone())
        x.grad = torch.stack([grad(x.detach(), rank, step) for rank in range(N)]).mean(0)
        nesterov.step()
    seen, _ = trained(methods.diloco(every=1, outer_lr=1.0))
    near(seen, torch.stack(path)[:, None].expand(-1, N, -1))


def test_diloco_without_an_outer_step_is_local_sgd() -> None:
    seen, _ = trained(methods.diloco(every=4, outer_lr=1.0, outer_momentum=0.0))
    near(seen, by_hand(12, 4, lambda x: x.mean(0).expand(N, -1)))


def test_one_fragment_in_step_is_diloco() -> None:
    whole = {"fragments": 1, "delay": 0, "alpha": 0.0, "compressor": "identity"}
    streaming = methods.streaming_diloco(every=3, outer_lr=0.7, **whole)  # type: ignore[arg-type]
    assert torch.equal(trained(streaming)[0], trained(methods.diloco(every=3))[0])


@pytest.mark.parametrize("compressor", ["qsgd:bits=4", "topk:ratio=0.5", "cast:format=fp16", "float:format=e3m0"])
def test_all_ranks_are_equal_after_an_outer_step_whatever_is_sent(compressor: str) -> None:
    seen, _ = trained(methods.diloco(every=3, compressor=compressor), 10)
    for step in range(1, 10):
        assert bool((seen[step] == seen[step, 0]).all()) == (step % 3 == 0)


def layers(steps: int, method: tw.Method) -> tuple[Tensor, Simulation]:
    """Four equal layers; by step and layer, whether both ranks have the same weights before it."""
    held: dict[tuple[int, int], list[Tensor]] = {}

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        held[step, rank] = [p.detach().clone() for p in model.parameters()]
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        out: Tensor = (model(x) - x.sin()).square().mean()
        return out

    done = simulate(method, Problem(model, loss), 2, steps=steps, network=FAST, min_size=0)
    same = [[torch.equal(a, b) for a, b in zip(held[s, 0], held[s, 1], strict=True)] for s in range(steps)]
    return torch.tensor(same), done


def test_each_fragment_is_exchanged_once_in_a_period_and_a_round_sends_its_share() -> None:
    """Fragment 0, layers 0 and 2, after 2 of 4 steps; fragment 1 after 4."""
    streaming = partial(methods.streaming_diloco, every=4, fragments=2, delay=0, alpha=0.0, compressor="identity")
    same, done = layers(13, streaming())
    for step in range(1, 13):
        assert same[step].tolist() == [step % 4 == 2, step % 4 == 0] * 2, step
    whole = 4 * 8 * 8 * 4  # a ring of two sends as much as the model has; ranks also agree on a few bytes
    assert done.stats[0]["bytes_sent"] == pytest.approx(3 * whole, abs=6 * 20 + 16)
    sent = [0, *(layers(steps, streaming())[1].stats[0]["bytes_sent"] for steps in range(1, 6))]
    assert [b - a for a, b in pairwise(sent)] == pytest.approx([0, whole / 2, 0, whole / 2, 0], abs=36)


def test_with_alpha_one_ranks_are_left_alone() -> None:
    seen, _ = trained(methods.streaming_diloco(every=4, fragments=1, delay=2, alpha=1.0))
    assert torch.equal(seen, trained(methods.local_sgd(every=100))[0])


def test_a_fragment_that_is_late_is_mixed_into_what_was_learnt_meanwhile() -> None:
    anchor, v, under_way = torch.zeros(D), torch.zeros(D), torch.zeros(D)

    def turn(x: Tensor, step: int) -> Tensor:
        nonlocal anchor, v, under_way
        if step % 4 == 2 and step > 4:
            v = 0.9 * v + under_way
            anchor = anchor - 0.4 * (under_way + 0.9 * v)
            x = 0.75 * anchor + 0.25 * x
        if step % 4 == 0:
            under_way = (anchor - x).mean(0)
        return x

    counted = iter(range(1, 100))
    expected = by_hand(13, 1, lambda x: turn(x, next(counted)))
    one = methods.streaming_diloco(every=4, fragments=1, delay=2, alpha=0.25, compressor="identity")
    near(trained(one, 13)[0], expected)


def falling(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """AdamW whose learning rate falls from step to step."""
    optimizer = AdamW(parameters, lr=LR)

    def fall(*_: object) -> None:
        optimizer.param_groups[0]["lr"] *= 0.9

    optimizer.register_step_post_hook(fall)
    return optimizer


def test_sparse_loco_sends_the_largest_of_what_is_owed() -> None:
    """e = beta e + d, q = C(e), e = e - q: with AdamW inside, whose moments are nobody else's and whose lr falls."""
    c, beta = SparseLoco(block=D, k=2), 0.95
    models = [nn.Parameter(torch.zeros(D)) for _ in range(N)]
    inner = [falling([p]) for p in models]
    anchor, e, path = torch.zeros(D), torch.zeros(N, D), []
    for step in range(13):
        path.append(torch.stack([p.detach() for p in models]))
        for rank, p in enumerate(models):
            p.grad = grad(p.detach(), rank, step)
            inner[rank].step()
        if (step + 1) % 4 == 0:
            e = beta * e + (anchor - torch.stack([p.detach() for p in models]))
            q = torch.stack([c.decode(c.encode(one), tw.Layout.flat(D)) for one in e])
            assert ((q != 0).sum(1) == 2).all()
            e = e - q
            anchor = anchor - q.mean(0)
            for p in models:
                p.data.copy_(anchor)
    method = methods.sparse_loco(every=4, k=2, block=D, beta=beta)
    seen, done = trained(method, 13, falling)
    near(seen, torch.stack(path))
    assert done.stats[0]["outer_rounds"] == 3
    assert done.stats[0]["bytes_sent"] < 3 * 2 * 80  # to two others, in three rounds


def muon_and_adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    some = list(parameters)
    matrices, rest = ([p for p in some if (p.ndim == 2) == flat] for flat in (True, False))
    return tw.optim.Joined(torch.optim.Muon(matrices, lr=0.02), AdamW(rest, lr=LR))


@pytest.mark.skipif(not MUON, reason="torch has Muon from 2.9 on")
def test_muloco_has_muon_inside() -> None:
    """Beside the same by hand: three steps of torch's Muon and AdamW on each rank, then an outer step."""

    def net() -> nn.Module:
        torch.manual_seed(2)
        return nn.Linear(5, 4)

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))
        out: Tensor = (model(x) - x[:, :4].sin()).square().mean()
        return out

    nets = [net() for _ in range(2)]
    inner = [muon_and_adam(one.parameters()) for one in nets]
    anchor = [nn.Parameter(p.detach().clone()) for p in nets[0].parameters()]
    outer = SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
    for step in range(9):
        for rank, one in enumerate(nets):
            inner[rank].zero_grad()
            loss(one, rank, step).backward()
            inner[rank].step()
        if step % 3 == 2:
            for a, *ends in zip(anchor, *(one.parameters() for one in nets), strict=True):
                a.grad = a.detach() - torch.stack([p.detach() for p in ends]).mean(0)
            outer.step()
            for one in nets:
                for p, a in zip(one.parameters(), anchor, strict=True):
                    p.data.copy_(a.detach())
    done = simulate(methods.muloco(every=3), Problem(net, loss, muon_and_adam), 2, steps=9, min_size=0)
    for model in done.models:
        for p, a in zip(model.parameters(), anchor, strict=True):
            torch.testing.assert_close(p, a, rtol=1e-3, atol=1e-4)  # Newton and Schulz are in bfloat16
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in done.models), strict=True))


def test_cocod_moves_the_mean_by_the_mean_of_the_local_steps() -> None:
    every, sent = 3, torch.zeros(N, D)

    def merged(x: Tensor) -> Tensor:
        nonlocal sent
        sent = x = sent.mean(0) + (x - sent)
        return x

    seen, done = trained(methods.cocod_sgd(every), 13)
    near(seen, by_hand(13, every, merged))
    for start in range(0, 12, every):
        steps = -LR * torch.stack(
            [grad(seen[s, r], r, s) for s in range(start, start + every) for r in range(N)]
        ).view(every, N, D).sum(0)
        near(seen[start + every].mean(0), seen[start].mean(0) + steps.mean(0))
    assert done.stats[0]["outer_rounds"] == 4


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_overlap_pulls_towards_what_was_the_mean_a_round_ago(beta: float) -> None:
    a, z, v = 0.6, torch.zeros(D), torch.zeros(D)
    launched: list[Tensor] = []

    def merged(x: Tensor) -> Tensor:
        nonlocal z, v
        if launched:
            v = beta * v + launched[-1] - z
            z = z + v
            x = x - a * (x - z)
        launched.append(x.mean(0))
        return x

    seen, done = trained(methods.overlap_local_sgd(every=3, a=a, beta=beta), 12)
    near(seen, by_hand(12, 3, merged))
    if beta == 0:
        near(done.anchors[0]["x"], launched[-1])  # what was under way is used in the end


def test_overlap_with_no_pull_leaves_ranks_alone_and_a_whole_one_is_refused() -> None:
    near(trained(methods.overlap_local_sgd(every=3, a=0.0))[0], alone())
    with pytest.raises(ValueError, match="write 0 <= a < 1"):
        methods.overlap_local_sgd(a=1.0)


@pytest.mark.parametrize("beta", [0.0, 0.9, N / (N + 1)])
def test_springs_keep_the_sum_of_ranks_and_centre(beta: float) -> None:
    c, a = torch.zeros(D), beta / N

    def merged(x: Tensor) -> Tensor:
        nonlocal c
        before, joint = x.sum(0) + c, torch.cat([x, c[None]]).mean(0)
        x, c = x - a * (x - c), c + a * (x - c).sum(0)
        near(x.sum(0) + c, before)
        if beta == N / (N + 1):
            near(c, joint)
        return x

    method = methods.easgd(every=3, beta=beta)
    seen, done = trained(method, 12)
    expected = by_hand(13, 3, merged)
    near(seen, expected[:12])
    near(done.anchors[0]["x"], c)
    points = torch.stack([next(model.parameters()).detach() for model in done.models])
    near(points, expected[12])
    if not beta:
        near(points, alone(13)[12])
    with pytest.raises(ValueError, match="write 0 <= beta <= 1"):
        methods.easgd(beta=1.1)


def test_eamsgd_is_torchs_nesterov_between_pulls() -> None:
    """v = delta v - lr g(x + delta v), x = x + v; torch's parameter is x + delta v, and the springs pull that."""
    delta, c, v = 0.9, torch.zeros(D), torch.zeros(N, D)

    def local(y: Tensor, step: int) -> Tensor:
        nonlocal v
        x = y - delta * v
        v = delta * v - LR * torch.stack([grad(y[r], r, step) for r in range(N)])
        return x + v + delta * v

    def merged(y: Tensor) -> Tensor:
        nonlocal c
        y, c = y - 0.3 * (y - c), c + 0.3 * (y - c).sum(0)
        return y

    seen, _ = trained(methods.eamsgd(every=4), 12, sgd(delta, nesterov=True))
    near(seen, by_hand(12, 4, merged, local))


def test_pipe_sgd_is_late_by_its_width_less_one() -> None:
    mean = torch.stack([TARGETS[r] for r in range(N)]).mean(0)

    def path(width: int, warmup: int = 0) -> Tensor:
        x = [torch.zeros(D)]
        for step in range(11):
            at = step if step < warmup else step - width + 1
            g = torch.zeros(D) if at < (0 if step < warmup else warmup) else x[at] - mean - 0.1 * at
            x.append(x[-1] - LR * g)
        return torch.stack(x)[:, None].expand(-1, N, -1)

    assert torch.equal(trained(methods.pipe_sgd(width=1))[0], trained(methods.sgd())[0])
    for width, warmup in ((2, 0), (3, 0), (3, 4)):
        seen, _ = trained(methods.pipe_sgd(width, warmup))
        near(seen, path(width, warmup))
        assert not seen[: 1 if warmup else width].any()
    with pytest.raises(ValueError, match="write width=1"):
        methods.pipe_sgd(width=0)


@pytest.mark.parametrize(
    ("late", "in_step"),
    [
        (methods.cocod_sgd(every=4), methods.local_sgd(every=4)),
        (methods.overlap_local_sgd(every=4), methods.local_sgd(every=4)),
        (
            methods.streaming_diloco(every=4, fragments=1, delay=3, compressor="identity"),
            methods.diloco(every=4),
        ),
    ],
    ids=lambda method: method.id,
)
def test_what_is_under_way_takes_no_time(late: tw.Method, in_step: tw.Method) -> None:
    """0.1 s of computing; a round takes 0.25 s, and is over before its result is used. The last one is waited for."""
    big = Problem(lambda: nn.Linear(1000, 250, bias=False), lambda m, r, s: m(torch.ones(1, 1000)).sum())
    link = Network(rate=8 * 1_000_000 / 0.25, latency=0.0)
    took = {m: simulate(m, big, 2, steps=10, network=link, min_size=0) for m in (late, in_step)}
    assert took[late].seconds == pytest.approx(1.05, rel=1e-4)  # launched after 0.8 s
    assert max(one.seconds for one in took[late].moments) == pytest.approx(1.0, rel=1e-4)
    assert took[in_step].seconds == pytest.approx(1.5, rel=1e-4)
