"""What a rank does in a trial: a short training run that passes through every phase of a wire's life."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw

STEPS, SAVE, LOAD, MEAN, SWITCH = 14, 4, 6, 8, 10  # steps of a run, and those before which it does something else
PHASES = ("ready", "attach", "forward", "backward", "step", "save", "load", "consensus", "switch", "detach")


@dataclass(frozen=True)
class Setting:
    """A way of training. `goes_on` says that the others may end their run without a lost rank."""

    method: str
    front: str = "attach"  # or "ddp", "fsdp"
    drop_dead: bool = False
    goes_on: bool = False
    optimizer: str = "sgd"
    switches: bool = True
    loads: bool = True  # not where a rank only serves: it would have to load, too


SETTINGS = {
    "sgd": Setting("sgd"),
    "int4": Setting("int4", optimizer="adamw"),
    "ecq-sgd": Setting("ecq-sgd"),
    "qsgd-elias": Setting("qsgd-elias"),
    "terngrad": Setting("terngrad"),
    "powersgd": Setting("powersgd"),
    "topk": Setting("topk"),
    "one-bit-adam": Setting("one-bit-adam", optimizer="one-bit-adam", switches=False),
    "adaptive": Setting("adaptive"),
    "pipe-sgd": Setting("pipe-sgd"),
    "local-sgd": Setting("local-sgd:every=3", optimizer="adamw"),
    "diloco": Setting("diloco:every=3", optimizer="adamw"),
    "streaming-diloco": Setting("streaming-diloco:every=4,fragments=2,delay=1", optimizer="adamw"),
    "sparse-loco": Setting("sparse-loco:every=3"),
    "d-psgd": Setting("d-psgd"),
    "choco-sgd": Setting("choco-sgd"),
    "deepsqueeze, drop_dead": Setting("deepsqueeze", drop_dead=True, goes_on=True),
    "ad-psgd": Setting("ad-psgd"),
    "ad-psgd, drop_dead": Setting("ad-psgd", drop_dead=True, goes_on=True),
    "asgd, 1 server": Setting("asgd:servers=1", goes_on=True, loads=False),
    "ssp, shards": Setting("ssp:staleness=2", goes_on=True),
    "easgd-async, shards": Setting("easgd-async", goes_on=True),
    "ddp, qsgd": Setting("qsgd", front="ddp", switches=False),
    "ddp, powersgd": Setting("powersgd", front="ddp", switches=False),
    "fsdp, int4": Setting("int4", front="fsdp", optimizer="adamw", switches=False),
}


@dataclass(frozen=True)
class Fault:
    """What the victim does to itself: in the first step from `step` on that has this phase, `delay` s later."""

    rank: int
    phase: str
    step: int
    delay: float
    signal: int


@final
class Diary:
    """A file with the phases of one rank, for whoever judges the trial; the fault strikes from here."""

    def __init__(self, path: Path, fault: Fault | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._fault, self.phase, self.step = fault, "start", 0

    def enter(self, phase: str, step: int = 0) -> None:
        """Note a phase; the victim's fault is set off if it is the one."""
        self.phase, self.step = phase, step
        self.note(phase=phase, step=step)
        fault = self._fault
        if fault is not None and phase == fault.phase and step >= fault.step:
            self._fault = None
            threading.Thread(target=self._strike, args=(fault,), daemon=True).start()

    def _strike(self, fault: Fault) -> None:
        time.sleep(fault.delay)
        self.note(fault=fault.signal, phase=self.phase, step=self.step)
        os.kill(os.getpid(), fault.signal)

    def note(self, **entry: Any) -> None:
        """Write a line that survives whatever comes next."""
        os.write(self._file, json.dumps({"when": time.monotonic(), **entry}).encode() + b"\n")


def store(folder: str, port_file: str = "port") -> None:
    """Host the ranks' store, as torchrun's agent does, until this process is killed."""
    master = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
    _publish(Path(folder) / port_file, master.port)
    signal.pause()


def _publish(path: Path, port: int) -> None:
    path.with_suffix(".new").write_text(str(port))
    path.with_suffix(".new").rename(path)


