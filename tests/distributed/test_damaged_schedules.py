"""States of outer loops and of servers, damaged at random: refused on every rank, and nothing has changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from nets import flat, net, said, train
from ranks import on_ranks
from torch import Tensor

import thinwire as tw
from thinwire.engine.checksums import ENTRY, digest

DRAWS = 80  # per method, of which every other one is of a state without checksums, as earlier versions saved it
METHODS = ("diloco:every=2", "asgd:compressor=(qsgd:bits=8)")

Where = tuple[Any, Any]  # a dict or a list, and a key of it


def places(value: Any) -> Iterator[Where]:
    """All entries at any depth."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        if key != ENTRY:
            yield value, key
            yield from places(value[key])


def damaged(state: dict[str, Any], draw: random.Random) -> str:
    """Damage one entry; returns what was done."""
    some = list(places(state))
    holder, key = draw.choice(some)
    value = holder[key]
    if isinstance(value, Tensor) and value.numel():
        what = draw.choice(["nan", "cut", "flipped", "gone", "a list", "other shape"])
        if what == "nan" and value.is_floating_point():
            holder[key] = value.clone().fill_(float("nan"))
        elif what == "cut" and value.dim():
            holder[key] = value[:-1]
        elif what == "flipped":
            data = value.clone().reshape(-1).view(torch.uint8)
            data[draw.randrange(data.numel())] ^= 1 << draw.randrange(8)
            holder[key] = data.view(value.dtype).view(value.shape)
        elif what == "a list":
            holder[key] = [1.0]
        elif what == "other shape":
            holder[key] = value[None]
        else:
            what = "gone"
            del holder[key]
        return f"{key} {what}"
    what = draw.choice(["gone", "None", "text", "negative", "a dict", "twice", "NaN"])
    if what == "gone":
        del holder[key]
    elif what == "twice" and isinstance(value, list) and value:
        value.append(value[0])
    else:
        holder[key] = {"None": None, "text": "seven", "negative": -7, "a dict": {"a": 1}}.get(what, float("nan"))
    return f"{key} {what}"


def loads() -> dict[str, list[tuple[str, str, bool, bool]]]:
    """By method and draw: what was damaged on rank 1, what is said here, whether all stayed, if it had checksums."""
    seen: dict[str, list[tuple[str, str, bool, bool]]] = {}
    for name in METHODS:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with tw.attach(model, optimizer, tw.method(name), min_size=0, timeout=20.0) as wire:
            train(model, optimizer, range(5))
            good = wire.state_dict()
            wire.load_state_dict(good)
            key, before, kept = f"rank{dist.get_rank()}", flat(model), wire.state_dict()
            for number in range(DRAWS):
                bad = copy.deepcopy(good)
                if number % 2:
                    del bad[key][ENTRY]
                what = damaged(bad[key], random.Random(number)) if dist.get_rank() == 1 else ""
                told = said(partial(wire.load_state_dict, bad))
                same = torch.equal(before, flat(model)) and (
                    number % 16 > 0 or digest(wire.state_dict()) == digest(kept)
                )
                seen.setdefault(name, []).append((what, told, same, not number % 2))
                if not told:  # something plausible in a state without checksums
                    wire.load_state_dict(good)
    return seen


def test_whatever_is_damaged_is_refused_on_every_rank() -> None:
    refused, (first, second) = 0, on_ranks(loads, 2)
    for name in METHODS:
        for (_, told, kept, _), (what, other, also_kept, sealed) in zip(first[name], second[name], strict=True):
            assert bool(told) == bool(other), (name, what, told, other)
            assert told or not sealed, (name, what)
            if told:
                assert told.startswith("ValueError: "), (name, what, told)
                assert other.startswith("ValueError: "), (name, what, other)
                assert "rank 1" in told, (name, what, told)
                assert kept, (name, what)
                assert also_kept, (name, what)
                refused += 1
    assert refused > 150
