"""Tensors where gloo cannot read them: the way through pinned memory, with a device that is only said to be far."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.distributed as dist
from battery import LAYOUT
from nets import batch, exchange_twice, flat, loss, net
from ranks import on_ranks
from torch import Tensor

import thinwire as tw
from thinwire.comm.backend import Gloo
from thinwire.comm.pinned import Pinned
from thinwire.comm.processes import Processes
from thinwire.core.method import METHODS
from thinwire.core.payload import HEADER

IN_STEP = [name for name in METHODS if METHODS[name]().sync.staleness is not None]


class Now:
    """A queue that is worked off at once."""

    def record(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Far(Gloo):
    """Reads what it pinned, made or brought, and nothing else."""

    def __init__(self) -> None:
        self.near: dict[int, Tensor] = {}  # by address; kept, so that no other tensor gets one of these

    def pin(self, nbytes: int) -> Tensor:
        return self._note(torch.empty(nbytes, dtype=torch.uint8))

    def holds(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self.near

    def bring(self, x: Tensor) -> Tensor:
        return self._note(x.clone())

    def room(self, n: int, dtype: torch.dtype, like: Tensor) -> Tensor:
        return self._note(torch.empty(n, dtype=dtype))

    def _note(self, x: Tensor) -> Tensor:
        self.near[x.untyped_storage().data_ptr()] = x
        return x


def far() -> Processes:
    group: Any = dist.group.WORLD
    backend = Far()
    driver = Processes({tuple(range(dist.get_world_size())): group}, backend=backend)
    driver._pinned = Pinned(backend.pin, Now)
    return driver


def both_ways(names: list[str]) -> dict[str, tuple[bool, int, int]]:
    group: Any = dist.group.WORLD
    near, out = Processes({tuple(range(dist.get_world_size())): group}), {}
    for name in names:
        driver = far()
        there = driver.run(exchange_twice(driver.comm, name, LAYOUT))
        pinned = driver._pinned.nbytes
        driver.run(exchange_twice(driver.comm, name, LAYOUT))
        here = near.run(exchange_twice(near.comm, name, LAYOUT))
        out[name] = torch.equal(there.view(torch.uint8), here.view(torch.uint8)), pinned, driver._pinned.nbytes
    return out


def test_every_method_gives_the_same_bits() -> None:
    for result in on_ranks(both_ways, 2, IN_STEP):
        for name, (equal, pinned, later) in result.items():
            assert equal, name
            assert later <= pinned, f"{name}: more memory is pinned in every step"


def heads() -> list[bool]:
    """Messages of unequal sizes, in more room than they need."""
    driver, out = far(), []
    rank = driver.comm.rank
    payload = METHODS["qsgd"]().exchange.channels[0].encoder.encode(torch.randn(700 + 100 * rank))
    sent = driver.run(_gather(driver, payload.data, 4096))
    for data in sent:
        if data is not payload.data:
            head = driver.comm.heads[data]
            out += [
                head == ctypes.string_at(data.data_ptr(), HEADER.size),
                data.numel() == HEADER.size + int.from_bytes(head[20:24], "little"),
                data.numel() < 4096,
            ]
    return out


async def _gather(driver: Processes, x: Tensor, most: int) -> list[Tensor]:
    return await driver.comm.all_gather(x, sizes=[most] * driver.comm.size, exact=False)


def test_first_bytes_are_noted_and_room_that_is_left_stays_behind() -> None:
    for found in on_ranks(heads, 3):
        assert len(found) == 6
        assert all(found)


class Slow(Now):
    """A queue that is worked off only when somebody waits for it."""

    def query(self) -> bool:
        return False


def trained(name: str, event: type[Now]) -> tuple[list[int], Tensor]:
    """The bytes that all slots have pinned, step by step, and the model in the end."""
    init = Processes.__init__

    def made(self: Processes, groups: Any, gone: Any = None, backend: Any = None, dropped: Any = None) -> None:
        init(self, groups, gone, Far())
        assert isinstance(self._backend, Far)
        self._pinned = Pinned(self._backend.pin, event)

    Processes.__init__ = made  # type: ignore[method-assign]
    try:
        model, pinned = net(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with tw.attach(model, optimizer, tw.method(name), min_size=0) as wire:
            for step in range(4 * len(wire._transport.lane.drivers)):
                optimizer.zero_grad()
                loss(model, batch(step)).backward()
                optimizer.step()
                pinned.append(sum(driver._pinned.nbytes for driver in wire._transport.lane.drivers))
    finally:
        Processes.__init__ = init  # type: ignore[method-assign]
    return pinned, flat(model)


def both_speeds(name: str) -> tuple[bool, list[int], list[int]]:
    (fast, here), (slow, there) = trained(name, Now), trained(name, Slow)
    return torch.equal(here, there), fast, slow


def all_speeds(names: list[str]) -> dict[str, tuple[bool, list[int], list[int]]]:
    return {name: both_speeds(name) for name in names}


def test_all_slots_have_pinned_what_they_need_after_a_few_turns() -> None:
    for result in on_ranks(all_speeds, 2, ["sgd", "qsgd:bits=4", "ecq-sgd"]):
        for name, (equal, fast, slow) in result.items():
            assert equal, name
            assert fast == slow, name
            assert fast[1] < fast[-1], name  # the slots see their first bucket one after the other
            assert set(fast[len(fast) // 2 :]) == {fast[-1]}, name
