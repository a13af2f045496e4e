"""What requests are answered with in one process, in numbers: sums, copies, and sizes that were promised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.core.comm import (
    AllGatherRequest,
    AllReduceRequest,
    AllToAllRequest,
    ComputeRequest,
    NowRequest,
    PostRequest,
    RecvRequest,
    Request,
    SendRequest,
    SleepRequest,
    SwapRequest,
)

WORDS = {
    AllReduceRequest: "all_reduce",
    AllGatherRequest: "all_gather",
    AllToAllRequest: "all_to_all",
    NowRequest: "now",
    SleepRequest: "sleep",
    ComputeRequest: "compute",
}


def all_reduce(requests: Sequence[AllReduceRequest]) -> list[Tensor]:
    """The sum or maximum in order of rank, once for each of them."""
    shapes = {(r.x.shape, r.x.dtype, r.op) for r in requests}
    if len(shapes) > 1:
        described = sorted(str((tuple(shape), dtype, op)) for shape, dtype, op in shapes)
        raise ValueError(f"all_reduce of tensors that differ between ranks: {described}")
    total = requests[0].x.clone()
    for r in requests[1:]:
        total = torch.maximum(total, r.x) if r.op == "max" else total + r.x
    return [total.clone() for _ in requests]


def all_gather(requests: Sequence[AllGatherRequest]) -> list[list[Tensor]]:
    """A copy of everybody's tensor for each rank."""
    xs = [r.x for r in requests]
    sizes = tuple([x.numel() for x in xs])
    for r in requests:
        if r.sizes is not None:
            check_sizes("all_gather", r.sizes, sizes, r.exact)
    return [[x.clone() for x in xs] for _ in requests]


def all_to_all(requests: Sequence[AllToAllRequest]) -> list[list[Tensor]]:
    """A copy for each rank of what was meant for it."""
    for rank, r in enumerate(requests):
        if r.sizes is not None:
            check_sizes("all_to_all", r.sizes, tuple([o.xs[rank].numel() for o in requests]), r.exact)
    return [[r.xs[rank].clone() for r in requests] for rank in range(len(requests))]


def swap(request: SwapRequest, arrived: dict[int, Tensor]) -> dict[int, Tensor]:
    """What the sources sent, where it has the sizes that were promised."""
    if request.equal:
        sizes = tuple([x.numel() for x in arrived.values()])
        check_sizes("swap", (request.x.numel(),) * len(arrived), sizes)
    return arrived


def check_sizes(what: str, promised: tuple[int, ...], sizes: tuple[int, ...], exact: bool = True) -> None:
    """Refuse tensors that have not the sizes, or are larger than the bounds, that a request gave."""
    if promised == sizes:
        return
    if exact or any(size > most for size, most in zip(sizes, promised, strict=True)):
        raise ValueError(f"{what} was promised sizes {list(promised)}; the tensors have {list(sizes)}")


def describe(request: Request[Any]) -> str:
    """What a rank waits in, in words."""
    if isinstance(request, SwapRequest):
        return f"swap with {sorted({*request.peers, *request.sources})}"
    if isinstance(request, SendRequest | PostRequest):
        return f"send to {request.to}"
    if isinstance(request, RecvRequest):
        return "recv from any" if request.source is None else f"recv from {request.source}"
    return WORDS[type(request)]
