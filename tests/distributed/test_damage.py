"""A damaged checkpoint: refused on every rank, with the entry that is wrong, before anything has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from nets import flat, net, said, train
from ranks import on_ranks

import thinwire as tw


def moved(state: dict[str, Any], start: str) -> None:
    key = next(iter(state["tensors"]))
    memory, _, name = key.split("|")
    state["tensors"][f"{memory}|{start}|{name}"] = state["tensors"].pop(key)


def doubled(state: dict[str, Any]) -> None:
    key = next(key for key in state["tensors"] if key.split("|")[1] == "0" and state["tensors"][key].numel() > 4)
    memory, _, name = key.split("|")
    state["tensors"][f"{memory}|2|{name}"] = state["tensors"][key][:2].clone()


def poisoned(state: dict[str, Any]) -> None:
    next(iter(state["tensors"].values()))[0] = float("nan")


def renamed(state: dict[str, Any]) -> None:
    key = next(iter(state["tensors"]))
    state["tensors"]["up.send.nothing|" + key.split("|", 1)[1]] = state["tensors"].pop(key)


def first_lr(state: dict[str, Any], value: Any) -> None:
    state["lr"][next(iter(state["lr"]))] = value


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a stray start": (partial(moved, start="7"), "with elements 7 to"),
    "a negative start": (partial(moved, start="-1"), "is not 'memory|start|parameter'"),
    "a start that is no number": (partial(moved, start="x"), "is not 'memory|start|parameter'"),
    "the same elements twice": (doubled, "which hold the same elements"),
    "NaN": (poisoned, "with elements that are not finite"),
    "another memory": (renamed, "the method has no memory 'up.send.nothing'"),
    "lr 0": (partial(first_lr, value=0.0), "has 'lr' with"),
    "lr NaN": (partial(first_lr, value=float("nan")), "has 'lr' with"),
    "lr as text": (partial(first_lr, value="0.1"), "has 'lr' with"),
    "a tensor that is a list": (lambda s: s["tensors"].update({next(iter(s["tensors"])): [1.0]}), "= list [1.0]"),
    "a negative round": (lambda s: s.update(round=-3), "has 'round' = int -3"),
    "a seed of text": (lambda s: s.update(seed="0"), "has 'seed' = str 0"),
    "no round": (lambda s: s.pop("round"), "has no entry 'round'"),
    "no tensors": (lambda s: s.update(tensors=None), "has 'tensors' = NoneType"),
    "no method": (lambda s: s.update(method="{"), ""),
    "another format": (lambda s: s.update(format=9), "of format 9"),
    "motion": (lambda s: s.update(motion=[float("inf")]), "has 'motion' ="),
    "a shape": (lambda s: s["parameters"].update({next(iter(s["parameters"])): ["a"]}), "= list ['a']"),
}


def loaded() -> tuple[list[str], list[bool]]:
    """Only rank 1's state is damaged, each time in a different way; then the undamaged state is loaded."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    told, untouched = [], []
    method = tw.method("ecq-sgd:exchange=scatter-gather")
    with tw.attach(model, optimizer, method, min_size=0) as wire:
        train(model, optimizer, range(3))
        good = wire.state_dict()
        train(model, optimizer, range(3, 5))
        now, weights = wire.state_dict(), flat(model)
        key = f"rank{dist.get_rank()}"
        for damage, _ in DAMAGES.values():
            bad = copy.deepcopy(good)
            if dist.get_rank() == 1:
                damage(bad[key])
            told.append(said(partial(wire.load_state_dict, bad)))
            after = wire.state_dict()[key]
            same = all(torch.equal(now[key]["tensors"][name], after["tensors"][name]) for name in after["tensors"])
            untouched.append(same and torch.equal(weights, flat(model)) and after["round"] == now[key]["round"])
        wire.load_state_dict(good)
    return told, untouched


def test_every_damage_is_named_on_every_rank_and_changes_nothing() -> None:
    for rank, (told, untouched) in enumerate(on_ranks(loaded, 2)):
        for (what, (_, text)), said_, kept in zip(DAMAGES.items(), told, untouched, strict=True):
            assert said_.startswith("ValueError: "), what
            assert text in said_, (what, said_)
            assert ("rank 1" in said_) or text == "", (what, said_, rank)
            assert kept, what
