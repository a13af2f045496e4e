"""Processes killed while they save, disks that are full, and states that were damaged before they are loaded.

A file that `tw.save` was writing must be whole afterwards: the new one or the one before it. A damaged state, on one
rank of two, must be refused on both with ValueError and change nothing; where the damage leaves nothing to find, as
that of an entry that is optional, it is accepted on both. Afterwards the sound state must load, and ranks train on.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import thinwire as tw
from campaign import training
from campaign.nursery import Nursery
from campaign.training import SETTINGS, Setting

Row = dict[str, Any]
EACH = 250  # damages of one trial
HUNG = 240.0  # seconds that a trial may take
SAVES = 40  # of a child that is not killed
STATES = ("ecq-sgd", "powersgd", "topk", "one-bit-adam", "diloco", "streaming-diloco", "sparse-loco", "choco-sgd")
BAD = ("torn", "one_rank_only", "changed")


def saves(kind: str, count: int, seed: int) -> Iterator[partial[Row]]:
    """Children that save over and over, and are killed (`saving`), or find the disk full (`full disk`)."""
    for number in range(count):
        yield partial(save_and_look, kind=kind, number=number, seed=seed)


def save_and_look(nursery: Nursery, kind: str, number: int, seed: int) -> Row:
    """One trial, as a row: whether the file can be read, and is one of those that were saved."""
    draw = random.Random(f"{kind}/{seed}/{number}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        limit = draw.randrange(1000, 200_000) if kind == "full disk" else 0
        child = nursery.start("storage.save_often", Path(folder) / "log", path=str(path), limit=limit)
        until = time.monotonic() + HUNG
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.002)
        if kind == "saving":
            time.sleep(draw.uniform(0.0, 0.15))
            os.kill(child, signal.SIGKILL)
        ending = nursery.wait([child], HUNG)[child]
        log = (Path(folder) / "log").read_text(errors="replace")
        try:
            state = torch.load(path, weights_only=True)
            torn = not torch.equal(state["model"], _model(state["number"]))
            what = "a mixture of two" if torn else ""
        except Exception as error:
            torn, what = True, f"{type(error).__name__}: {error}"
    if kind == "full disk" and "File too large" not in log:
        torn, what = True, f"the disk was not noticed: {log[-200:]}"
    return {
        "trial": number,
        "fault": kind,
        "files": 1,
        "torn": int(torn),
        "hung": int(ending.status is None),
        "what": what,
    }


def save_often(path: str, limit: int) -> None:
    """The child's part; with a `limit`, files may not be longer after the first."""
    for number in range(SAVES):
        tw.save({"number": number, "model": _model(number)}, path)
        if limit and number == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _model(number: int) -> Tensor:
    return torch.full((60_000,), float(number))


def states(count: int, seed: int, only: str | None = None) -> Iterator[partial[Row]]:
    """`EACH` damages to the state of one setting per trial, settings in turn."""
    names = [name for name in STATES if only in (None, name)]
    for number in range(count):
        yield partial(damage_states, number=number, name=names[number % len(names)], seed=seed)


