"""Equal replicas: every rank starts from the parameters and buffers of rank 0."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from thinwire.engine.local import local


@torch.no_grad()
def equalise(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Copy parameters and buffers of the group's first rank to the others. It runs in a lane, which is watched.

    What made them must have been done, and when it returns the copies have been made: the lane has its own streams.
    """
    first = dist.get_global_rank(group, 0)
    seen: set[int] = set()
    for tensor in [*model.parameters(), *model.buffers()]:
        part = local(tensor)
        if id(tensor) not in seen and part.numel():
            seen.add(id(tensor))
            whole = part.detach().contiguous()
            dist.broadcast(whole, first, group)
            if whole.data_ptr() != part.data_ptr():
                part.copy_(whole)
    synchronise(model)


def floating(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of floating point by name, such as BatchNorm's running statistics."""
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point() and buffer.numel()}


def synchronise(model: nn.Module) -> None:
    """Wait for what this thread has queued on the GPUs of the model."""
    for device in {tensor.device for tensor in map(local, [*model.parameters(), *model.buffers()]) if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
