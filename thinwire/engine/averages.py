"""Averages over all ranks of what is not exchanged: buffers, and the moments of the optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from thinwire.engine.local import local

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.engine.parameters import Trained
    from thinwire.engine.runner import Runner

Means: TypeAlias = list[tuple[Tensor, Tensor]]  # what is to change, and what to


def moments(optimizer: Optimizer | None, members: Iterable[Trained]) -> dict[str, Tensor]:
    """What an optimizer keeps in the shape of a parameter, by parameter and name."""
    found: dict[str, Tensor] = {}
    for p, item in members:
        for name, moment in ({} if optimizer is None else optimizer.state.get(p, {})).items():
            if isinstance(moment, Tensor) and moment.shape == p.shape:
                found[f"{item.name}|{name}"] = local(moment)
    return found


async def means(runner: Runner, tensors: Mapping[str, Tensor]) -> Means:
    """Each tensor with its mean over ranks; of those that some rank lacks, each keeps its own.

    A rank whose steps were all left out has no moments.
    """
    found: Means = []
    common = await runner.common(list(tensors))
    for device in dict.fromkeys(tensors[name].device for name in common):
        here = [tensors[name] for name in common if tensors[name].device == device]
        mean = await runner.average(torch.cat([one.detach().flatten().float() for one in here]))
        found += zip(here, mean.split([one.numel() for one in here]), strict=True)
    return found


def put(found: Means) -> None:
    """Set each tensor to its mean."""
    for one, mean in found:
        one.copy_(mean.view(one.shape))


async def mean_of(runner: Runner, tensors: Mapping[str, Tensor]) -> None:
    """Set each tensor to its mean over ranks."""
    put(await means(runner, tensors))
