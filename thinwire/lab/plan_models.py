"""What `thinwire plan` plans for: a model that is built and timed here, or one that is given by its shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import thinwire as tw
from thinwire.core.rates import seconds
from thinwire.lab.bench_step import model as chain
from thinwire.lab.bench_step import width
from thinwire.planning.link import Link, loopback
from thinwire.planning.outlook import Outlook, Setting
from thinwire.planning.planner import outlook_of, plan
from thinwire.planning.shapes import given
from thinwire.planning.trial import MOST
from thinwire.sim.load import Load
from thinwire.sim.models import MODELS

PARAMS = 8 << 20
BATCH = 4
MOST_BUILT = 10**11  # parameters, or samples, that no machine has the memory for
BUILT = ("mlp",)


@dataclass(frozen=True)
class Wanted:
    """A name, and what is known of it."""

    name: str
    params: int = PARAMS
    batch: int | None = None
    device: str = "cpu"  # or cuda, of a model that is built
    computing: str | None = None  # how long a step computes, where there are shapes alone

    @property
    def built(self) -> bool:
        """Whether there is a model to train."""
        return self.name in BUILT

    def check(self) -> None:
        """Raise a ValueError for what cannot be planned."""
        if self.built:
            if not all(1 <= size <= MOST_BUILT for size in (self.params, self.batch or BATCH)) or self.batch == 0:
                raise ValueError(
                    f"params and batch are positive numbers up to {MOST_BUILT:,}; write --params 8388608 --batch 4"
                )
            if self.computing is not None:
                raise ValueError(f"how long {self.name} computes is measured; leave --computing out")
            check_device(self.device)
            return
        if self.name not in MODELS:
            raise ValueError(f"there is no model {self.name!r}; write --model {', '.join((*BUILT, *MODELS))}")
        if self.device != "cpu":
            raise ValueError(f"{self.name} is given by its shapes, whose codecs run on the CPU; leave --device out")
        if self.params != PARAMS or self.batch is not None:
            raise ValueError(
                f"{self.name} is given by its shapes, and has its own size; leave --params and --batch out"
            )
        if self.computing is None:
            raise ValueError(
                f"{self.name} is given by its shapes; say how long a step computes: "
                f"--model {self.name} --computing 300ms"
            )
        if seconds(self.computing, "computing", "--computing 300ms") <= 0:
            raise ValueError("a step takes time to compute; write --computing 300ms")


def check_device(device: str) -> None:
    """Raise a ValueError where there is no such device."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: write --device cpu or --device cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; write --device cpu, or install torch with CUDA")


def outlook(
    wanted: Wanted,
    network: tw.Network | None,
    hosts: int | None,
    methods: Sequence[str],
    say: Callable[[str], None],
    tries: int = MOST,
) -> Outlook:
    """Measure on this machine, and replay; without a network it is measured, in the process group."""
    if wanted.built:
        net = chain(wanted.params).to(wanted.device)
        batch = torch.randn(wanted.batch or BATCH, width(wanted.params), generator=torch.Generator().manual_seed(0))
        return plan(net, batch.to(wanted.device), link=network, hosts=hosts, methods=methods, tries=tries, say=say)
    if network is None or hosts is None:
        raise ValueError("a model that is given by its shapes needs a link; write --hosts 16 --rate 1gbit")
    assert wanted.computing is not None
    load = Load.of(wanted.name, seconds(wanted.computing))
    profile = given(load, share=float(os.cpu_count() or 1), sockets=loopback(), say=say)
    link = Link(8 * network.bytes_per_second(0), network.delay)
    return outlook_of(
        profile, Setting(hosts, link, profile.computing, profile.sockets), [tw.method(m) for m in methods]
    )
