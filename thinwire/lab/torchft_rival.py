"""A rival: torchft's DiLoCo, one replica per rank, with its own manager, lighthouse and process group.

It is torchft as its examples use it: a quorum before every round, pseudo-gradients summed by gloo, and torch's SGD
outside. "torchft diloco-5" has rounds of 5 steps and the outer step of the paper, learning rate 0.7 and Nesterov's
momentum 0.9; with "torchft mean-5" the models become their mean. "torchft diloco-5 fp8" sends 8-bit floats, which
torchft makes on CUDA tensors alone.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from thinwire.comm.control import of_first
from thinwire.lab.net.shaping import DEVICE

PREFIX = "torchft "
OUTER = {"diloco": (0.7, 0.9), "mean": (1.0, 0.0)}  # learning rate and momentum
PATIENCE = timedelta(minutes=5)
BETWEEN = ("10.77.0.250", 9)  # an address of the lab's network, to which nothing is sent


def installed() -> bool:
    """Whether torchft is there."""
    return find_spec("torchft") is not None


class Rival(NamedTuple):
    """What a contestant's name says."""

    kind: str
    every: int
    fp8: bool


def is_one(name: str, device: str = "cpu") -> bool:
    """Whether this is the name of such a contestant; ValueError if it is nearly one, or cannot run here."""
    if not name.startswith(PREFIX):
        return False
    rival = parsed(name)
    if rival.fp8 and device == "cpu":
        raise ValueError(f"'{name}' needs a GPU; write thinwire bench language --device cuda, or leave fp8 out")
    if not installed():
        raise ValueError("torchft is missing; write pip install 'thinwire[torchft]'")
    return True


def parsed(name: str) -> Rival:
    """The contestant of this name; ValueError if it is none."""
    found = re.fullmatch(rf"{PREFIX}({'|'.join(OUTER)})-([1-9]\d*)( fp8)?", name)
    if found is None:
        raise ValueError(
            f"'{name}' is no contestant; write 'torchft diloco-5', 'torchft mean-5' or 'torchft diloco-5 fp8'"
        )
    return Rival(found[1], int(found[2]), fp8=found[3] is not None)


@contextmanager
def entered(name: str, net: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Let torchft exchange what `optimizer` does to `net`; every rank calls it."""
    os.environ.setdefault("RUST_LOG", "error")  # it would otherwise write several lines per round
    from torchft.coordination import LighthouseServer  # noqa: PLC0415  (an extra)
    from torchft.local_sgd import DiLoCo  # noqa: PLC0415
    from torchft.manager import Manager  # noqa: PLC0415
    from torchft.process_group import ProcessGroupGloo  # noqa: PLC0415

    logging.getLogger("torchft").setLevel(logging.ERROR)
    rival = parsed(name)
    rank, world, here = dist.get_rank(), dist.get_world_size(), _address()
    lighthouse = LighthouseServer("0.0.0.0:0", world, join_timeout_ms=1000) if rank == 0 else None
    port = "" if lighthouse is None else lighthouse.address().rsplit(":", 1)[1]
    there = of_first(f"http://{here}:{port}")
    store = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
    lr, momentum = OUTER[rival.kind]
    outer = SGD(net.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=net.load_state_dict,
        state_dict=net.state_dict,
        min_replica_size=world,
        use_async_quorum=False,
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        rank=0,
        world_size=1,
        store_addr=here,
        store_port=store.port,
        lighthouse_addr=there,
        replica_id=f"rank{rank}",
        hostname=here,
        init_sync=False,
    )
    try:
        pinned = torch.cuda.is_available()
        with DiLoCo(
            manager, [net], optimizer, outer, sync_every=rival.every, pin_memory=pinned, should_quantize=rival.fp8
        ):
            yield
        dist.barrier()  # nobody leaves while another is in its last round
    finally:
        manager.shutdown(wait=False)
        if lighthouse is not None:
            lighthouse.shutdown()


def _address() -> str:
    """The address of this host in the lab, or that of the machine itself."""
    if os.environ.get("GLOO_SOCKET_IFNAME") != DEVICE:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(BETWEEN)
        return str(probe.getsockname()[0])
