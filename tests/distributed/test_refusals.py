"""What attach refuses, and what happens when a rank differs, dies or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import pytest
import torch
import torch.distributed as dist
from nets import batch, loss, net, said, train
from ranks import endings, lent, on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire import Channel, Key, Layout, Method, Sync
from thinwire.compressors import Identity
from thinwire.core.compressor import Biased
from thinwire.core.errors import PeerError
from thinwire.engine import meet
from thinwire.engine.groups import Wanted, lend
from thinwire.engine.meeting import Meeting
from thinwire.engine.store import Place
from thinwire.engine.watch import Watch
from thinwire.exchange import AllGather
from thinwire.sync import Momentum


def optimizer_of(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def compiled_backward() -> str:
    """A compiled function calls backward, with compiled autograd."""
    model = net()
    torch._dynamo.config.compiled_autograd = True
    with tw.attach(model, optimizer_of(model), tw.methods.sgd()):
        return said(torch.compile(lambda: loss(model, batch(0)).backward(), backend="eager"))


@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd_is_named() -> None:
    [told] = on_ranks(compiled_backward, 1)
    assert told.startswith("RuntimeError: compiled autograd runs this backward pass")
    assert "write torch._dynamo.config.compiled_autograd = False" in told


def in_odd_surroundings() -> list[str]:
    model = net()
    told = []
    torch.set_default_dtype(torch.bfloat16)
    told.append(said(lambda: tw.attach(model, optimizer_of(model), tw.methods.sgd())))
    torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        told.append(said(lambda: tw.attach(model, optimizer_of(model), tw.methods.sgd())))
    with torch.device("meta"):
        empty = nn.Linear(4, 4)
    told.append(said(lambda: tw.attach(empty, optimizer_of(empty), tw.methods.sgd())))
    tw.attach(model, optimizer_of(model), tw.methods.sgd()).detach()
    return told


def test_settings_of_torch_that_would_spoil_vectors_are_refused() -> None:
    [[dtype, mode, meta]] = on_ranks(in_odd_surroundings, 1)
    assert "torch's default dtype is torch.bfloat16" in dtype
    assert "write torch.set_default_dtype(torch.float32)" in dtype
    assert mode.startswith("ValueError: in torch.inference_mode() nothing can be trained")
    assert "parameter weight is on the device 'meta'" in meta


def test_attach_before_init_process_group() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"write torch.distributed.init_process_group\(\"gloo\"\) before it"):
        tw.attach(model, optimizer_of(model), tw.methods.qsgd())


def wrong_arguments() -> list[str]:
    model = net()
    opt = optimizer_of(model)
    other = net()
    frozen = net().requires_grad_(False)
    double = net().double()
    local = Method(AllGather(Channel(Identity())), Sync(of=Momentum(), every=4))
    late = Method(AllGather(Channel(Identity())), Sync(staleness=None))
    return [
        said(lambda: tw.attach(model, opt, "qsgd")),  # type: ignore[arg-type]
        said(lambda: tw.attach(DistributedDataParallel(model), opt, tw.methods.qsgd())),
        said(lambda: tw.attach(other, opt, tw.methods.qsgd())),
        said(lambda: tw.attach(frozen, optimizer_of(frozen), tw.methods.qsgd())),
        said(lambda: tw.attach(double, optimizer_of(double), tw.methods.qsgd())),
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), exclude=["0.wieght"])),
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), exclude="0.weight")),
        said(lambda: tw.attach(model, opt, local)),
        said(lambda: tw.attach(model, opt, late)),
        said(lambda: tw.attach(model, opt, tw.methods.one_bit_adam())),
        said(lambda: tw.ddp_hook(tw.methods.qsgd(), model)),  # type: ignore[arg-type]
        said(lambda: tw.ddp_hook(tw.methods.one_bit_adam(), DistributedDataParallel(model))),
        said(lambda: tw.attach(model, tw.methods.qsgd(), opt)),  # type: ignore[arg-type]
        said(lambda: tw.attach(model, opt, tw.methods.int4)),  # type: ignore[arg-type]
        said(lambda: tw.attach(opt, model, tw.methods.qsgd())),  # type: ignore[arg-type]
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), process_group=[0])),  # type: ignore[arg-type]
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), exclude=None)),  # type: ignore[arg-type]
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), timeout="10")),  # type: ignore[arg-type]
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), timeout=-1.0)),
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), min_size=-1)),
        said(lambda: tw.attach(model, opt, tw.methods.qsgd(), seed="a")),  # type: ignore[arg-type]
        said(lambda: compiled_ddp(net())),
        *[said(partial(use, model, opt)) for use in (load_nothing, read_nothing)],
    ]


def compiled_ddp(model: nn.Module) -> object:
    fast: Any = torch.compile(DistributedDataParallel(model), backend="eager")
    return tw.ddp_hook(tw.methods.qsgd(), fast)


def load_nothing(model: nn.Module, opt: torch.optim.Optimizer) -> None:
    with tw.attach(model, opt, tw.methods.qsgd()) as wire:
        wire.load_state_dict(None)  # type: ignore[arg-type]


def read_nothing(model: nn.Module, opt: torch.optim.Optimizer) -> None:
    with tw.attach(model, opt, tw.methods.qsgd()) as wire:
        wire.read("no/such/folder")


def test_wrong_arguments_are_answered_with_the_line_to_write() -> None:
    expected = [
        "TypeError: 'qsgd' is a string; write tw.attach(model, optimizer, tw.method('qsgd'))",
        "DistributedDataParallel exchanges gradients itself; write tw.attach(model.module, ...)",
        "is not in the model; make the optimizer from model.parameters()",
        "no parameter of the optimizer requires a gradient",
        "is torch.float64; write model.float()",
        "exclude='0.wieght' matches no parameter; did you mean '0.weight'",
        "write exclude=['0.weight']",
        "exchanges gradients in every step; got Sync(of=Momentum(), every=4, staleness=0, warmup=0, batches=None, "
        "adapt=None): write Sync()",
        "all-gather has rounds that ranks take together",
        "write optimizer = thinwire.optim.OneBitAdam(model.parameters())",
        "write model = DDP(model), or tw.attach(model, optimizer, method)",
        "exchanges Adam's momentum; write tw.ddp_hook(method, model, optimizer)",
        "TypeError: SGD is not a Method; write tw.attach(model, optimizer, tw.methods.qsgd())",
        "TypeError: int4 is a function; write tw.attach(model, optimizer, tw.methods.int4())",
        "attach takes a torch.nn.Module; got SGD: write tw.attach(model, optimizer, method)",
        "got list: write process_group=mesh.get_group() for a mesh, or dist.new_group(ranks)",
        "exclude takes a list of patterns; got None: write exclude=[]",
        "timeout='10': write a number of seconds, such as timeout=600.0",
        "timeout=-1.0: write a number of seconds, such as timeout=600.0",
        "min_size=-1: write a number of elements, such as min_size=1024",
        "seed='a': write a whole number, the same on every rank, such as seed=0",
        "torch.compile is around DistributedDataParallel; write ddp.register_comm_hook(*tw.ddp_hook(method, ddp))",
        "NoneType is not a state of thinwire: write wire.load_state_dict(s)",
        "no/such/folder holds no torch.distributed.checkpoint; write the checkpoint_id that dcp.save was given",
    ]
    for told, part in zip(on_ranks(wrong_arguments, 1)[0], expected, strict=True):
        assert part in told


@final
class Failing:
    """A meeting that fails on rank 0 when all have come, and on the others one call later."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def gather(self, mine: Any) -> list[Any]:
        said = self._meeting.gather(mine)
        if dist.get_rank() == 0:
            raise PeerError("it came too late")
        return said

    def together(self, work: Any) -> Any:
        raise PeerError("rank 0 has gone")


