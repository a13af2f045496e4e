"""What `fsdp` asks of a model: that FSDP2 shards all that is trained, and leaves the replicas to thinwire."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from thinwire.core.compressor import DTYPES
from thinwire.core.signals import Grad
from thinwire.engine.local import is_sharded, local
from thinwire.engine.optimizers import check_all_have_one
from thinwire.engine.parameters import COMPILED, Trained
from thinwire.engine.plan import Item

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.core.method import Method

SHARD = 'fully_shard(module, mesh=mesh["shard"]) for its blocks and for the model itself'
CALL = 'tw.fsdp(model, optimizer, method, replicas=mesh["replicate"])'
ON_CPU = hasattr(torch.cpu.Stream, "record_event")  # which FSDP2 calls, and torch 2.6 lacks
MESH = 'mesh = init_device_mesh(device, (replicas, shards), mesh_dim_names=("replicate", "shard"))'


def check_sharded(model: nn.Module) -> None:
    """Refuse what FSDP2 does not shard."""
    try:
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # noqa: PLC0415  (slow to import)
    except ImportError as error:
        raise ValueError(
            f"fsdp needs torch 2.6 or newer, which has fully_shard and FSDPModule; this is {torch.__version__}: "
            'write pip install "torch>=2.6"'
        ) from error

    if not isinstance(model, nn.Module):
        raise TypeError(f"fsdp takes a torch.nn.Module; got {type(model).__name__}: write {CALL}")
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise ValueError(
            f"{type(model).__name__} keeps the model whole; write "
            "model.register_comm_hook(*tw.ddp_hook(method, model)), or "
            f"{SHARD} in its place"
        )
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ValueError(f"FullyShardedDataParallel is FSDP1, which fsdp does not take; write {SHARD} in its place")
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ValueError(
            f"fsdp takes a model that fully_shard has sharded; write {SHARD} before it, or "
            "tw.attach(model, optimizer, method) for a model that every rank holds whole"
        )
    reshard(model)


def reshard(model: nn.Module) -> None:
    """Free whole parameters: after a forward pass without backward, as in validation, the root still has its own."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  (slow to import)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def check_carried(method: Method) -> None:
    """Refuse methods that do not work shard by shard."""
    sync, exchange = method.sync, method.exchange
    if exchange.served:
        why = "has a server that keeps the model whole"
    elif exchange.scope != "everybody":
        why = "gossips: replicas would differ, and shards of one replica would meet different neighbours"
    elif getattr(getattr(sync.of, "period", None), "hears_loss", False):
        why = "follows the loss of each rank, and the ranks of one replica have different losses"
    elif sync.of == Grad() and method.overlap.into_forward is not None:
        raise ValueError("FSDP gathers parameters before its modules compute; write Overlap(into_forward=None)")
    else:
        return
    raise ValueError(
        f"{method.id} {why}; with FSDP write a method in which all replicas exchange gradients or pseudo-gradients, "
        "such as tw.methods.ef_signsgd() or tw.methods.diloco()"
    )


def warn_if_summed(model: nn.Module, shards: int) -> None:
    """Say so where FSDP divides by something other than the ranks of a replica: then sums are meant, it seems.

    The factor can be set, and not asked for, so it is looked up under torch's own names for it.
    """
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  (slow to import)

    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    factors = [getattr(group, "gradient_divide_factor", None) for unit in units for group in param_groups(unit)]
    if other := [factor for factor in factors if factor not in (None, shards)]:
        warnings.warn(
            f"FSDP divides gradients by {other[0]:g} inside a replica of {shards} ranks, so the program seems to sum "
            'them; between replicas they are averaged: write tw.fsdp(..., reduce="sum"), or '
            f"model.set_gradient_divide_factor({shards}.0) if means are meant",
            stacklevel=3,
        )


