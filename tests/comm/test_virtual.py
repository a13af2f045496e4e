"""The virtual driver: answers, byte counts, deadlocks with names."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import Tensor

from thinwire.comm import Comm, run
from thinwire.core.errors import DeadlockError


def one(value: float) -> Tensor:
    return torch.tensor([float(value)])


def test_collectives() -> None:
    async def program(comm: Comm) -> tuple[float, list[int], list[float]]:
        total = await comm.all_reduce(one(comm.rank))
        sizes = [t.numel() for t in await comm.all_gather(torch.zeros(comm.rank + 1))]
        swapped = await comm.all_to_all([one(10 * comm.rank + to) for to in range(comm.size)])
        return total.item(), sizes, [t.item() for t in swapped]

    for rank, (total, sizes, swapped) in enumerate(run(program, 3).results):
        assert total == 3
        assert sizes == [1, 2, 3]
        assert swapped == [rank, 10 + rank, 20 + rank]


def test_swap_on_a_ring_keeps_its_rounds_apart() -> None:
    async def program(comm: Comm) -> list[dict[int, float]]:
        peers = [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size]
        rounds = []
        for r in range(3):
            got = await comm.swap(one(100 * r + comm.rank), peers)
            rounds.append({peer: t.item() for peer, t in got.items()})
        return rounds

    for rounds in run(program, 5).results:
        for r, got in enumerate(rounds):
            assert all(value == 100 * r + peer for peer, value in got.items())


def test_a_swap_may_send_to_some_and_take_from_others() -> None:
    """Round r sends to the rank 2^r further on: peers and sources differ, and rounds do not mix."""

    async def program(comm: Comm) -> list[dict[int, float]]:
        rounds = []
        for r in range(3):
            onward, back = (comm.rank + 2**r) % comm.size, (comm.rank - 2**r) % comm.size
            got = await comm.swap(one(100 * r + comm.rank), [onward], sources=[back])
            rounds.append({source: t.item() for source, t in got.items()})
        return rounds

    done = run(program, 5)
    for rank, rounds in enumerate(done.results):
        assert rounds == [{(rank - 2**r) % 5: 100 * r + (rank - 2**r) % 5} for r in range(3)]
    assert [(t.messages, t.bytes) for t in done.traffic] == [(3, 12)] * 5


def test_a_swap_may_be_one_way() -> None:
    """Rank 0 only gives, rank 2 only takes; a rank that takes nothing does not wait, and its sends are counted."""
    peers, sources = {0: [1, 2], 1: [2], 2: []}, {0: [], 1: [0], 2: [0, 1]}

    async def program(comm: Comm) -> dict[int, float]:
        got = await comm.swap(one(comm.rank + 1), peers[comm.rank], sources=sources[comm.rank])
        return {source: t.item() for source, t in got.items()}

    done = run(program, 3)
    assert done.results == [{}, {0: 1.0}, {0: 1.0, 1: 2.0}]
    assert [t.messages for t in done.traffic] == [2, 1, 0]


def test_swaps_of_a_part_of_the_ranks_are_numbered_within_it() -> None:
    async def program(comm: Comm) -> dict[int, float]:
        half = comm.sub([r for r in range(comm.size) if r % 2 == comm.rank % 2])
        got = await half.swap(one(comm.rank), [1 - half.rank], sources=[1 - half.rank])
        return {source: t.item() for source, t in got.items()}

    assert run(program, 4).results == [{1: 2.0}, {1: 3.0}, {0: 0.0}, {0: 1.0}]


def test_send_and_receive_from_anybody() -> None:
    async def program(comm: Comm) -> list[tuple[int, float]]:
        if comm.rank:
            await comm.send(0, one(comm.rank))
            return []
        got = [await comm.recv() for _ in range(comm.size - 1)]
        return [(rank, t.item()) for rank, t in got]

    assert sorted(run(program, 4).results[0]) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_what_is_sent_is_a_copy() -> None:
    async def program(comm: Comm) -> float:
        x = one(1)
        got = await comm.all_gather(x)
        x.fill_(7)
        got[comm.rank].fill_(9)
        again = await comm.all_gather(x)
        return again[1 - comm.rank].item()

    assert run(program, 2).results == [7.0, 7.0]


def test_bytes_are_counted_where_they_are_sent() -> None:
    async def program(comm: Comm) -> None:
        await comm.all_gather(torch.zeros(10, dtype=torch.uint8))
        await comm.all_reduce(torch.zeros(8))
        await comm.swap(torch.zeros(5, dtype=torch.uint8), [(comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size])
        await comm.all_to_all([torch.zeros(3, dtype=torch.uint8)] * comm.size)

    for traffic in run(program, 4).traffic:
        assert traffic.bytes == 3 * 10 + 2 * 3 * 32 // 4 + 2 * 5 + 3 * 3
        assert traffic.messages == 3 + 6 + 2 + 3


@pytest.mark.parametrize("size", [2, 3])
def test_a_deadlock_names_the_waiting_ranks(size: int) -> None:
    async def program(comm: Comm) -> None:
        if comm.rank == 0:
            await comm.recv(1)
        elif comm.rank == 1:
            await comm.all_gather(one(1))

    expected = "rank 0 waits in recv from 1; rank 1 waits in all_gather" + (
        "; rank 2 has returned" if size == 3 else ""
    )
    with pytest.raises(DeadlockError, match=expected):
        run(program, size)


def test_mismatched_collectives_are_a_deadlock_with_names() -> None:
    async def program(comm: Comm) -> None:
        if comm.rank == 1:
            await comm.all_reduce(one(1))
        else:
            await comm.all_gather(one(1))

    with pytest.raises(DeadlockError, match="rank 0 waits in all_gather; rank 1 waits in all_reduce"):
        run(program, 2)


def test_two_sends_that_meet_are_a_deadlock() -> None:
    async def program(comm: Comm) -> None:
        await comm.send(1 - comm.rank, one(1))

    with pytest.raises(DeadlockError, match="rank 0 waits in send to 1; rank 1 waits in send to 0"):
        run(program, 2)


def test_one_sided_swap_is_a_deadlock() -> None:
    async def program(comm: Comm) -> None:
        if comm.rank == 0:
            await comm.swap(one(1), [1])

    with pytest.raises(DeadlockError, match=r"rank 0 waits in swap with \[1\]; rank 1 has returned"):
        run(program, 2)


def test_a_source_that_does_not_send_is_a_deadlock_that_names_both_sides() -> None:
    """Rank 0 gives to 1 and takes from 2, but 2 gives to nobody: the two it waits for are named."""

    async def program(comm: Comm) -> None:
        if comm.rank == 0:
            await comm.swap(one(1), [1], sources=[2])
        else:
            await comm.swap(one(1), [], sources=[0] if comm.rank == 1 else [])

    with pytest.raises(DeadlockError, match=r"rank 0 waits in swap with \[1, 2\]; rank 1 has ret.*rank 2 has ret"):
        run(program, 3)


def test_arrows_that_no_side_turns_around_are_a_deadlock() -> None:
    """Both take, and nobody gives."""

    async def program(comm: Comm) -> None:
        await comm.swap(one(1), [], sources=[1 - comm.rank])

    with pytest.raises(DeadlockError, match=r"rank 0 waits in swap with \[1\]; rank 1 waits in swap with \[0\]"):
        run(program, 2)


def test_an_error_says_which_rank() -> None:
    async def program(comm: Comm) -> None:
        await comm.all_reduce(one(1))
        if comm.rank == 2:
            raise RuntimeError("boom")
        await comm.all_reduce(one(1))

    with pytest.raises(RuntimeError, match="boom") as caught:
        run(program, 3)
    assert "raised on virtual rank 2" in caught.value.__notes__


def test_foreign_awaitables_are_refused() -> None:
    async def program(comm: Comm) -> None:
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="only requests of its Comm can be awaited"):
        run(program, 2)


def test_bad_peers_and_sizes() -> None:
    comm = Comm(0, 2)
    for call in (
        lambda: comm.send(0, one(1)),
        lambda: comm.recv(5),
        lambda: comm.swap(one(1), [2]),
        lambda: comm.swap(one(1), [1], sources=[0]),
        lambda: comm.swap(one(1), [], sources=[2]),
    ):
        with pytest.raises(ValueError, match="rank 0 of 2 cannot talk to rank"):
            call()
    with pytest.raises(ValueError, match="one tensor per rank: 2; got 1"):
        comm.all_to_all([one(1)])

    async def program(comm: Comm) -> None:
        await comm.all_reduce(torch.zeros(comm.rank + 1))

    with pytest.raises(ValueError, match="differ between ranks"):
        run(program, 2)

    async def unequal(comm: Comm) -> None:
        await comm.all_gather(torch.zeros(comm.rank + 1), equal=True)

    with pytest.raises(ValueError, match=r"promised sizes \[1, 1\]; the tensors have \[1, 2\]"):
        run(unequal, 2)
    with pytest.raises(ValueError, match="at least one rank"):
        run(program, 0)