def groups_after_a_failure() -> list[int]:
    world = dist.group.WORLD
    assert world is not None
    wanted = Wanted(1, (), 20.0, "gloo")
    watch = Watch(Place(world), dist.get_rank(), dist.get_world_size())
    failing: Any = Failing(Meeting(watch, 20.0, world))
    with contextlib.suppress(PeerError):
        lend(world, wanted, failing)
    watch.stop()
    return [lent(wanted).number for _ in range(2)]


def test_groups_have_one_number_on_all_ranks_after_a_meeting_that_failed_on_some() -> None:
    """A set is found again by its number: ranks that meant different sets would wait for each other."""
    one, other = on_ranks(groups_after_a_failure, 2)
    assert one == other


@final
@dataclass(frozen=True)
class OfTwoVersions(Biased):
    """A compressor from a package of which some ranks have another version."""

    name: ClassVar[str] = "of-two-versions"

    def delta(self, d: int) -> float | None:
        return None

    def nbytes(self, layout: Layout) -> int:
        return layout.numel * (4 if dist.get_rank() == 1 else 2)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> None:
        raise AssertionError("ranks have not met yet")

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        raise AssertionError("ranks have not met yet")


def differing(what: str) -> str:
    rank = dist.get_rank()
    model: nn.Module = net()
    method, seed = tw.methods.qsgd(bits=4), 0
    if what == "method" and rank == 2:
        method = tw.methods.qsgd(bits=8)
    if what == "model" and rank == 1:
        model = nn.Linear(3, 3)
    if what == "version" and rank == 0:
        meet.VERSION = "9.9"  # type: ignore[attr-defined]
    if what == "seed":
        seed = rank
    if what == "bytes":
        method = Method(AllGather(Channel(OfTwoVersions())))
    return said(lambda: tw.attach(model, optimizer_of(model), method, seed=seed))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("method", "ranks differ in method: ranks 0, 1 have qsgd:bits=4; rank 2 has qsgd:bits=8"),
        (
            "model",
            "ranks differ in what 0.weight is: ranks 0, 2 have a parameter that is trained; rank 1 has nothing",
        ),
        ("version", "ranks differ in thinwire version: rank 0 has 9.9; ranks 1, 2 have"),
        ("seed", "ranks differ in seed: rank 0 has 0; rank 1 has 1; rank 2 has 2"),
        ("bytes", "ranks differ in the bytes of 1000 elements: ranks 0, 2 have [2032]; rank 1 has [4032]"),
    ],
)
def test_ranks_that_differ_all_hear_in_what(what: str, sentence: str) -> None:
    for told in on_ranks(differing, 3, what):
        assert sentence.replace("qsgd:bits=4", "qsgd") in told.replace("qsgd:bits=4", "qsgd")
        assert told.startswith("ValueError")


