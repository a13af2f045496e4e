"""fsdp: compressed exchange between replicas of a model that FSDP2 shards.

    mesh = init_device_mesh("cuda", (nodes, gpus), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters())
    wire = tw.fsdp(model, optimizer, method, replicas=mesh["replicate"])

FSDP reduce-scatters gradients inside each replica, over the fast links of a node, and leaves the shards in `p.grad`.
There the hooks of `attach` find them: a rank's shards are the model that it trains, and the ranks that hold the same
shards of the other replicas are those that it exchanges with. Residuals and anchors are as large as a shard.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, final

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from thinwire.core.method import Method
from thinwire.engine.handshake import describe
from thinwire.engine.hooks import by_hooks
from thinwire.engine.inside import Inside
from thinwire.engine.misuse import check_initialised, check_method_type, tuple_of
from thinwire.engine.optimizers import check_free, followed
from thinwire.engine.settings import Reduction, Settings
from thinwire.engine.sharded import Sharded
from thinwire.engine.sharding import check_carried, check_sharded, ranks_of, replica_group, sharded, warn_if_summed
from thinwire.engine.skipping import OnNonfinite, check_policy
from thinwire.engine.wire import Wire
from thinwire.exchange.reduce_scatter import ReduceScatter, check_reduce_scatter

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_wired: weakref.WeakValueDictionary[int, nn.Parameter] = weakref.WeakValueDictionary()
"""The parameters that wires exchange, by id; weak, so that the id of one that is gone means nothing."""


def fsdp(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method,
    *,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 600.0,
    on_nonfinite: OnNonfinite = "skip",
    reduce: Reduction = "mean",
    inside: ReduceScatter | None = None,
) -> Wire:
    """Exchange the gradients of `model`, which `fully_shard` shards inside each replica, between replicas.

    `replicas` are the ranks that hold the same shards as this one: a mesh of one dimension, or its process group. It
    may be left out where all ranks hold one replica. Every rank calls it with the same arguments, after `fully_shard`
    and after making the optimizer; parameters and buffers become those of the first replica.

    What `attach` says of the other arguments holds here too, and the handle does what that of `attach` does, shard by
    shard. What is small is decided by whole tensors, and a step is left out on all ranks of a replica if some
    shard of a gradient is not finite. In `wire.no_sync()` FSDP still adds up gradients inside the replica, and
    nothing travels between replicas; `model.set_requires_gradient_sync(False)` leaves out both.

    `reduce` is between replicas what FSDP's gradient divide factor is inside them: after
    `model.set_gradient_divide_factor(1.0)`, which sums gradients, write `reduce="sum"`.

    With `inside`, what the ranks of a replica send each other in backward is compressed too:
    `inside=tw.exchange.ReduceScatter(tw.compressors.IntBlock(bits=4), residual="int8")`. `wire.plan()` then prints
    the memory that each kind of residual costs, and `wire.stats()` has figures that begin with "inside_".
    """
    if inside is not None:
        check_reduce_scatter(inside)
    check_method_type(method, "tw.fsdp(model, optimizer, {})")
    check_sharded(model)
    single = followed(optimizer, method)
    check_policy(on_nonfinite)
    check_initialised()
    check_free(single)
    check_carried(method)
    members = sharded(model, single)
    if any(id(one.parameter) in _wired for one in members):
        raise ValueError("this model is attached already; write wire.switch(method), or wire.detach() first")
    ranks = ranks_of(members)
    group = replica_group(replicas, ranks)
    if reduce == "mean" and dist.get_world_size(group) > 1:
        warn_if_summed(model, len(ranks))
    settings = Settings(min_size, tuple_of(exclude), seed, timeout, on_nonfinite=on_nonfinite, reduce=reduce)
    share = Sharded(model, members, ranks, group, timeout)
    mine = {
        "method": method.to_json(),
        "inside": "nothing" if inside is None else inside.to_json(),
        "settings": settings,
    }
    _check_alike(share.gather({name: str(value) for name, value in mine.items()}), ranks)
    wire = Wire(model, single, members, method, group, settings, partial(by_hooks, model), share=share)
    wire._hold(_Wired([one.parameter for one in members]))
    if inside is not None:
        try:
            wire.inside = Inside(model, inside, single, seed=seed)
        except BaseException:
            wire.detach()
            raise
        wire._hold(wire.inside)
    return wire


def _check_alike(said: list[dict[str, str]], ranks: Sequence[int]) -> None:
    """Refuse shards that would wait for others which send nothing, or something else."""
    for name in said[0]:
        values = [one[name] for one in said]
        if len(set(values)) > 1:
            raise ValueError(
                f"the ranks of a replica differ in {name}: {describe(values, sorted(ranks).__getitem__)}"
            )


@final
class _Wired:
    """A note that these parameters are exchanged, until it is removed."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._ids = [id(p) for p in parameters]
        _wired.update({id(p): p for p in parameters})

    def remove(self) -> None:
        """Another wire may have them."""
        for number in self._ids:
            _wired.pop(number, None)
