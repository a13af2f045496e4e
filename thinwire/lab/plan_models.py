"""What `thinwire plan` plans for: a model that is built and timed here, or one that is given by its shapes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

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
OPTIMIZERS: dict[str, Callable[[Iterable[Any]], Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-5),
}
OWN = "package.module:make"
RETURNS = (
    "returns the arguments of tw.plan, such as dict(model=net, sample_batch=(inputs, targets), loss=cross_entropy)"
)


@dataclass(frozen=True)
class Wanted:
    """A name, and what is known of it."""

    name: str
    params: int = PARAMS
    batch: int | None = None
    device: str = "cpu"  # or cuda, of a model that is built
    computing: str | None = None  # how long a step computes, where there are shapes alone
    optimizer: str | None = None  # which a model of the user's brings along

    @property
    def built(self) -> bool:
        """Whether there is a model to train."""
        return self.name in BUILT or self.own

    @property
    def own(self) -> bool:
        """Whether it is the user's, made by a function of a module of theirs."""
        return ":" in self.name

    def check(self) -> None:
        """Raise a ValueError for what cannot be planned."""
        if self.own and self.optimizer is not None:
            raise ValueError(f"{self.name} says what its optimizer is; leave --optimizer out")
        if self.optimizer not in (None, *OPTIMIZERS):
            raise ValueError(f"--optimizer {self.optimizer}: write --optimizer {' or --optimizer '.join(OPTIMIZERS)}")
        if self.built:
            if not all(1 <= size <= MOST_BUILT for size in (self.params, self.batch or BATCH)) or self.batch == 0:
                raise ValueError(
                    f"params and batch are positive numbers up to {MOST_BUILT:,}; write --params 8388608 --batch 4"
                )
            if self.own and (self.params != PARAMS or self.batch is not None):
                raise ValueError(f"{self.name} makes its model and its batch; leave --params and --batch out")
            if self.computing is not None:
                raise ValueError(f"how long {self.name} computes is measured; leave --computing out")
            check_device(self.device)
            return
        if self.name not in MODELS:
            raise ValueError(
                f"there is no model {self.name!r}; write --model {', '.join((*BUILT, *MODELS))}, or {OWN} for a "
                "function of yours"
            )
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


def made_by(name: str, device: str, taken: Sequence[str]) -> dict[str, Any]:
    """The arguments of `tw.plan` that a function makes, with model and batch on `device`.

    The function is looked for as Python would from the current folder.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--model {name}: {error}; write --model {OWN}, where make {RETURNS}, and start in the folder of package"
        ) from error
    finally:
        sys.path.remove("")
    arguments = make() if callable(make) else None
    if (
        not isinstance(arguments, dict)
        or not {"model", "sample_batch"} <= set(arguments)
        or set(taken) & set(arguments)
    ):
        raise ValueError(
            f"--model {name}: {function} is a function without arguments that {RETURNS}, without {', '.join(taken)}"
        )
    moved = {"model": arguments["model"].to(device), "sample_batch": _on(device, arguments["sample_batch"])}
    return arguments | moved


def _on(device: str, batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _on(device, value) for key, value in batch.items()}
    return type(batch)(_on(device, part) for part in batch) if isinstance(batch, list | tuple) else batch


def outlook(
    wanted: Wanted,
    network: tw.Network | None,
    hosts: int | None,
    methods: Sequence[str],
    say: Callable[[str], None],
    tries: int = MOST,
) -> Outlook:
    """Measure on this machine, and replay; without a network it is measured, in the process group."""
    if wanted.own:
        given_here: dict[str, Any] = {"link": network, "hosts": hosts, "methods": methods, "tries": tries, "say": say}
        return plan(**made_by(wanted.name, wanted.device, tuple(given_here)), **given_here)
    if wanted.built:
        net = chain(wanted.params).to(wanted.device)
        batch = torch.randn(wanted.batch or BATCH, width(wanted.params), generator=torch.Generator().manual_seed(0))
        make = OPTIMIZERS[wanted.optimizer or "sgd"]
        return plan(
            net,
            batch.to(wanted.device),
            link=network,
            hosts=hosts,
            methods=methods,
            optimizer=make,
            tries=tries,
            say=say,
        )
    if network is None or hosts is None:
        raise ValueError("a model that is given by its shapes needs a link; write --hosts 16 --rate 1gbit")
    assert wanted.computing is not None
    load = Load.of(wanted.name, seconds(wanted.computing))
    optimizer = OPTIMIZERS[wanted.optimizer or "sgd"]([torch.zeros(1, requires_grad=True)])
    profile = given(load, share=float(os.cpu_count() or 1), sockets=loopback(), say=say, optimizer=optimizer)
    link = Link(8 * network.bytes_per_second(0), network.delay)
    return outlook_of(
        profile, Setting(hosts, link, profile.computing, profile.sockets), [tw.method(m) for m in methods]
    )
