"""What is asked of a device: moments in the order of its work, and the copies around what a GPU sends."""

from __future__ import annotations

import pytest
import torch
from slow_device import LATE, Slow
from torch import nn

import thinwire as tw
from thinwire.core.comm import AllReduceRequest
from thinwire.planning import profile
from thinwire.planning.company import Company
from thinwire.planning.device import Gpu, copied, device_of
from thinwire.planning.link import Cost, Sockets
from thinwire.planning.planner import steps_of
from thinwire.planning.script import Ask, Kind, Work

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
N, SIZE = 4, 4096


@pytest.mark.parametrize(
    ("kind", "down", "up"),
    [
        ("ring", SIZE, SIZE),
        ("gather", SIZE, 3 * SIZE),
        ("scatter", 0.75 * SIZE, 0.75 * SIZE),
        ("swap", SIZE, 2 * SIZE),
    ],
)
def test_bytes_that_cross_to_the_host_and_back(kind: Kind, down: float, up: float) -> None:
    assert copied(Ask(kind, SIZE, peers=2), N) == (down, up)


def test_what_lies_on_the_host_is_not_copied() -> None:
    gpu = Gpu(torch.device("cuda:0"), Cost(1e-5, 1e-10), Cost(1e-5, 1e-10))
    ask = Ask("ring", SIZE)
    assert gpu.around(AllReduceRequest((0, 1), torch.zeros(SIZE // 4)), ask, 2) == [ask]


def test_sockets_do_not_keep_a_gpu_busy() -> None:
    gpu = Gpu(torch.device("cuda:0"), Cost(), Cost())
    known = Sockets(*(Cost(0.1, 0.2, 0.3) for _ in range(4)))
    assert gpu.sockets(known) == Sockets(*(Cost(0.1, 0.2, 0.0) for _ in range(4)))


def test_a_model_on_several_devices_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match=r"not on cpu, meta; write model\.to\(\"cuda\"\)"):
        device_of(model, Company())


def test_a_queue_is_waited_for_after_every_step_and_piece_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(profile, "device_of", lambda model, company: slow)
    net = nn.Linear(128, 128)
    found = profile.measured(
        net, steps_of(torch.ones(1, 128), None, None), sockets=Sockets(), company=Company(), rivals=["ddp"]
    )
    assert found.computing.step >= LATE
    assert (found.computing.cores, found.computing.share) == (1.0, 1.0)
    before = slow.finishes
    one = found.contestant(tw.method("int8"), 2)
    (script, *_) = [script for script in one.scripts if len(script.parts) > 3]
    waited = [part for part in script.parts if isinstance(part, Work) and part.cores == 1.0]
    copies = [part for part in script.parts if isinstance(part, Work) and part.cores == 0.05]
    asks = [part for part in script.parts if isinstance(part, Ask)]
    assert len(copies) == 2 * len(asks)
    assert len(waited) == len(asks) + 1
    assert all(work.seconds >= LATE for work in waited)
    assert slow.finishes >= before + len(waited) * 2 * slow.rounds  # of both ranks
    assert (one.beside, one.disturbed) == (1.0, 1.0)


@GPU
def test_moments_are_those_of_the_queue() -> None:
    gpu = Gpu(torch.device("cuda:0"), Cost(), Cost())
    start = gpu.moment()
    torch.cuda._sleep(20_000_000)
    end = gpu.moment()
    gpu.finish()
    assert gpu.between(start, end) > 5e-3


@GPU
def test_a_model_on_a_gpu_is_planned() -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    found = tw.plan(net, torch.ones(4, 256).cuda(), link="1gbit", hosts=4, methods=["int8", "ecq-sgd", "topk"])
    assert {"ddp", "ddp fp16", "ddp powersgd-4", "int8", "ecq-sgd", "topk"} == {row.method for row in found.rows}
    for row in found.rows:
        assert row.step_ms >= found.computing_ms * 0.5
        assert row.step_ms >= 1e3 * row.sent_bytes * 8 / 1e9
