"""Rivals: torch's DistributedDataParallel in float32, with its fp16 hook, and with its PowerSGD hook.

PowerSGD has rank 4 and one bucket (on gloo it hangs with more), warm start and error feedback. Its first two steps
are not compressed: with a warm start the hook takes no start_powerSGD_iter below 2.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def ddp(net: nn.Module) -> nn.Module:
    """DDP in float32, with torch's own buckets."""
    return DistributedDataParallel(net)


def fp16(net: nn.Module) -> nn.Module:
    """DDP with gradients as fp16 on the wire."""
    wrapped = DistributedDataParallel(net)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return wrapped


def powersgd(net: nn.Module) -> nn.Module:
    """DDP with PowerSGD of rank 4, in one bucket."""
    megabytes = 1 + sum(4 * p.numel() for p in net.parameters()) // 2**20
    wrapped = DistributedDataParallel(net, bucket_cap_mb=megabytes)
    state = PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook)
    return wrapped


RIVALS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": ddp,
    "ddp fp16": fp16,
    "ddp powersgd-4": powersgd,
}
