"""A profile without a model: its shapes and how long a step computes are given, and codecs run on random numbers.

DDP's copies, casts and products are timed on a vector of this machine and counted per element.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, final

import torch

from thinwire.planning.alone import ENGINE
from thinwire.planning.computing import Computing
from thinwire.planning.profile import Profile

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from thinwire.planning.link import Sockets
    from thinwire.sim.load import Load

SIDE = 2048  # of the matrix that is copied, cast and multiplied
RANK, TIMES = 4, 5


@final
class Drawn(Mapping[str, "Tensor"]):
    """Gaussian vectors by the name of a parameter, drawn when they are asked for."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)

    def __getitem__(self, name: str) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(self._sizes[name], generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


def given(
    load: Load,
    *,
    share: float,
    sockets: Sockets,
    say: Callable[[str], None] = lambda text: None,
    optimizer: Optimizer | None = None,
) -> Profile:
    """The profile of a load, for the kind of optimizer that it is trained with."""
    computing = Computing(
        tuple(load.items),
        tuple(one.seconds for one in load.tensors),
        load.computed,
        (load.computed + load.update,),
        cores=min(1.0, share),
        share=share,
    )
    say("copies and products")
    return Profile(
        computing,
        Drawn({item.name: item.numel for item in load.items}),
        spent(load.numel),
        sockets,
        drawn=True,
        say=say,
        optimizer=optimizer,
    )


def spent(elements: int) -> dict[str, float]:
    """Seconds per step of DDP's ways and of the engine, for a gradient of so many elements."""
    x, y = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    half, q = x.half(), torch.ones(SIDE, RANK)
    per = elements / SIDE**2
    copy = per * _timed(lambda: y.copy_(x))
    cast = per * (_timed(lambda: x.half()) + _timed(lambda: y.copy_(half)))
    products = per * (_timed(lambda: x @ q) + _timed(lambda: x.T @ q) + _timed(lambda: y.sub_(q @ q.T)))
    return {"ddp": 2 * copy, "ddp fp16": 2 * copy + cast, "ddp powersgd-4": 4 * copy + products, ENGINE: copy}


def _timed(work: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times[1:])
