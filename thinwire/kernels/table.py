"""Which function runs an operation: a table of operations by families of tiers.

An operation is defined in plain torch, beside the public function that checks its arguments and asks `find`. For a
family the table may name a function with the same bits: C++ for "cpu", Triton for "gpu". Where it names none, the
definition runs, on the CPU or on a GPU. The names are strings, so that nothing is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from thinwire.kernels.dispatch import select

if TYPE_CHECKING:
    from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

TABLE: dict[str, dict[str, str]] = {
    "selection.top": {
        "cpu": "thinwire.kernels.cpu.selection:top",
        "gpu": "thinwire.kernels.gpu.selection:top",
    },
    "selection.top_sum": {"cpu": "thinwire.kernels.cpu.selection:top_sum"},
    "selection.top_blocks": {
        "cpu": "thinwire.kernels.cpu.selection:top_blocks",
        "gpu": "thinwire.kernels.gpu.selection:top_blocks",
    },
    "selection.over": {
        "cpu": "thinwire.kernels.cpu.selection:over",
        "gpu": "thinwire.kernels.gpu.selection:over",
    },
    "selection.add_at": {
        "cpu": "thinwire.kernels.cpu.selection:add_at",
        "gpu": "thinwire.kernels.gpu.selection:add_at",
    },
    "selection.keep_at": {"cpu": "thinwire.kernels.cpu.selection:keep_at"},
    "selection.subset": {"cpu": "thinwire.kernels.cpu.selection:subset"},
    "selection.merge": {"cpu": "thinwire.kernels.cpu.selection:merge"},
    "hadamard.peak": {"cpu": "thinwire.kernels.cpu.hadamard:peak"},
    "hadamard.unit": {"gpu": "thinwire.kernels.gpu.hadamard:unit"},
    "hadamard.hadamard": {
        "cpu": "thinwire.kernels.cpu.hadamard:hadamard",
        "gpu": "thinwire.kernels.gpu.hadamard:hadamard",
    },
    "hadamard.rotate": {
        "cpu": "thinwire.kernels.cpu.hadamard:rotate",
        "gpu": "thinwire.kernels.gpu.hadamard:rotate",
    },
    "hadamard.unrotate_add": {
        "cpu": "thinwire.kernels.cpu.hadamard:unrotate_add",
        "gpu": "thinwire.kernels.gpu.hadamard:unrotate_add",
    },
    "dct.sandwich": {
        "cpu": "thinwire.kernels.cpu.dct:sandwich",
        "gpu": "thinwire.kernels.gpu.dct:sandwich",
    },
    "rotated_codes.encode": {
        "cpu": "thinwire.kernels.cpu.rotated_codes:encode",
        "gpu": "thinwire.kernels.gpu.rotated_codes:encode",
    },
    "rotated_codes.decode_add": {
        "cpu": "thinwire.kernels.cpu.rotated_codes:decode_add",
        "gpu": "thinwire.kernels.gpu.rotated_codes:decode_add",
    },
    "mean_encode.one_pass": {"gpu": "thinwire.kernels.gpu.mean_encode:one_pass"},
    "mean_encode.mean_encode": {"gpu": "thinwire.kernels.gpu.mean_encode:mean_encode"},
    "minifloat.write": {"gpu": "thinwire.kernels.gpu.minifloat:write"},
    "minifloat.add": {"gpu": "thinwire.kernels.gpu.minifloat:add"},
    "rans.encode": {"gpu": "thinwire.kernels.gpu.rans:encode_frames"},
    "rans.decode": {"gpu": "thinwire.kernels.gpu.rans:decode_frames"},
}


def find(operation: str, x: Tensor, plain: F) -> F:
    """The function that runs `operation` on `x`: the table's for its tier, otherwise the definition `plain`."""
    tier = select(x)
    if tier.family == "cpu" and not x.is_cpu:
        raise ValueError(
            f"the kernels '{tier.name}' run on CPU tensors, and the tensor is on {x.device}: "
            "leave the choice of kernels open, or write force('reference')"
        )
    found = load(operation, tier.family) or plain
    if x.is_cuda and x.get_device() != torch.cuda.current_device():  # Triton launches on the current device
        return cast(F, partial(_there, x.device, found))
    return cast(F, found)


def _there(device: torch.device, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    with torch.cuda.device(device):
        return function(*args, **named)


@cache
def load(operation: str, family: str) -> Any:
    """The function of the table, or None where there is none."""
    path = TABLE[operation].get(family)
    if path is None:
        return None
    module, name = path.split(":")
    return getattr(import_module(module), name)
