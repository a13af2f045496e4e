"""Equal replicas: every rank starts from the parameters and buffers of rank 0, once all have the same tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire.engine.local import local
from thinwire.engine.parameters import COMPILED, Trained


@torch.no_grad()
def equalise(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Copy parameters and buffers of the group's first rank to the others. It runs in a lane, which is watched.

    What made them must have been done, and when it returns the copies have been made: the lane has its own streams.
    A tensor of another shape or dtype would be read wrongly or abort the process, so `described` is compared first.
    """
    first = dist.get_global_rank(group, 0)
    for _, tensor in sorted(tensors_of(model).items()):
        part = local(tensor)
        if part.numel():
            whole = part.detach().contiguous()
            dist.broadcast(whole, first, group)
            if whole.data_ptr() != part.data_ptr():
                part.copy_(whole)
    synchronise(model)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers by name, each of them once; names are those of the model that is not compiled."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name.replace(COMPILED, ""): tensor for name, tensor in named}


def described(model: nn.Module) -> dict[str, str]:
    """What must be the same on all ranks before anything is sent: the tensors, their shapes and dtypes."""

    def kinds() -> Iterator[tuple[str, str, Tensor]]:
        for name, tensor in tensors_of(model).items():
            if not isinstance(tensor, nn.Parameter):
                yield name, "a buffer", tensor
            else:
                yield name, f"a parameter that is {'trained' if tensor.requires_grad else 'frozen'}", tensor

    return _fields(kinds())


def described_parts(members: Iterable[Trained]) -> dict[str, str]:
    """The same of parameters that are exchanged, where the rest of the model does not travel."""
    return _fields((item.name, "a parameter that is trained", p) for p, item in members)


def _fields(tensors: Iterable[tuple[str, str, Tensor]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, kind, tensor in tensors:
        part = local(tensor)
        fields[f"what {name} is"] = kind
        fields[f"the shape of {name}"] = str(tuple(part.shape))
        fields[f"the dtype of {name}"] = str(part.dtype).removeprefix("torch.")
    return fields


def floating(model: nn.Module) -> dict[str, Tensor]:
    """The buffers of floating point by name, such as BatchNorm's running statistics."""
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point() and buffer.numel()}


def synchronise(model: nn.Module) -> None:
    """Wait for what this thread has queued on the GPUs of the model."""
    for device in {tensor.device for tensor in map(local, [*model.parameters(), *model.buffers()]) if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