def param_groups(module: Any) -> Sequence[Any]:
    """Of a module: none if its parameters belong to other units. Before torch 2.12 there was at most one."""
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def sharded(model: nn.Module, optimizer: Optimizer) -> list[Trained]:
    """The parameters that are trained, in the order of the model, each with the shape of its shard on this rank."""
    groups = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    found: list[Trained] = []
    for full, p in model.named_parameters():
        if id(p) in groups and p.requires_grad:
            name = full.replace(COMPILED, "")
            _check_parameter(p, name)
            part = local(p)
            found.append(Trained(p, Item(name, tuple(part.shape), part.device, groups[id(p)], p.numel())))
    known = {id(p) for p in model.parameters()}
    for index, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p.requires_grad and id(p) not in known:
                raise ValueError(
                    f"group {index} of the optimizer holds a parameter of shape {tuple(p.shape)} that is not in the "
                    "model: fully_shard replaces parameters; make the optimizer from model.parameters() after it"
                )
    if not found:
        raise ValueError("no parameter of the optimizer requires a gradient; there is nothing to exchange")
    check_all_have_one(model, optimizer)
    return found


def _check_parameter(p: Any, name: str) -> None:
    if not is_sharded(p):
        raise ValueError(
            f"parameter {name} is not sharded, and the ranks of a replica would not average its gradient; "
            f"write {SHARD}"
        )
    if p.placements[0].is_replicate():
        names: Sequence[str] = p.device_mesh.mesh_dim_names or ()
        names = names if len(names) > 1 else ("replicate", "shard")
        raise ValueError(
            f"parameter {name} is replicated over dimension 0 of its mesh, so that FSDP averages its gradient over "
            f"replicas uncompressed, before it could be compressed; write fully_shard(module, "
            f"mesh=mesh[{names[-1]!r}]) for every module, and "
            f"tw.fsdp(model, optimizer, method, replicas=mesh[{names[0]!r}])"
        )
    if p.dtype not in DTYPES:
        raise ValueError(f"parameter {name} is {p.dtype}; write model.float(), model.bfloat16() or model.half()")
    if p.device_mesh.device_type == "cpu" and not ON_CPU:
        raise ValueError(
            f"FSDP2 of torch {torch.__version__} trains on GPUs only; write a mesh of GPUs, or install a newer torch"
        )
    if p.device.type == "meta":
        raise ValueError(
            f"parameter {name} has no memory yet; write model.to_empty(device=...) and give it values before tw.fsdp"
        )


def ranks_of(members: Iterable[Trained]) -> list[int]:
    """The ranks that hold a replica together."""
    found: set[int] = set()
    for one in members:
        parameter: Any = one.parameter
        found |= set(parameter.device_mesh.mesh.flatten().tolist())
    return sorted(found)


@cache  # groups are not torn down, so the next wire has the same
def _alone(rank: int, world: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group of one rank, which exchanges with nobody."""
    group: dist.ProcessGroup = dist.new_group([rank], use_local_synchronization=True)
    return group


def replica_group(replicas: Any, ranks: Sequence[int]) -> dist.ProcessGroup:
    """The process group of `replicas`, where `ranks` hold this replica."""
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415  (slow to import)

    world, rank = dist.get_world_size(), dist.get_rank()
    if replicas is None:
        if len(ranks) < world:
            raise ValueError(
                f"{len(ranks)} of {world} ranks hold a replica of the model, and nobody has said who holds the same "
                f'shards in the others; write {MESH}, fully_shard(module, mesh=mesh["shard"]), and {CALL}'
            )
        return _alone(rank, dist.group.WORLD)
    if isinstance(replicas, DeviceMesh):
        if replicas.ndim != 1:
            raise ValueError(
                f"replicas={replicas} has {replicas.ndim} dimensions; write the one along which replicas lie, as in "
                f"{CALL}"
            )
        replicas = replicas.get_group()
    if not isinstance(replicas, dist.ProcessGroup):
        raise TypeError(
            f"replicas={replicas!r} is no mesh and no process group that this rank belongs to; "
            f"write {MESH} and {CALL}"
        )
    both = set(dist.get_process_group_ranks(replicas)) & set(ranks)
    if both != {rank}:
        raise ValueError(
            f"the ranks {sorted(both)} are in replicas and hold the same replica of the model together; write the "
            f'ranks that hold the same shards, as in {CALL} where fully_shard has mesh=mesh["shard"]'
        )
    return replicas
