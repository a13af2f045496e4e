"""Misuse that used to go unnoticed: one sentence, on the spot. And calls between backward and step."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said, train
from ranks import PATIENCE, on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import thinwire as tw


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05)


class Wrapped(torch.optim.Optimizer):
    """What Accelerate makes of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def misused() -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    told = []
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0) as wire:
        outer = DistributedDataParallel(model)
        told.append(said(lambda: loss(outer, batch(0)).backward()))
        wire.switch(tw.methods.sgd())
        told.append(said(lambda: loss(outer, batch(0)).backward()))
        train(model, optimizer, range(1))
    sharded = net()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    told.append(said(lambda: tw.attach(sharded, sgd(sharded), tw.methods.qsgd())))
    told.append(said(lambda: tw.attach(model, Wrapped(optimizer), tw.methods.qsgd())))
    told.append(said(lambda: tw.attach(model, "sgd", tw.methods.qsgd())))  # type: ignore[arg-type]
    other = net()
    rates = torch.optim.SGD(other.parameters(), lr=0.1 * (1 + dist.get_rank()))
    with tw.attach(other, rates, tw.methods.qsgd(), min_size=0):
        told.append(said(lambda: train(other, rates, range(1))))
    told.append(said(lambda: tw.attach(net(), optimizer, tw.methods.qsgd(), timeout=10.0 + dist.get_rank())))
    return told


def test_one_sentence_each() -> None:
    for rank, told in enumerate(on_ranks(misused, 2)):
        wrapped, again, sharded, accelerate, word, rates, timeout = told
        assert "write tw.attach(model, ...) without DDP" in wrapped
        assert "write tw.attach(model, ...) without DDP" in again  # also after a switch
        assert "is a DTensor" in sharded
        assert "write optimizer.optimizer in its place" in accelerate
        assert "takes a torch.optim.Optimizer, or a list of them; got str: write optimizer = torch.optim.SGD(" in word
        assert f"learning rates differ between ranks in step 0: rank {rank} has {0.1 * (1 + rank)}" in rates
        assert "is not in the model" in timeout


OUTER = ["diloco:every=2", "sparse-loco:every=2", "streaming-diloco:every=2,fragments=2,delay=1", "easgd:every=2"]
KEEPING = [*OUTER, "slowmo:every=2,topology=one-peer", "choco-sgd", "ecd-psgd", "ad-psgd"]


