"""Memory that exchanges keep from one piece of work to the next."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thinwire import Comm, Layout
from thinwire.core.comm import AllReduceRequest
from thinwire.core.rooms import Rooms
from thinwire.core.types import Context, Key
from thinwire.exchange import AllReduce

CPU = torch.device("cpu")


def test_rooms_lent_at_once_are_different_and_none_is_made_in_vain() -> None:
    rooms, places = Rooms(), []
    for _ in range(3):
        with rooms.lend(100, torch.float16, CPU) as one, rooms.lend(60, torch.float16, CPU) as other:
            assert (one.numel(), other.numel()) == (100, 60)
            places.append({one.data_ptr(), other.data_ptr()})
    assert len(places[0]) == 2
    assert places[0] == places[1] == places[2]


def test_a_room_that_is_too_small_is_replaced() -> None:
    rooms = Rooms()
    for n in (10, 30, 20):
        with rooms.lend(n, torch.float16, CPU):
            pass
    assert [room.numel() for room in rooms._free] == [30]
    with rooms.lend(20, torch.bfloat16, CPU) as other:
        assert other.dtype == torch.bfloat16
    assert sorted(room.numel() for room in rooms._free) == [20, 30]


def test_after_an_error_a_room_is_not_lent_again() -> None:
    rooms = Rooms()
    with pytest.raises(ZeroDivisionError), rooms.lend(10, torch.float16, CPU):
        raise ZeroDivisionError
    assert not rooms._free


class Under:
    """An exchange of one rank of two, as far as its request; the other rank's vector is twice this one's."""

    def __init__(self, comm: Comm, x: Tensor) -> None:
        context = Context(comm, Layout.flat(x.numel()), Key(0, 0, 0))
        self._run = AllReduce(wire="bf16")(x, {}, context)
        request = self._run.send(None)
        assert isinstance(request, AllReduceRequest)
        self.sent = request.x

    def end(self) -> Tensor:
        with pytest.raises(StopIteration) as done:
            self._run.send(self.sent.mul_(3))
        found: Tensor = done.value.value
        return found


def test_16_bit_sums_reuse_their_memory_and_those_under_way_at_once_have_their_own() -> None:
    comm, places = Comm(0, 2), []
    for step in range(3):
        x, y = torch.full((1000,), 2.0 + step), torch.full((400,), 8.0)
        first, second = Under(comm, x), Under(comm, y)
        places.append([first.sent.data_ptr(), second.sent.data_ptr()])
        assert first.sent.dtype == torch.bfloat16
        assert torch.equal(first.end(), torch.full((1000,), 3.0 + 1.5 * step))
        assert torch.equal(second.end(), torch.full((400,), 12.0))
    assert places[0][0] != places[0][1]
    assert places[0] == places[1] == places[2]