def other_tensors(what: str) -> nn.Module:
    """A model with a part that is frozen, and on rank 1 with one tensor that is another."""
    model = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.Linear(24, 4).requires_grad_(False))
    if dist.get_rank() == 1:
        if what == "half":
            model[0].bfloat16()
        if what == "buffer's shape":
            model[1].running_mean = torch.zeros(12)
        if what == "buffer's dtype":
            model[1].num_batches_tracked = torch.zeros((), dtype=torch.int32)
        if what == "no buffer":
            del model[1].running_var
        if what == "another buffer":
            model.register_buffer("mask", torch.ones(3))
        if what == "frozen":
            model[2] = nn.Linear(24, 5).requires_grad_(False)
        if what == "thawed":
            model[2].weight.requires_grad_()
    return model


TENSORS = {
    "half": "the dtype of 0.weight: ranks 0, 2 have float32; rank 1 has bfloat16",
    "buffer's shape": "the shape of 1.running_mean: ranks 0, 2 have (24,); rank 1 has (12,)",
    "buffer's dtype": "the dtype of 1.num_batches_tracked: ranks 0, 2 have int64; rank 1 has int32",
    "no buffer": "what 1.running_var is: ranks 0, 2 have a buffer; rank 1 has nothing",
    "another buffer": "what mask is: ranks 0, 2 have nothing; rank 1 has a buffer",
    "frozen": "the shape of 2.weight: ranks 0, 2 have (4, 24); rank 1 has (5, 24)",
    "thawed": "what 2.weight is: ranks 0, 2 have a parameter that is frozen; rank 1 has a parameter that is trained",
}


def differing_tensors() -> list[str]:
    """What attach raises; at last, none, although ranks list the same tensors in another order."""
    told = []
    for what in TENSORS:
        model = other_tensors(what)
        told.append(said(partial(tw.attach, model, optimizer_of(model), tw.methods.qsgd())))
    names = ("one", "two") if dist.get_rank() == 1 else ("two", "one")
    model = nn.Linear(16, 4)
    for number, name in enumerate(names):
        model.register_buffer(name, torch.full((3 if name == "one" else 5,), dist.get_rank() + number))
    tw.attach(model, optimizer_of(model), tw.methods.qsgd()).detach()
    return [*told, str({name: buffer.tolist() for name, buffer in sorted(model.named_buffers())})]


