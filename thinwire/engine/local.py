"""The part of a tensor that lies on this rank: all of it, or the shard of a DTensor.

To the engine, the shards of a rank are the model that it trains. Everything that reads or writes a parameter, its
gradient or a moment of the optimizer goes through `local`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

DTENSORS = "torch.distributed.tensor"  # it takes long to import; if nobody has, nothing is a DTensor
WHOLE = (Tensor, torch.nn.Parameter)  # what most tensors are, to be told without a look at modules


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor."""
    if type(tensor) in WHOLE:
        return False
    tensors = sys.modules.get(DTENSORS)
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part on this rank, which shares its memory with the tensor."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():  # with gradients it would be a copy in the graph
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def gradient(p: Tensor) -> Tensor:
    """The part of its gradient on this rank. Where FSDP offloads to the host, it may still be on its way there."""
    assert p.grad is not None
    if not is_sharded(p.grad):
        return p.grad
    part, sharded = local(p.grad), p.grad
    if part.is_cpu and sharded.device_mesh.device_type == "cuda":  # type: ignore[attr-defined]
        torch.cuda.current_stream().synchronize()
    return part


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """`part` as the shard of a DTensor that is cut as `tensor` is; `part` itself where `tensor` is whole.

    It is moved to the device of the mesh.
    """
    if not is_sharded(tensor):
        return part
    whole: Any = tensor
    made: Tensor = sys.modules[DTENSORS].DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return made


def same_place(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same elements in memory; never of a DTensor, which has parts elsewhere."""
    return not is_sharded(a) and a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.stride() == b.stride()