def join(folder: str, rank: int, ranks: int, *, hosts_store: bool, address: str) -> None:
    """Make the default process group; rank 0 hosts the store, or somebody else has published its port."""
    path, patience = Path(folder) / "port", timedelta(seconds=60)
    if hosts_store and rank == 0:
        master = dist.TCPStore("0.0.0.0", 0, ranks, is_master=True, wait_for_workers=False, timeout=patience)
        _publish(path, master.port)
    else:
        while not path.exists():
            time.sleep(0.01)
        master = dist.TCPStore(address, int(path.read_text()), ranks, wait_for_workers=False, timeout=patience)
    dist.init_process_group("gloo", store=master, rank=rank, world_size=ranks, timeout=patience)


def train(
    folder: str,
    rank: int,
    ranks: int,
    setting: dict[str, Any],
    fault: dict[str, Any] | None = None,
    hosts_store: bool = True,
    address: str = "127.0.0.1",
    timeout: float = 30.0,
    steps: int = STEPS,
    seed: int = 0,
) -> None:
    """One rank of a trial. How it ended is the last line of its diary; an error ends the process as in a script."""
    blow = None if fault is None or fault["rank"] != rank else Fault(**fault)
    diary = Diary(Path(folder) / f"rank{rank}", blow)
    try:
        join(folder, rank, ranks, hosts_store=hosts_store, address=address)
        _run(Setting(**setting), diary, rank, timeout, steps, seed)
    except BaseException as error:
        ranks_named = list(getattr(error, "ranks", ()))
        diary.note(ended=type(error).__name__, ranks=ranks_named, text=str(error))
        raise
    diary.note(ended="done", ranks=[], text="")


def _net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, 8))


def _optimizer(name: str, params: Any) -> torch.optim.Optimizer:
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "sgd": lambda given: torch.optim.SGD(given, lr=0.02),
        "adamw": lambda given: torch.optim.AdamW(given, lr=1e-3),
        "one-bit-adam": lambda given: tw.optim.OneBitAdam(given, lr=1e-3),
    }
    return makers[name](params)


def _run(setting: Setting, diary: Diary, rank: int, timeout: float, steps: int, seed: int) -> None:
    model, method = _net(seed), tw.method(setting.method)
    mesh: Any = None
    wrapped: Any = None
    if setting.front == "ddp":  # what torch itself does comes first: thinwire cannot tell what happens there
        wrapped = DistributedDataParallel(model)
    elif setting.front == "fsdp":
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])
    optimizer = _optimizer(setting.optimizer, model.parameters())
    diary.enter("ready")
    time.sleep(0.02)
    diary.enter("attach")
    if setting.front == "ddp":
        hook = tw.ddp_hook(method, wrapped, optimizer, timeout=timeout)
        wrapped.register_comm_hook(*hook)
        wire = hook[0]
    elif setting.front == "fsdp":
        wire = tw.fsdp(model, optimizer, method, replicas=mesh["replicate"], timeout=timeout)
    else:
        wire = tw.attach(model, optimizer, method, timeout=timeout, drop_dead=setting.drop_dead)
    if wire.trains:
        _loop(wrapped or model, optimizer, wire, setting, diary, rank, steps)
    diary.enter("detach", steps)
    wire.detach()
    diary.note(phase="end")
    dist.destroy_process_group()


def _loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    wire: tw.Wire,
    setting: Setting,
    diary: Diary,
    rank: int,
    steps: int,
) -> None:
    generator = torch.Generator().manual_seed(rank)
    state: dict[str, Any] = {}
    for step in range(steps):
        if step == SAVE:
            diary.enter("save", step)
            state = wire.state_dict()
        if step == LOAD and setting.loads:
            diary.enter("load", step)
            wire.load_state_dict(state)
        if step == MEAN and not setting.goes_on:
            diary.enter("consensus", step)
            wire.settle()
        if step == SWITCH and setting.switches and not setting.goes_on:
            diary.enter("switch", step)
            wire.switch(tw.methods.int8())
        diary.enter("forward", step)
        x: Tensor = torch.randn(16, 64, generator=generator)
        loss = (model(x) - x[:, :8]).square().mean()
        time.sleep(0.01)
        diary.enter("backward", step)
        optimizer.zero_grad()
        loss.backward()
        diary.enter("step", step)
        optimizer.step()