def test_every_tensor_that_attach_sends_is_compared_first() -> None:
    end = "make the tensors of the model alike on all ranks before this call"
    for told in on_ranks(differing_tensors, 3):
        assert told[:-1] == [f"ValueError: ranks differ in {part}; {end}" for part in TENSORS.values()]
        assert told[-1] == str({"one": [1, 1, 1], "two": [0, 0, 0, 0, 0]})


def second_attach() -> list[str]:
    model = net()
    opt = optimizer_of(model)
    wire = tw.attach(model, opt, tw.methods.qsgd())
    told = [said(lambda: tw.attach(model, opt, tw.methods.qsgd()))]
    opt.add_param_group({"params": [nn.Parameter(torch.zeros(3, 3))]})
    told.append(said(opt.step))
    wire.detach()
    opt.param_groups.pop()
    hooks = [len(p._post_accumulate_grad_hooks or {}) for p in model.parameters()]
    told.append(f"{max(hooks)} {len(opt._optimizer_step_pre_hooks)}")
    with tw.attach(model, opt, tw.methods.sgd()):  # and again, after detach
        train(model, opt, range(2))
    return told


def test_a_second_attach_and_parameters_that_come_later() -> None:
    again, later, left = on_ranks(second_attach, 1)[0]
    assert "this optimizer is attached already; write wire.switch(method), or wire.detach() first" in again
    assert "a parameter of shape (3, 3) in group 1 was added or unfrozen after attach" in later
    assert left == "0 0"


def dies(method: str, how: str) -> tuple[str, float]:
    model = net()
    opt = optimizer_of(model)
    rank = dist.get_rank()
    with tw.attach(model, opt, tw.method(method), min_size=0, timeout=15.0 if how == "killed" else 4.0):
        train(model, opt, range(3))
        start = time.monotonic()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        told = said(lambda: train(model, opt, range(3, 6)))
    return told, time.monotonic() - start


@pytest.mark.parametrize("method", ["sgd", "qsgd"])
def test_when_a_rank_dies_the_others_name_it(method: str) -> None:
    """The survivors' results come through the error channel: they cannot part in an orderly way."""
    ended = endings(tell_how_it_ended, 4, method, "killed")
    for rank, end in enumerate(ended):
        if rank == 2:
            assert end.exitcode == -signal.SIGKILL
        else:
            assert "PeerError: rank 2 of 4 has stopped answering" in end.error
            assert float(end.error.rsplit("after ", 1)[1].split()[0]) < 15


def test_when_a_rank_hangs_the_others_name_it_after_the_time_out() -> None:
    ended = endings(tell_how_it_ended, 3, "qsgd", "stopped", timeout=60.0, grace=5.0)
    for rank, end in enumerate(ended):
        if rank != 2:
            assert "PeerError: rank 2 of 3 has stopped answering" in end.error


def tell_how_it_ended(method: str, how: str) -> None:
    told, seconds = dies(method, how)
    raise SystemExit(f"{told} after {seconds:.1f} s")


def fails_inside() -> str:
    """A compressor that raises on one rank: the others hear what happened there."""
    model = net()
    opt = optimizer_of(model)
    with tw.attach(model, opt, Method(AllGather(Channel(Identity()))), min_size=0) as wire:
        train(model, opt, range(1))
        if dist.get_rank() == 1:
            wire._loop.buckets[0].exchange = Broken()  # type: ignore[assignment]
        return said(lambda: loss(model, batch(1)).backward())


class Broken:
    agrees, carries_nan, remembers, measurable, limit = True, False, False, False, 2.0**96

    async def __call__(self, x: Tensor, state: Any, ctx: Any) -> Tensor:
        raise OSError("no room left")


def test_a_failure_inside_an_exchange_is_told_to_everybody() -> None:
    for end in endings(tell_failure, 2):
        assert "PeerError: the exchange failed on rank 1: OSError: no room left" in end.error


def tell_failure() -> None:
    raise SystemExit(fails_inside())
