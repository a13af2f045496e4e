"""A model that one rank converts after attach: all ranks hear of it in their next step."""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.distributed as dist
from nets import batch, loss, net, said
from ranks import on_ranks

import thinwire as tw
from thinwire.core.method import METHODS

NAMES = ["qsgd", "diloco:every=200", "d-psgd"]
MOST = 100


def converted(name: str, steps: list[int]) -> None:
    """Train, and count the steps of this rank."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with tw.attach(model, optimizer, METHODS.parse(name), min_size=0):
        for step in range(MOST):
            if step == 2 and dist.get_rank() == 1:
                model.to(torch.bfloat16)
            with torch.autocast("cpu", torch.bfloat16):
                value = loss(model, batch(step))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            steps.append(step)
            time.sleep(0.03)


def by_every_method() -> list[tuple[str, int]]:
    """What each raises, and after how many steps."""
    counts: list[list[int]] = [[] for _ in NAMES]
    told = [said(partial(converted, name, steps)) for name, steps in zip(NAMES, counts, strict=True)]
    return list(zip(told, map(len, counts), strict=True))


def test_a_model_converted_on_one_rank_is_noticed_on_all_in_the_next_step() -> None:
    for rank, ends in enumerate(on_ranks(by_every_method, 3)):
        for name, (told, steps) in zip(NAMES, ends, strict=True):
            assert "0.weight is bfloat16 on rank 1, and was float32 at attach; convert the model before" in told, told
            assert told.startswith("ValueError: " if rank == 1 else "PeerError: the exchange failed on rank 1: "), (
                told
            )
            assert steps == 2 if rank == 1 or name == "qsgd" else steps < MOST