def written(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    """As `dcp.load({"model": model.state_dict()})` does it, of which no hook of the model hears."""
    for name, live in model.state_dict().items():
        live.copy_(values[name])


def state_made(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """As torch.distributed.checkpoint makes an optimizer's state; importing that takes a second."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    rate, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], 0.0
    optimizer.step()
    optimizer.param_groups[0]["lr"] = rate
    optimizer.zero_grad()


def loaded(name: str) -> dict[str, Any]:
    """A checkpoint is read into live parameters after attach; without a learning rate they stay what it has."""
    model, other = net(), net(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    with tw.attach(model, optimizer, tw.method(name), min_size=0) as wire:
        wire.stats()
        state_made(model, optimizer)
        counted = wire.stats()["rounds"] + wire.stats().get("local_steps", 0)
        written(model, other.state_dict())
        train(model, optimizer, range(3))
        figures = wire.stats()
    return {
        "moved": float((flat(model) - flat(other)).abs().max()),
        "counted": counted,
        "steps": figures.get("local_steps", 3),
    }


def loaded_on_one(name: str) -> str:
    model = net()
    with tw.attach(model, optimizer := sgd(model), tw.method(name), min_size=0):
        if dist.get_rank() == 1:
            written(model, net(seed=1).state_dict())
        return said(lambda: train(model, optimizer, range(2)))


def loaded_under_servers() -> list[str]:
    """The servers have a model by then; afterwards a state of the wire as well, and what was there is put back."""
    model, other = net(), net(seed=1).state_dict()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.asgd(), min_size=0) as wire:
        state, own = wire.state_dict(), copy.deepcopy(model.state_dict())
        written(model, other)
        told = [said(lambda: train(model, optimizer, range(1)))]
        wire.load_state_dict(state)
        model.load_state_dict(model.state_dict())
        told.append(said(lambda: train(model, optimizer, range(2))))
    with tw.attach(model, optimizer, tw.methods.asgd(), min_size=0):
        here = copy.deepcopy(model.state_dict())
        model.load_state_dict(own)  # as to test it
        model.load_state_dict(here)
        told.append(said(lambda: train(model, optimizer, range(1))))
    return told


def all_loaded() -> tuple[dict[str, dict[str, Any]], list[str], list[str]]:
    return {name: loaded(name) for name in KEEPING}, [loaded_on_one(name) for name in OUTER], loaded_under_servers()


def test_training_goes_on_from_a_checkpoint_that_is_read_after_attach() -> None:
    for followed, different, (changed, resumed, restored) in on_ranks(all_loaded, 2):
        for name, one in followed.items():
            assert one["moved"] < 0.02 if name == "ecd-psgd" else one["moved"] < 1e-6, (name, one)
            assert (one["counted"], one["steps"]) == (0, 3), (name, one)
        for sentence in different:
            assert "ranks set out from different models (rank 0 has" in sentence
        assert "the parameters have changed since attach, and the servers' model is still what that found" in changed
        assert resumed == restored == ""


def two_passes() -> list[Any]:
    model = net()
    optimizer = sgd(model)
    with (
        tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0) as wire,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        for step in range(3):
            optimizer.zero_grad()
            loss(model, batch(step)).backward()
            loss(model, batch(step + 10)).backward()
            optimizer.step()
        rounds = wire.stats()["rounds"]
    return [
        rounds,
        [str(one.message) for one in told if "no_sync" in str(one.message)],
        equal_everywhere(flat(model)),
    ]


def test_backward_passes_that_all_exchange_are_told_of_once() -> None:
    for rounds, told, equal in on_ranks(two_passes, 2):
        assert rounds == 6
        assert len(told) == 1
        assert "write `with wire.no_sync():`" in told[0]
        assert "1,108 of 1,108 elements have been exchanged again" in told[0]
        assert equal


def looked_at() -> list[bool]:
    """`consensus` and `state_dict` between backward and step leave the gradients alone."""
    models = []
    for look in (False, True):
        model = net()
        optimizer = sgd(model)
        with tw.attach(model, optimizer, tw.methods.ecq_sgd(), min_size=0) as wire:
            for step in range(3):
                optimizer.zero_grad()
                loss(model, batch(step)).backward()
                if look:
                    assert wire.consensus().distance == 0.0
                    wire.state_dict()
                optimizer.step()
        models.append(flat(model))
    return [torch.equal(*models)]


def test_looking_between_backward_and_step_changes_nothing() -> None:
    assert on_ranks(looked_at, 2) == [[True], [True]]


def saved_whole(method: tw.Method) -> list[Any]:
    """A model is pickled and copied while attached; its copies are plain models, and DDP may take them."""
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, method, min_size=0) as wire:
        train(model, optimizer, range(2))
        refused = said(lambda: copy.deepcopy(model))
        wire.settle()
        file, x = pickle.dumps(model), batch(0)[0]
        copies = [pickle.loads(file), copy.deepcopy(model), AveragedModel(model).module]
        outputs = [DistributedDataParallel(one)(x) for one in copies]
        same = [torch.equal(model(x), output) for output in outputs]
        for one in copies:
            compiled: Any = torch.compile(one, backend="eager", fullgraph=True)
            compiled(x).sum().backward()
            sgd(one).step()
            one.load_state_dict(one.state_dict())
        train(model, optimizer, range(2, 4))
        rounds = wire.stats()["rounds"]
    return [refused, same, b"thinwire" in file, rounds]


def saved_with_its_wire() -> list[str]:
    """DDP holds the state of its hook."""
    model = DistributedDataParallel(net())
    wire, hook = tw.ddp_hook(tw.methods.qsgd(), model)
    model.register_comm_hook(wire, hook)
    whole = [said(lambda: pickle.dumps(model)), said(lambda: copy.deepcopy(wire))]
    pickle.dumps(model.module)
    wire.detach()
    return whole


def test_a_wire_cannot_be_saved() -> None:
    for told in on_ranks(saved_with_its_wire, 1)[0]:
        assert told.startswith("TypeError: a wire cannot be copied or saved")


def saved_in_both_ways() -> list[list[Any]]:
    qsgd = tw.methods.qsgd()
    return [saved_whole(qsgd), saved_whole(replace(qsgd, overlap=tw.Overlap(into_forward="need")))]


@pytest.mark.filterwarnings("ignore")
def test_a_model_may_be_saved_whole_while_attached() -> None:
    [[plain, ahead]] = on_ranks(saved_in_both_ways, 1)
    assert plain == ["", [True, True, True], False, 4]
    assert "write wire.settle() before it" in ahead.pop(0)
    assert ahead == [[True, True, True], False, 4]


def switched_away(name: str) -> list[Any]:
    """From a method under which models differ: all ranks go on from the mean."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    wire = tw.attach(model, optimizer, tw.method(name), min_size=0)
    train(model, optimizer, range(10))
    before = wire.consensus().model if name != "ad-psgd" else None
    wire.switch(tw.methods.sgd())
    equal = equal_everywhere(flat(model))
    mean = True
    if before is not None:
        mean = all(torch.equal(before[key], p.detach()) for key, p in model.named_parameters())
    train(model, optimizer, range(10, 14))
    still = equal_everywhere(flat(model))
    wire.detach()
    return [equal, mean, still]


@pytest.mark.parametrize("name", ["ad-psgd", "d-psgd", "local-sgd:every=4"])
def test_after_a_switch_everybody_has_the_mean(name: str) -> None:
    assert on_ranks(switched_away, 2, name) == [[True, True, True]] * 2


ENDS = {"end": 0, "destroy": 0, "exit": 0, "raise between": 1, "exit between": 3}
TRIED = {"destroy": "qsgd", "raise between": "d-psgd", "end": "ad-psgd"}


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for every rank of letter.py."""
    folder = tmp_path_factory.mktemp("letters")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    script = str(Path(__file__).parent / "letter.py")
    ways = [f"{how}={method}" for how, method in TRIED.items()]
    env = {"OMP_NUM_THREADS": "1", "PATH": ""}
    command = [sys.executable, script, str(store.port), str(folder), *ways]
    subprocess.run(command, env=env, timeout=100 * PATIENCE, check=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("how", TRIED)
def test_a_script_may_end_as_it_likes(how: str, letters: Path) -> None:
    """README's diff to the letter, with a watch that looks 500 times a second."""
    for rank in range(2):
        said, _, status = (letters / f"{how}.{rank}").read_text().rpartition("\n")
        assert int(status) == ENDS[how], said
        assert "terminate called" not in said
