"""Averages over all ranks of what is not exchanged: buffers, and what optimizers keep.

An optimizer keeps moments, which say how gradients were, and may keep points, which lie beside the parameters as
schedule-free optimizers' z does: where the model is tested, it is made of both. When ranks set the parameters to a
common model, their points must follow, or the models that they test differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import ASGD

from thinwire.engine.local import local
from thinwire.engine.optimizers import name_of_optimizer, parts_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.core.method import Method
    from thinwire.engine.parameters import Trained
    from thinwire.engine.runner import Runner

MOMENTS = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "sum", "square_avg", "grad_avg"),
    *("acc_delta", "prev", "step_size"),
)
"""What torch's optimizers keep, but for the point of ASGD."""
OWN = ("torch.optim.", "thinwire.optim.")  # where optimizers are whose moments are known
AVERAGED = (
    "write tw.methods.int4(), or another method that exchanges gradients, or one with an outer loop over all ranks, "
    "such as tw.methods.local_sgd(every=8), which averages such points too"
)


class Mean(NamedTuple):
    """What is to change, and what to; from `origin`, where that is a parameter beside which it lies."""

    tensor: Tensor
    mean: Tensor
    origin: Tensor | None = None


Means: TypeAlias = list[Mean]


def moments(optimizer: Optimizer | None, members: Iterable[Trained]) -> dict[str, Tensor]:
    """What an optimizer keeps in the shape of a parameter, by parameter and name."""
    return {f"{item}|{name}": tensor for (item, name), (tensor, _) in kept(optimizer, members).items()}


def kept(optimizer: Optimizer | None, members: Iterable[Trained]) -> dict[tuple[str, str], tuple[Tensor, Tensor]]:
    """The same by parameter and name, each with its parameter."""
    return {
        (item.name, name): (local(tensor), local(p).detach())
        for p, item in members
        for name, tensor in ({} if optimizer is None else optimizer.state.get(p, {})).items()
        if isinstance(tensor, Tensor) and tensor.shape == p.shape
    }


def may_keep_points(optimizer: Optimizer | None) -> bool:
    """Whether its state has to be looked at; all ranks, whose optimizers are alike, find the same."""
    parts = () if optimizer is None else parts_of(optimizer)
    return any(isinstance(part, ASGD) or not type(part).__module__.startswith(OWN) for part in parts)


def points(optimizer: Optimizer | None, members: Sequence[Trained]) -> dict[str, tuple[Tensor, Tensor]]:
    """The points that an optimizer keeps, each with its parameter, by parameter and name.

    Of the tensors that are not known as moments, those are points that lie nearer to the parameters than to zero.
    """
    known = {at: one for at, one in kept(optimizer, members).items() if at[1] not in MOMENTS}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name in sorted({name for _, name in known}):
        pairs = {at[0]: pair for at, pair in known.items() if at[1] == name}
        apart = sum(float((point.float() - p.float()).square().sum()) for point, p in pairs.values())
        lengths = (sum(float(pair[side].float().square().sum()) for pair in pairs.values()) for side in (0, 1))
        if 2 * apart < min(lengths):
            found |= {f"{item}|{name}": pair for item, pair in pairs.items()}
    return found


def averages_points(method: Method) -> bool:
    """Whether ranks' points stay equal, or become so in every round."""
    sync, exchange = method.sync, method.exchange
    if exchange.served or exchange.scope != "everybody":
        return False
    return sync.of.outer_loop or not sync.of.models


def refuse_points(method: Method, optimizer: Optimizer | None, members: Sequence[Trained]) -> None:
    """ValueError for points that nobody would average, when the optimizer has taken its first step."""
    if found := sorted({at.rpartition("|")[2] for at in points(optimizer, members)}):
        own = "" if optimizer is None else name_of_optimizer(optimizer)
        raise ValueError(
            f"{own} keeps {', '.join(map(repr, found))}, a point beside every parameter, and {method.id} exchanges "
            f"parameters alone; {AVERAGED}"
        )


def check_tested_model(method: Method, optimizer: Optimizer | None) -> None:
    """Refuse servers where the model that is tested is made by the optimizer, as by schedule-free ones."""
    for part in () if optimizer is None else parts_of(optimizer):
        if method.exchange.served and callable(getattr(part, "eval", None)):
            own = type(part).__name__
            raise ValueError(
                f"{own} makes the model that is tested from two points, and servers keep one; {AVERAGED}"
            )


async def offsets(runner: Runner, found: Mapping[str, tuple[Tensor, Tensor]]) -> Means:
    """Each point with the mean of how far it lies from its parameter, which may move before it is `put`."""
    apart = {name: point.float() - p.float() for name, (point, p) in found.items()}
    back = {id(tensor): found[name] for name, tensor in apart.items()}
    return [Mean(back[id(one)][0], mean, back[id(one)][1]) for one, mean, _ in await means(runner, apart)]


async def means(runner: Runner, tensors: Mapping[str, Tensor]) -> Means:
    """Each tensor with its mean over ranks; of those that some rank lacks, each keeps its own.

    A rank whose steps were all left out has no moments.
    """
    found: Means = []
    common = await runner.common(list(tensors))
    for device in dict.fromkeys(tensors[name].device for name in common):
        here = [tensors[name] for name in common if tensors[name].device == device]
        mean = await runner.average(torch.cat([one.detach().flatten().float() for one in here]))
        found += map(Mean, here, mean.split([one.numel() for one in here]))
    return found


def put(found: Means) -> None:
    """Set each tensor to its mean."""
    for tensor, mean, origin in found:
        tensor.copy_(mean.view(tensor.shape) if origin is None else origin + mean.view(tensor.shape))


async def mean_of(runner: Runner, tensors: Mapping[str, Tensor]) -> None:
    """Set each tensor to its mean over ranks."""
    put(await means(runner, tensors))
