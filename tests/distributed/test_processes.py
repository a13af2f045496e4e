"""The driver over real processes: every request, equal and unequal sizes, groups, and the bytes it counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from battery import LAYOUT
from nets import SUMMED_BY_THE_BACKEND, exchange_twice
from ranks import on_ranks
from torch import Tensor

from thinwire.comm import Comm, run
from thinwire.comm.processes import Processes
from thinwire.core.method import METHODS

HALVES = ((0, 1), (2, 3))


async def conversation(comm: Comm) -> list[Any]:
    """One of each request; the answers are returned as a list of plain values."""
    r, n = comm.rank, comm.size
    one = torch.arange(3.0) + r
    heard: list[Any] = [(await comm.all_reduce(one.clone())).tolist()]
    heard.append((await comm.all_reduce(torch.tensor([r % 3, 7], dtype=torch.uint8), "max")).tolist())
    heard.append([x.tolist() for x in await comm.all_gather(one, equal=True)])
    heard.append([x.tolist() for x in await comm.all_gather(torch.full((r,), r, dtype=torch.uint8))])
    sizes = [k + 1 for k in range(n)]
    heard.append([x.tolist() for x in await comm.all_gather(torch.ones(r + 1), sizes=sizes)])
    heard.append([x.tolist() for x in await comm.all_to_all([torch.full((to,), 10.0 * r + to) for to in range(n)])])
    known = [torch.full((to + 1,), 10.0 * r + to) for to in range(n)]
    heard.append([x.tolist() for x in await comm.all_to_all(known, sizes=(r + 1,) * n)])
    most = (2000,) * n  # a message may be shorter than promised
    some = await comm.all_gather(torch.full((500 * (r + 1),), r, dtype=torch.uint8), sizes=most, exact=False)
    heard.append([x[: 500 * (k + 1)].tolist() for k, x in enumerate(some)])
    known = [torch.full((100 * (to + 1),), r, dtype=torch.uint8) for to in range(n)]
    heard.append([x[: 100 * (r + 1)].tolist() for x in await comm.all_to_all(known, sizes=most, exact=False)])
    ring = sorted({(r - 1) % n, (r + 1) % n})
    heard.append({peer: x.tolist() for peer, x in (await comm.swap(one, ring, equal=True)).items()})
    heard.append({peer: x.tolist() for peer, x in (await comm.swap(torch.ones(r), ring)).items()})
    onward = comm.swap(one, [(r + 1) % n], sources=[(r - 1) % n], equal=True)
    heard.append({peer: x.tolist() for peer, x in (await onward).items()})
    if r == 0:
        await comm.send(1, torch.tensor([1, 2], dtype=torch.int64))
        sender, x = await comm.recv()
        heard.append((sender, x.tolist()))
    elif r == 1:
        sender, x = await comm.recv(0)
        await comm.send(0, torch.empty(0))
        heard.append((sender, x.tolist()))
    half = comm.sub(HALVES[r // 2])
    heard.append((await half.all_reduce(torch.tensor([float(r)]))).tolist())
    heard.append([x.tolist() for x in await half.all_gather(torch.full((half.rank + 1,), float(r)))])
    return heard


def groups() -> dict[tuple[int, ...], dist.ProcessGroup]:
    made = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1, 2, 3), *HALVES)}
    return {ranks: group for ranks, group in made.items() if dist.get_rank() in ranks}


def talk() -> tuple[list[Any], int, int]:
    driver = Processes(groups())
    heard = driver.run(conversation(driver.comm))
    return heard, driver.traffic.bytes, driver.traffic.messages


@pytest.fixture(scope="module")
def talked() -> list[tuple[list[Any], int, int]]:
    return on_ranks(talk, 4)


def test_every_request_is_answered_as_on_the_virtual_driver(talked: list[tuple[list[Any], int, int]]) -> None:
    real, virtual = talked, run(conversation, 4)
    for rank in range(4):
        assert real[rank][0] == virtual.results[rank]


def test_bytes_are_those_of_the_virtual_driver_and_the_sizes_that_were_asked(
    talked: list[tuple[list[Any], int, int]],
) -> None:
    """Three requests promise no sizes: 8 bytes to each peer; a send has 16 for kind and size; a half asks once."""
    real, virtual = talked, run(conversation, 4)
    for rank in range(4):
        asked = 8 * (3 + 3 + 2) + 8 + (16 if rank < 2 else 0)
        assert real[rank][1] == virtual.traffic[rank].bytes + asked


def every_method(names: list[str]) -> dict[str, Tensor]:
    driver = Processes({(0, 1, 2, 3): dist.group.WORLD})  # type: ignore[dict-item]
    return {name: driver.run(exchange_twice(driver.comm, name, LAYOUT)) for name in names}


def test_every_method_gives_the_bits_of_the_virtual_driver() -> None:
    names = list(METHODS)
    real = on_ranks(every_method, 4, names)
    for name in names:
        virtual = run(lambda comm, name=name: exchange_twice(comm, name, LAYOUT), 4).results  # type: ignore[misc]
        for rank in range(4):
            if name in SUMMED_BY_THE_BACKEND:
                assert torch.allclose(real[rank][name], virtual[rank], rtol=0, atol=SUMMED_BY_THE_BACKEND[name])
                assert torch.equal(real[rank][name], real[0][name])
            else:
                assert torch.equal(real[rank][name], virtual[rank]), name


def not_a_request() -> None:
    async def program() -> None:
        class Foreign:
            def __await__(self) -> Any:
                yield 1

        await Foreign()

    Processes({(0,): dist.group.WORLD}).run(program())  # type: ignore[dict-item]


def test_only_requests_can_be_awaited() -> None:
    with pytest.raises(RuntimeError, match="only requests of its Comm can be awaited"):
        on_ranks(not_a_request, 1)
