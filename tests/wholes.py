"""Whole tensors of sharded ones, on GPUs too."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def whole(x: Any) -> Tensor:
    """`x.full_tensor()`, whose collectives crash torch 2.11 over gloo where tensors lie on a GPU."""
    if x.device_mesh.device_type == "cpu":
        full: Tensor = x.full_tensor()
        return full
    mesh = x.device_mesh
    group = mesh.get_group(mesh.ndim - 1)  # replicas, where there are any, come first
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, x.to_local().cpu(), group=group)
    return torch.cat(parts).to(x.device)
