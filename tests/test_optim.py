"""OneBitAdam: AdamW, then a frozen second moment. Joined: several optimizers as one."""

from __future__ import annotations

import copy

import pytest
import torch
from nets import MUON
from torch import Tensor

from thinwire.optim import Joined, OneBitAdam
from thinwire.optim.step_hooks import on_step


def problem(seed: int = 0) -> tuple[torch.nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, torch.randn(40, 5), torch.randn(40, 1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_adamw_until_it_freezes(weight_decay: float) -> None:
    model, x, y = problem()
    twin = copy.deepcopy(model)
    ours = OneBitAdam(model.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=weight_decay, freeze=30)
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=weight_decay)
    train(model, ours, x, y, 30)
    train(twin, theirs, x, y, 30)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
        for name, value in theirs.state[b].items():
            assert torch.allclose(ours.state[a][name], value, atol=1e-7)
    train(model, ours, x, y, 5)
    train(twin, theirs, x, y, 5)
    assert not torch.allclose(model[0].weight, twin[0].weight, atol=1e-6)  # type: ignore[arg-type]


def test_the_second_moment_and_its_correction_freeze() -> None:
    x = torch.nn.Parameter(torch.zeros(3))
    optimizer = OneBitAdam([x], lr=0.1, betas=(0.5, 0.9), eps=0.0, freeze=2)
    grads = [torch.tensor([1.0, 2.0, -4.0]) * k for k in (1, 3, 50, 70)]
    m, v, expected = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    for t, g in enumerate(grads, start=1):
        x.grad = g.clone()
        optimizer.step()
        m = 0.5 * m + 0.5 * g
        if t <= 2:
            v = 0.9 * v + 0.1 * g * g
        expected -= 0.1 * (m / (1 - 0.5**t)) / (v / (1 - 0.9 ** min(t, 2))).sqrt()
        assert torch.allclose(x, expected, atol=1e-5)
    assert torch.allclose(optimizer.state[x]["exp_avg_sq"], v)
    assert optimizer.state[x]["step"] == 4


def test_the_frozen_step_is_linear_in_the_momentum() -> None:
    """Error feedback needs this: twice the momentum gives twice the step."""

    def moved(scale: float) -> Tensor:
        x = torch.nn.Parameter(torch.zeros(3))
        optimizer = OneBitAdam([x], freeze=1)
        for factor in (1.0, scale):
            before = x.detach().clone()
            x.grad = torch.tensor([1.0, -2.0, 3.0]) * factor
            optimizer.state[x].get("exp_avg", torch.zeros(3)).zero_()
            optimizer.step()
        return x.detach() - before

    assert torch.allclose(2 * moved(1.0), moved(2.0), rtol=1e-5)


def test_state_resumes() -> None:
    model, x, y = problem()
    optimizer = OneBitAdam(model.parameters(), freeze=5)
    train(model, optimizer, x, y, 8)
    twin = copy.deepcopy(model)
    other = OneBitAdam(twin.parameters(), freeze=99)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, x, y, 8)
    train(twin, other, x, y, 8)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_closure_and_parameters_without_gradient() -> None:
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    groups: list[dict[str, object]] = [{"params": [used]}, {"params": [unused], "lr": 0.5}]
    optimizer = OneBitAdam(groups)

    def closure() -> float:
        loss = used.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2
    assert unused.tolist() == [1, 1]
    assert unused not in optimizer.state
    assert (used < 1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": 0}, "write freeze=warmup"),
        ({"lr": -1.0}, "not negative"),
        ({"betas": (0.9, 1.0)}, "write 0 <= beta < 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OneBitAdam([torch.nn.Parameter(torch.ones(1))], **settings)  # type: ignore[arg-type]


def test_a_weight_that_saw_no_gradient_does_not_fly_away() -> None:
    """Until the freeze one weight has gradient 0; then a sign comes for it."""
    x = torch.nn.Parameter(torch.zeros(2))
    optimizer = OneBitAdam([x], lr=0.1, freeze=3)
    for step in range(6):
        x.grad = torch.tensor([1.0, 0.0 if step < 3 else 1.0])
        optimizer.step()
    assert optimizer.state[x]["exp_avg_sq"][1] == 1e-4 * optimizer.state[x]["exp_avg_sq"][0]
    assert x.detach().abs().max() < 0.1 * 100 * 6


def test_a_floor_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="0 <= floor <= 1"):
        OneBitAdam([torch.nn.Parameter(torch.zeros(1))], floor=2.0)


def muon_and_adam(model: torch.nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    matrices, rest = ([p for p in model.parameters() if (p.ndim == 2) == flat] for flat in (True, False))
    return torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.01)


@pytest.mark.skipif(not MUON, reason="torch has Muon from 2.9 on")
def test_joined_optimizers_step_as_each_by_itself() -> None:
    """With a scheduler over both, a hook that is called once per step, and a state that goes to another."""
    model, x, y = problem()
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    parts = muon_and_adam(twin)
    joined, called = Joined(*muon_and_adam(model)), []
    joined.register_step_post_hook(lambda *_: called.append(1))
    decay = torch.optim.lr_scheduler.ExponentialLR
    schedulers = [decay(one, 0.9) for one in (joined, *parts)]
    for step in range(8):
        if step == 4:
            saved = copy.deepcopy(joined.state_dict())
            third.load_state_dict(model.state_dict())
        train(model, joined, x, y, 1)
        for one in parts:
            one.zero_grad()
        torch.nn.functional.mse_loss(twin(x), y).backward()
        for one in parts:
            one.step()
        for scheduler in schedulers:
            scheduler.step()
    assert len(called) == 8
    again = Joined(*muon_and_adam(third))
    again.load_state_dict(saved)
    for _ in range(4):
        train(third, again, x, y, 1)
        for group in again.param_groups:
            group["lr"] *= 0.9
    for a, b, c in zip(model.parameters(), twin.parameters(), third.parameters(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)


def test_what_cannot_be_joined_is_refused() -> None:
    model, x, y = problem()
    stepped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, stepped, x, y, 1)
    for parts, told in (
        ((), "takes optimizers"),
        ((model,), "takes optimizers"),
        ((stepped, stepped), "more than one"),
    ):
        with pytest.raises(ValueError, match=told):
            Joined(*parts)


def test_a_step_that_only_makes_a_state_is_no_step_to_what_is_hooked() -> None:
    """As `get_optimizer_state_dict` takes it with each part; a step without a learning rate counts all the same."""
    params = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    both = Joined(*(torch.optim.AdamW([p], lr=0.0) for p in params))
    steps: list[str] = []
    on_step(both, lambda *_: steps.append("begins"), lambda *_: steps.append("ends"))
    for part, p in zip(both.parts, params, strict=True):
        p.grad = torch.zeros_like(p)
        part.step()
        assert part.state
    assert steps == []
    for part in both.parts:
        part.step()
    assert steps == ["begins", "ends"]