def damage_states(nursery: Nursery, number: int, name: str, seed: int) -> Row:
    """One trial, as a row."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        children = [
            nursery.start(
                "storage.load_damaged",
                folder / f"log{rank}",
                folder=place,
                rank=rank,
                setting=asdict(SETTINGS[name]),
                seed=f"{seed}/{number}",
            )
            for rank in range(2)
        ]
        endings = nursery.wait(children, HUNG)
        result = folder / "result"
        counts = json.loads(result.read_text()) if result.exists() else {}
        logs = " | ".join((folder / f"log{rank}").read_text(errors="replace")[-300:] for rank in range(2))
    statuses = [endings[child].status for child in children]
    what = counts.pop("what", "") if counts else " ".join(logs.split())
    hung, crashed = sum(status is None for status in statuses), sum(bool(status) for status in statuses)
    row: Row = {"trial": number, "fault": "state", "setting": name, **counts}
    return row | {"hung": hung, "crashed": crashed, "what": what}


def load_damaged(folder: str, rank: int, setting: dict[str, Any], seed: str) -> None:
    """A rank's part: train, save, and load damaged states, on which both ranks must agree."""
    training.join(folder, rank, 2, hosts_store=True, address="127.0.0.1")
    given, counts = Setting(**setting), Counter({"states": 0, "refused": 0, "accepted": 0, "other_error": 0})
    counts.update(dict.fromkeys(BAD, 0))
    model = training._net(0)
    optimizer = training._optimizer(given.optimizer, model.parameters())
    whats, accepted = list[str](), list[str]()
    with tw.attach(model, optimizer, tw.method(given.method), timeout=60.0) as wire:
        _steps(model, optimizer, rank, 4)
        sound = wire.state_dict()
        _steps(model, optimizer, rank, 2)
        for number in range(EACH):
            victim, bad = random.Random(f"{seed}/{number}").randrange(2), copy.deepcopy(sound)
            told = _damage(bad, random.Random(f"{seed}/{number}/{rank}"))  # ranks' states differ, and so do draws
            before = _vector(model)
            try:
                wire.load_state_dict(bad if rank == victim else sound)
                outcome = "accepted"
            except ValueError:
                outcome = "refused"
            except Exception as error:
                outcome = f"other_error {type(error).__name__}: {error}"
            mine = torch.zeros(200, dtype=torch.uint8)
            text = outcome.encode()[:200]
            mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
            both = [torch.empty_like(mine) for _ in range(2)]
            dist.all_gather(both, mine)
            outcomes = [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in both]
            counts["states"] += 1
            first = outcomes[0].split(" ")[0]
            counts[first if outcomes[0].split(" ")[0] == outcomes[1].split(" ")[0] else "one_rank_only"] += 1
            if first == "accepted" and rank == victim == 0:
                accepted.append(told)
            if len({each.split(" ")[0] for each in outcomes}) > 1 or first == "other_error":
                whats.append(f"{told} on rank {victim}: {outcomes}")
            if outcomes == ["refused", "refused"] and not torch.equal(before, _vector(model)):
                counts["changed"] += 1
                whats.append(f"{told} on rank {victim} changed the model")
        wire.load_state_dict(sound)
        _steps(model, optimizer, rank, 2)
    if rank == 0:
        Path(folder, "result").write_text(
            json.dumps({**counts, "accepted_is": "; ".join(sorted(set(accepted))), "what": "; ".join(whats[:3])})
        )
    dist.destroy_process_group()


def _vector(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        x = torch.randn(16, 64, generator=generator)
        optimizer.zero_grad()
        (model(x) - x[:, :8]).square().mean().backward()
        optimizer.step()


def _damage(state: dict[str, Any], draw: random.Random) -> str:
    """Change one place of a nested state; returns what was done."""
    holder, key = _place(state, draw)
    value, path = holder[key], f"{key!r} of {type(holder).__name__}"
    if isinstance(value, Tensor) and value.numel():
        name = draw.choice(list(_TENSORS))
        holder[key] = _TENSORS[name](value.clone(), draw)
    else:
        name = draw.choice(list(_VALUES))
        result = _VALUES[name](value, draw)
        if name == "missing" and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = result
    return f"{name}: {path}"


def _place(state: Any, draw: random.Random) -> tuple[Any, Any]:
    """A container and a key of it, tensors more often than not."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(state)
    tensors = [place for place in places if isinstance(place[0][place[1]], Tensor)]
    return draw.choice(tensors if tensors and draw.random() < 0.6 else places)


def _flip(value: Tensor, draw: random.Random) -> Tensor:
    flat = value.contiguous().view(-1)
    data = flat.view(torch.uint8)
    data[draw.randrange(data.numel())] ^= 1 << draw.randrange(8)
    return flat.view(value.shape)


def _poison(value: Tensor, draw: random.Random) -> Tensor:
    if not value.is_floating_point():
        return _flip(value, draw)
    value.view(-1)[draw.randrange(value.numel())] = draw.choice([float("nan"), float("inf")])
    return value


_TENSORS: dict[str, Callable[[Tensor, random.Random], Any]] = {
    "a bit flipped": _flip,
    "not finite": _poison,
    "one element less": lambda value, draw: value.flatten()[1:].clone(),
    "another type": lambda value, draw: value.double(),
    "zeros": lambda value, draw: torch.zeros_like(value) if value.any() else _flip(value, draw),
    "a list": lambda value, draw: value.flatten()[:2].tolist(),
}
_VALUES: dict[str, Callable[[Any, random.Random], Any]] = {
    "missing": lambda value, draw: None,
    "None": lambda value, draw: None,
    "text": lambda value, draw: "7",
    "negative": lambda value, draw: -3,
    "nan": lambda value, draw: float("nan"),
    "empty": lambda value, draw: type(value)() if value and isinstance(value, dict | list | str) else None,
    "larger": lambda value, draw: value + 1 if isinstance(value, int | float) else 1,
}
