"""AD-PSGD through attach: ranks train at their own speed, the model is shared, states and faults."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from nets import batch, flat, loss, net, said, train
from ranks import PATIENCE, endings, on_ranks

import thinwire as tw
from thinwire import methods

pytestmark = pytest.mark.timeout(300)  # many processes, and machines that are busy


def trained(steps: int) -> dict[str, float]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = loss(model, batch(99, 0)).item()
    with tw.attach(model, optimizer, methods.ad_psgd(), min_size=0) as wire:
        train(model, optimizer, range(steps))
        found = wire.consensus()
        state = wire.state_dict()
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        wire.load_state_dict(state)
        back = flat(model)
    stats = wire.stats()  # the last exchanges end by themselves, and `detach` waits for them
    model.load_state_dict(found.model)
    return {
        "before": before,
        "after": loss(model, batch(99, 0)).item(),
        "distance": found.distance,
        "restored": (back - flat(model)).norm().item(),
        **{name: stats[name] for name in ("rounds", "exchanges", "staleness_max", "bytes_sent")},
    }


def test_models_train_and_are_shared() -> None:
    results = on_ranks(trained, 4, 60)
    for result in results:
        assert result["after"] < 0.75 * result["before"]
        assert result["restored"] < 4 * result["distance"] < 2
        assert result["rounds"] == 60
        assert result["bytes_sent"] > 0
    # Two active ranks ask once per step, and once more when they end; both ends count.
    assert sum(r["exchanges"] for r in results) == 2 * 2 * 61
    assert max(r["staleness_max"] for r in results) >= 1


def changed_between_steps() -> float:
    """The training loop itself writes into the model, as one does that clips weights; steps have length zero."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    start = flat(model)

    def write() -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0)

    with tw.attach(model, optimizer, methods.ad_psgd(), min_size=0):
        write()
        train(model, optimizer, range(3))
        write()
    mean = flat(model) / dist.get_world_size()  # which averaging keeps
    dist.all_reduce(mean)
    return (mean - 2.0 - start).abs().max().item()


def test_what_a_loop_writes_into_the_model_stays() -> None:
    assert max(on_ranks(changed_between_steps, 2)) < 1e-5


def killed_without_leave() -> None:
    """Rank 2 of a ring dies; the others end as a script does that saves what it needs and exits.

    Rank 0, which is no neighbour of it, has trained to the end, and waits for its own neighbours.
    """
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wire = tw.attach(model, optimizer, methods.ad_psgd(), min_size=0, timeout=60.0)
    train(model, optimizer, range(5))
    dist.barrier()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    told = said(wire.detach if dist.get_rank() == 0 else lambda: train(model, optimizer, range(5, 1_000_000)))
    wire._transport.leave("its script has ended")
    raise SystemExit(json.dumps([told, time.monotonic() - begun]))


def test_everybody_names_the_rank_that_died() -> None:
    ended = endings(killed_without_leave, 4, grace=40.0)
    for rank in (0, 1, 3):
        told, seconds = json.loads(ended[rank].error.rsplit("SystemExit: ", 1)[1])
        assert told.startswith("PeerError: rank 2 of 4 has stopped answering"), told
        assert seconds < 20 * PATIENCE


def killed() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wire = tw.attach(model, optimizer, methods.ad_psgd(), min_size=0, timeout=10.0, drop_dead=True)
    train(model, optimizer, range(5))
    before = loss(model, batch(99, 0)).item()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, range(5, 125))
    found = wire.consensus()
    wire.detach()
    raise SystemExit(json.dumps([before, loss(model, batch(99, 0)).item(), found.distance]))


def test_survivors_go_on() -> None:
    ended = endings(killed, 4, grace=60.0)
    for rank, end in enumerate(ended):
        if rank != 1:
            before, after, distance = json.loads(end.error.rsplit("SystemExit: ", 1)[1])
            assert after < 0.9 * before
            assert distance < 1
