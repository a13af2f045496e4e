"""AsyLPG on the clock: where it ends, what it sends, and SVRG as its special case. Section 11 of the sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial

import pytest
import torch
from nets import Point
from sheet import gauss
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire import Channel, Key, Layout, PayloadError, methods
from thinwire.compressors import LowPrecision, SparsePrecision
from thinwire.engine.loop import Loop
from thinwire.exchange import Server
from thinwire.optim import ProximalSGD
from thinwire.server import AsyLpg
from thinwire.server.asylpg import HOP, nbytes
from thinwire.server.precision import FLOAT, delta, error, pack, unpack, width
from thinwire.server.words import LAST
from thinwire.sim import Constant, Problem, Simulation, simulate

N, K, B, D, UPDATES = 2, 4, 8, 8, 20
INPUT = gauss(N, K, B, D)
LABEL = (INPUT @ gauss(D, seed=1) + gauss(N, K, B, seed=2) > 0).float() * 2 - 1
FULL_UP, HEAD_UP, HEAD_DOWN = 48 + 32 + 4 * D, 48 + 32, 16


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    """Logistic regression with an L2 term, on one of the K batches of a worker."""
    assert isinstance(model, Point)
    margins = LABEL[rank, step % K] * (INPUT[rank, step % K] @ model.x)
    return nn.functional.softplus(-margins).mean() + 0.05 * model.x.square().sum()


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.4)


def run(
    method: tw.Method,
    steps: int = 60,
    workers: int = N,
    make: Callable[[Iterable[nn.Parameter]], Optimizer] = sgd,
    **more: object,
) -> Simulation:
    return simulate(method, Problem(partial(Point, D), loss, make), workers, steps=steps, min_size=0, **more)  # type: ignore[arg-type]


def asylpg(**settings: object) -> tw.Method:
    return methods.asylpg(**{"batches": K, "updates": UPDATES, **settings})  # type: ignore[arg-type]


@cache
def optimum() -> Tensor:
    x = torch.zeros(D, dtype=torch.float64, requires_grad=True)
    a, b = INPUT.double(), LABEL.double()
    newton = torch.optim.LBFGS([x], lr=1, max_iter=200, tolerance_grad=1e-14, tolerance_change=0, history_size=20)

    def closure() -> Tensor:
        newton.zero_grad()
        value = nn.functional.softplus(-b * (a @ x)).mean() + 0.05 * x.square().sum()
        value.backward()
        return value

    newton.step(closure)
    return x.detach()


def away(done: Simulation) -> float:
    x = next(done.models[0].parameters()).detach().double()
    return float((x - optimum()).norm() / optimum().norm())


def test_it_converges_to_the_optimum_at_a_linear_rate() -> None:
    ends = [away(run(asylpg(), steps)) for steps in (30, 60, 90)]
    assert ends[0] < 0.05
    assert ends[1] < 0.1 * ends[0]
    assert ends[2] < 0.1 * ends[1]


def test_a_slow_worker_moves_the_end_nowhere_and_delays_are_bounded() -> None:
    done = run(asylpg(), stragglers=Constant({1: 2.5}))
    assert away(done) < 0.01
    assert done.stats[0]["staleness_max"] < UPDATES  # pushes of the epoch before are dropped
    assert done.stats[0]["pushes"] == done.stats[0]["used"] + done.stats[0]["dropped"]


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"bits": None, "model_bits": None}, 1e-3),
        ({"around": True, "model_bits": 4, "bits": 4}, 1e-3),
        ({"ratio": 0.5}, 5e-3),
    ],
    ids=str,
)
def test_variants_converge(settings: dict[str, object], limit: float) -> None:
    done = run(asylpg(**settings))
    assert away(done) < limit
    bits = done.stats[0]["model_bits_max"]
    assert bits == 4 if settings.get("around") else bits > 8  # around the snapshot, the same few bits do to the end
    assert done.stats[0]["snapshots"] >= 3


def test_momentum_is_faster_where_steps_are_small() -> None:
    plain, accelerated = (run(asylpg(accelerated=m), 80, make=partial(SGD, lr=0.05)) for m in (False, True))
    assert away(accelerated) < 0.5 * away(plain)


def test_what_stalls() -> None:
    """Models coarser than the bound on their error allows; gradients that are quantised, not their differences."""
    assert away(run(asylpg(model_bits=3, mu=1e9))) > 0.02
    assert away(run(methods.asgd(compressor="low-precision:bits=4"))) > 0.02


def gradient(x: Tensor, step: int) -> Tensor:
    model = Point(D)
    with torch.no_grad():
        model.x.copy_(x)
    loss(model, 0, step).backward()
    assert model.x.grad is not None
    return model.x.grad


def svrg(steps: int, make: Callable[[Iterable[nn.Parameter]], Optimizer], rule: AsyLpg, bits: int | None) -> Tensor:
    """One worker, one step after another; quantised as the paper's algorithm 1 says, with the library's noise."""
    x = nn.Parameter(torch.zeros(D))
    optimizer, layout = make([x]), Layout(("x",), ((D,),))
    step = pushes = version = 0
    while step < steps:
        snapshot = x.detach().clone()
        full = torch.zeros(D, dtype=torch.float64)
        for _ in range(K):
            full += gradient(snapshot, step)
            step += 1
        full, seen = (full / K).float(), snapshot
        pushes += 1
        for _ in range(min(rule.updates, steps - step)):
            a = gradient(seen, step) - gradient(snapshot, step)
            if bits is not None:
                key = Key(0, pushes, 0)
                a = LowPrecision(bits).decode(LowPrecision(bits).encode(a, layout, key), layout, key=key)
            x.grad = a + full
            optimizer.step()
            step, pushes, version = step + 1, pushes + 1, version + 1
            moved = x.detach() - snapshot
            wide = (
                FLOAT
                if rule.bits is None
                else width(x.detach(), rule.bits, rule.mu * float(moved.double() @ moved.double()))
            )
            seen = unpack(pack(x.detach(), wide, Key(0, version, 0, 0, HOP)), D)
    return x.detach()


@pytest.mark.parametrize("bits", [None, 8])
def test_one_worker_is_proximal_svrg(bits: int | None) -> None:
    """Bit for bit, in full precision and in low."""
    make = partial(ProximalSGD, lr=0.2, l1=0.01)
    method = asylpg(bits=bits, model_bits=bits, updates=10)
    rule = AsyLpg(bits, batches=K, updates=10)
    done = run(method, 37, 1, make)
    assert torch.equal(next(done.models[0].parameters()).detach(), svrg(37, make, rule, bits))


def test_bytes_are_those_of_the_bits() -> None:
    """Up 8 bits and a scale, down `model_bits` and a scale; once per epoch float32."""
    done = run(asylpg(model_bits=6, mu=1e9, updates=20), 44)
    figures, worker = done.stats[0], done.stats[1]
    assert figures["updates"] == 60
    epochs, inner = 3, 44 - 2 - 3 * K  # the worker ends two batches into the next full gradient
    assert worker["bytes_sent"] == epochs * FULL_UP + inner * (HEAD_UP + 4 + D) + LAST.numel()
    down = figures["bytes_sent"] - (epochs + inner) * HEAD_DOWN - (HEAD_DOWN + 4 * D)  # the last model
    assert down == epochs * 4 + epochs * nbytes(D, FLOAT) + (inner - epochs) * nbytes(D, 6)
    assert nbytes(D, 6) == 12 + 8  # 48 bits, padded


def test_rounding_has_no_bias_and_the_declared_error() -> None:
    x = gauss(200, seed=3)
    for bits in (3, 8, 12):
        draws = torch.stack([unpack(pack(x, bits, Key(step=i)), 200) for i in range(400)]).double()
        assert (draws - x).square().sum(1).mean().item() == pytest.approx(error(x, bits), rel=0.05)
        assert (draws.mean(0) - x).square().sum().item() == pytest.approx(error(x, bits) / 400, rel=0.4)
        assert (draws - x).abs().max() <= delta(x, bits)
        assert error(x, bits) <= 200 * delta(x, bits) ** 2 / 4
    assert torch.equal(unpack(pack(x, FLOAT, Key()), 200), x)
    assert torch.equal(unpack(pack(torch.zeros(3), 4, Key()), 3), torch.zeros(3))


def test_the_fewest_bits_that_keep_the_bound() -> None:
    x = gauss(50, seed=4)
    bits = width(x, 2, 1e-4)
    assert error(x, bits) <= 1e-4 < error(x, bits - 1)
    assert width(x, 8, 1e9) == 8
    assert width(x, 2, 0.0) == FLOAT


def test_sparse_precision_is_unbiased_around_wangnis_draw() -> None:
    x, c = gauss(300, seed=5), SparsePrecision(0.2, bits=4)
    payloads = [c.encode(x, key=Key(step=i)) for i in range(300)]
    draws = torch.stack([c.decode(one, Layout.flat(300)) for one in payloads]).double()
    spread = (draws - x).square().sum(1).mean().item()
    assert (draws.mean(0) - x).square().sum().item() == pytest.approx(spread / 300, rel=0.4)
    assert (draws != 0).double().sum(1).mean().item() <= 60 * 1.02  # some are rounded to 0
    assert sum(one.body.numel() for one in payloads) / 300 == pytest.approx(8 + 60 * (4 + 3.8) / 8, rel=0.05)


def test_a_step_without_a_closure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "again", property(lambda loop: None, lambda loop, again: None), raising=False)
    with pytest.raises(ValueError, match=r"write optimizer\.step\(closure\)"):
        run(asylpg(), 6)


def test_wrong_settings_and_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="write 2 to 24"):
        AsyLpg(bits=1)
    with pytest.raises(ValueError, match="without down"):
        Server(rule=AsyLpg(), down=Channel(LowPrecision()))
    with pytest.raises(ValueError, match="mu > 0"):
        AsyLpg(updates=0)
    with pytest.raises(ValueError, match="write bits=8"):
        methods.asylpg(bits=None, ratio=0.1)
    with pytest.raises(PayloadError):
        unpack(pack(torch.ones(9), 8, Key()), 20)
    with pytest.raises(PayloadError):
        SparsePrecision().add(
            torch.tensor([7, 0], dtype=torch.int32).view(torch.uint8), Layout.flat(9), Key(), torch.zeros(9), 1.0
        )
