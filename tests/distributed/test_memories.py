"""Error feedback through attach: the conservation law with a changing learning rate; groups of groups."""

from __future__ import annotations

import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, train
from ranks import lent, on_ranks
from torch import Tensor

import thinwire as tw
from thinwire import Channel, Method, Overlap
from thinwire.comm import Comm, run
from thinwire.compressors import Qsgd
from thinwire.core.method import METHODS
from thinwire.core.types import Context, Key, Layout
from thinwire.engine.groups import Wanted
from thinwire.exchange import Hierarchical, ScatterGather
from thinwire.memory import ErrorFeedback

RATES = [0.05, 0.05, 0.02, 0.1, 0.03, 0.03]
HIERARCHY = Method(
    Hierarchical(ScatterGather(Channel(Qsgd(bits=4), ErrorFeedback())), local=2),
    overlap=Overlap(bucket_mb=2048 / 2**20, chunk_mb=2048 / 2**20),
)


def conserved(method: str) -> tuple[float, float]:
    """x_T - lr_T (mean_i e_i + e_owner) against x_0 - sum_t lr_t mean_i g_i, and how far x_T alone is from it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[0])
    expected = flat(model).double()
    mine = [torch.zeros_like(p) for p in model.parameters()]
    for p, g in zip(model.parameters(), mine, strict=True):
        p.register_hook(lambda grad, g=g: g.copy_(grad).clone())  # before it is exchanged
    with tw.attach(model, optimizer, METHODS.parse(method), min_size=0) as wire:
        for step, lr in enumerate(RATES):
            optimizer.param_groups[0]["lr"] = lr
            train(model, optimizer, range(step, step + 1))
            local = torch.cat([g.flatten() for g in mine])
            dist.all_reduce(local)
            expected -= lr * local.double() / dist.get_world_size()
        kept = torch.zeros(len(expected))
        offsets, at = {}, 0
        for name, p in model.named_parameters():
            offsets[name] = at
            at += p.numel()
        for key, tensor in wire.state_dict()[f"rank{dist.get_rank()}"]["tensors"].items():
            memory, start, name = key.split("|")
            begin = offsets[name] + int(start)
            owned = 1.0 if memory.startswith("down") else 1 / dist.get_world_size()
            kept[begin : begin + tensor.numel()] += owned * tensor
    dist.all_reduce(kept)
    x = flat(model).double()
    return float((x - RATES[-1] * kept.double() - expected).abs().max()), float((x - expected).abs().max())


def all_conserved() -> dict[str, tuple[float, float]]:
    return {name: conserved(name) for name in ("ef-signsgd", "ef-signsgd:exchange=all-gather", "one-bit-sgd")}


def test_what_was_applied_and_what_is_kept_is_what_was_computed() -> None:
    for result in on_ranks(all_conserved, 2):
        for name, (with_memory, without) in result.items():
            assert with_memory < 2e-6, name
            assert without > 1e-3, name


def grouped() -> tuple[Tensor, bool, float]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.attach(model, optimizer, HIERARCHY, min_size=0) as wire:
        train(model, optimizer, range(4))
        bits = wire.stats()["bits_per_element"]
    return flat(model), equal_everywhere(flat(model)), bits


def test_a_hierarchy_of_groups_trains_and_replicas_are_equal() -> None:
    results = on_ranks(grouped, 4)
    assert all(equal for _, equal, _ in results)
    before = loss(net(), batch(0, 0)).item()
    after = net()
    torch.nn.utils.vector_to_parameters(results[0][0], after.parameters())
    assert loss(after, batch(0, 0)).item() < before


def test_a_hierarchy_is_the_same_on_the_virtual_driver() -> None:
    real = on_ranks(one_round, 4)

    virtual = run(round_of, 4).results
    assert all(torch.equal(r, v) for r, v in zip(real, virtual, strict=True))


async def round_of(comm: Comm) -> Tensor:
    layout = Layout.flat(5000)
    exchange = HIERARCHY.exchange
    x = torch.randn(5000, generator=torch.Generator().manual_seed(comm.rank))
    return await exchange(x, exchange.init(layout, comm), Context(comm, layout, Key(seed=3, rank=comm.rank)))


def one_round() -> Tensor:
    driver = lent(Wanted(1, tuple(HIERARCHY.exchange.groups(4)), 60.0, "gloo")).driver(0)
    return driver.run(round_of(driver.comm))
