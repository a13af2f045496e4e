"""Payloads that are damaged on the way, and payloads that somebody has forged, for every compressor of the battery.

A damaged payload keeps its old checksum: it must raise PayloadError, and nothing may have been added. A forged one
has a checksum that is right, so it may be accepted, but decoding it must neither crash nor hang nor raise anything
else. The processes are the nursery's, so a crash is counted and the rest goes on.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from campaign.nursery import Nursery
from thinwire import Key, Layout, Payload, PayloadError
from thinwire.core.compressor import Compressor, scheme
from thinwire.core.payload import HEADER

Row = dict[str, Any]
LAYOUT = Layout(("conv", "bias", "empty", "fc"), ((8, 3, 3, 3), (8,), (0, 4), (10, 77)))
EACH = 2000  # payloads of one trial
BAD = ("other_error", "crashed")
HUNG = 120.0  # seconds that a trial may take


def compressors() -> list[Compressor]:
    """The configured instances that the tests' battery runs on."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    instances: list[Compressor] = importlib.import_module("battery").INSTANCES
    return instances


def trials(kind: str, count: int, seed: int) -> Iterator[partial[Row]]:
    """Each is `EACH` payloads of one compressor; all compressors in turn."""
    instances = len(compressors())
    for number in range(count):
        yield partial(run, kind=kind, number=number, instance=number % instances, seed=seed)


def run(nursery: Nursery, kind: str, number: int, instance: int, seed: int) -> Row:
    """One trial, as a row."""
    with tempfile.TemporaryDirectory() as folder:
        log, result = Path(folder) / "log", Path(folder) / "result"
        child = nursery.start(
            "payloads.damage", log, result=str(result), kind=kind, instance=instance, seed=f"{seed}/{number}"
        )
        ending = nursery.wait([child], HUNG)[child]
        counts = json.loads(result.read_text()) if result.exists() else {}
        what = "" if counts else f"instance {instance}: " + " ".join(log.read_text(errors="replace").split())[-300:]
    hung, crashed = ending.status is None, bool(ending.status)
    ended = {"hung": int(hung), "crashed": int(crashed and not hung), "what": what}
    return {"trial": number, "fault": kind, **counts, **ended}


def damage(result: str, kind: str, instance: int, seed: str) -> None:
    """The child's part: damage and decode `EACH` payloads, and write down what came of them."""
    draw = random.Random(seed)
    compressor = compressors()[instance]
    generator = torch.Generator().manual_seed(draw.randrange(1 << 31))
    vector = torch.randn(LAYOUT.numel, generator=generator)
    wire = compressor.encode(vector, LAYOUT, Key(seed=1)).data.numpy().tobytes()
    counts = {"payloads": 0, "refused": 0, "accepted": 0, "other_error": 0}
    for _ in range(EACH):
        data = _mutated(wire, draw)
        if data == wire:
            continue
        counts["payloads"] += 1
        payload = _forged(compressor, data) if kind == "forged" else Payload(_bytes(data))
        before = torch.ones(LAYOUT.numel)
        out = before.clone()
        try:
            compressor.decode_add(payload, LAYOUT, out)
            counts["accepted" if kind == "forged" else "other_error"] += 1
        except PayloadError:
            counts["refused" if torch.equal(out, before) or kind == "forged" else "other_error"] += 1
        except Exception:
            counts["other_error"] += 1
    Path(result).write_text(json.dumps(counts))


def _bytes(data: bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _forged(compressor: Compressor, data: bytearray) -> Payload:
    """The damaged body under a header and a checksum that are right for it."""
    body = _bytes(data[HEADER.size :])
    payload = Payload.new(body.numel())
    payload.body.copy_(body)
    return payload.seal(scheme(compressor, LAYOUT), Key())


def _mutated(wire: bytes, draw: random.Random) -> bytearray:
    """Flip bits, cut, extend, overwrite, move or repeat."""
    data = bytearray(wire)
    start = draw.randrange(len(data))
    match draw.randrange(7):
        case 0:
            for _ in range(1 + draw.randrange(4)):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 1:
            del data[start:]
        case 2:
            data += draw.randbytes(1 + draw.randrange(40))
        case 3:
            data[start:] = draw.randbytes(len(data) - start)
        case 4:
            data[draw.randrange(HEADER.size)] = draw.randrange(256)
        case 5:
            size = 1 + draw.randrange(16)
            data[start : start + size] = bytes([draw.choice((0, 255))]) * min(size, len(data) - start)
        case _:
            other = draw.randrange(len(data))
            data[start], data[other] = data[other], data[start]
    return data
