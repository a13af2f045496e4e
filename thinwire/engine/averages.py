"""Averages over all ranks of what is not exchanged: buffers, and the moments of the optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.engine.parameters import Trained
    from thinwire.engine.runner import Runner


def moments(optimizer: Optimizer | None, members: Iterable[Trained]) -> dict[str, Tensor]:
    """What an optimizer keeps in the shape of a parameter, by parameter and name."""
    found: dict[str, Tensor] = {}
    for p, item in members:
        for name, moment in ({} if optimizer is None else optimizer.state.get(p, {})).items():
            if isinstance(moment, Tensor) and moment.shape == p.shape:
                found[f"{item.name}|{name}"] = moment
    return found


async def mean_of(runner: Runner, tensors: Mapping[str, Tensor]) -> None:
    """Set each tensor to its mean over ranks; of those that some rank lacks, each keeps its own.

    A rank whose steps were all left out has no moments.
    """
    common = await runner.common(list(tensors))
    for device in dict.fromkeys(tensors[name].device for name in common):
        here = [tensors[name] for name in common if tensors[name].device == device]
        mean = await runner.average(torch.cat([one.detach().flatten().float() for one in here]))
        for one, part in zip(here, mean.split([one.numel() for one in here]), strict=True):
            one.copy_(part.view(one.shape))
